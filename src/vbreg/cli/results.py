"""This file shows a registration to people, and writes what scripts read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from vbreg.cli.console import print_row
from vbreg.summary import pose_difference, standard_deviation
from vbreg.types import Float64, Registration

DIGITS = (12, 6)  # behind the point, of a rotation and of a translation
DEGREES_OF_FREEDOM = 6
MAX_TIMINGS_WIDTH = 80  # columns, also on a wider terminal: longer lines are hard to follow


def print_result(
    console: Console,
    result: Registration,
    timings: Mapping[str, float],
    roles: tuple[str, str] = ("SOURCE", "TARGET"),
) -> None:
    """Print the pose, the evidence for it and the seconds of each stage.

    `timings` are the result's and what the command did besides, such as reading files. The roles
    are what the command calls source and target.
    """
    T = result.T_target_source
    angle, length = pose_difference(T, np.eye(4))
    console.print(Text("T_target_source", style="bold"), end=" ")
    scaled = "" if result.scale == 1.0 else f", multiplied by {result.scale:.6g},"
    console.print(f"maps {roles[0]} points{scaled} into {roles[1]}'s frame")
    console.print(Text(_matrix(T), style="cyan"), soft_wrap=True)
    if result.success_probability is not None:
        print_row(console, "verdict", result.verdict)
    if result.overlap is not None:
        said = f"{100 * result.overlap:.0f} % of both clouds lies on the other"
        print_row(console, "overlap", said)
    print_row(console, "rotation", f"{angle:.2f} deg")
    print_row(console, "translation", f"{length:.4g}")
    print_row(console, "inliers", _inliers(result))
    if (deviation := standard_deviation(result)) is not None:
        said = f"{deviation[0]:.2g} deg and {deviation[1]:.2g}"
        print_row(console, "uncertainty", f"{said} (one standard deviation, at the inliers)")
    if len(result.free_directions) == DEGREES_OF_FREEDOM:
        print_row(console, "free", "nothing is fixed")
    else:
        for free in result.free_directions:
            print_row(console, "free", str(free))
    print_row(console, "voxel size", _voxel_size(result))
    for role, dropped in zip(("source", "target"), result.points_dropped, strict=True):
        if dropped:
            text = f"{dropped} points of {role}: not finite, far from all others or on no surface"
            print_row(console, "dropped", text)
    print_row(console, "seconds", f"{sum(timings.values()):.2f}")
    _print_timings(console, timings)


def print_start(console: Console, seconds: float) -> None:
    """Print how long the program took before it began to work, which no stage counts."""
    print_row(console, "start", f"{seconds:.2f} seconds more, to load Python and torch")


def write_json(path: str, content: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
    """Write JSON to a file, or to stdout where the path is '-'."""
    text = json.dumps(content, indent=2)
    if path == "-":
        print(text)
        return
    from vbreg.io import atomic_path

    with atomic_path(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def _voxel_size(result: Registration) -> str:
    """Return the voxel size of the pose, and where it comes from."""
    first, estimated = result.first_voxel_size, result.voxel_size_estimated
    if first is None or first == result.voxel_size:
        return f"{result.voxel_size:g}" + (", estimated from the clouds" if estimated else "")
    origin = "estimated" if estimated else "given"
    return f"{result.voxel_size:.3g} (second attempt; the first used the {origin} {first:g})"


def _matrix(T: Float64) -> str:
    """Return the rows of a pose as lines of text whose columns stand below each other.

    The rotation has as many digits as coordinates of 10,000 km need to land within 0.01 mm.
    """
    cells = [[f"{v:.{DIGITS[k == 3]}f}" for k, v in enumerate(row)] for row in T]
    width = [max(len(row[k]) for row in cells) for k in range(4)]
    lines = [[cell.rjust(w) for cell, w in zip(row, width, strict=True)] for row in cells]
    return "\n".join("  " + "  ".join(line) for line in lines)


def _inliers(result: Registration) -> str:
    """Say how many of the correspondences agree with the pose, and how well."""
    inliers, matches = result.inlier_count, len(result.correspondences)
    said = f"{inliers} of {matches} correspondences ({100 * result.fitness:.1f} %)"
    if result.matches_found > matches:
        said += f", thinned from {result.matches_found}"
    return f"{said}; RMSE {result.inlier_rmse:.2g}, score {result.score:.3f}"


def _print_timings(console: Console, timings: Mapping[str, float]) -> None:
    """Print the seconds of each stage in as many columns as the terminal has room for."""
    width = max((len(stage) for stage in timings), default=0)
    cells = [f"{stage:<{width}} {seconds:6.2f}" for stage, seconds in timings.items()]
    columns = max(1, (min(console.width, MAX_TIMINGS_WIDTH) - 2) // (width + 10))
    for start in range(0, len(cells), columns):
        line = "   ".join(cells[start : start + columns])
        console.print(Text(f"  {line}", style="dim"), soft_wrap=True)
