"""A training run on places: they come in, pairs of those at hand are drawn, steps are taken.

New places join while the device works; when there are too many the oldest go. When one joins
depends on the speed of the machine.
"""

from __future__ import annotations

import math
import os
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from vbreg.backends.devices import device_name
from vbreg.errors import VBRegError
from vbreg.io import atomic_path
from vbreg.training import checkpoint, journal
from vbreg.training.checkpoint import State
from vbreg.training.config import OptimizerConfig, check_field, to_dict
from vbreg.training.journal import Journal
from vbreg.training.loop import WEIGHTS_FILE, follow_gradient, learning_rate
from vbreg.training.places import HELD_OUT, PlaceMaker, PlacesConfig
from vbreg.training.ready_places import C, CloudPair, MakeReady, ReadyPlace, to_tensors
from vbreg.training.stream import Stream

LOW_OVERLAP = 0.3  # half of the pairs of a step lie below, if there are any
MAX_IN_VAIN = 20  # places in a row without a pair, before the first step
SYNCHRONISED = 10  # steps, after which the clock waits for the device

N = TypeVar("N", bound=nn.Module)


@dataclass(frozen=True)
class PlacesPlan:
    """The plan of a training on places; minutes count the steps alone."""

    minutes: float = 6.0
    pairs: int = 8  # of a step
    seed: int = 0
    places_held: int = 600
    places_first: int = 48  # before the first step
    log_every: int = 50
    validate_every: int = 500
    places: PlacesConfig = field(default_factory=PlacesConfig)
    optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(weight_decay=1e-4, warmup_steps=100)
    )

    def __post_init__(self) -> None:
        for name in ("pairs", "places_held", "places_first", "log_every", "validate_every"):
            check_field(getattr(self, name) >= 1, self, name, "at least 1")
        check_field(self.minutes > 0, self, "minutes", "a positive number")
        check_field(
            self.places_first <= self.places_held, self, "places_first", "at most places_held"
        )


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


