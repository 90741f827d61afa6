"""Training on places: they come in, pairs of those at hand are drawn, steps are taken.

New places join while the device works; when there are too many the oldest go. When one joins
depends on the speed of the machine. What is trained is a `Task`.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol

import numpy as np
import torch
from torch import Tensor

from vbreg.backends.devices import device_name
from vbreg.errors import VBRegError
from vbreg.io import atomic_path
from vbreg.training import checkpoint, journal
from vbreg.training.checkpoint import N, State
from vbreg.training.config import to_dict
from vbreg.training.journal import Journal
from vbreg.training.loop import WEIGHTS_FILE, follow_gradient, learning_rate
from vbreg.training.places import HELD_OUT, PlaceMaker
from vbreg.training.places_config import PlacesTrainConfig
from vbreg.training.ready_places import C, CloudPair, MakeReady, ReadyPlace, to_tensors
from vbreg.training.stream import Stream

LOW_OVERLAP = 0.3  # half of the pairs of a step lie below, if there are any
SYNCHRONISED = 10  # steps, after which the clock waits for the device


class Task(Protocol[N, C]):
    """What is trained: a network, what it sees of a cloud, and its loss."""

    @property
    def config(self) -> PlacesTrainConfig:
        """The plan."""

    @property
    def make_ready(self) -> MakeReady[C]:
        """What worker processes do with a cloud: a function that another process can import."""

    def new_network(self) -> N:
        """Return the network before its first step."""

    def loss(
        self,
        network: N,
        drawn: Sequence[tuple[ReadyPlace[C], CloudPair]],
        generator: torch.Generator,
    ) -> dict[str, Tensor]:
        """Return the terms of pairs; `total` is what is made small, `pairs` how many count."""

    def save(self, path: Path, network: N, about: dict[str, Any]) -> None:
        """Write the weights."""


def train_on_places(
    task: Task[N, C],
    output: Path,
    *,
    device: torch.device | str = "cpu",
    minutes: float | None = None,
    until: int | None = None,
    quiet: bool = False,
) -> Path:
    """Train, or go on with what lies in `output`; return the path of the weights.

    `minutes` of this call, making the first places included, and `until`, a step, stop it before
    its plan is done.
    """
    config = task.config
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise VBRegError("training on places is done by one process: start it without torchrun")
    output.mkdir(parents=True, exist_ok=True)
    run = PlacesRun(task, torch.device(device))
    if (output / checkpoint.NAME).exists():
        run.state.resume(output, config)
    maker = PlaceMaker(config.places, task.make_ready, config.seed)
    with (
        journal.opened(output, None, quiet=quiet) as notes,
        Stream(maker, config.places.workers, first=run.state.places) as arriving,
    ):
        journal.forget_after(output, run.state.step)
        end = run.clock() + 60 * minutes if minutes is not None else math.inf
        run.until(until, end, arriving, output, notes)
    return output / WEIGHTS_FILE


class Places(Generic[C]):
    """Holds the places at hand on the device."""

    def __init__(self, most: int, device: torch.device) -> None:
        self.held: deque[ReadyPlace[C]] = deque(maxlen=most)
        self.device = device

    def add(self, place: ReadyPlace[C]) -> None:
        """Take a place in; one without pairs is of no use."""
        if place.pairs:
            self.held.append(to_tensors(place, self.device))

    def draw(
        self, count: int, generator: np.random.Generator
    ) -> list[tuple[ReadyPlace[C], CloudPair]]:
        """Draw pairs: a place by chance, then a pair of it, every other one of low overlap."""
        drawn = []
        for k in range(count):
            place = self.held[int(generator.integers(len(self.held)))]
            low = [pair for pair in place.pairs if pair.overlap < LOW_OVERLAP]
            among = low if low and k % 2 else place.pairs
            drawn.append((place, among[int(generator.integers(len(among)))]))
        return drawn


class PlacesRun(Generic[N, C]):
    """A training run on places."""

    def __init__(
        self,
        task: Task[N, C],
        device: torch.device,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.task, self.config, self.device, self.clock = task, task.config, device, clock
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.config.seed)
            network = task.new_network()
        self.state = State.of(network, self.config.optimizer, device)
        self.places = Places[C](self.config.places_held, device)
        self.choice = np.random.default_rng(self.config.seed)
        self.generator = torch.Generator(device).manual_seed(self.config.seed)
        self.warm = False

    @property
    def progress(self) -> float:
        """The share of the plan that is done."""
        return self.state.step_seconds / (60 * self.config.minutes)

    def until(
        self,
        stop: int | None,
        end: float,
        arriving: Stream[ReadyPlace[C]],
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

    def take_in(self, place: ReadyPlace[C]) -> None:
        """Count a place, and put it with those at hand."""
        self.state.places += 1
        self.places.add(place)

    def _held_out(self, notes: Journal) -> list[ReadyPlace[C]]:
        """Make the places that are only looked at."""
        places = self.config.places
        with Stream(PlaceMaker(places, self.task.make_ready, HELD_OUT), places.workers) as arriving:
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
        """Take one step over some pairs; return its terms."""
        config, state = self.config, self.state
        drawn = self.places.draw(config.pairs, self.choice)
        for group in state.optimizer.param_groups:
            group["lr"] = learning_rate(state.step, self.progress, config.optimizer)
        state.optimizer.zero_grad(set_to_none=True)
        terms = self.task.loss(state.network, drawn, self.generator)
        terms["total"].backward()
        follow_gradient(state, config.optimizer)
        state.step += 1
        state.pairs += len(drawn)
        return {name: value.detach() for name, value in terms.items()}

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
            self.task.save(path, state.averaged, about)

    @torch.no_grad()
    def validate(self, held_out: Sequence[ReadyPlace[C]]) -> dict[str, float]:
        """Return how good the averaged weights are on places that are not trained on."""
        drawn = [(place, pair) for place in held_out for pair in place.pairs[::4]]
        generator = torch.Generator(self.device).manual_seed(0)
        found = [
            self.task.loss(self.state.averaged, drawn[start : start + self.config.pairs], generator)
            for start in range(0, len(drawn), self.config.pairs)
        ]
        pairs = sum(float(terms["pairs"]) for terms in found)
        return {
            name: sum(float(terms[name] * terms["pairs"]) for terms in found) / max(pairs, 1.0)
            for name in (found[0] if found else {})
            if name != "pairs"
        }
