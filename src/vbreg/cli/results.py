"""This file shows a registration: as text to people, as JSON to scripts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from vbreg import __version__
from vbreg.cli.console import print_row
from vbreg.types import Float64, Registration

DIGITS = (12, 6)  # behind the point, of a rotation and of a translation
MAX_TIMINGS_WIDTH = 80  # columns, also on a wider terminal: longer lines are hard to follow


def print_result(console: Console, result: Registration, timings: Mapping[str, float]) -> None:
    """Print the pose, the evidence for it and the seconds of each stage.

    `timings` are the result's and what the command did besides, such as reading files.
    """
    T = result.T_target_source
    angle, length = pose_difference(T, np.eye(4))
    origin = ", estimated from the clouds" if result.voxel_size_estimated else ""
    console.print(Text("T_target_source", style="bold"), end=" ")
    console.print("maps SOURCE points into TARGET's frame")
    console.print(Text(_matrix(T), style="cyan"), soft_wrap=True)
    if result.success_probability is not None:
        print_row(console, "verdict", result.verdict)
    print_row(console, "rotation", f"{angle:.2f} deg")
    print_row(console, "translation", f"{length:.4g}")
    print_row(console, "inliers", _inliers(result))
    print_row(console, "score", f"{result.score:.3f}")
    if result.covariance is not None and result.inlier_count:
        print_row(console, "uncertainty", _standard_deviation(result, result.covariance))
    for free in result.free_directions:
        print_row(console, "free", str(free))
    print_row(console, "voxel size", f"{result.voxel_size:g}{origin}")
    for role, dropped in zip(("source", "target"), result.points_dropped, strict=True):
        if dropped:
            text = f"{dropped} points of {role}, not finite or far from all others"
            print_row(console, "dropped", text)
    print_row(console, "seconds", f"{sum(timings.values()):.2f}")
    _print_timings(console, timings)


def as_json(
    result: Registration,
    timings: Mapping[str, float],
    source: Path,
    target: Path,
    warnings: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the pose, the evidence for it and the seconds of each stage in JSON's types."""
    T = result.T_target_source
    return {
        "version": __version__,
        "source": str(source),
        "target": str(target),
        "T_target_source": T.tolist(),
        "success_probability": result.success_probability,
        "mirrored_probability": result.mirrored_probability,
        "verdict": result.verdict,
        "reasons": list(result.reasons),
        "overlap": result.overlap,
        "alternatives": [
            {"T_target_source": a.T_target_source.tolist(), "probability": a.probability}
            for a in result.alternatives
        ],
        "rotation_deg": pose_difference(T, np.eye(4))[0],
        "translation": T[:3, 3].tolist(),
        "inlier_count": result.inlier_count,
        "correspondences": len(result.correspondences),
        "matches_found": result.matches_found,
        "memory_limited": result.memory_limited,
        "fitness": result.fitness,
        "inlier_rmse": result.inlier_rmse,
        "score": result.score,
        "determined": result.determined,
        "free_directions": [str(free) for free in result.free_directions],
        "covariance": None if result.covariance is None else result.covariance.tolist(),
        "voxel_size": result.voxel_size,
        "voxel_size_estimated": result.voxel_size_estimated,
        "inlier_threshold": result.inlier_threshold,
        "points_read": result.points_read,
        "points_dropped": result.points_dropped,
        "backend": result.backend,
        "timings": dict(timings),
        "warnings": list(warnings),
    }


def write_json(path: str, content: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
    """Write JSON to a file, or to stdout where the path is '-'."""
    text = json.dumps(content, indent=2)
    if path == "-":
        print(text)
        return
    from vbreg.io import atomic_path

    with atomic_path(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def pose_difference(T_estimate: Float64, T_truth: Float64) -> tuple[float, float]:
    """Return how far a pose is from another: in degrees, and in the unit of their translations."""
    import torch

    from vbreg import metrics

    error = metrics.pose_error(torch.from_numpy(T_estimate), torch.from_numpy(T_truth))
    return float(error.rotation), float(error.translation)


def _matrix(T: Float64) -> str:
    """Return the rows of a pose as lines of text whose columns stand below each other.

    The rotation has as many digits as coordinates of 10,000 km need to land within 0.01 mm.
    """
    cells = [[f"{v:.{DIGITS[k == 3]}f}" for k, v in enumerate(row)] for row in T]
    width = [max(len(row[k]) for row in cells) for k in range(4)]
    lines = [[cell.rjust(w) for cell, w in zip(row, width, strict=True)] for row in cells]
    return "\n".join("  " + "  ".join(line) for line in lines)


def _inliers(result: Registration) -> str:
    """Say how many of the correspondences agree with the pose."""
    inliers, matches = result.inlier_count, len(result.correspondences)
    said = f"{inliers} of {matches} correspondences ({100 * result.fitness:.1f} %)"
    if result.matches_found > matches:
        said += f", thinned from {result.matches_found}"
    return said


def _standard_deviation(result: Registration, covariance: Float64) -> str:
    """Say how far the pose may be off where the matches are that agree with it."""
    from vbreg.uncertainty import moved_to

    middle = result.correspondences.target[result.inliers].mean(0)
    turn, shift = np.split(np.diag(moved_to(covariance, middle)), 2)
    return (
        f"{np.degrees(np.sqrt(turn.sum())):.2g} deg and {np.sqrt(shift.sum()):.2g} "
        "(one standard deviation, at the inliers)"
    )


def _print_timings(console: Console, timings: Mapping[str, float]) -> None:
    """Print the seconds of each stage in as many columns as the terminal has room for."""
    width = max((len(stage) for stage in timings), default=0)
    cells = [f"{stage:<{width}} {seconds:6.2f}" for stage, seconds in timings.items()]
    columns = max(1, (min(console.width, MAX_TIMINGS_WIDTH) - 2) // (width + 10))
    for start in range(0, len(cells), columns):
        line = "   ".join(cells[start : start + columns])
        console.print(Text(f"  {line}", style="dim"), soft_wrap=True)
