"""The second loop: what the cached poses are worth. Reads no clouds and runs no method."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from vbreg.benchmark.masks import unpack
from vbreg.benchmark.predict import MATCH_FIELDS, PROBLEMS, table_path
from vbreg.errors import VBRegError
from vbreg.io.tables import DEVICE, read_table
from vbreg.methods import METHODS
from vbreg.metrics import classification, pose_error, registration_rmse
from vbreg.types import Bool

MAX_RMSE = 0.2  # metres; Predator's bound
NORMAL_95 = 1.959964  # standard deviations on either side of the mean that hold 95 %
NAN = float("nan")


@dataclass(frozen=True)
class Row:
    """What one method did on one pair."""

    pair: str
    scene: str
    method: str
    success: bool
    rotation_error: float  # degrees
    translation_error: float  # metres
    rmse: float  # metres; nan where the data set has no information matrix
    rmse_counts: bool  # the protocol with information leaves consecutive fragments out
    overlap: float
    matches: int
    inlier_ratio: float  # of the matches
    inlier_precision: float  # of the matches that agree with the method's pose
    inlier_recall: float
    inlier_f1: float
    device: str  # where the method ran; the GPU's name, or "cpu"
    backend: str  # that computed it; "external" for other libraries, empty where it failed
    seconds: float  # nan where several processes shared the machine
    megabytes: float
    error: str = ""


class Interval(NamedTuple):
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Summary:
    """What one method did on many pairs. Errors are means over the successes, as in the papers."""

    method: str
    scene: str  # "all" for the whole
    pairs: int
    recall: Interval  # share of successes, with Wilson's interval
    lead: Interval  # recall minus that of another method on the same pairs
    rotation_error: float
    translation_error: float
    rmse_pairs: int  # that Predator's protocol counts: those of consecutive fragments are left out
    rmse_recall: float  # Predator's protocol, mean over scenes; nan where it cannot be told
    inlier_ratio: float  # of the matches, as the next three a mean over pairs
    inlier_precision: float
    inlier_recall: float
    inlier_f1: float
    device: str
    backend: str  # or several, with commas between
    timed: int  # pairs that one process had the machine for itself on
    seconds_median: float
    seconds_p95: float
    megabytes: float  # the highest peak


def score(output: Path, methods: Sequence[str], pairs: Sequence[str] | None = None) -> list[Row]:
    """Return a row for every method and pair; None takes all pairs that every method has."""
    header, problems = read_table(output / PROBLEMS)
    settings = header["settings"]
    known = {row["pair"]: row for row in problems}
    read = {m: read_table(table_path(output, m)) for m in methods}
    devices = {m: found.get(DEVICE, "") for m, (found, _) in read.items()}
    tables = {m: {row["pair"]: row for row in rows} for m, (_, rows) in read.items()}
    if pairs is None:
        pairs = [name for name in known if all(name in table for table in tables.values())]
    for method, table in tables.items():
        if missing := [name for name in pairs if name not in table]:
            raise VBRegError(f"{method} has no pose for {missing[0]}; run the benchmark again")
    return [
        row
        for method, table in tables.items()
        for row in _rows(
            method,
            # Matches may differ on another machine: a method is judged by those that it had.
            [{**known[name], **_own(table[name])} for name in pairs],
            [table[name] for name in pairs],
            settings,
            devices[method],
        )
    ]


def _own(answer: dict[str, Any]) -> dict[str, Any]:
    """Return what an answer says of the matches of its pair."""
    return {name: answer[name] for name in MATCH_FIELDS if name in answer}


def _rows(
    method: str,
    problems: Sequence[dict[str, Any]],
    answers: Sequence[dict[str, Any]],
    settings: dict[str, Any],
    device: str,
) -> list[Row]:
    """Return the rows of a method; poses are compared all at once."""
    T, truth = (_matrices(rows, "T_target_source", 4) for rows in (answers, problems))
    error = pose_error(T, truth)
    success = error.success(settings["rotation"], settings["translation"])
    rmse = torch.full_like(error.rotation, NAN)
    if informed := [k for k, problem in enumerate(problems) if problem["information"] is not None]:
        information = _matrices([problems[k] for k in informed], "information", 6)
        rmse[informed] = registration_rmse(T[informed], truth[informed], information)
    return [
        _row(
            method,
            problem,
            answer,
            device,
            success=bool(success[k]),
            rotation_error=float(error.rotation[k]),
            translation_error=float(error.translation[k]),
            rmse=float(rmse[k]),
        )
        for k, (problem, answer) in enumerate(zip(problems, answers, strict=True))
    ]


def _row(
    method: str,
    problem: dict[str, Any],
    answer: dict[str, Any],
    device: str,
    *,
    success: bool,
    rotation_error: float,
    translation_error: float,
    rmse: float,
) -> Row:
    right = unpack(problem["labels"], problem["matches"])
    found = unpack(answer["inliers"], problem["matches"]) if "inliers" in answer else ~right & right
    scores = classification(torch.from_numpy(found), torch.from_numpy(right))
    return Row(
        pair=problem["pair"],
        scene=problem["scene"],
        method=method,
        success=success and "error" not in answer,
        rotation_error=rotation_error,
        translation_error=translation_error,
        rmse=rmse,
        rmse_counts=not problem["consecutive"] and problem["information"] is not None,
        overlap=_number(problem["overlap"]),
        matches=problem["matches"],
        inlier_ratio=float(right.mean()),
        inlier_precision=float(scores.precision),
        inlier_recall=float(scores.recall),
        inlier_f1=float(scores.f1),
        device=device,
        backend=answer.get("backend", ""),
        seconds=_number(answer.get("seconds")),
        megabytes=_number(answer.get("megabytes")),
        error=answer.get("error", ""),
    )


def title_of(method: str) -> str:
    """Return how tables call a method, its weights in brackets."""
    name, colon, weights = method.partition(":")
    title = METHODS[name].title if name in METHODS else name
    return f"{title} ({Path(weights).stem})" if colon else title


def summarise(
    rows: Sequence[Row],
    over: Mapping[str, str] | None = None,
    *,
    scenes: bool = True,
) -> list[Summary]:
    """Summarise every method on all pairs, and on each scene where these are asked for.

    `over` names the method to lead over; it is the first where nothing is said.
    """
    names = sorted({row.scene for row in rows})
    groups = [("all", list(rows))]
    if scenes and len(names) > 1:
        groups += [(scene, [row for row in rows if row.scene == scene]) for scene in names]
    return [summary for name, group in groups for summary in _summaries(name, group, over or {})]


def _summaries(scene: str, rows: Sequence[Row], over: Mapping[str, str]) -> list[Summary]:
    methods = list(dict.fromkeys(row.method for row in rows))
    by_method = {m: [row for row in rows if row.method == m] for m in methods}
    hits = {m: np.array([row.success for row in by_method[m]]) for m in methods}
    found = []
    for method in methods:
        other = over.get(method, methods[0])
        lead = Interval(0.0, 0.0, 0.0)  # over itself
        if other != method:
            lead = lead_interval(hits[method], hits[other])
        rows = by_method[method]
        found.append(_summary(method, scene, rows, recall_interval(hits[method]), lead))
    return found


def recall_interval(hits: Bool) -> Interval:
    """Return the share of hits (n,) with Wilson's interval, which is right for shares near 1."""
    from scipy.stats import binomtest

    found = binomtest(int(hits.sum()), len(hits)).proportion_ci(method="wilson")
    return Interval(float(hits.mean()), float(found.low), float(found.high))


