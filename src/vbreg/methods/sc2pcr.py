"""SC2-PCR (Chen et al., CVPR 2022): consensus sets by second-order spatial compatibility.

Two wrong matches are compatible now and then; that they also share many compatible matches is rare.
So the set of a seed is gathered by how many matches are compatible with both it and the seed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vbreg.compatibility import row_chunks
from vbreg.estimation import best_hypothesis, take_members
from vbreg.methods.common import Answer, LocalMethod, Task, is_inlier, leading_eigenvector
from vbreg.methods.interface import Method
from vbreg.voting import HypotheticalInliers, VotingConfig, select_seeds

SEEDS = VotingConfig(seed_ratio=0.2, min_seeds=1, nms_radius=1.0)
FIRST, SECOND = 30, 20  # k1 and k2: members after the first and the second stage
# The paper squares one hard matrix. The authors' code counts shared matches at half of the
# tolerance, and only the mask has the whole; their published numbers are of the code.
SHARED_TOLERANCE = 0.5  # in inlier thresholds


def second_order(task: Task, seeds: Tensor) -> Tensor:
    """Count (K, n) the matches that are compatible with both the seed and the match.

    It is 0 where those two are not compatible; a match is compatible with itself.
    """
    source, target, compatibility = task.source[0], task.target[0], task.backend.compatibility
    rows = compatibility(source[seeds], target[seeds], source, target)  # (K, n)
    bar = 1.0 - SHARED_TOLERANCE**2
    tight = (rows > bar).to(rows.dtype)
    shared = torch.empty_like(rows)
    for columns in row_chunks(len(source), len(source), maps=4):
        block = compatibility(source[columns], target[columns], source, target)
        shared[:, columns] = tight @ (block > bar).to(block.dtype).T
    return shared * (rows > 0)


def first_stage(task: Task, seeds: Tensor) -> HypotheticalInliers:
    """Choose the k1 matches with the largest second-order measure, the seed (K,) first."""
    measure = second_order(task, seeds)
    measure.scatter_(-1, seeds.unsqueeze(-1), torch.inf)
    top, index = measure.topk(min(FIRST, len(task)), dim=-1)
    return HypotheticalInliers(index.unsqueeze(0), (top > 0).unsqueeze(0))


def second_stage(task: Task, members: HypotheticalInliers) -> HypotheticalInliers:
    """Choose of them the k2 that share most with the seed among the members alone."""
    x, y = (take_members(p, members.indices) for p in (task.source, task.target))
    hard = (task.backend.compatibility(x, y, x, y) > 0) & members.valid.unsqueeze(
        -2
    )  # (1, K, k1, k1)
    hard = hard.to(x.dtype)
    measure = (hard[..., :1, :] @ hard.transpose(-1, -2)).squeeze(-2)  # (1, K, k1)
    measure[..., 0] = torch.inf
    measure.masked_fill_(~members.valid, -1.0)
    kept = measure.topk(min(SECOND, measure.shape[-1]), dim=-1).indices
    return HypotheticalInliers(members.indices.gather(-1, kept), members.valid.gather(-1, kept))


class Hypotheses(NamedTuple):
    """The poses of all consensus sets."""

    T: Tensor  # (1, K, 4, 4)
    sound: Tensor  # (1, K)
    score: Tensor  # (1, K) share of inliers
    confidence: Tensor  # (n,) of the matches


def hypotheses(task: Task) -> Hypotheses:
    """Fit a pose to the consensus set of each seed, and count its inliers."""
    source, target, mask, backend = task.source, task.target, task.mask, task.backend
    confidence = leading_eigenvector(task, diagonal=1.0)  # (n,)
    suppressed = backend.suppressed(confidence.unsqueeze(0), source, mask, SEEDS.nms_radius)
    seeds = select_seeds(confidence.unsqueeze(0), suppressed, mask, SEEDS)
    members = second_stage(task, first_stage(task, seeds.indices[0]))
    alike = torch.ones_like(source[..., :1])  # no features: compatibility is spatial alone
    weights = backend.spectral_weights(alike, source, target, members, sigma=1.0)
    T, sound = backend.hypotheses(source, target, members, weights)
    return Hypotheses(T, sound, task.scores(T, is_inlier), confidence)


def solve(task: Task) -> Answer:
    """Find the pose with the most inliers among those of all consensus sets."""
    found = hypotheses(task)
    best = best_hypothesis(found.T, found.sound, found.score)
    return Answer(task.refined(best), found.confidence)


def open_(device: torch.device) -> Method:
    """Open SC2-PCR on a device."""
    return LocalMethod(solve, device)
