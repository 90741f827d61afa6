"""The training of a descriptor: places come in, pairs of those at hand are drawn, steps are taken.

New places join while the device works; when there are too many the oldest go. The order of places
is the same in every run, but when one joins depends on the speed of the machine.
"""

from __future__ import annotations

import copy
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vbreg.backends.devices import device_name, has_fused_optimizer, lowered_precision
from vbreg.descriptors.learned import save_descriptor
from vbreg.descriptors.network import Described, DescriptorNetwork
from vbreg.descriptors.prepared import Prepared, pack
from vbreg.errors import VBRegError
from vbreg.io import atomic_path
from vbreg.training import journal
from vbreg.training.config import to_dict
from vbreg.training.descriptor_clouds import CloudPair, ReadyPlace, to_tensors
from vbreg.training.descriptor_config import DescriptorTrainConfig
from vbreg.training.descriptor_loss import DescriptorLoss, pair_loss
from vbreg.training.descriptor_places import HELD_OUT, PlaceMaker
from vbreg.training.journal import Journal
from vbreg.training.loop import WEIGHTS_FILE, average_weights, learning_rate
from vbreg.training.stream import Stream

CHECKPOINT = "descriptor_checkpoint.pt"
TERMS = (*DescriptorLoss._fields, "total")
SALIENCY_WEIGHT = 0.2
LOW_OVERLAP = 0.3  # half of the pairs of a step lie below, if there are any


def train_descriptor(
    config: DescriptorTrainConfig,
    output: Path,
    *,
    device: torch.device | str = "cpu",
    minutes: float | None = None,
    quiet: bool = False,
) -> Path:
    """Train a descriptor, or go on with what lies in `output`; return the path of the weights.

    `minutes` of this call, making the first places included, stop it before its plan is done.
    """
    output.mkdir(parents=True, exist_ok=True)
    run = DescriptorRun(config, torch.device(device))
    if (output / CHECKPOINT).exists():
        run.resume(output)
    maker = PlaceMaker(config.places, config.network, config.seed)
    with (
        journal.opened(output, None, quiet=quiet) as notes,
        Stream(maker, config.places.workers, first=run.places.seen) as arriving,
    ):
        journal.forget_after(output, run.step)
        end = run.clock() + 60 * minutes if minutes is not None else math.inf
        run.until(end, arriving, output, notes)
    return output / WEIGHTS_FILE


