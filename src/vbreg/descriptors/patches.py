"""A patch of surface round a point, cut into the cells of a cylinder that stands on it.

The axis is the normal. Nothing says where the azimuth begins, so the network treats all beginnings
alike: it convolves round the circle and pools over it.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from vbreg.descriptors.pyramid import Level

RINGS, HEIGHTS, AZIMUTHS = 3, 7, 16  # cells
CELL_NUMBERS = 4  # of a cell: its points, and the sum of their normals in the cell's own frame
FIXED_POINT_ONE = 2**16  # of a point in a cell
MAX_PATCH_PAIRS = 2**20  # patch points that are put into cells at a time


class PatchNetwork(nn.Module):
    """Describes each point by the cells of its patch."""

    def __init__(self, width: int, radius: float, depth: int = 4) -> None:
        super().__init__()
        self.radius = radius  # in voxels
        widths = [RINGS * HEIGHTS * CELL_NUMBERS] + [width] * depth
        self.layers = nn.ModuleList(
            nn.Conv1d(a, b, 3, padding=1, padding_mode="circular") for a, b in pairwise(widths)
        )
        self.out = nn.Linear(2 * width, width)

    def forward(self, level: Level, around: Tensor, count: Tensor) -> Tensor:
        """Return (N, width)."""
        parts = []
        step = max(1, MAX_PATCH_PAIRS // around.shape[1]) if not torch.is_grad_enabled() else None
        for rows in _slices(len(around), step):
            x = cells(level, rows, around[rows], count[rows], self.radius)
            x = x.to(self.out.weight.dtype)
            for k, layer in enumerate(self.layers):
                y = layer(x)
                x = torch.relu(y + x if k else y)
            parts.append(self.out(torch.cat([x.mean(-1), x.amax(-1)], dim=-1)))
        return torch.cat(parts)


def cells(level: Level, rows: slice, around: Tensor, count: Tensor, radius: float) -> Tensor:
    """Return (n, RINGS x HEIGHTS x CELL_NUMBERS, AZIMUTHS) of the patches of some points.

    A point counts in the two azimuths nearest to it, in parts that add up to one.
    """
    n, P = around.shape
    own, axis = level.points[rows], level.normals[rows]
    flat = around.reshape(-1)
    d = level.points.index_select(0, flat).view(n, P, 3) - own.unsqueeze(1)
    m = level.normals.index_select(0, flat).view(n, P, 3)
    first = _across(axis)  # (n, 3)
    second = torch.linalg.cross(axis, first)
    basis = [direction.unsqueeze(1) for direction in (first, second, axis)]  # (n, 1, 3) each
    # Sums, not a product of matrices, which training would round.
    (x, y, z), (mx, my, mz) = ([(part * b).sum(-1) for b in basis] for part in (d, m))  # (n, P)
    r = (x * x + y * y).clamp_min(1e-12).sqrt()
    c, s = x / r, y / r
    values = torch.stack([torch.ones_like(r), mx * c + my * s, my * c - mx * s, mz], dim=-1)
    inside = torch.arange(P, device=around.device) < count.unsqueeze(-1)
    values = values * (inside & (d.square().sum(-1) > 0)).unsqueeze(-1)  # (n, P, 4)
    ring = (RINGS * (r / radius).square()).long().clamp_(0, RINGS - 1)  # of equal area
    height = ((z / radius + 1) * (HEIGHTS / 2)).long().clamp_(0, HEIGHTS - 1)
    turn = (torch.atan2(y, x) / (2 * math.pi) + 1) * AZIMUTHS
    lower = turn.floor()
    share = (turn - lower).unsqueeze(-1)
    # Whole numbers, so that the sum is the same in any order, on any device.
    table = around.new_zeros(n, RINGS * HEIGHTS * AZIMUTHS, CELL_NUMBERS, dtype=torch.int64)
    for k, part in ((0, 1 - share), (1, share)):
        cell = (ring * HEIGHTS + height) * AZIMUTHS + (lower.long() + k) % AZIMUTHS  # (n, P)
        votes = (values * part * FIXED_POINT_ONE).round().long()
        table.scatter_add_(1, cell.unsqueeze(-1).expand_as(votes), votes)
    table = table.to(values.dtype) * (RINGS * HEIGHTS / (P * FIXED_POINT_ONE))
    table = table.view(n, RINGS * HEIGHTS, AZIMUTHS, CELL_NUMBERS)
    return table.transpose(2, 3).reshape(n, RINGS * HEIGHTS * CELL_NUMBERS, AZIMUTHS)


def _across(axis: Tensor) -> Tensor:
    """Return some unit vector (n, 3) at a right angle to each axis (n, 3)."""
    eye = torch.eye(3, dtype=axis.dtype, device=axis.device)
    return nn.functional.normalize(torch.linalg.cross(axis, eye[axis.abs().argmin(-1)]), dim=-1)


def _slices(n: int, step: int | None) -> list[slice]:
    return [slice(0, n)] if step is None else [slice(k, k + step) for k in range(0, n, step)]
