"""What a row of the input says, and what a row of the output holds."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from numbers import Real
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from vbreg import __version__
from vbreg.batch.cache import file_key
from vbreg.batch.tables import Row
from vbreg.descriptors import MatchingName
from vbreg.errors import VBRegError
from vbreg.inputs import (
    MIN_MATCHES,
    check_choice,
    check_flag,
    check_whole_number,
    positive_number,
)
from vbreg.io import read_pose
from vbreg.matching import MAX_CORRESPONDENCES, Keypoints
from vbreg.model import RefineName, check_verification
from vbreg.scale import VOXEL_SIZES, PresetName
from vbreg.types import SURE, Registration

Status: TypeAlias = Literal["ok", "doubtful", "failed"]

# Columns of the input that change one row; others but source and target are copied to the output.
OPTIONS = (
    "voxel_size",
    "preset",
    "viewpoint",
    "gravity",
    "guess",
    "max_translation",
    "max_rotation",
)
POSE = tuple(f"T{row}{column}" for row in range(4) for column in range(4))
RESULTS: Mapping[str, type] = {
    "status": str,
    "success_probability": float,
    "overlap": float,
    **dict.fromkeys(POSE, float),
    "inliers": int,
    "matches": int,
    "used_voxel_size": float,
    "seconds": float,
    "message": str,
}


@dataclass(frozen=True)
class BatchSettings:
    """What all rows of a run have in common. It goes to other processes."""

    weights: str | None = None
    descriptor: str = "learned"
    keypoints: Keypoints | None = None
    matching: MatchingName | None = None
    max_correspondences: int = MAX_CORRESPONDENCES
    verify: bool = True
    refine: RefineName | None = None
    retry: bool = True
    voxel_size: float | None = None  # of rows that say nothing of it
    preset: PresetName | None = None
    min_probability: float = SURE  # from which on a row is ok
    cache_bytes: int = 2**30  # of clouds that a worker keeps

    def __post_init__(self) -> None:
        for name in ("weights", "descriptor"):
            value = getattr(self, name)
            if not isinstance(value, str) and not (name == "weights" and value is None):
                raise VBRegError(
                    f"{name} {value!r}: expected a name or the path of a file as text, since other "
                    "processes read it"
                )
        if self.keypoints != "all" and self.keypoints is not None:
            try:
                check_whole_number(self.keypoints, "keypoints", MIN_MATCHES)
            except VBRegError as error:
                raise VBRegError(f"{error}, or 'all'") from None
        if self.matching is not None:
            check_choice(self.matching, "matching", get_args(MatchingName))
        check_whole_number(self.max_correspondences, "max_correspondences", MIN_MATCHES)
        check_whole_number(self.cache_bytes, "cache_bytes", 0)
        check_verification(self.verify, self.refine)
        check_flag(self.retry, "retry")
        if self.voxel_size is not None:
            positive_number(self.voxel_size, "voxel_size")
        if self.preset is not None:
            check_choice(self.preset, "preset", tuple(VOXEL_SIZES))
        _check_probability(self.min_probability)

    def identity(self) -> dict[str, Any]:
        """Return what results depend on, as JSON's types."""
        held = {
            name: value.item() if isinstance(value, np.generic) else value
            for name, value in asdict(self).items()
        }
        del held["cache_bytes"]
        return {"version": __version__, **held}


def _check_probability(value: object) -> None:
    """Raise unless the least probability of a row that is ok is a share."""
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or not 0 <= float(value) <= 1:  # type: ignore[arg-type]  # it is a number
        raise VBRegError(f"min_probability {value!r}: expected a number from 0 to 1, say 0.9")


class PairRow(NamedTuple):
    """One row of the input: where its clouds are, and what it says besides."""

    number: int
    source: str
    target: str
    options: Mapping[str, Any]


