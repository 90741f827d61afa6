"""From hypothetical inliers to one pose: weights, hypotheses, the best of them, refinement.

Knows nothing of learning. Lengths are in units of the inlier threshold tau, so tau = 1.
Shapes: B problems, N correspondences, K hypotheses, kappa members of each.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from vbreg import kernels
from vbreg.compatibility import feature_compatibility, row_chunks, spatial_compatibility
from vbreg.geometry import apply, procrustes
from vbreg.voting import HypotheticalInliers

POWER_ITERATIONS = 10
REFINEMENT_ROUNDS = 50
SCORED_MAPS = 8  # float64, and what is made of it, in shares of MAP_BYTES
SCORED_MAPS_ON_CPU = 64  # so small a map stays in its cache
SETTLED = 1e-7  # change of the pose, in inlier thresholds, below which it is final


class Estimate(NamedTuple):
    T: Tensor  # (B, 4, 4)
    determined: Tensor  # (B,) False where no set of matches fixes all six degrees of freedom


def spectral_weights(
    features: Tensor,  # (B, N, d) of the last iteration
    source: Tensor,  # (B, N, 3)
    target: Tensor,  # (B, N, 3)
    members: HypotheticalInliers,
    sigma: Tensor | float,
) -> Tensor:
    """omega (B, K, kappa), each row summing to one: the leading eigenvector of the members'
    compatibility (feature times beta, zero diagonal), by power iteration from ones."""
    if kernels.usable(source.device):
        from vbreg.kernels import attention, search

        if attention.supports(features.shape[-1]):
            return search.spectral_weights(
                F.normalize(features.float(), dim=-1),
                attention.coordinates(source.float(), target.float()),
                members.indices,
                members.valid,
                torch.as_tensor(sigma, dtype=torch.float32, device=source.device),
                POWER_ITERATIONS,
            )
    x, y = take_members(source, members.indices), take_members(target, members.indices)
    f = take_members(F.normalize(features.float(), dim=-1), members.indices)
    M = feature_compatibility(f, f, sigma) * spatial_compatibility(x, y, x, y)
    M = M * (members.valid.unsqueeze(-1) & members.valid.unsqueeze(-2))
    M.diagonal(dim1=-2, dim2=-1).zero_()
    w = members.valid.to(M.dtype).unsqueeze(-1)
    for _ in range(POWER_ITERATIONS):
        w = F.normalize(M @ w, dim=-2)
    w = w.squeeze(-1)
    return w / w.sum(-1, keepdim=True).clamp_min(torch.finfo(w.dtype).tiny)


def hypotheses(
    source: Tensor, target: Tensor, members: HypotheticalInliers, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """Eq. 9: one weighted Procrustes pose per set -> T (B, K, 4, 4), sound (B, K)."""
    if kernels.usable(source.device):
        from vbreg.kernels import attention, search

        return search.fit(attention.coordinates(source, target), members.indices, weights)
    x, y = take_members(source, members.indices), take_members(target, members.indices)
    return procrustes(x, y, weights)


def inlier_score(T: Tensor, source: Tensor, target: Tensor, weights: Tensor) -> Tensor:
    """Eq. 10 as a mean: (B, K) of [d < tau] (1 - d^2 / tau^2) over the correspondences, weighted
    by (B, N): a mask of the real ones, or `crowd_weights`."""
    B, K = T.shape[:2]
    N = source.shape[1]
    if kernels.usable(source.device) and source.dtype == torch.float32:
        from vbreg.kernels import attention, search

        return search.score(T, attention.coordinates(source, target), weights)
    if K == 1:
        gain = (1.0 - squared_residuals(T[:, 0], source, target)).clamp_min(0.0)
        total = weights.to(gain.dtype).sum(-1).clamp_min(torch.finfo(gain.dtype).tiny)
        return ((gain * weights).sum(-1) / total).unsqueeze(-1)
    poses, matches = _residual_factors(T, source, target)
    weight = weights.double().unsqueeze(-1)  # (B, N, 1)
    scores = torch.empty(B, K, dtype=torch.float64, device=source.device)
    maps = SCORED_MAPS_ON_CPU if source.device.type == "cpu" else SCORED_MAPS
    for rows in row_chunks(K, N, batch=B, maps=maps):
        gain = (poses[:, rows] @ matches).clamp_(0.0, 1.0)
        scores[:, rows] = (gain @ weight).squeeze(-1)
    scores /= weight.sum(1).clamp_min(torch.finfo(weight.dtype).tiny)
    return scores.to(source.dtype)


def _residual_factors(T: Tensor, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """(B, K, 26) and (B, 26, N), float64, whose product is 1 - |R x + t - y|^2: multiplied out, it
    is a sum of products of something of the pose with something of the match. In double precision,
    because it is a small difference of large numbers."""
    x, y = source.double(), target.double()
    R, t = T[..., :3, :3].double(), T[..., :3, 3].double()
    one, tt = torch.ones_like(t[..., :1]), t.square().sum(-1, keepdim=True)
    RR, tR = (R.mT @ R).flatten(-2), (t.unsqueeze(-2) @ R).squeeze(-2)  # R may be rounded
    poses = torch.cat([RR, R.flatten(-2), tR, t, one, tt], dim=-1)
    xx, yx = ((end.unsqueeze(-1) * x.unsqueeze(-2)).flatten(-2) for end in (x, y))
    rest = 1.0 - y.square().sum(-1, keepdim=True)
    matches = torch.cat([-xx, 2 * yx, -2 * x, 2 * y, rest, -torch.ones_like(rest)], dim=-1)
    return poses, matches.mT.contiguous()


def crowd_weights(source: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """(B, N): 1 / sqrt(how many matches share an end with this one), 0 for padding.

    Nearest neighbours crowd on few targets (a third of them is matched at all with FPFH), and a
    crowd is right or wrong together: it is less evidence than as many matches of their own.
    """
    if kernels.usable(source.device):
        from vbreg.kernels import attention, search

        return search.crowd_weights(attention.coordinates(source.float(), target.float()), mask)
    weights = mask.to(torch.float64)
    for end in (source, target):
        # Equal points have equal projections, and different ones hardly ever.
        x, y, z = end.double().unbind(-1)
        key = (x + math.sqrt(2) * y + math.pi * z).masked_fill(~mask, torch.inf)
        ordered, order = key.sort(dim=-1)
        group = F.pad((ordered.diff(dim=-1) > 0).cumsum(-1), (1, 0))  # inf - inf is no number
        count = torch.zeros_like(weights).scatter_add_(-1, group, torch.ones_like(weights))
        weights /= torch.ones_like(weights).scatter_(-1, order, count.gather(-1, group)).sqrt()
    return weights.to(source.dtype)


def best_hypothesis(T: Tensor, sound: Tensor, score: Tensor) -> Estimate:
    """The highest score among sound poses; an unsound one only where there is nothing else."""
    ranked = torch.where(sound, score, score - 2.0)  # scores lie in 0..1
    best = ranked.argmax(-1, keepdim=True)  # (B, 1)
    T_best = T.gather(1, best[..., None, None].expand(-1, -1, 4, 4)).squeeze(1)
    return Estimate(T_best, sound.gather(1, best).squeeze(1))


def refine(estimate: Estimate, source: Tensor, target: Tensor, mask: Tensor) -> Estimate:
    """Least squares on all inliers, re-weighted by 1 / (1 + d^2 / tau^2), until the pose settles.

    Stopping at the fixed point, rather than when the number of inliers stays, makes the answer
    independent of which of the good hypotheses it started from. A problem that has settled, or
    whose inliers no longer fix a pose, keeps the pose it has.
    """
    T, determined = estimate
    if kernels.usable(T.device):
        from vbreg.kernels import attention, search

        points = attention.coordinates(source, target)
        found = search.refine(T, determined, points, mask, REFINEMENT_ROUNDS, SETTLED)
        return Estimate(*found)
    active = torch.ones_like(determined)
    for _ in range(REFINEMENT_ROUNDS):
        d2 = squared_residuals(T, source, target)
        T_next, sound = procrustes(source, target, ((d2 < 1.0) & mask) / (1.0 + d2))
        active = active & sound
        change = (T_next - T).abs().amax((-1, -2))
        T = torch.where(active[:, None, None], T_next, T)
        determined = determined | active
        active = active & (change > SETTLED)
        if not active.any():
            break
    return Estimate(T, determined)


def squared_residuals(T: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """|R x + t - y|^2 (..., N)."""
    return (apply(T, source) - target).square().sum(-1)


def take_members(x: Tensor, index: Tensor) -> Tensor:
    """x (B, N, C), index (B, K, kappa) -> (B, K, kappa, C)."""
    B, K, kappa = index.shape
    flat = index.reshape(B, K * kappa, 1).expand(-1, -1, x.shape[-1])
    return x.gather(1, flat).reshape(B, K, kappa, x.shape[-1])
