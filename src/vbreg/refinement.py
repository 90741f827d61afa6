"""Refinement on the clouds: a pose that is right to some voxels becomes exact.

Source points are drawn to the planes of the target next to them (the mean of both normals, as in
symmetric ICP), and the matches that agree keep the pose in place along what no plane fixes.
Lengths are in voxels. Shapes: n source points, M target points, N matches.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from vbreg.backends.neighbors import batched_radius_knn
from vbreg.geometry import (
    apply,
    cross_matrix,
    from_rotation_translation,
    identity,
    rotation_angle,
    rotation_of_vector,
)
from vbreg.matching import MatchedClouds, ThinnedSurface

MAX_POINTS = 1500  # of the source that are looked at
REACHES, ROUNDS = (4.0, 2.0), 5  # voxels within which a point has a partner; steps for each
MIN_COSINE = 0.5  # of normals of partners
MIN_PARTNERS = 30.0  # planes, below which a pose is left as it is
MATCHES_WEIGHT = 0.1  # of all matches together, beside all planes together
THRESHOLD = 2.0  # voxels: the inlier threshold
MAX_TURN = math.radians(15.0)  # of a pose that is refined; what turns more was something else
MAX_SHIFT = 8.0  # voxels, of the middle of the source


class Fit(NamedTuple):
    """How well clouds lie on each other under a pose: normal equations, and what is left."""

    H: Tensor  # (6, 6) of a small motion (turn in lengths, shift) about the middle
    g: Tensor  # (6,)
    middle: Tensor  # (3,)
    size: Tensor  # of an arm, that makes turns lengths
    gain: Tensor  # higher is better
    partners: Tensor  # number of planes


class Clouds(NamedTuple):
    """Both clouds and their matches, in voxels."""

    source: Tensor  # (n, 3)
    source_normals: Tensor  # (n, 3)
    target: Tensor  # (M, 3)
    target_normals: Tensor  # (M, 3)
    matched_source: Tensor  # (N, 3)
    matched_target: Tensor  # (N, 3)


@torch.inference_mode()
def refined(
    matched: MatchedClouds,
    T_target_source: Tensor,  # (4, 4) float64, between the local frames, in the user's unit
    up: Tensor | None = None,  # (3,) in the target: the only axis to turn about, if given
) -> Tensor:
    """Return the pose near this one that lays the clouds onto each other, or this one.

    It is this one where the new one fits no better, or is not near at all.
    """
    if matched.source.surface is None or matched.target.surface is None:
        return T_target_source
    clouds = _in_voxels(matched, matched.source.surface, matched.target.surface)
    size = matched.scale.voxel_size
    start = T_target_source.to(clouds.source).clone()
    start[:3, 3] /= size
    T = start
    for reach in REACHES:
        for _ in range(ROUNDS):
            T = _moved(T, _fit(clouds, T, reach), up)
    before, after = (_fit(clouds, pose, REACHES[-1]) for pose in (start, T))
    turn = rotation_angle(T[:3, :3] @ start[:3, :3].T)
    middle = clouds.source.mean(0, keepdim=True)
    shift = (apply(T, middle) - apply(start, middle)).norm()
    better = (after.gain > before.gain) & (turn < MAX_TURN) & (shift < MAX_SHIFT)
    better = better & T.isfinite().all()
    found = torch.where(better, T, start)
    found[:3, 3] *= size
    return found.to(T_target_source)


def _in_voxels(matched: MatchedClouds, source: ThinnedSurface, target: ThinnedSurface) -> Clouds:
    every = max(1, -(-len(source.points) // MAX_POINTS))
    parts = (
        source.points[::every],
        source.normals[::every],
        target.points,
        target.normals,
        matched.source.points[matched.source_index],
        matched.target.points[matched.target_index],
    )
    lengths = (True, False, True, False, True, True)
    size = matched.scale.voxel_size
    return Clouds(
        *(
            part.double() / (size if is_length else 1.0)
            for part, is_length in zip(parts, lengths, strict=True)
        )
    )


def _fit(clouds: Clouds, T: Tensor, reach: float) -> Fit:
    """Return what pulls at a pose (4, 4)."""
    here, turned = apply(T, clouds.source), clouds.source_normals @ T[:3, :3].T
    real = torch.ones(1, len(clouds.target), dtype=torch.bool, device=here.device)
    index, _, valid = batched_radius_knn(clouds.target[None], here[None], reach, 1, real)
    index, valid = index[0, :, 0], valid[0, :, 0]
    other = clouds.target_normals[index]
    cosine = (turned * other).sum(-1, keepdim=True)
    normal = torch.nn.functional.normalize(other + cosine.sign() * turned, dim=-1)
    left = ((clouds.target[index] - here) * normal).sum(-1)
    hit = (valid & (cosine[:, 0].abs() > MIN_COSINE)).to(left)
    weight = hit / (1 + (2 * left / reach).square()).square()  # Geman-McClure
    total = weight.sum().clamp_min(1e-9)
    middle = (weight[:, None] * here).sum(0) / total
    arm = here - middle
    size = ((weight[:, None] * arm.square()).sum() / total).sqrt().clamp_min(1e-6)
    J = torch.cat([torch.linalg.cross(arm / size, normal), normal], dim=-1)  # (n, 6)
    share = weight / total
    H, g = (J * share[:, None]).T @ J, J.T @ (share * left)
    H_matches, g_matches, agreeing = _pull_of_matches(clouds, T, middle, size)
    # The gain of a plane falls to zero at half the reach, that of a match at the threshold.
    on_planes = (hit * (1 - (2 * left / reach).square()).clamp_min(0)).sum() / len(here)
    return Fit(
        H + MATCHES_WEIGHT * H_matches,
        g + MATCHES_WEIGHT * g_matches,
        middle,
        size,
        on_planes + MATCHES_WEIGHT * agreeing,
        hit.sum(),
    )


def _pull_of_matches(
    clouds: Clouds, T: Tensor, middle: Tensor, size: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the normal equations of the matches that agree, and their share of all."""
    here = apply(T, clouds.matched_source)
    left = clouds.matched_target - here  # (N, 3)
    d2 = left.square().sum(-1) / THRESHOLD**2
    weight = (d2 < 1.0) / (1.0 + d2)
    share = weight / weight.sum().clamp_min(1e-9)
    K = -cross_matrix((here - middle) / size)  # (N, 3, 3): how a turn moves a point
    J = torch.cat([K, identity(3, K).expand_as(K)], dim=-1)  # (N, 3, 6)
    H = torch.einsum("n,nki,nkj->ij", share, J, J)
    g = torch.einsum("n,nki,nk->i", share, J, left)
    return H, g, (1 - d2).clamp_min(0.0).mean()


def _moved(T: Tensor, fit: Fit, up: Tensor | None) -> Tensor:
    """Return the pose (4, 4) after a step; it stays where there are too few planes."""
    basis = identity(6, T)
    if up is not None:
        axis = torch.cat([up.to(T), torch.zeros_like(T[0, :3])])
        basis = torch.cat([axis[:, None], basis[:, 3:]], dim=1)  # (6, 4)
    H = basis.T @ fit.H @ basis
    H = H + (1e-6 * H.diagonal().sum() + 1e-12) * identity(len(H), T)
    motion = basis @ torch.linalg.solve_ex(H, basis.T @ fit.g)[0]
    R = rotation_of_vector(motion[:3] / fit.size)
    t = motion[3:] + fit.middle - R @ fit.middle
    step = from_rotation_translation(R, t)
    return torch.where(fit.partners >= MIN_PARTNERS, step @ T, T)