class Places:
    """Holds the places at hand on the device."""

    def __init__(self, most: int, device: torch.device) -> None:
        self.held: deque[ReadyPlace] = deque(maxlen=most)
        self.device, self.seen = device, 0

    def add(self, place: ReadyPlace | None) -> None:
        """Take a place in; one without pairs is of no use."""
        self.seen += 1
        if place is not None and place.pairs:
            self.held.append(to_tensors(place, self.device))

    def draw(
        self, count: int, generator: np.random.Generator
    ) -> list[tuple[ReadyPlace, CloudPair]]:
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
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            self.network = DescriptorNetwork(config.network).to(device)
        self.averaged = copy.deepcopy(self.network).eval().requires_grad_(False)
        self.optimizer = torch.optim.AdamW(
            self.network.parameters(),
            lr=config.optimizer.learning_rate,
            weight_decay=config.optimizer.weight_decay,
            fused=has_fused_optimizer(device),
        )
        self.places = Places(config.places_held, device)
        self.choice = np.random.default_rng(config.seed)
        self.generator = torch.Generator(device).manual_seed(config.seed)
        self.step, self.pairs, self.seconds, self.warm = 0, 0, 0.0, False

    @property
    def progress(self) -> float:
        """The share of the plan that is done."""
        return self.seconds / (60 * self.config.minutes)

    def until(self, end: float, arriving: Stream[ReadyPlace], output: Path, notes: Journal) -> None:
        """Take steps until the plan is done or the clock shows `end`."""
        config = self.config
        held_out = self._held_out(notes)
        while len(self.places.held) < config.places_first and self.clock() < end:
            self.places.add(arriving.take(wait=True))
        while self.progress < 1.0 and self.clock() < end:
            if (place := arriving.take(wait=False)) is not None:
                self.places.add(place)
            began = self.clock()
            terms = self.take_step()
            if self.step % 10 == 0:
                float(terms["total"])  # waits for the device, so that the clock tells the truth
            self.seconds += self.clock() - began if self.warm else 0.0
            self.warm = True
            notes.advance(self.step)
            if self.step % config.log_every == 0:
                values = {name: float(value) for name, value in terms.items()}
                about = {"places": self.places.seen, "minutes": self.seconds / 60}
                notes.record("train", self.step, {"pairs": self.pairs, **about, **values})
            if self.step % config.validate_every == 0:
                notes.record("validation", self.step, self.validate(held_out))
                self.save(output)
        notes.record("validation", self.step, self.validate(held_out))
        self.save(output)

    def _held_out(self, notes: Journal) -> list[ReadyPlace]:
        """Make the places that are only looked at."""
        places = self.config.places
        made = []
        with Stream(PlaceMaker(places, self.config.network, HELD_OUT), places.workers) as arriving:
            for _ in notes.track(range(places.held_out), "places to look at"):
                place = arriving.take(wait=True)
                assert place is not None
                made.append(to_tensors(place, self.device))
        return made

    def take_step(self) -> dict[str, Tensor]:
        """Take one step over some pairs -> its terms, means over the pairs."""
        config = self.config
        drawn = self.places.draw(config.pairs, self.choice)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.step, self.progress, config.optimizer)
        self.optimizer.zero_grad(set_to_none=True)
        losses = self.losses(self.network, drawn)
        terms = DescriptorLoss(*(torch.stack(parts).mean() for parts in zip(*losses, strict=True)))
        total = terms.contrast + SALIENCY_WEIGHT * terms.saliency
        total.backward()
        norm = torch.nn.utils.clip_grad_norm_(
            self.network.parameters(), config.optimizer.gradient_clip
        )
        if torch.isfinite(norm):
            self.optimizer.step()
            decay = min(config.optimizer.ema, (1 + self.step) / (10 + self.step))
            average_weights(self.averaged, self.network, decay)
        self.step += 1
        self.pairs += len(losses)
        return {k: v.detach() for k, v in zip(TERMS, [*terms, total], strict=True)}

    def losses(
        self, network: DescriptorNetwork, drawn: Sequence[tuple[ReadyPlace, CloudPair]]
    ) -> list[DescriptorLoss]:
        """Return the loss of each pair that overlaps, all clouds described at once."""
        clouds = [place.clouds[end] for place, pair in drawn for end in (pair.source, pair.target)]
        described = described_clouds(network, clouds, self.config.precision)
        found = []
        for k, (place, pair) in enumerate(drawn):
            a, b = described[2 * k], described[2 * k + 1]
            x, y = (place.clouds[end].pyramid.levels[0].points for end in pair[:2])
            R, t = (torch.as_tensor(part, dtype=x.dtype, device=x.device) for part in pair[2:4])
            loss = pair_loss(
                (a.descriptors, b.descriptors),
                (a.saliency, b.saliency),
                (x @ R.T + t, y),
                network.temperature.exp().clamp_min(0.01),
                self.generator,
            )
            if loss is not None:
                found.append(loss)
        return found

    def save(self, output: Path) -> None:
        """Write a checkpoint to go on from, and the averaged weights as they are by now."""
        counts = [self.step, self.pairs, self.seconds, self.places.seen]
        content = {
            "config": to_dict(self.config),
            "network": self.network.state_dict(),
            "averaged": self.averaged.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "counts": counts,
        }
        with atomic_path(output / CHECKPOINT) as path:
            torch.save(content, path)
        about = {
            "steps": self.step,
            "pairs": self.pairs,
            "places": self.places.seen,
            "minutes": round(self.seconds / 60, 2),
            "device": device_name(self.device),
            "config": to_dict(self.config),
        }
        with atomic_path(output / WEIGHTS_FILE) as path:
            save_descriptor(path, self.averaged, about)

    def resume(self, output: Path) -> None:
        """Take over what a run of the same configuration has saved."""
        content: dict[str, Any] = torch.load(
            output / CHECKPOINT, map_location=self.device, weights_only=True
        )
        if content["config"] != to_dict(self.config):
            raise VBRegError(
                f"{output / CHECKPOINT} was made with another configuration: go on with the old "
                "one, or train afresh in another folder"
            )
        self.network.load_state_dict(content["network"])
        self.averaged.load_state_dict(content["averaged"])
        self.optimizer.load_state_dict(content["optimizer"])
        self.step, self.pairs, self.seconds, self.places.seen = content["counts"]

    @torch.no_grad()
    def validate(self, held_out: Sequence[ReadyPlace]) -> dict[str, float]:
        """Return how good the averaged weights are on places that are not trained on."""
        drawn = [(place, pair) for place in held_out for pair in place.pairs[::4]]
        losses = []
        for start in range(0, len(drawn), self.config.pairs):
            losses += self.losses(self.averaged, drawn[start : start + self.config.pairs])
        means = (torch.stack(parts).mean() for parts in zip(*losses, strict=True))
        return {name: float(mean) for name, mean in zip(DescriptorLoss._fields, means, strict=True)}


def described_clouds(
    network: DescriptorNetwork, clouds: Sequence[Prepared], precision: str = "fp32"
) -> list[Described]:
    """Describe several clouds at once."""
    packed = pack(clouds)
    with lowered_precision(packed.pyramid.detail.device, enabled=precision == "bf16"):
        found: Described = network(packed)
    sizes = [len(cloud.pyramid.levels[0].points) for cloud in clouds]
    parts = zip(found.descriptors.split(sizes), found.saliency.split(sizes), strict=True)
    return [Described(d, s) for d, s in parts]
