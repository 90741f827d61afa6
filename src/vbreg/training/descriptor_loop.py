"""The training of a descriptor: places come in, pairs of those at hand are drawn, steps are taken.

New places join while the device works; when there are too many the oldest go. When one joins
depends on the speed of the machine.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vbreg.backends.devices import device_name, lowered_precision
from vbreg.descriptors.learned import load_descriptor, save_descriptor
from vbreg.descriptors.network import DescriptorNetwork
from vbreg.descriptors.prepared import Prepared, pack
from vbreg.errors import VBRegError
from vbreg.geometry import apply
from vbreg.io import atomic_path
from vbreg.training import checkpoint, journal
from vbreg.training.checkpoint import State
from vbreg.training.config import to_dict
from vbreg.training.descriptor_config import DescriptorTrainConfig
from vbreg.training.descriptor_loss import DescriptorLoss, draw, pairs_loss
from vbreg.training.journal import Journal
from vbreg.training.loop import WEIGHTS_FILE, follow_gradient, learning_rate
from vbreg.training.places import HELD_OUT, PlaceMaker
from vbreg.training.ready_places import CloudPair, ReadyPlace, prepared, to_tensors
from vbreg.training.stream import Stream

TERMS = (*DescriptorLoss._fields, "total")
MIN_TEMPERATURE = 0.01
LOW_OVERLAP = 0.3  # half of the pairs of a step lie below, if there are any
SYNCHRONISED = 10  # steps, after which the clock waits for the device


def train_descriptor(
    config: DescriptorTrainConfig,
    output: Path,
    *,
    device: torch.device | str = "cpu",
    minutes: float | None = None,
    until: int | None = None,
    quiet: bool = False,
) -> Path:
    """Train a descriptor, or go on with what lies in `output`; return the path of the weights.

    `minutes` of this call, making the first places included, and `until`, a step, stop it before
    its plan is done.
    """
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise VBRegError("a descriptor is trained by one process: start it without torchrun")
    output.mkdir(parents=True, exist_ok=True)
    run = DescriptorRun(config, torch.device(device))
    if (output / checkpoint.NAME).exists():
        run.state.resume(output, config)
    maker = PlaceMaker(config.places, prepared, config.seed)
    with (
        journal.opened(output, None, quiet=quiet) as notes,
        Stream(maker, config.places.workers, first=run.state.places) as arriving,
    ):
        journal.forget_after(output, run.state.step)
        end = run.clock() + 60 * minutes if minutes is not None else math.inf
        run.until(until, end, arriving, output, notes)
    return output / WEIGHTS_FILE


class Places:
    """Holds the places at hand on the device."""

    def __init__(self, most: int, device: torch.device) -> None:
        self.held: deque[ReadyPlace[Prepared]] = deque(maxlen=most)
        self.device = device

    def add(self, place: ReadyPlace[Prepared]) -> None:
        """Take a place in; one without pairs is of no use."""
        if place.pairs:
            self.held.append(to_tensors(place, self.device))

    def draw(
        self, count: int, generator: np.random.Generator
    ) -> list[tuple[ReadyPlace[Prepared], CloudPair]]:
        """Draw pairs: a place by chance, then a pair of it, every other one of low overlap."""
        drawn = []
        for k in range(count):
            place = self.held[int(generator.integers(len(self.held)))]
            low = [pair for pair in place.pairs if pair.overlap < LOW_OVERLAP]
            among = low if low and k % 2 else place.pairs
            drawn.append((place, among[int(generator.integers(len(among)))]))
        return drawn


class DescriptorRun:
    """A training run of a descriptor."""

    def __init__(
        self,
        config: DescriptorTrainConfig,
        device: torch.device,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config, self.device, self.clock = config, device, clock
        self.state = State.of(_first_network(config), config.optimizer, device)
        self.places = Places(config.places_held, device)
        self.choice = np.random.default_rng(config.seed)
        self.generator = torch.Generator(device).manual_seed(config.seed)
        self.warm = False

    @property
    def progress(self) -> float:
        """The share of the plan that is done."""
        return self.state.step_seconds / (60 * self.config.minutes)

    def until(
        self,
        stop: int | None,
        end: float,
        arriving: Stream[ReadyPlace[Prepared]],
        output: Path,
        notes: Journal,
    ) -> None:
        """Take steps until the plan is done, a step is reached or the clock shows `end`."""
        config, state = self.config, self.state
        held_out = self._held_out(notes)
        while len(self.places.held) < config.places_first and self.clock() < end:
            self.take_in(arriving.take())
        while not self._done(stop) and self.clock() < end:
            if (place := arriving.take_if_ready()) is not None:
                self.take_in(place)
            terms = self._timed_step()
            notes.advance(state.step)
            if state.step % config.log_every == 0:
                values = {name: float(value) for name, value in terms.items()}
                about = {"places": state.places, "minutes": state.step_seconds / 60}
                notes.record("train", state.step, {"pairs": state.pairs, **about, **values})
            if state.step % config.validate_every == 0:
                notes.record("validation", state.step, self.validate(held_out))
                self.save(output)
        notes.record("validation", state.step, self.validate(held_out))
        self.save(output)

    def _done(self, stop: int | None) -> bool:
        return self.progress >= 1.0 or (stop is not None and self.state.step >= stop)

    def take_in(self, place: ReadyPlace[Prepared]) -> None:
        """Count a place, and put it with those at hand."""
        self.state.places += 1
        self.places.add(place)

    def _held_out(self, notes: Journal) -> list[ReadyPlace[Prepared]]:
        """Make the places that are only looked at."""
        places = self.config.look_at or self.config.places
        with Stream(PlaceMaker(places, prepared, HELD_OUT), places.workers) as arriving:
            return [
                to_tensors(arriving.take(), self.device)
                for _ in notes.track(range(places.held_out), "places to look at")
            ]

    def _timed_step(self) -> dict[str, Tensor]:
        """Take a step on the clock of the plan; the first of a process compiles and is off it."""
        began = self.clock()
        terms = self.take_step()
        if self.state.step % SYNCHRONISED == 0:
            float(terms["total"])  # waits for the device, so that the clock tells the truth
        self.state.step_seconds += self.clock() - began if self.warm else 0.0
        self.warm = True
        return terms

    def take_step(self) -> dict[str, Tensor]:
        """Take one step over some pairs -> its terms, means over those that overlap."""
        config, state = self.config, self.state
        drawn = self.places.draw(config.pairs, self.choice)
        for group in state.optimizer.param_groups:
            group["lr"] = learning_rate(state.step, self.progress, config.optimizer)
        state.optimizer.zero_grad(set_to_none=True)
        terms = self.loss(state.network, drawn)
        terms.contrast.backward()
        follow_gradient(state, config.optimizer)
        state.step += 1
        state.pairs += len(drawn)
        return {k: v.detach() for k, v in zip(TERMS, [*terms, terms.contrast], strict=True)}

    def loss(
        self, network: DescriptorNetwork, drawn: Sequence[tuple[ReadyPlace[Prepared], CloudPair]]
    ) -> DescriptorLoss:
        """Return the loss of pairs, all clouds described at once."""
        moves = np.stack([pair.T_target_source for _, pair in drawn])
        T_target_source = torch.from_numpy(moves).to(self.device, torch.float32)
        clouds, points = [], []
        rows: list[Tensor] = []
        for (place, pair), T in zip(drawn, T_target_source, strict=True):
            ends = [place.clouds[end] for end in (pair.source, pair.target)]
            x, y = apply(T, ends[0].points), ends[1].points
            found = draw(x, y, self.generator)
            clouds += ends
            rows += found
            points += [x[found[0]], y[found[1]]]
        descriptors = described_clouds(network, clouds, rows, self.config.precision)
        at = torch.stack(points)
        return pairs_loss(
            (descriptors[::2], descriptors[1::2]),
            (at[::2], at[1::2]),
            network.temperature.exp().clamp_min(MIN_TEMPERATURE),
        )

    def save(self, output: Path) -> None:
        """Write a checkpoint to go on from, and the averaged weights as they are by now."""
        state = self.state
        state.save(output, self.config)
        about = {
            "steps": state.step,
            "pairs": state.pairs,
            "skipped": state.skipped,
            "places": state.places,
            "step_minutes": round(state.step_seconds / 60, 2),
            "device": device_name(self.device),
            "config": to_dict(self.config),
        }
        with atomic_path(output / WEIGHTS_FILE) as path:
            save_descriptor(path, state.averaged, about)

    @torch.no_grad()
    def validate(self, held_out: Sequence[ReadyPlace[Prepared]]) -> dict[str, float]:
        """Return how good the averaged weights are on places that are not trained on."""
        drawn = [(place, pair) for place in held_out for pair in place.pairs[::4]]
        found = [
            self.loss(self.state.averaged, drawn[start : start + self.config.pairs])
            for start in range(0, len(drawn), self.config.pairs)
        ]
        pairs = sum(float(loss.pairs) for loss in found)
        return {
            name: sum(float(getattr(loss, name) * loss.pairs) for loss in found) / max(pairs, 1.0)
            for name in DescriptorLoss._fields[:-1]
        }


def _first_network(config: DescriptorTrainConfig) -> DescriptorNetwork:
    """Return the network before the first step: drawn by the seed, or that of a weights file."""
    if config.start_from is None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            return DescriptorNetwork(config.network)
    network = load_descriptor(config.start_from).network.train()
    if network.config != config.network:
        raise VBRegError(
            f"{config.start_from} holds another network ({network.config}) than the configuration "
            f"asks for ({config.network})"
        )
    return network


def described_clouds(
    network: DescriptorNetwork,
    clouds: Sequence[Prepared],
    rows: Sequence[Tensor],  # as many of each cloud
    precision: str = "fp32",
) -> Tensor:
    """Return descriptors (C, n, d) of some rows of C clouds, at once."""
    packed = pack(clouds)
    sizes = [len(cloud.points) for cloud in clouds]
    chosen = torch.cat([row + sum(sizes[:k]) for k, row in enumerate(rows)])
    with lowered_precision(packed.points.device, enabled=precision == "bf16"):
        found: Tensor = network(packed, chosen)
    return found.unflatten(0, (len(clouds), -1))
