"""A patch of surface round a point, seen in the cells of a cylinder that stands on it.

The axis is the normal. Nothing says where the azimuth begins, so the network treats all beginnings
alike: it convolves round the circle and pools over it. The middle of the patch is also seen closer,
by points finer than one a voxel. Shapes: n patches of P points, C numbers of a cell.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vbreg.descriptors.pyramid import DETAIL_REACH, Pyramid

AZIMUTHS = 16  # cells round the axis
RINGS, HEIGHTS = 3, 7  # cells outwards and along the axis, of the whole patch
NEAR_RINGS, NEAR_HEIGHTS = 3, 5  # and of its middle
POINT_NUMBERS = 4  # of a point in a cell: 1, and its normal in the cell's own frame
COLUMN = RINGS * HEIGHTS * POINT_NUMBERS + NEAR_RINGS * NEAR_HEIGHTS  # numbers of an azimuth
MAX_PATCH_POINTS = 2**16  # held at a time when nothing is learned: near a CPU's cache


class PatchNetwork(nn.Module):
    """Describes points by the cells of their patches."""

    def __init__(self, width: int, radius: float, depth: int = 3) -> None:
        super().__init__()
        self.radius = radius  # in voxels
        self.enter = nn.Linear(COLUMN, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.layers = nn.ModuleList(nn.Linear(3 * width, width) for _ in range(depth))
        self.out = nn.Linear(2 * width, width)

    def forward(self, pyramid: Pyramid, rows: Tensor, around: Tensor) -> Tensor:
        """Return (n, width) for the points `rows` (n,), whose patches are `around` (n, P)."""
        step = len(rows)
        if not torch.is_grad_enabled():
            step = max(1, MAX_PATCH_POINTS // around.shape[1])
        parts = [
            self.described(cells(pyramid, rows[k : k + step], around[k : k + step], self.radius))
            for k in range(0, len(rows), max(1, step))
        ]
        return torch.cat(parts) if parts else self.out.weight.new_empty(0, self.out.out_features)

    def described(self, table: Tensor) -> Tensor:
        """Return (n, width) for cells (n, AZIMUTHS, COLUMN)."""
        x = F.relu(self.enter(table))
        for norm, layer in zip(self.norms, self.layers, strict=True):
            y = norm(x)
            x = x + F.relu(layer(torch.cat([y.roll(1, 1), y, y.roll(-1, 1)], dim=-1)))
        found: Tensor = self.out(torch.cat([x.mean(1), x.amax(1)], dim=-1))
        return found


@torch.no_grad()
def cells(pyramid: Pyramid, rows: Tensor, around: Tensor, radius: float) -> Tensor:
    """Return (n, AZIMUTHS, COLUMN): what the patches of the points `rows` (n,) hold.

    A point counts in the cells nearest to it, in parts that add up to one.
    """
    level = pyramid.levels[0]
    own, axis = (part.index_select(0, rows).unsqueeze(1) for part in level)  # (n, 1, 3)
    first = _across(axis)
    frame = first, torch.linalg.cross(axis, first), axis
    x, y, z = _in_frame(_taken(level.points, around) - own, frame)  # (n, P) each
    u, v, w = _in_frame(_taken(level.normals, around), frame)
    r = (x * x + y * y).clamp_min(1e-12).sqrt()
    normal = (u * x + v * y) / r, (v * x - u * y) / r, w  # outwards, round and along the axis
    counts = _is_new(around) & (around != rows.unsqueeze(1))
    values = torch.stack([torch.ones_like(r), *normal], dim=-1) * counts.unsqueeze(-1)
    whole = _binned(x, y, z / radius, r / radius, values, RINGS, HEIGHTS)
    near = pyramid.detail_index.index_select(0, rows)
    x, y, z = _in_frame(_taken(pyramid.detail, near) - own, frame)
    r = (x * x + y * y).sqrt()
    one = _is_new(near).to(r.dtype).unsqueeze(-1)
    near_cells = NEAR_RINGS, NEAR_HEIGHTS
    middle = _binned(x, y, z / DETAIL_REACH, r / DETAIL_REACH, one, *near_cells)
    return torch.cat([whole, middle], dim=-1)


def _taken(vectors: Tensor, index: Tensor) -> Tensor:
    return vectors.index_select(0, index.reshape(-1)).view(*index.shape, 3)


def _in_frame(vectors: Tensor, frame: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor]:
    # Sums, not a product of matrices, which training would round.
    first, second, third = ((vectors * direction).sum(-1) for direction in frame)
    return first, second, third


def _is_new(index: Tensor) -> Tensor:
    """Tell which entries of a table are no gaps: a gap holds the first entry again."""
    new = index != index[:, :1]
    new[:, 0] = True
    return new


def _binned(
    x: Tensor,  # (n, P), as are the next three
    y: Tensor,
    height: Tensor,  # from -1 to 1
    out: Tensor,  # from 0 to 1
    values: Tensor,  # (n, P, C)
    rings: int,
    heights: int,
) -> Tensor:
    """Return (n, AZIMUTHS, rings x heights x C): sums of the values of the points in each cell."""
    azimuth = torch.atan2(y, x) * (AZIMUTHS / (2 * math.pi))
    k = torch.arange(AZIMUTHS, device=x.device, dtype=x.dtype)
    away = (azimuth.unsqueeze(-1) - k + AZIMUTHS / 2) % AZIMUTHS - AZIMUTHS / 2
    # A smooth share, so that where the circle begins hardly matters: a quadratic spline.
    away = away.abs()
    beside = 0.5 * (1.5 - away).clamp_min(0).square()
    turn = torch.where(away < 0.5, 0.75 - away * away, beside)  # (n, P, AZIMUTHS)
    ring = _shares(out * rings - 0.5, rings)
    # Finer about the surface, where most points are.
    level = _shares((height.sign() * height.abs().sqrt() + 1) * ((heights - 1) / 2), heights)
    place = (ring.unsqueeze(-1) * level.unsqueeze(-2)).flatten(2)  # (n, P, rings x heights)
    held = (turn.unsqueeze(-1) * values.unsqueeze(-2)).flatten(2)  # (n, P, AZIMUTHS x C)
    table = torch.bmm(place.transpose(1, 2), held)  # (n, rings x heights, AZIMUTHS x C)
    return table.unflatten(-1, (AZIMUTHS, -1)).transpose(1, 2).flatten(2)


def _shares(position: Tensor, count: int) -> Tensor:
    """Return (..., count): how a position from 0 to count - 1 is shared by the two next to it."""
    k = torch.arange(count, device=position.device, dtype=position.dtype)
    return (1 - (position.clamp(0, count - 1).unsqueeze(-1) - k).abs()).clamp_min(0)


def _across(axis: Tensor) -> Tensor:
    """Return some unit vector (n, 1, 3) at a right angle to each axis (n, 1, 3)."""
    eye = torch.eye(3, dtype=axis.dtype, device=axis.device)
    return F.normalize(torch.linalg.cross(axis, eye[axis.abs().argmin(-1)]), dim=-1)
