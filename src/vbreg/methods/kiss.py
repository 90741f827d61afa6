"""KISS-Matcher (Lim et al., ICRA 2025) through its wheel (extra `baselines`).

It describes and matches the clouds itself, so the given matches serve only to judge its pose.
"""

from __future__ import annotations

import numpy as np
import torch

from vbreg.errors import VBRegError
from vbreg.methods.common import Answer, LocalMethod, Task, pose
from vbreg.methods.interface import Method


def solve(task: Task) -> Answer:
    import kiss_matcher

    scans = task.problem.scans or task.problem.clouds
    if scans is None:
        raise VBRegError(
            "method 'kiss-matcher' finds its own matches: give the problem `scans`, the points of "
            "both as they were measured, or at least `clouds`"
        )
    unit = task.problem.inlier_threshold
    source, target = (
        (cloud - origin).astype(np.float32)  # its bounds on noise are in metres, so no other unit
        for cloud, origin in zip(scans, task.matches.origins, strict=True)
    )
    matcher = kiss_matcher.KISSMatcher(kiss_matcher.KISSMatcherConfig(voxel_size=unit / 2))
    found = matcher.estimate(source, target)
    R, t = np.asarray(found.rotation), np.asarray(found.translation).reshape(3)
    return Answer(pose(R, t / unit, found=bool(found.valid)))


def open_(device: torch.device) -> Method:
    return LocalMethod(solve, device)