def lead_interval(hits: Bool, others: Bool) -> Interval:
    """Return how much larger the share of hits (n,) is than that of others (n,) on the same pairs.

    The interval is that of Agresti and Min (2005): half a pair is added to each of the four
    outcomes, so that two methods that agree on all of few pairs are not said to be equal for sure.
    """
    won, lost = int((hits & ~others).sum()), int((~hits & others).sum())
    return Interval((won - lost) / len(hits), *_lead_ends(won, lost, len(hits)))


def _lead_ends(won: int, lost: int, pairs: int) -> tuple[float, float]:
    b, c, n = won + 0.5, lost + 0.5, pairs + 2
    middle, half = (b - c) / n, NORMAL_95 * math.sqrt(b + c - (b - c) ** 2 / n) / n
    return max(middle - half, -1.0), min(middle + half, 1.0)


def _summary(
    method: str, scene: str, rows: Sequence[Row], recall: Interval, lead: Interval
) -> Summary:
    good = [row for row in rows if row.success]
    seconds = [row.seconds for row in rows if np.isfinite(row.seconds)]
    return Summary(
        method=method,
        scene=scene,
        pairs=len(rows),
        recall=recall,
        lead=lead,
        rotation_error=_mean([row.rotation_error for row in good]),
        translation_error=_mean([row.translation_error for row in good]),
        rmse_pairs=sum(row.rmse_counts for row in rows),
        rmse_recall=_rmse_recall(rows),
        inlier_ratio=_mean([row.inlier_ratio for row in rows]),
        inlier_precision=_mean([row.inlier_precision for row in rows]),
        inlier_recall=_mean([row.inlier_recall for row in rows]),
        inlier_f1=_mean([row.inlier_f1 for row in rows]),
        device=rows[0].device,
        backend=", ".join(sorted({row.backend for row in rows if row.backend})),
        timed=len(seconds),
        seconds_median=float(np.median(seconds)) if seconds else NAN,
        seconds_p95=float(np.percentile(seconds, 95)) if seconds else NAN,
        megabytes=max((r.megabytes for r in rows if np.isfinite(r.megabytes)), default=NAN),
    )


def _rmse_recall(rows: Sequence[Row]) -> float:
    scenes: dict[str, list[bool]] = {}
    for row in rows:
        if row.rmse_counts:
            scenes.setdefault(row.scene, []).append(row.rmse <= MAX_RMSE and not row.error)
    return _mean([float(np.mean(hits)) for hits in scenes.values()])


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else NAN


def _number(value: float | None) -> float:
    return NAN if value is None else float(value)


def _matrices(rows: Sequence[dict[str, Any]], name: str, size: int) -> torch.Tensor:
    """Return a field of the rows as matrices (n, size, size)."""
    values = [row[name] for row in rows]
    return torch.tensor(values, dtype=torch.float64).reshape(-1, size, size)
