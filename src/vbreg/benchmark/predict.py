"""The first loop: every method on every pair, into a cache."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from vbreg.benchmark.cache import Table, pack
from vbreg.benchmark.measure import measured
from vbreg.benchmark.problems import Labelled, Settings, open_sequence, problem_source
from vbreg.datasets import Pair, PairSequence
from vbreg.errors import VBRegError
from vbreg.methods import Method, Problem, open_method
from vbreg.metrics import pose_error
from vbreg.registration import choose_device
from vbreg.types import Registration

PROBLEMS, PREDICTIONS = "problems.jsonl", "predictions"


def predict(
    settings: Settings,
    methods: Sequence[str] | Mapping[str, Method],
    output: Path,
    *,
    root: Path | None = None,
    device: str = "auto",
    limit: int | None = None,
    every: int = 1,
    scenes: Sequence[str] | None = None,
    quiet: bool = False,
) -> list[str]:
    """Poses of all methods into `output`, but for those already there; the names of the pairs.

    Methods are named as for `open_method`, or given with a name of their own.
    `limit`, `every` and `scenes` choose among the pairs, and may change from run to run.
    """
    chosen = choose_device(device)
    pairs = open_sequence(settings, root).select(limit=limit, every=every, scenes=scenes)
    if not len(pairs):
        raise VBRegError(f"no pairs of {settings.dataset} are left to run; check --limit, --scenes")
    if not methods:
        raise VBRegError("no methods; name some, say vbreg,sc2pcr (`vbreg methods` lists them)")
    opened = (
        dict(methods)
        if isinstance(methods, Mapping)
        else {name: open_method(name, chosen) for name in methods}
    )
    header = {"settings": settings.to_dict()}
    problems = Table(output / PROBLEMS, header)
    tables = {name: Table(table_path(output, name), {**header, **identity(name, m, chosen)})
              for name, m in opened.items()}  # fmt: skip
    source = problem_source(settings, root, chosen)
    runner = _Runner(settings, source, problems, tables, opened, chosen)
    with _bar(quiet) as bar:
        task = bar.add_task(settings.dataset, total=len(pairs), recall="")
        for name, pair in _lazily(pairs):
            runner.run(name, pair)
            bar.update(task, advance=1, recall=runner.recall())
    return list(pairs.names)


def table_path(output: Path, method: str) -> Path:
    return output / PREDICTIONS / (re.sub(r"[^\w.-]+", "_", method) + ".jsonl")


def identity(name: str, method: Method, device: torch.device) -> dict[str, Any]:
    """What a method's rows must not be mixed over: its weights and the kind of machine."""
    return {
        "method": name,
        "weights": getattr(method, "fingerprint", None),
        "device": device_name(device),
    }


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


class _Runner:
    """Solves what is missing of a pair, and counts successes."""

    def __init__(
        self,
        settings: Settings,
        source: Callable[[Pair], Problem],
        problems: Table,
        tables: Mapping[str, Table],
        methods: Mapping[str, Method],
        device: torch.device,
    ) -> None:
        self.settings, self.source, self.problems = settings, source, problems
        self.tables, self.methods, self.device = tables, methods, device
        self.warm: set[str] = set()
        self.good = dict.fromkeys(methods, 0)
        self.done = 0

    def run(self, name: str, load: Callable[[], Pair]) -> None:
        missing = [m for m, table in self.tables.items() if name not in table]
        if missing or name not in self.problems:
            pair = load()
            problem = self.source(pair)
            if name not in self.problems:
                self.problems.add(_problem_row(Labelled.of(pair, problem)))
            for method in missing:
                self.tables[method].add({"pair": name, **self._solve(method, problem)})
        self.done += 1
        truth = _pose(self.problems[name]["T_target_source"])
        for method, table in self.tables.items():
            error = pose_error(_pose(table[name]["T_target_source"]), truth)
            bounds = self.settings.rotation, self.settings.translation
            self.good[method] += bool(error.success(*bounds))

    def _solve(self, name: str, problem: Problem) -> dict[str, Any]:
        """One row. A method that gives up on a problem has failed on it, and the reason is kept."""
        method = self.methods[name]
        try:
            if name not in self.warm:  # the first call of a process compiles and allocates
                method(problem)
                self.warm.add(name)
            result, cost = measured(lambda: method(problem), self.device)
        except VBRegError as error:
            return {"T_target_source": np.eye(4).ravel().tolist(), "error": str(error)}
        return {**_answer(result), "seconds": cost.seconds, "megabytes": cost.megabytes}

    def recall(self) -> str:
        rates = (f"{m} {100 * good / self.done:.1f}" for m, good in self.good.items())
        return "  ".join(rates)


def _answer(result: Registration) -> dict[str, Any]:
    return {
        "T_target_source": result.T_target_source.ravel().tolist(),
        "inliers": pack(result.inliers),
        "determined": bool(result.determined),
        "score": float(result.score),
    }


def _problem_row(labelled: Labelled) -> dict[str, Any]:
    """What scoring needs to know of a pair, so that it never reads a cloud."""
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


def _lazily(pairs: PairSequence) -> Iterator[tuple[str, Callable[[], Pair]]]:
    return ((name, partial(pairs.__getitem__, k)) for k, name in enumerate(pairs.names))


def _bar(quiet: bool) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("recall {task.fields[recall]}"),
        console=Console(stderr=True),
        disable=quiet,
    )
