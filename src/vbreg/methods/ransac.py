"""RANSAC with all of its samples drawn and tested together.

50,000 triplets of matches. One whose edges differ in length by more than 2 tau cannot be three
inliers, because each end of an edge is off by at most tau; it is dropped before a pose is fitted,
and counts as drawn. The pose with the most inliers wins, and is fitted once more to all of them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vbreg.estimation import best_hypothesis
from vbreg.geometry import procrustes
from vbreg.methods.common import (
    Answer,
    LocalMethod,
    Task,
    is_inlier,
    undetermined,
)
from vbreg.methods.interface import Method

SAMPLES = 50_000
EDGE_TOLERANCE = 2.0  # in inlier thresholds


def draw_triplets(n: int, count: int, generator: torch.Generator) -> Tensor:
    """Draw (count, 3) different indices below n, every triplet equally likely, on the CPU."""
    first, second, third = (
        torch.randint(n - taken, (count,), generator=generator) for taken in range(3)
    )
    second = second + (second >= first)  # counted among those that are left
    third = third + (third >= torch.minimum(first, second))
    third = third + (third >= torch.maximum(first, second))
    return torch.stack([first, second, third], dim=-1)


def same_edges(x: Tensor, y: Tensor) -> Tensor:
    """Tell (k,) whether all three edges of triangles x, y (k, 3, 3) may be the same."""
    edges = [(p - p.roll(1, dims=1)).norm(dim=-1) for p in (x, y)]  # (k, 3) each
    return ((edges[0] - edges[1]).abs() <= EDGE_TOLERANCE).all(-1)


def solve(task: Task, samples: int = SAMPLES) -> Answer:
    """Find the pose with the most inliers among those of all triplets that may be right."""
    source, target = task.source[0], task.target[0]
    triplets = draw_triplets(len(task), samples, task.generator).to(source.device)
    triplets = triplets[same_edges(source[triplets], target[triplets])]  # (K, 3)
    if not len(triplets):
        return Answer(undetermined())
    x, y = source[triplets], target[triplets]  # (K, 3, 3)
    T, sound = procrustes(x, y, torch.ones_like(x[..., 0]))
    T, sound = T.unsqueeze(0), sound.unsqueeze(0)
    score = task.scores(T, is_inlier)
    return Answer(task.least_squares(best_hypothesis(T, sound, score)))


def open_(device: torch.device) -> Method:
    """Open RANSAC on a device."""
    return LocalMethod(solve, device)
