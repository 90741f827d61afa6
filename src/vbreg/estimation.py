"""From hypothetical inliers to one pose: weights, hypotheses, the best of them, refinement.

Knows nothing of learning. Lengths are in units of the inlier threshold tau, so tau = 1.
Shapes: B problems, N correspondences, K hypotheses, kappa members of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from vbreg.compatibility import feature_compatibility, row_chunks, spatial_compatibility
from vbreg.geometry import apply, procrustes, rotation_angle, upright_procrustes
from vbreg.voting import HypotheticalInliers

POWER_ITERATIONS = 10
MAX_REFINEMENT_ROUNDS = 50
SETTLED = 1e-7  # change of the pose, in inlier thresholds, below which it is final
SAME_ANGLE = math.radians(10.0)  # between poses that count as one, if the next holds, too
SAME_LENGTH = 2.0  # inlier thresholds, by which they move the source's origin
CANDIDATE_ROUNDS = 8  # of refinement; most poses are nearly settled by then


class Estimate(NamedTuple):
    """A pose of each problem."""

    T: Tensor  # (B, 4, 4)
    determined: Tensor  # (B,) False where no set of matches fixes all six degrees of freedom


# Source, target (..., N, 3) and weights (..., N) -> poses (..., 4, 4), and which are fixed (...).
Fit: TypeAlias = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


class Limits(NamedTuple):
    """What is known of the poses beforehand, between the local frames, in inlier thresholds."""

    T_guess: Tensor  # (4, 4) from which the next two are counted
    max_angle: float = math.inf  # radians
    max_length: float = math.inf  # of the way of the source's origin
    R_upright: Tensor | None = None  # (3, 3) to turn up in the source to up in the target
    up: Tensor | None = None  # (3,) of the target

    def to(self, like: Tensor) -> Limits:
        """Return the same in the precision and on the device of a tensor."""
        tensors = (self.T_guess, self.R_upright, self.up)
        T, R, up = (None if part is None else part.to(like) for part in tensors)
        assert T is not None
        return self._replace(T_guess=T, R_upright=R, up=up)

    def fit(self, source: Tensor, target: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Fit poses that keep up upright, where up is known."""
        if self.R_upright is None or self.up is None:
            return procrustes(source, target, weights)
        return upright_procrustes(source, target, weights, self.R_upright, self.up)

    def allow(self, T: Tensor) -> Tensor:
        """Tell (...) which poses (..., 4, 4) lie within the limits."""
        angle, length = self._from_guess(T)
        return (angle <= self.max_angle) & (length <= self.max_length)

    def used(self, T: Tensor) -> tuple[float, float]:
        """Return which share of the largest length and of the largest angle a pose (4, 4) uses.

        No angle exceeds half a turn, so a limit of that much is none.
        """
        angle, length = self._from_guess(T)
        limited = self.max_angle < math.pi
        return float(length) / self.max_length, float(angle) / self.max_angle if limited else 0.0

    def _from_guess(self, T: Tensor) -> tuple[Tensor, Tensor]:
        """Return by which angles and lengths (...) poses (..., 4, 4) differ from the guess."""
        angle = rotation_angle(T[..., :3, :3] @ self.T_guess[:3, :3].T)
        return angle, torch.linalg.vector_norm(T[..., :3, 3] - self.T_guess[:3, 3], dim=-1)


def spectral_weights(
    features: Tensor,  # (B, N, d) of the last iteration
    source: Tensor,  # (B, N, 3)
    target: Tensor,  # (B, N, 3)
    members: HypotheticalInliers,
    sigma: Tensor | float,
) -> Tensor:
    """Return omega (B, K, kappa), each row summing to one.

    It is the leading eigenvector of the members' compatibility (feature times beta, zero diagonal),
    by power iteration from ones.
    """
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
    source: Tensor,
    target: Tensor,
    members: HypotheticalInliers,
    weights: Tensor,
    fit: Fit = procrustes,
) -> tuple[Tensor, Tensor]:
    """Fit one weighted Procrustes pose to each set (Eq. 9) -> T (B, K, 4, 4), sound (B, K)."""
    x, y = take_members(source, members.indices), take_members(target, members.indices)
    return fit(x, y, weights)


def quadratic_gain(d2: Tensor) -> Tensor:
    """Return the gain of Eq. 10 for squared residuals: [d < tau] (1 - d^2 / tau^2)."""
    return (1.0 - d2).clamp_min(0.0)


def inlier_score(
    T: Tensor,  # (B, K, 4, 4)
    source: Tensor,  # (B, N, 3)
    target: Tensor,  # (B, N, 3)
    weights: Tensor,  # (B, N): a mask of the real correspondences, or `crowd_weights`
    gain: Callable[[Tensor], Tensor] = quadratic_gain,
) -> Tensor:
    """Score every pose (B, K): the weighted mean over correspondences of the gain (Eq. 10)."""
    B, K = T.shape[:2]
    N = source.shape[1]
    weight = weights.to(source.dtype).unsqueeze(1)  # (B, 1, N)
    scores = source.new_empty(B, K)
    for rows in row_chunks(K, N, batch=B, maps=12):
        d2 = squared_residuals(T[:, rows], source.unsqueeze(1), target.unsqueeze(1))  # (B, k, N)
        scores[:, rows] = (gain(d2) * weight).sum(-1)
    return scores / weight.sum(-1).clamp_min(torch.finfo(weight.dtype).tiny)


