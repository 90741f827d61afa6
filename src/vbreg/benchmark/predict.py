"""The first loop: every method on every pair, into a cache."""

from __future__ import annotations

import multiprocessing
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import torch

from vbreg.backends.devices import choose_device, device_name
from vbreg.benchmark.cache import Table, pack
from vbreg.benchmark.measure import measured
from vbreg.benchmark.problems import (
    Labelled,
    Settings,
    descriptor_identity,
    open_sequence,
    problem_source,
)
from vbreg.errors import VBRegError
from vbreg.methods import METHODS, Method, Problem, available, open_method
from vbreg.metrics import pose_error
from vbreg.progress import progress_bar
from vbreg.types import Registration

PROBLEMS, PREDICTIONS = "problems.jsonl", "predictions"
MATCH_FIELDS = (
    "matches",
    "labels",
)  # of a problem's row; another machine's rounding may change some
Opener = Callable[[torch.device], Method]
Successes = Mapping[str, bool]  # by method


@dataclass(frozen=True)
class Job:
    """What a worker needs to know to solve any pair. It goes to other processes: no open files."""

    settings: Settings
    methods: Mapping[str, Opener]
    output: Path
    root: Path | None
    device: str
    pairs: Sequence[str]  # that are asked for
    timed: bool  # several processes on one machine slow each other down, so their times say nothing


def predict(
    settings: Settings,
    methods: Sequence[str] | Mapping[str, Opener],
    output: Path,
    *,
    root: Path | None = None,
    device: str = "auto",
    limit: int | None = None,
    every: int = 1,
    scenes: Sequence[str] | None = None,
    workers: int = 1,
    quiet: bool = False,
) -> list[str]:
    """Write poses of all methods to `output` where they are missing; return the pairs' names.

    Methods are named as for `open_method`, or given a name and what opens them on a device.
    `limit`, `every` and `scenes` choose among the pairs, and may change from run to run. Several
    `workers` are processes that share the pairs: sooner done, but times are left out.
    """
    if workers < 1:
        raise VBRegError(f"workers {workers}: expected a number of processes, at least 1")
    if not isinstance(methods, Mapping):
        for name in methods:  # an unknown one is told before the pairs are looked for
            available(name.partition(":")[0])
    pairs = open_sequence(settings, root).select(limit=limit, every=every, scenes=scenes)
    if not len(pairs):
        raise VBRegError(f"no pairs of {settings.dataset} are left to run; check --limit, --scenes")
    if not methods:
        raise VBRegError("no methods; name some, say vbreg,sc2pcr (`vbreg methods` lists them)")
    openers = (
        methods
        if isinstance(methods, Mapping)
        else {name: partial(open_method, name) for name in methods}
    )
    names = list(pairs.names)
    job = Job(settings, openers, output, root, device, names, timed=workers == 1)
    good = dict.fromkeys(openers, 0)
    with progress_bar(quiet) as bar:
        task = bar.add_task(settings.dataset, total=len(names), told="")
        for done, found in enumerate(_solved(job, workers), start=1):
            for method, success in found.items():
                good[method] += success
            rates = (f"{m} {100 * count / done:.1f}" for m, count in good.items())
            bar.update(task, advance=1, told="recall " + "  ".join(rates))
    return names


def _solved(job: Job, workers: int) -> Iterator[Successes]:
    """Yield for pair after pair which methods were right, solved by this process or by several."""
    if workers == 1:
        worker = _Worker(job, nullcontext())
        yield from (worker.solve(name) for name in job.pairs)
        return
    spawn = multiprocessing.get_context("spawn")  # a forked process could not use the GPU
    with ProcessPoolExecutor(
        workers, spawn, initializer=_start, initargs=(job, spawn.Lock(), workers)
    ) as pool:
        try:
            yield from pool.map(_solve, job.pairs)
        finally:
            pool.shutdown(cancel_futures=True)


class _Process:
    """What a worker process is started with, and the worker it makes of it for its first pair."""

    job: Job
    lock: AbstractContextManager[Any]
    worker: _Worker | None = None


def _start(job: Job, lock: AbstractContextManager[Any], workers: int) -> None:
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))
    Thread(target=_end_with_parent, daemon=True).start()
    _Process.job, _Process.lock = job, lock


