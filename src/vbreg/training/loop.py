"""The loop: draw matches, two passes, one step, now and then a look at how good it has become."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Generic, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vbreg.backends.devices import can_record, device_name
from vbreg.datasets.matches import MatchSet
from vbreg.errors import VBRegError
from vbreg.io import atomic_path
from vbreg.network import VariationalNonLocalNetwork
from vbreg.pretrained import read_header, save_network
from vbreg.training import checkpoint, journal
from vbreg.training.batches import Batch, MatchSampler, Sampler, read_folder
from vbreg.training.checkpoint import N, State
from vbreg.training.compiled import RecordedPasses
from vbreg.training.config import DataConfig, MatchesPlan, OptimizerConfig, TrainConfig, to_dict
from vbreg.training.descriptors import CloudDescriptors, clouds_of
from vbreg.training.journal import Journal
from vbreg.training.passes import TERMS, TwoPasses
from vbreg.training.streamed_matches import open_streamed_matches
from vbreg.training.validation import Validation, validate
from vbreg.training.workers import Workers, joined

WEIGHTS_FILE = "weights.safetensors"


def train(
    config: TrainConfig,
    output: Path,
    *,
    device: torch.device | str = "cpu",
    minutes: float | None = None,
    until: int | None = None,
    quiet: bool = False,
) -> Path:
    """Train, or go on with what lies in `output`, until the plan is done or the minutes over.

    `minutes` and `until`, a step, stop it before; the learning rate keeps to the whole plan.
    Leaves averaged weights, a checkpoint and a log in `output`; returns the path of the weights.
    Under `torchrun` every process calls this, and the first one writes.
    """
    return train_on_matches(
        config,
        partial(NetworkRun, config),
        output,
        device,
        minutes=minutes,
        until=until,
        quiet=quiet,
    )


def train_on_matches(
    config: MatchesPlan,
    open_run: Callable[[Workers, Sampler, list[MatchSet]], MatchesRun[Any]],
    output: Path,
    device: torch.device | str,
    *,
    minutes: float | None = None,
    until: int | None = None,
    quiet: bool = False,
) -> Path:
    """Train by a plan, or go on, as `train` says; `open_run` says what is trained."""
    sets = Shards.of(config.data)
    output.mkdir(parents=True, exist_ok=True)
    steps = config.steps if config.minutes is None else None
    with (
        ExitStack() as stack,
        joined(device) as workers,
        journal.opened(output, steps, quiet=quiet, writes=workers.is_first) as notes,
    ):
        run = open_run(workers, *open_data(config, sets, workers, notes, stack))
        if (output / checkpoint.NAME).exists():
            run.state.resume(output, config)
            notes.say(f"going on from step {run.state.step}")
        if workers.is_first:
            journal.forget_after(output, run.state.step)
        run.until(until, minutes, output, notes)
    return output / WEIGHTS_FILE


class Shards(NamedTuple):
    """Match sets that lie in folders, none where places are made instead."""

    sets: list[list[MatchSet]]
    held_out: list[MatchSet]

    @staticmethod
    def of(data: DataConfig) -> Shards:
        """Read the folders of a configuration."""
        sets = [read_folder(folder, data.matched_by) for folder in data.shards]
        held_out = read_folder(data.validation, data.matched_by) if data.validation else []
        return Shards(sets, held_out)


def open_data(
    config: MatchesPlan, shards: Shards, workers: Workers, notes: Journal, stack: ExitStack
) -> tuple[Sampler, list[MatchSet]]:
    """Return what draws batches, and the match sets that are only looked at."""
    data, device = config.data, workers.device
    if data.places is not None:
        if workers.count > 1:
            raise VBRegError("training on places is done by one process: start it without torchrun")
        return open_streamed_matches(data, device, config.seed, stack)
    described = None
    if isinstance(config, TrainConfig) and config.network.input == "feat":
        clouds = clouds_of(chain(*shards.sets, shards.held_out))
        described = CloudDescriptors(notes.track(clouds, "FPFH of clouds"), device)
    return MatchSampler(shards.sets, data, device, described), shards.held_out


class MatchesRun(ABC, Generic[N]):
    """One worker's part of a training run on matches; what it learns is for a subclass to say."""

    terms: tuple[str, ...]  # names of what `accumulate` returns

    def __init__(
        self,
        config: MatchesPlan,
        state: State[N],
        workers: Workers,
        sampler: Sampler,
        held_out: Sequence[MatchSet] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if config.micro_batches % workers.count:
            raise VBRegError(
                f"micro_batches = {config.micro_batches} for {workers.count} workers: expected a "
                "multiple, so that each has as many"
            )
        self.config, self.workers, self.sampler, self.held_out = config, workers, sampler, held_out
        self.state = state
        self.generator = torch.Generator(workers.device)
        self.clock, self.warm = clock, False

    @abstractmethod
    def accumulate(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Take in a micro-batch's share of the gradient -> its terms."""

    @abstractmethod
    def validate(self) -> Validation:
        """Return how good the averaged weights are on match sets that are not trained on."""

    @abstractmethod
    def write_weights(self, path: Path, about: Mapping[str, Any]) -> object:
        """Write the averaged weights."""

    @property
    def progress(self) -> float:
        """The share of the plan that is done, from 0 to 1."""
        if self.config.minutes is None:
            return self.state.step / self.config.steps
        return self.state.step_seconds / (60 * self.config.minutes)

    def until(self, stop: int | None, minutes: float | None, output: Path, notes: Journal) -> None:
        """Take steps until the plan is done, a step is reached or the minutes are over."""
        state, config = self.state, self.config
        began, pairs, earlier = self.clock(), state.pairs, state.seconds
        end = began + 60 * minutes if minutes is not None else math.inf
        while not self._done(stop) and not self.workers.any(self.clock() > end):
            self.sampler.renew()
            terms = self._timed_step()
            state.seconds = earlier + self.clock() - began
            notes.advance(state.step)
            if not self.workers.is_first:
                continue
            if state.step % config.log_every == 0:
                speed = (state.pairs - pairs) / (self.clock() - began)
                notes.record("train", state.step, self._describe(terms, speed))
            if self.held_out and (state.step % config.validate_every == 0 or self._done(stop)):
                found = self.validate()
                notes.record("validation", state.step, {"pairs": state.pairs, **found._asdict()})
            if state.step % config.checkpoint_every == 0:
                self.save(output)
        if self.workers.is_first:
            self.save(output)

    def _done(self, stop: int | None) -> bool:
        return self.progress >= 1.0 or (stop is not None and self.state.step >= stop)

    def _timed_step(self) -> dict[str, Tensor]:
        """Take a step on the clock of the plan; the first of a process compiles and is off it."""
        began = self.clock()
        terms = self.step()
        seconds = self.clock() - began if self.warm else 0.0
        if self.config.minutes is not None:
            seconds = self.workers.of_first(seconds)
        self.state.step_seconds += seconds
        self.warm = True
        return terms

    def step(self) -> dict[str, Tensor]:
        """Take one step over all its micro-batches -> its loss terms, as means over them."""
        state, config = self.state, self.config
        for group in state.optimizer.param_groups:
            group["lr"] = learning_rate(state.step, self.progress, config.optimizer)
        state.optimizer.zero_grad(set_to_none=False)
        terms = torch.zeros(len(self.terms), device=self.workers.device)
        pairs = 0
        for index in range(config.micro_batches):
            N = self.sampler.size_of(_seed(config.seed, state.step, index))
            pairs += config.data.correspondences // N
            if index in self.workers.share(config.micro_batches):
                self.generator.manual_seed(_seed(config.seed, state.step, index))
                batch = self.sampler.draw(N, self.generator)
                terms += self.accumulate(batch, self.generator) / config.micro_batches
        self.workers.add_up(terms)
        self.workers.add_up_gradients(state.network)
        follow_gradient(state, config.optimizer)
        state.step += 1
        state.pairs += pairs
        return dict(zip(self.terms, terms.unbind(), strict=True))

    def save(self, output: Path) -> None:
        """Write a checkpoint to go on from and the weights as they are by now."""
        state = self.state
        state.save(output, self.config)
        about = {
            "steps": state.step,
            "pairs": state.pairs,
            "skipped": state.skipped,
            "minutes": round(state.seconds / 60, 2),
            "step_minutes": round(state.step_seconds / 60, 2),
            "match_sets": len(self.sampler),
            "device": device_name(self.workers.device),
            "workers": self.workers.count,
            "config": to_dict(self.config),
        }
        if self.config.start_from:
            about["start"] = read_header(self.config.start_from).get("about", {})
        with atomic_path(output / WEIGHTS_FILE) as path:
            self.write_weights(path, about)

    def _describe(self, terms: dict[str, Tensor], pairs_per_second: float) -> dict[str, float]:
        state = self.state
        return {
            "pairs": state.pairs,
            "minutes": state.seconds / 60,
            "skipped": state.skipped,
            "learning_rate": state.optimizer.param_groups[0]["lr"],
            "pairs_per_second": pairs_per_second,
            **{name: float(value) for name, value in terms.items()},
        }


class NetworkRun(MatchesRun[VariationalNonLocalNetwork]):
    """A run of the network that tells right matches from wrong: two passes over each batch."""

    terms = TERMS

    def __init__(
        self,
        config: TrainConfig,
        workers: Workers,
        sampler: Sampler,
        held_out: Sequence[MatchSet] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        state = State.start(config, workers.device)
        super().__init__(config, state, workers, sampler, held_out, clock)
        passes = TwoPasses(config, state.network)
        fast = config.compile and can_record(workers.device)
        self.passes = RecordedPasses(passes, state.network) if fast else passes
        self.voting = config.voting

    def accumulate(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Take in a micro-batch's share of the gradient -> its terms."""
        return self.passes(batch, generator)

    def validate(self) -> Validation:
        """Return how good the averaged weights are on match sets that are not trained on."""
        return validate(self.state.averaged, self.held_out, self.sampler.descriptors, self.voting)

    def write_weights(self, path: Path, about: Mapping[str, Any]) -> object:
        """Write the averaged weights, and the search that goes with them."""
        return save_network(path, self.state.averaged, about, self.voting)


def follow_gradient(state: State[Any], config: OptimizerConfig) -> None:
    """Take the step, unless the gradient is not finite; then it is skipped and counted."""
    norm = torch.nn.utils.clip_grad_norm_(state.network.parameters(), config.gradient_clip)
    if torch.isfinite(norm):
        state.optimizer.step()
        decay = min(config.ema, (1 + state.step) / (10 + state.step))
        average_weights(state.averaged, state.network, decay)
    else:
        state.skipped += 1


@torch.no_grad()
def average_weights(averaged: torch.nn.Module, current: torch.nn.Module, decay: float) -> None:
    """Move averaged weights, and what norms have seen, towards the current ones by 1 - decay."""
    torch._foreach_lerp_(_averaged(averaged), _averaged(current), 1.0 - decay)


def _averaged(network: torch.nn.Module) -> list[Tensor]:
    """List the weights of a network, and the means and variances of its batch norms."""
    found: list[Tensor] = list(network.parameters())
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm1d):
            found += [t for t in (module.running_mean, module.running_var) if t is not None]
    return found


def learning_rate(step: int, progress: float, config: OptimizerConfig) -> float:
    """Return the learning rate: a linear warm-up, then down to `final` along the curve chosen."""
    warm = min(1.0, (step + 1) / max(1, config.warmup_steps))
    progress = min(1.0, progress)
    curves: dict[str, Callable[[], float]] = {
        "cosine": lambda: (
            config.final + (1 - config.final) * 0.5 * (1 + math.cos(math.pi * progress))
        ),
        "exponential": lambda: config.final**progress,
    }
    return config.learning_rate * warm * curves[config.decay]()


def _seed(run: int, step: int, micro_batch: int) -> int:
    """Return a seed of its own for every micro-batch of every step."""
    return int(np.random.SeedSequence([run, step, micro_batch]).generate_state(1, np.uint64)[0])
