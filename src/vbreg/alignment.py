"""One step that lays clouds onto each other, and how well they lie: what `refinement` repeats.

Source points are drawn to the planes of the target next to them (the mean of both normals, as in
symmetric ICP), and the matches that agree keep the pose in place along what no plane fixes.
Lengths are in voxels. Shapes: B pairs of clouds, n source points, M target points, N matches.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from vbreg.geometry import (
    apply,
    cross_matrix,
    from_rotation_translation,
    identity,
    rotation_of_vector,
    take_rows,
)
from vbreg.scale import INLIER_THRESHOLD

MIN_COSINE = 0.5  # of normals of partners
MIN_PARTNERS = 30.0  # planes, below which a pose is left as it is
MATCHES_WEIGHT = 0.1  # of all matches together, beside all planes together


class Searched(Protocol):
    """Points of B clouds that know which of them are nearest to others."""

    @property
    def points(self) -> Tensor:
        """The points (B, M, 3)."""

    @property
    def real(self) -> Tensor:
        """Which of the points count (B, M)."""

    def nearest(
        self, queries: Tensor, radius: float, max_neighbors: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Find the nearest points of queries (B, Q, 3) -> index, distance2, valid (B, Q, k)."""


class Surfaces(NamedTuple):
    """What a step looks at; all but the target in float64."""

    source: Tensor  # (B, n, 3)
    source_normals: Tensor  # (B, n, 3)
    source_real: Tensor  # (B, n)
    middle: Tensor  # (B, 3) of the source
    target: Searched
    target_normals: Tensor  # (B, M, 3)
    matched_source: Tensor  # (B, N, 3)
    matched_target: Tensor  # (B, N, 3)
    matched_real: Tensor  # (B, N)


class Fit(NamedTuple):
    """How well clouds lie on each other under a pose: normal equations, and what is left."""

    H: Tensor  # (B, 6, 6) of a small motion (turn in lengths, shift) about the middle
    g: Tensor  # (B, 6)
    middle: Tensor  # (B, 3)
    size: Tensor  # (B, 1) of an arm, that makes turns lengths
    gain: Tensor  # (B,) higher is better
    partners: Tensor  # (B,) number of planes


def aligned(surfaces: Surfaces, T: Tensor, reach: float, up: Tensor | None = None) -> Tensor:
    """Return poses (B, 4, 4) after a step; one stays where there are too few planes.

    With `up` (3,) they turn about that axis alone.
    """
    fit = _fit(surfaces, T, reach)
    basis = identity(6, T)
    if up is not None:
        axis = torch.cat([up.to(T), torch.zeros_like(T[0, 0, :3])])
        basis = torch.cat([axis[:, None], basis[:, 3:]], dim=1)  # (6, 4)
    H = basis.T @ fit.H @ basis
    trace = H.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None]
    H = H + (1e-6 * trace + 1e-12) * identity(H.shape[-1], T)
    found = torch.linalg.solve_ex(H, (fit.g @ basis).unsqueeze(-1))[0].squeeze(-1)
    motion = found @ basis.T  # (B, 6)
    R = rotation_of_vector(motion[:, :3] / fit.size)
    t = motion[:, 3:] + fit.middle - (R @ fit.middle.unsqueeze(-1)).squeeze(-1)
    step = from_rotation_translation(R, t)
    return torch.where((fit.partners >= MIN_PARTNERS)[:, None, None], step @ T, T)


def alignment_gain(surfaces: Surfaces, T: Tensor, reach: float) -> Tensor:
    """Return how well the clouds lie on each other (B,) under poses (B, 4, 4): more is better."""
    return _fit(surfaces, T, reach).gain


def weighted_mean(x: Tensor, weight: Tensor) -> Tensor:
    """Return the weighted mean (B, C) of rows (B, n, C)."""
    total = weight.sum(-1, keepdim=True).clamp_min(1e-9)
    return (weight.unsqueeze(-1) * x).sum(1) / total


def _fit(surfaces: Surfaces, T: Tensor, reach: float) -> Fit:
    """Return how well the clouds lie on each other under poses (B, 4, 4).

    Only points of the target within `reach` are partners.
    """
    target, real = surfaces.target, surfaces.source_real
    here, turned = apply(T, surfaces.source), surfaces.source_normals @ T[:, :3, :3].mT
    index, _, valid = target.nearest(here.to(target.points), reach, 1)
    index, valid = index[..., 0], valid[..., 0] & real
    other = take_rows(surfaces.target_normals, index).to(T)
    cosine = (turned * other).sum(-1, keepdim=True)
    normal = F.normalize(other + cosine.sign() * turned, dim=-1)
    left = ((take_rows(target.points, index) - here) * normal).sum(-1)  # (B, n)
    hit = (valid & (cosine[..., 0].abs() > MIN_COSINE)).to(left)
    weight = hit / (1 + (2 * left / reach).square()).square()  # Geman-McClure
    middle = weighted_mean(here, weight)
    arm = here - middle.unsqueeze(1)
    size = weighted_mean(arm.square().sum(-1, keepdim=True), weight).sqrt().clamp_min(1e-6)
    J = torch.cat([torch.linalg.cross(arm / size.unsqueeze(1), normal), normal], dim=-1)
    share = weight / weight.sum(-1, keepdim=True).clamp_min(1e-9)
    H = (J * share.unsqueeze(-1)).mT @ J  # (B, 6, 6)
    g = (J * (share * left).unsqueeze(-1)).sum(1)
    H_matches, g_matches, agreeing = _pull_of_matches(surfaces, T, middle, size)
    # The gain of a plane falls to zero at half the reach, that of a match at the threshold.
    gain = (hit * (1 - (2 * left / reach).square()).clamp_min(0)).sum(-1)
    return Fit(
        H + MATCHES_WEIGHT * H_matches,
        g + MATCHES_WEIGHT * g_matches,
        middle,
        size,
        gain / real.sum(-1).clamp_min(1) + MATCHES_WEIGHT * agreeing,
        hit.sum(-1),
    )


def _pull_of_matches(
    surfaces: Surfaces, T: Tensor, middle: Tensor, size: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the normal equations of the matches that agree, and their share of all."""
    real = surfaces.matched_real
    here = apply(T, surfaces.matched_source)
    left = surfaces.matched_target - here  # (B, N, 3)
    d2 = left.square().sum(-1) / INLIER_THRESHOLD**2
    weight = ((d2 < 1.0) & real) / (1.0 + d2)
    share = weight / weight.sum(-1, keepdim=True).clamp_min(1e-9)
    arm = (here - middle.unsqueeze(1)) / size.unsqueeze(1)
    J = torch.cat([-cross_matrix(arm), identity(3, arm).expand(*arm.shape, 3)], dim=-1)
    H = torch.einsum("bn,bnki,bnkj->bij", share, J, J)
    g = torch.einsum("bn,bnki,bnk->bi", share, J, left)
    agreeing = (1 - d2).clamp_min(0.0) * real
    return H, g, agreeing.sum(-1) / real.sum(-1).clamp_min(1)
