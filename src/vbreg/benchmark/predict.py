"""The first loop: every method on every pair, into a cache."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import torch

from vbreg.backends.devices import choose_device, device_name
from vbreg.benchmark.masks import pack
from vbreg.benchmark.measure import measured
from vbreg.benchmark.problems import (
    DescribedClouds,
    Labelled,
    Settings,
    descriptor_identity,
    open_sequence,
    problem_source,
)
from vbreg.datasets import Pair, PairSequence
from vbreg.errors import VBRegError
from vbreg.io.tables import Table
from vbreg.methods import METHODS, Method, Problem, available, open_method
from vbreg.metrics import pose_error
from vbreg.progress import progress
from vbreg.types import Registration

PROBLEMS, PREDICTIONS = "problems.jsonl", "predictions"
MATCH_FIELDS = (
    "matches",
    "labels",
)  # of a problem's row; another machine's rounding may change some
MAX_TOGETHER = 8  # neighbouring pairs that a process gets at a time
Opener = Callable[[torch.device], Method]
Successes = Mapping[str, bool]  # by method


@dataclass(frozen=True)
class Job:
    """The pairs of one benchmark, and the folder for their poses.

    It goes to other processes: no open files.
    """

    settings: Settings
    output: Path
    root: Path | None
    pairs: Sequence[str]  # that are asked for
    methods: Sequence[str]  # by the names of their openers
    strides: Mapping[str, int] = field(default_factory=dict)  # methods that see every n-th alone

    @staticmethod
    def of(
        settings: Settings,
        methods: Sequence[str],
        output: Path,
        *,
        root: Path | None = None,
        limit: int | None = None,
        every: int = 1,
        scenes: Sequence[str] | None = None,
    ) -> Job:
        """Choose the pairs; none, or no methods, is an error."""
        pairs = open_sequence(settings, root).select(limit=limit, every=every, scenes=scenes)
        if not len(pairs):
            raise VBRegError(
                f"no pairs of {settings.dataset} are left to run; check --limit, --scenes"
            )
        if not methods:
            raise VBRegError("no methods; name some, say vbreg,sc2pcr (`vbreg methods` lists them)")
        return Job(settings, output, root, list(pairs.names), list(methods))

    def pairs_of(self, method: str) -> Sequence[str]:
        """Return the pairs that a method sees."""
        return self.pairs[:: self.strides.get(method, 1)]


@dataclass(frozen=True)
class Tools:
    """What all jobs of a run have in common."""

    openers: Mapping[str, Opener]
    device: str
    timed: bool  # several processes on one machine slow each other down, so their times say nothing


def openers_of(methods: Sequence[str] | Mapping[str, Opener]) -> Mapping[str, Opener]:
    """Return what opens each method on a device; an unknown name is an error."""
    if isinstance(methods, Mapping):
        return methods
    for name in methods:
        available(name.partition(":")[0])
    return {name: partial(open_method, name) for name in methods}


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
    openers = openers_of(methods)  # an unknown one is told before the pairs are looked for
    job = Job.of(
        settings, list(openers), output, root=root, limit=limit, every=every, scenes=scenes
    )
    for _ in predict_all([job], openers, device=device, workers=workers, quiet=quiet):
        pass
    return list(job.pairs)


def predict_all(
    jobs: Sequence[Job],
    openers: Mapping[str, Opener],
    *,
    device: str = "auto",
    workers: int = 1,
    quiet: bool = False,
) -> Iterator[Job]:
    """Write the poses of all jobs where they are missing, and yield each job when it is done.

    Processes are started once and open each method once, whatever the number of jobs.
    """
    if workers < 1:
        raise VBRegError(f"workers {workers}: expected a number of processes, at least 1")
    found = _solved(jobs, Tools(openers, device, timed=workers == 1), workers)
    with progress(quiet) as tell:
        for job in jobs:
            seen, right = dict.fromkeys(job.methods, 0), dict.fromkeys(job.methods, 0)
            title, total = job.output.name, len(job.pairs)
            tell(title, 0, total)
            for done, successes in enumerate(itertools.islice(found, total), start=1):
                for method, success in successes.items():
                    seen[method] += 1
                    right[method] += success
                rates = (f"{m} {100 * right[m] / n:.1f}" for m, n in seen.items() if n)
                tell(title, done, total, "recall " + "  ".join(rates))
            yield job


def _solved(jobs: Sequence[Job], tools: Tools, workers: int) -> Iterator[Successes]:
    """Yield for pair after pair which methods were right, solved by this process or by several.

    Processes get a few neighbouring pairs at a time, which have clouds in common.
    """
    tasks = [(k, name) for k, job in enumerate(jobs) for name in job.pairs]
    if workers == 1:
        worker = _Worker(jobs, tools, nullcontext())
        yield from (worker.solve(*task) for task in tasks)
        return
    spawn = multiprocessing.get_context("spawn")  # a forked process could not use the GPU
    with ProcessPoolExecutor(
        workers, spawn, initializer=_start, initargs=(jobs, tools, spawn.Lock(), workers)
    ) as pool:
        together = min(MAX_TOGETHER, max(1, len(tasks) // (4 * workers)))
        try:
            yield from pool.map(_solve, tasks, chunksize=together)
        finally:
            pool.shutdown(cancel_futures=True)


class _Process:
    """What a worker process is started with, and the worker it makes of it for its first pair."""

    jobs: Sequence[Job]
    tools: Tools
    lock: AbstractContextManager[Any]
    worker: _Worker | None = None


def _start(
    jobs: Sequence[Job], tools: Tools, lock: AbstractContextManager[Any], workers: int
) -> None:
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))
    Thread(target=_end_with_parent, daemon=True).start()
    _Process.jobs, _Process.tools, _Process.lock = jobs, tools, lock


def _end_with_parent() -> None:
    """End this worker when its parent is killed; it would wait for more to do for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _solve(task: tuple[int, str]) -> Successes:
    if _Process.worker is None:  # here, and not in `_start`, so that errors reach the caller
        _Process.worker = _Worker(_Process.jobs, _Process.tools, _Process.lock)
    return _Process.worker.solve(*task)