def pair_rows(table: Sequence[Row], folder: Path) -> list[PairRow]:
    """Return the pairs of a table; relative paths are relative to the folder."""
    if taken := [name for name in RESULTS if any(name in row for row in table)]:
        raise VBRegError(
            f"the table has a column named {' and one named '.join(taken)}, as the results are "
            "called: rename or drop what is named like them"
        )
    rows = []
    for number, row in enumerate(table):
        missing = [name for name in ("source", "target") if not row.get(name)]
        if missing:
            raise VBRegError(
                f"row {number + 1} of the table has no {' and no '.join(missing)}: expected the "
                "columns source and target, with a path in every row"
            )
        options = {name: row[name] for name in OPTIONS if row.get(name) is not None}
        if "guess" in options:
            options["guess"] = str(folder / str(options["guess"]))
        source, target = (str(folder / str(row[name])) for name in ("source", "target"))
        rows.append(PairRow(number, source, target, options))
    return rows


def fingerprint(rows: Sequence[PairRow]) -> str:
    """Return a checksum of all that the rows say, so that another table is told from this one."""
    sha = hashlib.sha256()
    for row in rows:
        sha.update((json.dumps(row[1:], sort_keys=True, default=str) + "\n").encode())
    return sha.hexdigest()


def files_of(row: PairRow) -> str:
    """Return a short checksum of the times and sizes of the files that a row names, as they are."""
    paths = [row.source, row.target, *([row.options["guess"]] if "guess" in row.options else [])]
    return hashlib.sha256(json.dumps(list(map(file_key, paths))).encode()).hexdigest()[:12]


def request_options(row: PairRow, settings: BatchSettings) -> dict[str, Any]:
    """Return the options of a row as `Constraints.of` and `Request.of` take them."""
    given = dict(row.options)
    if "voxel_size" not in given and "preset" not in given:
        given["voxel_size"] = settings.voxel_size
    given.setdefault("preset", settings.preset)  # of a row with a voxel size, it tells the rest
    if "guess" in given:
        given["guess"] = read_pose(given["guess"])
    for name in ("gravity", "viewpoint"):
        if name in given:
            given[name] = _numbers(given[name])
    for name in ("max_translation", "max_rotation", "voxel_size"):
        if isinstance(given.get(name), str):
            given[name] = _number(given[name], name)
    return given


def _number(text: str, name: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise VBRegError(f"{name} {text!r}: expected a number") from None


def _numbers(cell: Any) -> Any:
    """Return numbers with commas or blanks between as such, six as two threes; words stay."""
    if not isinstance(cell, str):
        return cell
    try:
        numbers = tuple(float(word) for word in cell.replace(",", " ").split())
    except ValueError:
        return cell
    return (numbers[:3], numbers[3:]) if len(numbers) == 6 else numbers


def failed(number: int, message: str, seconds: float | None = None) -> Row:
    """Return the result of a row that has no pose."""
    text = " ".join(message.split())
    return {"row": number, "status": "failed", "seconds": seconds, "message": text}


def succeeded(number: int, result: Registration, least: float) -> Row:
    """Return the result of a row that has a pose; one less probable than `least` is doubtful.

    So is one that what the scans share does not fix, one that a limit may hold back, and one that
    nobody judged.
    """
    p = result.success_probability
    sure = p is not None and p >= least and result.settled
    status: Status = "ok" if sure else "doubtful"
    if status == "ok":
        reason = None
    elif p is None:
        reason = "; ".join([result.verdict, *result.reasons])
    elif p < least and result.settled and p >= SURE:  # rounded down, so that it is below
        reason = f"{math.floor(1000 * p) / 10:g} %, below {100 * least:g} %"
    else:
        reason = result.verdict
    pose = map(float, result.T_target_source.ravel())
    return {
        "row": number,
        "status": status,
        "success_probability": p,
        "overlap": result.overlap,
        **dict(zip(POSE, pose, strict=True)),
        "inliers": result.inlier_count,
        "matches": len(result.correspondences),
        "used_voxel_size": result.voxel_size,
        "seconds": sum(result.timings.values()),
        "message": reason,
    }
