"""TEASER++ (Yang et al., T-RO 2020), scale known, written anew.

Differences between matched points do not depend on the translation (TIMs), and their length not on
the rotation either. So true matches are pairwise compatible, a clique; in the largest one the
rotation is found by graduated non-convexity on the truncated least squares of the TIMs, and each
component of the translation by adaptive voting.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vbreg.estimation import Estimate
from vbreg.geometry import from_rotation_translation, procrustes
from vbreg.methods.cliques import maximum_clique
from vbreg.methods.common import Answer, LocalMethod, Task, compatible, undetermined
from vbreg.methods.interface import Method

# A match is off by the sampling of two clouds, one voxel: half of the inlier threshold, which
# leaves as much again for the pose. A TIM has two ends and is off by twice as much.
NOISE = 0.5  # in inlier thresholds
GNC_FACTOR = 1.4
GNC_ROUNDS = 100
GNC_SETTLED = 1e-6  # change of the cost between rounds
MAX_MEMBERS = 512  # of the clique, whose TIMs are all formed: 131,000


def all_tims(points: Tensor) -> Tensor:
    """Return (m (m - 1) / 2, 3): differences of each two of m points (m, 3)."""
    i, j = torch.triu_indices(len(points), len(points), offset=1)
    return points[j] - points[i]


def robust_rotation(a: Tensor, b: Tensor, bound: float) -> tuple[Tensor, Tensor]:
    """Find R (3, 3) with R a_k = b_k (k, 3) up to `bound`, and whether it is fixed.

    The truncated square is first made convex, then sharpened by the factor mu, with the weights of
    each stage in closed form.
    """
    a, b = torch.cat([a, -a]), torch.cat([b, -b])  # opposite pairs: no translation to be fitted
    w = torch.ones_like(a[:, 0])
    mu, cost = 0.0, torch.inf
    T, sound = procrustes(a, b, w)
    for round_ in range(GNC_ROUNDS):
        r2 = (a @ T[:3, :3].T - b).square().sum(-1) / bound**2
        if round_ == 0:
            mu = 1.0 / (2.0 * float(r2.max()) - 1.0)
            if mu <= 0:  # every TIM is within the bound
                break
        w = (mu * (mu + 1) / r2.clamp_min(1e-12)).sqrt() - mu
        w = torch.where(r2 >= (mu + 1) / mu, 0.0, torch.where(r2 <= mu / (mu + 1), 1.0, w))
        T, sound = procrustes(a, b, w)
        previous, cost = cost, float((w * r2).sum())
        if abs(cost - previous) < GNC_SETTLED or not sound:
            break
        mu *= GNC_FACTOR
    return T[:3, :3], sound


def robust_mean(values: Tensor, bound: float) -> Tensor:
    """Find the x that minimises the sum over values (m,) of min((v - x)^2 / bound^2, 1).

    The set of values within the bound of x changes only at the ends of the intervals v +- bound, so
    one set from between each two of them is tried (adaptive voting).
    """
    v = values.sort().values
    ends = torch.cat([v - bound, v + bound]).sort().values
    centres = (ends[1:] + ends[:-1]) / 2  # (2 m - 1,)
    low = torch.searchsorted(v, centres - bound)
    high = torch.searchsorted(v, centres + bound, right=True)
    zero = v.new_zeros(1)
    first, second = (torch.cat([zero, p.cumsum(0)]) for p in (v, v.square()))
    count = (high - low).clamp_min(1)
    mean = (first[high] - first[low]) / count
    spread = (second[high] - second[low]) - count * mean.square()
    cost = spread / bound**2 + (len(v) - (high - low))
    return mean[cost.masked_fill(high <= low, torch.inf).argmin()]


def solve(task: Task) -> Answer:
    """Find the largest clique of compatible matches, then rotation and translation from it."""
    pairs = compatible(task.source[0], task.target[0], within=2 * NOISE)
    members = torch.from_numpy(maximum_clique(pairs).members)
    if len(members) < 3:
        return Answer(undetermined())
    source, target, _ = task.exact()
    x, y = source[0, members], target[0, members]  # (m, 3)
    few = torch.from_numpy(np.linspace(0, len(x) - 1, min(len(x), MAX_MEMBERS)).round()).long()
    R, sound = robust_rotation(all_tims(x[few]), all_tims(y[few]), 2 * NOISE)
    moved = y - x @ R.T
    t = torch.stack([robust_mean(moved[:, axis], NOISE) for axis in range(3)])
    return Answer(Estimate(from_rotation_translation(R, t).unsqueeze(0), sound.reshape(1)))


def open_(device: torch.device) -> Method:
    """Open TEASER++ on a device."""
    return LocalMethod(solve, device)