def table_path(output: Path, method: str) -> Path:
    """Return the file that holds a method's poses."""
    return output / PREDICTIONS / (re.sub(r"[^\w.-]+", "_", method) + ".jsonl")


def identity(name: str, method: Method, device: torch.device) -> dict[str, Any]:
    """Return what a method's rows must have in common: its weights and the kind of machine."""
    entry = METHODS.get(name.partition(":")[0])
    here = "cpu" if entry is not None and entry.device == "cpu" else device_name(device)
    return {"method": name, "weights": getattr(method, "fingerprint", None), "device": here}


@dataclass(frozen=True, eq=False)
class _Folder:
    """The open files of a job."""

    settings: Settings
    pairs: PairSequence
    places: Mapping[str, int]  # of the pairs by their names
    source: Callable[[Pair], Problem]
    problems: Table
    tables: Mapping[str, Table]  # by method
    seen: Mapping[str, frozenset[str]]  # pairs by method


class _Worker:
    """Solves what is missing of a pair. `lock` is held while a file is opened or written."""

    def __init__(
        self, jobs: Sequence[Job], tools: Tools, lock: AbstractContextManager[Any]
    ) -> None:
        self.jobs, self.openers, self.timed, self.lock = jobs, tools.openers, tools.timed, lock
        self.device = choose_device(tools.device)
        self.methods: dict[str, Method] = {}
        self.warm: set[str] = set()
        self.clouds: tuple[Path | None, DescribedClouds] | None = None
        self.folder: tuple[int, _Folder] | None = None

    def solve(self, number: int, name: str) -> Successes:
        """Return for the methods that see a pair of a job whether they are right."""
        if self.folder is None or self.folder[0] != number:  # jobs come one after the other
            self.folder = number, self._open(self.jobs[number])
        folder = self.folder[1]
        tables = {m: folder.tables[m] for m, seen in folder.seen.items() if name in seen}
        missing = [m for m, table in tables.items() if name not in table]
        if missing or name not in folder.problems:
            pair = folder.pairs[folder.places[name]]
            problem = folder.source(pair)
            row = _problem_row(Labelled.of(pair, problem))
            if name not in folder.problems:
                self._add(folder.problems, row)
            known = folder.problems[name]
            differs = {k: row[k] for k in MATCH_FIELDS if row[k] != known[k]}
            for method in missing:
                answer = self._answer(method, problem)
                self._add(tables[method], {"pair": name, **answer, **differs})
        truth = _pose(folder.problems[name]["T_target_source"])
        bounds = folder.settings.rotation, folder.settings.translation
        return {
            method: bool(pose_error(_pose(t[name]["T_target_source"]), truth).success(*bounds))
            for method, t in tables.items()
        }

    def _open(self, job: Job) -> _Folder:
        settings = job.settings
        for method in job.methods:
            if method not in self.methods:
                self.methods[method] = self.openers[method](self.device)
        header = {"settings": settings.to_dict(), **descriptor_identity(settings)}
        pairs = open_sequence(settings, job.root)
        with self.lock:
            problems = Table(job.output / PROBLEMS, header)
            tables = {
                name: Table(
                    table_path(job.output, name),
                    {**header, **identity(name, self.methods[name], self.device)},
                    whole=job.pairs_of(name),
                )
                for name in job.methods
            }
        return _Folder(
            settings,
            pairs,
            {name: k for k, name in enumerate(pairs.names)},
            problem_source(settings, job.root, self.device, self._clouds(job)),
            problems,
            tables,
            {method: frozenset(job.pairs_of(method)) for method in job.methods},
        )

    def _clouds(self, job: Job) -> DescribedClouds:
        """Return where described clouds are kept: those of the job before, where they serve."""
        if (
            self.clouds is None
            or self.clouds[0] != job.root
            or not self.clouds[1].serves(job.settings)
        ):
            self.clouds = job.root, DescribedClouds(job.settings, self.device)
        return self.clouds[1]

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