class PlacesRun(ABC, Generic[C, N]):
    """A training run of a network on places; what it learns is for a subclass to say."""

    make_ready: MakeReady[C]

    def __init__(
        self, plan: PlacesPlan, make_network: Callable[[], N], device: torch.device
    ) -> None:
        self.plan, self.device = plan, device
        self.look_at = plan.places  # whose places are only looked at, made by another seed
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(plan.seed)
            network = make_network()
        self.state = State.of(network, plan.optimizer, device)
        self.places: Places[C] = Places(plan.places_held, device)
        self.choice = np.random.default_rng(plan.seed)
        self.generator = torch.Generator(device).manual_seed(plan.seed)
        self.warm = False

    @abstractmethod
    def terms(self, network: N) -> tuple[dict[str, Tensor], int]:
        """Return the terms of a step, of which `total` is to fall, and the pairs drawn for it."""

    @abstractmethod
    def validate(self, held_out: list[ReadyPlace[C]]) -> dict[str, float]:
        """Return how good the averaged weights are on places that are not trained on."""

    @abstractmethod
    def write_weights(self, path: Path, about: Mapping[str, Any]) -> object:
        """Write the averaged weights."""

    @property
    def progress(self) -> float:
        """The share of the plan that is done."""
        return self.state.step_seconds / (60 * self.plan.minutes)

    def until(
        self,
        stop: int | None,
        end: float,
        arriving: Stream[ReadyPlace[C]],
        output: Path,
        notes: Journal,
    ) -> None:
        """Take steps until the plan is done, a step is reached or the clock shows `end`."""
        plan, state = self.plan, self.state
        held_out = self._held_out(notes)
        self._take_in_first(arriving, end, notes)
        while not self._done(stop) and time.monotonic() < end:
            if (place := arriving.take_if_ready()) is not None:
                self.take_in(place)
            terms = self._timed_step()
            notes.advance(state.step)
            if state.step % plan.log_every == 0:
                values = {name: float(value) for name, value in terms.items()}
                about = {"places": state.places, "minutes": state.step_seconds / 60}
                notes.record("train", state.step, {**values, "pairs": state.pairs, **about})
            if state.step % plan.validate_every == 0:
                notes.record("validation", state.step, self.validate(held_out))
                self.save(output)
        notes.record("validation", state.step, self.validate(held_out))
        self.save(output)

    def _done(self, stop: int | None) -> bool:
        return self.progress >= 1.0 or (stop is not None and self.state.step >= stop)

    def _take_in_first(self, arriving: Stream[ReadyPlace[C]], end: float, notes: Journal) -> None:
        """Wait for the places that the first step draws from."""
        in_vain = 0
        for k in notes.track(range(self.plan.places_first), "first places"):
            while len(self.places.held) <= k and time.monotonic() < end:
                self.take_in(arriving.take())
                in_vain = 0 if len(self.places.held) > k else in_vain + 1
                if in_vain == MAX_IN_VAIN:
                    raise VBRegError(
                        f"of {in_vain} places in a row none has two scans that overlap: expected "
                        "some that do; add scans, or meshes of furnished rooms"
                    )

    def take_in(self, place: ReadyPlace[C]) -> None:
        """Count a place, and put it with those at hand."""
        self.state.places += 1
        self.places.add(place)

    def _held_out(self, notes: Journal) -> list[ReadyPlace[C]]:
        """Make the places that are only looked at."""
        places = self.look_at
        with Stream(PlaceMaker(places, self.make_ready, HELD_OUT), places.workers) as arriving:
            return [
                to_tensors(arriving.take(), self.device)
                for _ in notes.track(range(places.held_out), "places to look at")
            ]

    def _timed_step(self) -> dict[str, Tensor]:
        """Take a step on the clock of the plan; the first of a process compiles and is off it."""
        began = time.monotonic()
        terms = self.take_step()
        if self.state.step % SYNCHRONISED == 0:
            float(terms["total"])  # waits for the device, so that the clock tells the truth
        self.state.step_seconds += time.monotonic() - began if self.warm else 0.0
        self.warm = True
        return terms

    def take_step(self) -> dict[str, Tensor]:
        """Take one step over some pairs -> its terms."""
        state = self.state
        for group in state.optimizer.param_groups:
            group["lr"] = learning_rate(state.step, self.progress, self.plan.optimizer)
        state.optimizer.zero_grad(set_to_none=True)
        terms, pairs = self.terms(state.network)
        terms["total"].backward()
        follow_gradient(state, self.plan.optimizer)
        state.step += 1
        state.pairs += pairs
        return {name: value.detach() for name, value in terms.items()}

    def save(self, output: Path) -> None:
        """Write a checkpoint to go on from, and the averaged weights as they are by now."""
        state = self.state
        state.save(output, self.plan)
        about = {
            "steps": state.step,
            "pairs": state.pairs,
            "skipped": state.skipped,
            "places": state.places,
            "step_minutes": round(state.step_seconds / 60, 2),
            "device": device_name(self.device),
            "config": to_dict(self.plan),
        }
        with atomic_path(output / WEIGHTS_FILE) as path:
            self.write_weights(path, about)


def train_on_places(
    run: PlacesRun[C, N],
    output: Path,
    *,
    minutes: float | None = None,
    until: int | None = None,
    quiet: bool = False,
) -> Path:
    """Train, or go on with what lies in `output`; return the path of the weights.

    `minutes` of this call, making the first places included, and `until`, a step, stop it before
    its plan is done.
    """
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        raise VBRegError(
            "what learns from places is trained by one process: start it without torchrun"
        )
    output.mkdir(parents=True, exist_ok=True)
    if (output / checkpoint.NAME).exists():
        run.state.resume(output, run.plan)
    maker = PlaceMaker(run.plan.places, run.make_ready, run.plan.seed)
    with (
        journal.opened(output, None, quiet=quiet) as notes,
        Stream(maker, run.plan.places.workers, first=run.state.places) as arriving,
    ):
        journal.forget_after(output, run.state.step)
        end = time.monotonic() + 60 * minutes if minutes is not None else math.inf
        run.until(until, end, arriving, output, notes)
    return output / WEIGHTS_FILE
