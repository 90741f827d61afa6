"""KISS-Matcher (Lim et al., ICRA 2025) through its wheel (extra `baselines`).

It describes and matches the clouds itself, so the given matches serve only to judge its pose.
"""

from __future__ import annotations

import numpy as np
import torch

from vbreg.methods.common import Answer, LocalMethod, Task, pose_between_scans
from vbreg.methods.interface import Method
from vbreg.scale import Scale

MAX_FLOAT32_EXTENT = 1e5  # inlier thresholds: there float32 has a hundredth of one left


def solve(task: Task) -> Answer:
    """Ask KISS-Matcher for the pose of the scans."""
    import kiss_matcher

    scans = task.problem.given_scans("kiss-matcher")
    # It finds far fewer poses when clouds are moved to their middle, as if it took the origin for
    # the sensor: they stay where they are unless float32 could not hold them. Its bounds on noise
    # are in metres.
    unit, origins = task.problem.inlier_threshold, [o[0] for o in task.matches.origins]
    far = any(np.abs(scan).max() > MAX_FLOAT32_EXTENT * unit for scan in scans)
    shifts = origins if far else [np.zeros(3)] * 2
    source, target = (
        (scan - shift).astype(np.float32) for scan, shift in zip(scans, shifts, strict=True)
    )
    scale = Scale.of_threshold(unit)
    matcher = kiss_matcher.KISSMatcher(kiss_matcher.KISSMatcherConfig(voxel_size=scale.voxel_size))
    found = matcher.estimate(source, target)
    R, t = np.asarray(found.rotation), np.asarray(found.translation).reshape(3)
    t = t - R @ shifts[0] + shifts[1]
    return Answer(pose_between_scans(task, R, t, found=bool(found.valid)))


def open_(device: torch.device) -> Method:
    """Open KISS-Matcher."""
    return LocalMethod(solve, device, external=True)
