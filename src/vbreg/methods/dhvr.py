"""DHVR (Lee et al., ICCV 2021, deep Hough voting): voting alone, without the learned part.

Every triplet of matches whose sides agree votes for its pose in a table of six dimensions, three of
the rotation vector and three of the translation. Wrong triplets scatter, right ones gather round
the true pose. The authors' network (a sparse U-Net in six dimensions, 18 million parameters) learns
where a sparse table has its peak; here a local sum over neighbouring bins takes its place.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from vbreg.compatibility import row_chunks
from vbreg.estimation import Estimate
from vbreg.geometry import procrustes, vector_of_rotation
from vbreg.methods.common import Answer, LocalMethod, Task, undetermined
from vbreg.methods.interface import Method
from vbreg.methods.ransac import draw_triplets

TRIPLETS = 1_000_000  # drawn
MAX_VOTES = 200_000  # of those whose sides agree
# In inlier thresholds, each of which is two voxels.
SIDE_TOLERANCE = 1.5  # by which a side may differ between the clouds
MIN_SIDE = 0.75
# Four times the authors' 2 cm and 0.02 rad: their network looks far beyond the neighbouring bins,
# and a sum does not.
LENGTH_BIN = 0.8
ANGLE_BIN = 0.08  # radians
MAX_SUMMED_BINS = 2**14  # whose neighbours are summed; of more, those in the fullest regions
REGION = 3  # bins a side of a region
MAX_BIN = 2**20  # farther ones are one: keys stay below 2^63
# A bin's key is the sum of its six numbers times these, so that the way to a neighbour is the same
# number everywhere. Numbers below 2^40 without a pattern, so that no two bins share a key.
KEYS = (1_076_437_108_777, 938_263_811_051, 812_455_290_343, 701_008_733_689, 604_462_909_807,
        519_101_887_973)  # fmt: skip


def agreeing_triplets(task: Task) -> Tensor:
    """Draw triplets of matches and return (K, 3) those whose sides are long and agree."""
    kept = []
    drawn = draw_triplets(len(task), TRIPLETS, task.generator).to(task.device)
    for some in drawn.split(MAX_VOTES):
        sides = [
            (p[some] - p[some].roll(1, dims=1)).norm(dim=-1)  # (k, 3)
            for p in (task.source[0], task.target[0])
        ]
        agree = (sides[0] - sides[1]).abs() < SIDE_TOLERANCE
        long = torch.minimum(*sides) > MIN_SIDE
        kept.append(some[(agree & long).all(-1)])
    triplets = torch.cat(kept)
    step = max(1, math.ceil(len(triplets) / MAX_VOTES))
    return triplets[::step]


def bins_of(T: Tensor) -> tuple[Tensor, Tensor]:
    """Return (V, 6) the bins of poses (K, 4, 4), and (V,) whose each is.

    A turn by nearly pi votes twice: one by a little more than pi about the opposite axis is the
    same, and has its neighbours elsewhere.
    """
    turn, t = vector_of_rotation(T[:, :3, :3]), T[:, :3, 3]
    angle = turn.norm(dim=-1, keepdim=True)
    again = (angle > math.pi - 2 * math.sqrt(3) * ANGLE_BIN).squeeze(-1).nonzero().squeeze(-1)
    opposite = (turn * (1 - 2 * math.pi / angle))[again]
    owner = torch.cat([torch.arange(len(T), device=T.device), again])
    votes = torch.cat([torch.cat([turn, opposite]) / ANGLE_BIN, t[owner] / LENGTH_BIN], dim=-1)
    return votes.floor().clamp(-MAX_BIN, MAX_BIN).long(), owner


def keys_of(bins: Tensor) -> Tensor:
    """Return a number (...) for each bin (..., 6), another for every other bin."""
    return (bins * torch.tensor(KEYS, device=bins.device)).sum(-1)


def fullest_bin(bins: Tensor) -> Tensor:
    """Return the bin (6,) of votes (V, 6) that has the most together with all its neighbours."""
    keys, place, votes = keys_of(bins).unique(return_inverse=True, return_counts=True)  # (U,)
    votes_in_turn = torch.arange(len(bins), device=bins.device)
    examples = torch.empty_like(keys).scatter_(0, place, votes_in_turn)  # a vote of each bin
    centres = torch.arange(len(keys), device=keys.device)
    if len(keys) > MAX_SUMMED_BINS:
        region = keys_of(bins[examples].div(REGION, rounding_mode="floor"))
        _, home = region.unique(return_inverse=True)
        total = torch.zeros_like(votes).scatter_add_(0, home, votes)[home]
        centres = total.argsort(descending=True, stable=True)[:MAX_SUMMED_BINS]
    way = keys_of(torch.tensor(list(itertools.product((-1, 0, 1), repeat=6)), device=bins.device))
    sums = []
    for rows in row_chunks(len(centres), len(way), maps=6):
        wanted = keys[centres[rows], None] + way  # (c, 729)
        found = torch.searchsorted(keys, wanted).clamp_max(len(keys) - 1)
        sums.append((votes[found] * (keys[found] == wanted)).sum(-1))
    return bins[examples[centres[torch.cat(sums).argmax()]]]


def solve(task: Task) -> Answer:
    """Find the pose of the matches whose triplets vote for the fullest bin and its neighbours."""
    triplets = agreeing_triplets(task)  # (K, 3)
    if not len(triplets):
        return Answer(undetermined())
    T, sound = task.fitted(triplets)
    bins, owner = bins_of(T[0, sound[0]])
    if not len(bins):
        return Answer(undetermined())
    near = (bins - fullest_bin(bins)).abs().amax(-1) <= 1
    voters = triplets[sound[0]][owner[near]].flatten().cpu()
    source, target, _ = task.exact()
    votes = torch.bincount(voters, minlength=len(task)).to(source.dtype)
    best = Estimate(*procrustes(source, target, votes.unsqueeze(0)))
    return Answer(task.refined(best))


def open_(device: torch.device) -> Method:
    """Open DHVR's voting on a device."""
    return LocalMethod(solve, device)