def crowd_weights(source: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """Return (B, N): 1 / sqrt(how many matches share an end with this one), 0 for padding.

    Nearest neighbours crowd on few targets (a third of them is matched at all with FPFH), and a
    crowd is right or wrong together: it is less evidence than as many matches of their own.
    """
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
    """Choose the highest score among sound poses; an unsound one only where there is no other."""
    ranked = torch.where(sound, score, score - 2.0)  # scores lie in 0..1
    best = ranked.argmax(-1, keepdim=True)  # (B, 1)
    T_best = T.gather(1, best[..., None, None].expand(-1, -1, 4, 4)).squeeze(1)
    return Estimate(T_best, sound.gather(1, best).squeeze(1))


def within_limits(
    T: Tensor, sound: Tensor, score: Tensor, limits: Limits
) -> tuple[Tensor, Tensor, Tensor]:
    """Return poses, which are sound, and scores, such that only those within the limits count.

    The guess comes last: it is chosen where no other lies within.
    """
    allowed = limits.allow(T)
    score = torch.where(allowed, score, -1.0)  # below any guess
    guess = limits.T_guess.expand(len(T), 1, 4, 4)
    return torch.cat([T, guess], dim=1), F.pad(sound & allowed, (0, 1)), F.pad(score, (0, 1))


def best_distinct(T: Tensor, sound: Tensor, score: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Choose sound poses by score, each unlike all before -> T (B, C, 4, 4), valid (B, C).

    Where fewer than C = `count` differ, the last are not valid.
    """
    ranked = torch.where(sound, score, -1.0)
    found, valid = [], []
    for _ in range(count):
        highest, best = ranked.max(-1, keepdim=True)  # (B, 1)
        T_best = T.gather(1, best[..., None, None].expand(-1, -1, 4, 4))
        found.append(T_best)
        valid.append(highest >= 0)
        ranked = ranked.masked_fill(same_pose(T, T_best), -1.0)
    return torch.cat(found, 1), torch.cat(valid, 1)


def first_of_same(T: Tensor) -> Tensor:
    """Tell (B, C) which poses (B, C, 4, 4) are unlike all before them."""
    same = same_pose(T.unsqueeze(1), T.unsqueeze(2))  # (B, C, C)
    return ~same.tril(-1).any(-1)


def same_pose(T: Tensor, other: Tensor) -> Tensor:
    """Tell (...) which poses (..., 4, 4) count as one with another."""
    R, other_R = T[..., :3, :3], other[..., :3, :3]
    cosine = ((R * other_R).sum((-1, -2)) - 1) / 2  # of the angle between them
    length2 = (T[..., :3, 3] - other[..., :3, 3]).square().sum(-1)
    return (cosine > math.cos(SAME_ANGLE)) & (length2 < SAME_LENGTH**2)


def refine(
    estimate: Estimate,
    source: Tensor,
    target: Tensor,
    mask: Tensor,
    limits: Limits | None = None,
    rounds: int = MAX_REFINEMENT_ROUNDS,
) -> Estimate:
    """Fit to all inliers, re-weighted by 1 / (1 + d^2 / tau^2), until the pose settles.

    Stopping at the fixed point, rather than when the number of inliers stays, makes the answer
    independent of which of the good hypotheses it started from. A problem that has settled, whose
    inliers no longer fix a pose, or that would leave the limits, keeps the pose it has.
    """
    fit = procrustes if limits is None else limits.fit
    T, determined = estimate
    active = torch.ones_like(determined)
    for _ in range(rounds):
        d2 = squared_residuals(T, source, target)
        T_next, sound = fit(source, target, ((d2 < 1.0) & mask) / (1.0 + d2))
        active = active & sound
        if limits is not None:
            active = active & limits.allow(T_next)
        change = (T_next - T).abs().amax((-1, -2))
        T = torch.where(active[:, None, None], T_next, T)
        determined = determined | active
        active = active & (change > SETTLED)
        if not active.any():
            break
    return Estimate(T, determined)


class Agreement(NamedTuple):
    """How far matches agree with a pose."""

    inliers: Tensor  # (B, N)
    score: Tensor  # (B,)
    rmse: Tensor  # (B,) root mean square distance of the inliers


def agreement(T: Tensor, source: Tensor, target: Tensor, mask: Tensor) -> Agreement:
    """Tell how far the matches (B, N, 3) agree with poses (B, 4, 4)."""
    d2 = squared_residuals(T, source, target)
    inliers = (d2 < 1.0) & mask
    rmse = ((d2 * inliers).sum(-1) / inliers.sum(-1).clamp_min(1)).sqrt()
    score = (quadratic_gain(d2) * mask).sum(-1) / mask.sum(-1).clamp_min(1)
    return Agreement(inliers, score, rmse)


def squared_residuals(T: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """Return |R x + t - y|^2 (..., N) under poses T (..., 4, 4)."""
    return (apply(T, source) - target).square().sum(-1)


def take_members(x: Tensor, index: Tensor) -> Tensor:
    """Return the rows index (B, K, kappa) of x (B, N, C) -> (B, K, kappa, C)."""
    B, K, kappa = index.shape
    flat = index.reshape(B, K * kappa, 1).expand(-1, -1, x.shape[-1])
    return x.gather(1, flat).reshape(B, K, kappa, x.shape[-1])
