"""A cloud at several resolutions, and which points look at which.

This is all that the learned descriptor is given, and nothing in it depends on the frame of the
cloud but the places of the voxels. Lengths are in voxels. Shapes: N points of a level, K points
that each of them looks at.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vbreg.backends.neighbors import radius_knn
from vbreg.clouds import voxel_index

SPACINGS = (1.0, 2.0, 4.0)  # of the levels, in voxels
REACH = 4.0  # spacings of a level, within which its points look for neighbours
UP = 4  # coarser points that a finer one looks at
EDGE_NUMBERS = 5  # of `edge_numbers`
DETAIL_REACH = 2.0  # voxels, within which the finer points round a point show its relief
DETAIL_POINTS = 40  # of them that are looked at


class Level(NamedTuple):
    """The points of one resolution."""

    points: Tensor  # (N, 3) in voxels
    normals: Tensor  # (N, 3) of length 1


class Pyramid(NamedTuple):
    """Levels from fine to coarse, and tables of who looks at whom; a gap holds the first again."""

    levels: tuple[Level, ...]
    within: tuple[Tensor, ...]  # (N, K) of the level itself, for every level
    down: tuple[Tensor, ...]  # (N of the coarser, K) of the finer, for every two
    up: tuple[Tensor, ...]  # (N of the finer, UP) of the coarser, for every two
    detail: Tensor  # (F, 3) points closer together than one a voxel
    detail_index: Tensor  # (N, DETAIL_POINTS) of them round each point, nearest first


def build_pyramid(
    points: Tensor,  # (N, 3) in voxels, one a voxel
    normals: Tensor,  # (N, 3)
    detail: Tensor,  # (F, 3) in voxels, closer together; the points themselves where there are none
    *,
    neighbors: int,
) -> Pyramid:
    """Return the levels of a cloud and who looks at whom."""
    levels = [Level(points, normals)]
    for spacing in SPACINGS[1:]:
        levels.append(_coarser(levels[0], spacing))
    within, down, up = [], [], []
    for spacing, level in zip(SPACINGS, levels, strict=True):
        within.append(nearest(level.points, level.points, REACH * spacing, neighbors))
    for k in range(len(levels) - 1):
        fine, coarse = levels[k].points, levels[k + 1].points
        reach = REACH * SPACINGS[k + 1]
        down.append(nearest(fine, coarse, reach, neighbors))
        up.append(nearest(coarse, fine, reach, UP))
    seen = nearest(detail, points, DETAIL_REACH, DETAIL_POINTS)
    tables = tuple(within), tuple(down), tuple(up)
    return Pyramid(tuple(levels), *tables, detail, seen)


def relief_numbers(pyramid: Pyramid) -> Tensor:
    """Return (N, DETAIL_POINTS, 2): distance along the surface and height above it, in voxels."""
    level, index = pyramid.levels[0], pyramid.detail_index
    d = pyramid.detail.index_select(0, index.reshape(-1)).view(*index.shape, 3)
    d = d - level.points.unsqueeze(1)
    height = (d * level.normals.unsqueeze(1)).sum(-1)
    along = (d.square().sum(-1) - height.square()).clamp_min(1e-12).sqrt()
    return torch.stack([along, height], dim=-1)


def edge_numbers(own: Level, seen: Level, index: Tensor, spacing: float) -> Tensor:
    """Return (N, K, 5) what an edge knows, the same in every frame.

    Its length; the cosines between it and either normal, and between the normals; and the triple
    product of all three, which tells left from right.
    """
    rows = index.reshape(-1)
    d = seen.points.index_select(0, rows).view(*index.shape, 3) - own.points.unsqueeze(1)
    n_seen = seen.normals.index_select(0, rows).view_as(d)
    n_own = own.normals.unsqueeze(1).expand_as(n_seen)
    length = d.square().sum(-1, keepdim=True).clamp_min(1e-12).sqrt()
    e = d / length
    cosines = (n_own * e).sum(-1), (n_seen * e).sum(-1), (n_own * n_seen).sum(-1)
    triple = (torch.linalg.cross(n_own, n_seen) * e).sum(-1)
    return torch.stack([length.squeeze(-1) / spacing, *cosines, triple], dim=-1)


def _coarser(finest: Level, spacing: float) -> Level:
    """Return the means of points and normals in larger voxels."""
    voxel = voxel_index(finest.points, spacing)
    order = torch.argsort(voxel, stable=True)
    count = torch.bincount(voxel)
    first = count.cumsum(0) - count
    mean = [F.embedding_bag(order, part, first, mode="mean") for part in finest]
    return Level(mean[0], F.normalize(mean[1], dim=-1))


def nearest(points: Tensor, queries: Tensor, radius: float, k: int) -> Tensor:
    """Return (M, k): the nearest points of each query; where there are fewer, the nearest again."""
    index, _, valid = radius_knn(points, queries, radius, k)
    index = torch.where(valid, index, index[:, :1])
    return torch.cat([index, index[:, :1].expand(-1, k - index.shape[1])], dim=1)
