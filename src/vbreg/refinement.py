"""Refinement on the clouds: a pose that is right to some voxels becomes exact.

Source points are drawn to the planes of the target next to them (the mean of both normals, as in
symmetric ICP), and the matches that agree keep the pose in place along what no plane fixes.
Lengths are in voxels. Shapes: B pairs of clouds, n source points, M target points, N matches.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from vbreg.geometry import (
    apply,
    cross_matrix,
    from_rotation_translation,
    identity,
    rotation_angle,
    rotation_of_vector,
    take_rows,
)
from vbreg.scale import INLIER_THRESHOLD
from vbreg.surfaces import OrientedPoints, SurfacePair

MAX_POINTS = 1500  # of the source that are looked at
REACHES, ROUNDS = (4.0, 2.0), 5  # voxels within which a point has a partner; steps for each
MIN_COSINE = 0.5  # of normals of partners
MIN_PARTNERS = 30.0  # planes, below which a pose is left as it is
MATCHES_WEIGHT = 0.1  # of all matches together, beside all planes together
MAX_TURN = math.radians(15.0)  # of a pose that is refined; what turns more was something else
MAX_SHIFT = 8.0  # voxels, of the middle of the source


class Fit(NamedTuple):
    """How well clouds lie on each other under a pose: normal equations, and what is left."""

    H: Tensor  # (B, 6, 6) of a small motion (turn in lengths, shift) about the middle
    g: Tensor  # (B, 6)
    middle: Tensor  # (B, 3)
    size: Tensor  # (B, 1) of an arm, that makes turns lengths
    gain: Tensor  # (B,) higher is better
    partners: Tensor  # (B,) number of planes


def with_fewer_points(pair: SurfacePair) -> SurfacePair:
    """Return the pair with as many points of the source as a refinement needs."""
    every = max(1, -(-pair.source.points.shape[1] // MAX_POINTS))
    return pair._replace(source=pair.source.take(slice(None, None, every)))


@torch.no_grad()
def refined(
    pair: SurfacePair,
    T_target_source: Tensor,  # (B, 4, 4) in voxels
    up: Tensor | None = None,  # (3,) in the target: the only axis to turn about, if given
) -> Tensor:
    """Return the poses near these that lay the clouds onto each other, or these.

    A pose stays as it is where the new one fits no better, or is not near at all.
    """
    pair = _exact(pair)
    start = T_target_source.to(pair.source.points)
    T = start
    for reach in REACHES:
        for _ in range(ROUNDS):
            T = _moved(T, _fit(pair, T, reach), up)
    before, after = (_fit(pair, pose, REACHES[-1]) for pose in (start, T))
    turn = rotation_angle(T[:, :3, :3] @ start[:, :3, :3].mT)
    middle = _mean(pair.source.points, pair.source.real.to(T)).unsqueeze(1)
    shift = (apply(T, middle) - apply(start, middle)).norm(dim=-1).squeeze(1)
    better = (after.gain > before.gain) & (turn < MAX_TURN) & (shift < MAX_SHIFT)
    better = better & T.isfinite().all(-1).all(-1)
    return torch.where(better[:, None, None], T, start).to(T_target_source)


def _exact(pair: SurfacePair) -> SurfacePair:
    """Return the source and the matches in float64; neighbours are found in the precision given."""
    some = pair.source
    return pair._replace(
        source=OrientedPoints(some.points.double(), some.normals.double(), some.real),
        matched_source=pair.matched_source.double(),
        matched_target=pair.matched_target.double(),
    )


def _mean(x: Tensor, weight: Tensor) -> Tensor:
    """Return the weighted mean (B, C) of rows (B, n, C)."""
    total = weight.sum(-1, keepdim=True).clamp_min(1e-9)
    return (weight.unsqueeze(-1) * x).sum(1) / total


def _fit(pair: SurfacePair, T: Tensor, reach: float) -> Fit:
    """Return how well the clouds lie on each other under poses (B, 4, 4).

    Only points of the target within `reach` are partners.
    """
    source, target = pair.source, pair.target
    here, turned = apply(T, source.points), source.normals @ T[:, :3, :3].mT
    index, _, valid = target.searchable.nearest(here.to(target.points), reach, 1)
    index, valid = index[..., 0], valid[..., 0] & source.real
    other = take_rows(target.normals, index).to(T)
    cosine = (turned * other).sum(-1, keepdim=True)
    normal = F.normalize(other + cosine.sign() * turned, dim=-1)
    left = ((take_rows(target.points, index) - here) * normal).sum(-1)  # (B, n)
    hit = (valid & (cosine[..., 0].abs() > MIN_COSINE)).to(left)
    weight = hit / (1 + (2 * left / reach).square()).square()  # Geman-McClure
    middle = _mean(here, weight)
    arm = here - middle.unsqueeze(1)
    size = _mean(arm.square().sum(-1, keepdim=True), weight).sqrt().clamp_min(1e-6)  # (B, 1)
    J = torch.cat([torch.linalg.cross(arm / size.unsqueeze(1), normal), normal], dim=-1)
    share = weight / weight.sum(-1, keepdim=True).clamp_min(1e-9)
    H = (J * share.unsqueeze(-1)).mT @ J  # (B, 6, 6)
    g = (J * (share * left).unsqueeze(-1)).sum(1)
    H_matches, g_matches, agreeing = _pull_of_matches(pair, T, middle, size)
    # The gain of a plane falls to zero at half the reach, that of a match at the threshold.
    gain = (hit * (1 - (2 * left / reach).square()).clamp_min(0)).sum(-1)
    return Fit(
        H + MATCHES_WEIGHT * H_matches,
        g + MATCHES_WEIGHT * g_matches,
        middle,
        size,
        gain / source.real.sum(-1).clamp_min(1) + MATCHES_WEIGHT * agreeing,
        hit.sum(-1),
    )


def _pull_of_matches(
    pair: SurfacePair, T: Tensor, middle: Tensor, size: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the normal equations of the matches that agree, and their share of all."""
    here = apply(T, pair.matched_source)
    left = pair.matched_target - here  # (B, N, 3)
    d2 = left.square().sum(-1) / INLIER_THRESHOLD**2
    weight = ((d2 < 1.0) & pair.matched_real) / (1.0 + d2)
    share = weight / weight.sum(-1, keepdim=True).clamp_min(1e-9)
    arm = (here - middle.unsqueeze(1)) / size.unsqueeze(1)
    J = torch.cat([-cross_matrix(arm), identity(3, arm).expand(*arm.shape, 3)], dim=-1)
    H = torch.einsum("bn,bnki,bnkj->bij", share, J, J)
    g = torch.einsum("bn,bnki,bnk->bi", share, J, left)
    agreeing = (1 - d2).clamp_min(0.0) * pair.matched_real
    return H, g, agreeing.sum(-1) / pair.matched_real.sum(-1).clamp_min(1)


def _moved(T: Tensor, fit: Fit, up: Tensor | None) -> Tensor:
    """Return poses (B, 4, 4) after a step; one stays where there are too few planes."""
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