def _end_with_parent() -> None:
    """End this worker when its parent is killed; it would wait for more to do for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _solve(name: str) -> Successes:
    if _Process.worker is None:  # here, and not in `_start`, so that errors reach the caller
        _Process.worker = _Worker(_Process.job, _Process.lock)
    return _Process.worker.solve(name)


def table_path(output: Path, method: str) -> Path:
    """Return the file that holds a method's poses."""
    return output / PREDICTIONS / (re.sub(r"[^\w.-]+", "_", method) + ".jsonl")


def identity(name: str, method: Method, device: torch.device) -> dict[str, Any]:
    """Return what a method's rows must have in common: its weights and the kind of machine."""
    entry = METHODS.get(name.partition(":")[0])
    here = "cpu" if entry is not None and entry.device == "cpu" else device_name(device)
    return {"method": name, "weights": getattr(method, "fingerprint", None), "device": here}


class _Worker:
    """Solves what is missing of a pair. `lock` is held while a file is opened or written."""

    def __init__(self, job: Job, lock: AbstractContextManager[Any]) -> None:
        self.settings, self.timed, self.lock = job.settings, job.timed, lock
        self.device = choose_device(job.device)
        self.pairs = open_sequence(job.settings, job.root)
        self.places = {name: k for k, name in enumerate(self.pairs.names)}
        self.source = problem_source(job.settings, job.root, self.device)
        self.methods = {name: open_(self.device) for name, open_ in job.methods.items()}
        self.warm: set[str] = set()
        header = {"settings": job.settings.to_dict(), **descriptor_identity(job.settings)}
        with lock:
            self.problems = Table(job.output / PROBLEMS, header)
            self.tables = {
                name: Table(
                    table_path(job.output, name),
                    {**header, **identity(name, method, self.device)},
                    whole=job.pairs,
                )
                for name, method in self.methods.items()
            }

    def solve(self, name: str) -> Successes:
        missing = [m for m, table in self.tables.items() if name not in table]
        if missing or name not in self.problems:
            pair = self.pairs[self.places[name]]
            problem = self.source(pair)
            row = _problem_row(Labelled.of(pair, problem))
            if name not in self.problems:
                self._add(self.problems, row)
            known = self.problems[name]
            differs = {k: row[k] for k in MATCH_FIELDS if row[k] != known[k]}
            for method in missing:
                answer = self._answer(method, problem)
                self._add(self.tables[method], {"pair": name, **answer, **differs})
        truth = _pose(self.problems[name]["T_target_source"])
        bounds = self.settings.rotation, self.settings.translation
        return {
            method: bool(pose_error(_pose(t[name]["T_target_source"]), truth).success(*bounds))
            for method, t in self.tables.items()
        }

    def _add(self, table: Table, row: dict[str, Any]) -> None:
        with self.lock:
            table.add(row)

    def _answer(self, name: str, problem: Problem) -> dict[str, Any]:
        """Return the answer's part of a row; a method that gives up has failed, and says why."""
        method = self.methods[name]
        try:
            if name not in self.warm and self.timed:  # the first call compiles and allocates
                method(problem)
                self.warm.add(name)
            result, cost = measured(lambda: method(problem), self.device)
        except VBRegError as error:
            return {"T_target_source": np.eye(4).ravel().tolist(), "error": str(error)}
        times = {"seconds": cost.seconds} if self.timed else {}
        return {**_answer(result), **times, "megabytes": cost.megabytes}


def _answer(result: Registration) -> dict[str, Any]:
    return {
        "T_target_source": result.T_target_source.ravel().tolist(),
        "inliers": pack(result.inliers),
        "determined": result.determined,
        "score": result.score,
        "backend": result.backend,
    }


def _problem_row(labelled: Labelled) -> dict[str, Any]:
    """Return what scoring needs to know of a pair, so that it never reads a cloud."""
    pair = labelled.pair
    information = pair.information
    return {
        "pair": pair.name,
        "scene": pair.scene,
        "overlap": pair.overlap,
        "consecutive": pair.consecutive,
        "T_target_source": pair.T_target_source.ravel().tolist(),
        "information": None if information is None else information.ravel().tolist(),
        "matches": len(labelled.right),
        "labels": pack(labelled.right),
    }


def _pose(values: Sequence[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).reshape(4, 4)
