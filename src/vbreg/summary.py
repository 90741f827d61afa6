"""A registration in numbers: JSON for scripts, and what people are told of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vbreg import __version__
from vbreg.types import Float64, Registration


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
        "scale": result.scale,
        "success_probability": result.success_probability,
        "mirrored_probability": result.mirrored_probability,
        "verdict": result.verdict,
        "reasons": list(result.reasons),
        "overlap": result.overlap,
        "limits_reached": list(result.limits_reached),
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
        "first_voxel_size": result.first_voxel_size,
        "voxel_size_estimated": result.voxel_size_estimated,
        "inlier_threshold": result.inlier_threshold,
        "points_read": result.points_read,
        "points_dropped": result.points_dropped,
        "lone_shares": result.lone_shares,
        "volume_shares": result.volume_shares,
        "backend": result.backend,
        "timings": dict(timings),
        "warnings": list(warnings),
    }


def pose_difference(T_estimate: Float64, T_truth: Float64) -> tuple[float, float]:
    """Return how far a pose is from another: in degrees, and in the unit of their translations."""
    import torch

    from vbreg import metrics

    error = metrics.pose_error(torch.from_numpy(T_estimate), torch.from_numpy(T_truth))
    return float(error.rotation), float(error.translation)


def standard_deviation(result: Registration) -> tuple[float, float] | None:
    """Return how far a pose may be off where the matches are that agree with it.

    These are degrees, and a length in the unit of the clouds; None where nothing tells.
    """
    from vbreg.uncertainty import moved_to

    if result.covariance is None or not result.inlier_count:
        return None
    middle = result.correspondences.target[result.inliers].mean(0)
    turn, shift = np.split(np.diag(moved_to(result.covariance, middle)), 2)
    return float(np.degrees(np.sqrt(turn.sum()))), float(np.sqrt(shift.sum()))
