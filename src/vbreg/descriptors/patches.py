"""A patch of surface round a point, seen in the cells of a cylinder that stands on it.

The axis is the normal. Nothing says where the azimuth begins; the network treats all beginnings
alike. Shapes: n patches of P points, A azimuths, C numbers of a cell.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from vbreg.descriptors.prepared import ZOOMS, DescriptorConfig, Prepared, Surface, Zoom

NEAR_CELLS = 3, 5  # rings and heights of the patch that is looked at from near
AZIMUTH_REACH = 1.46  # cells; so that shares add up to nearly the same everywhere
POINT_NUMBERS = 4  # of a point in a cell: 1, and its normal in the cell's own frame


def column_size(config: DescriptorConfig) -> int:
    """Return how many numbers an azimuth has: those of its cells, from every zoom."""
    cells = config.rings * config.heights
    return math.prod(NEAR_CELLS) + cells * POINT_NUMBERS * (len(ZOOMS) - 1)


@torch.no_grad()
def cells(cloud: Prepared, rows: Tensor, patches: list[Tensor], config: DescriptorConfig) -> Tensor:
    """Return (n, A, column_size): what the patches round the points `rows` (n,) hold.

    A point counts in the cells next to it, in parts that add up to one.
    """
    own, normals = cloud.surfaces[1]
    assert normals is not None
    axis = normals.index_select(0, rows).unsqueeze(1)  # (n, 1, 3)
    first = _across(axis)
    frame = first, torch.linalg.cross(axis, first), axis
    middle = own.index_select(0, rows).unsqueeze(1)
    seen = []
    for k, (surface, index, zoom) in enumerate(zip(cloud.surfaces, patches, ZOOMS, strict=True)):
        x, y, z = _in_frame(_taken(surface.points, index) - middle, frame)  # (n, P) each
        values = _values(x, y, surface, index, frame)
        counts = _is_new(index) & (x * x + y * y + z * z <= zoom.reach**2)
        shape = (config.rings, config.heights) if k else NEAR_CELLS
        values = values * counts.unsqueeze(-1)
        seen.append(_binned((x, y, z), values, zoom, shape, config.azimuths))
    return torch.cat(seen, dim=-1)


def _taken(vectors: Tensor, index: Tensor) -> Tensor:
    return vectors.index_select(0, index.reshape(-1)).view(*index.shape, 3)


def _in_frame(vectors: Tensor, frame: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor]:
    # Sums, not a product of matrices, which training would round.
    first, second, third = ((vectors * direction).sum(-1) for direction in frame)
    return first, second, third


def _values(
    x: Tensor, y: Tensor, surface: Surface, index: Tensor, frame: tuple[Tensor, ...]
) -> Tensor:
    """Return (n, P, 4): 1, and the normal outwards, round the axis and along it; else (n, P, 1)."""
    one = torch.ones_like(x)
    if surface.normals is None:
        return one.unsqueeze(-1)
    u, v, w = _in_frame(_taken(surface.normals, index), frame)
    r = (x * x + y * y).clamp_min(1e-12).sqrt()
    return torch.stack([one, (u * x + v * y) / r, (v * x - u * y) / r, w], dim=-1)


def _is_new(index: Tensor) -> Tensor:
    """Tell which entries of a table are no gaps: a gap holds the first entry again."""
    new = index != index[:, :1]
    new[:, 0] = True
    return new


def _binned(
    at: tuple[Tensor, Tensor, Tensor],  # x, y, z (n, P)
    values: Tensor,  # (n, P, C)
    zoom: Zoom,
    shape: tuple[int, int],  # rings and heights
    azimuths: int,
) -> Tensor:
    """Return (n, A, rings x heights x C): sums of the values of the points in each cell."""
    x, y, z = at
    rings, heights = shape
    r = (x * x + y * y).sqrt()
    out = r * (rings / zoom.reach) - 0.5
    # A point near the axis has no azimuth: all have the same share of it.
    none = (-2 * out).clamp_min(0).unsqueeze(-1)
    direction = torch.stack([x, y], dim=-1) / r.clamp_min(1e-6).unsqueeze(-1)
    turn = _azimuth_shares(direction, azimuths).mul_(1 - none).add_(none / azimuths)
    ring = _shares(out, rings)
    up = z / zoom.reach
    # Finer about the surface, where most points are.
    level = _shares((up.sign() * up.abs().sqrt() + 1) * ((heights - 1) / 2), heights)
    place = (ring.unsqueeze(-1) * level.unsqueeze(-2)).flatten(2)  # (n, P, rings x heights)
    held = (values.unsqueeze(-1) * turn.unsqueeze(-2)).flatten(2)  # (n, P, C x A)
    table = torch.bmm(place.transpose(1, 2), held)  # (n, rings x heights, C x A)
    return table.view(len(x), -1, azimuths).transpose(1, 2)


def _azimuth_shares(direction: Tensor, azimuths: int) -> Tensor:
    """Return (n, P, A): how unit vectors (n, P, 2) are shared by the azimuths about them.

    It is the cosine of the angle between, above a floor, squared: smooth, so that where the circle
    begins hardly matters, and wide enough for the two or three next to it. Sums are one
    within 1 %.
    """
    step = 2 * math.pi / azimuths
    floor = math.cos(AZIMUTH_REACH * step)
    most = math.sqrt((1 - floor) ** 2 + 2 * (math.cos(step) - floor) ** 2)
    angle = torch.arange(azimuths, device=direction.device, dtype=direction.dtype) * step
    # A product and a sum, not a product of matrices, which training would round.
    along = direction[..., :1] * (angle.cos() / most) - floor / most
    return along.addcmul_(direction[..., 1:], angle.sin() / most).relu_().square_()


def _shares(position: Tensor, count: int) -> Tensor:
    """Return (..., count): how a position from 0 to count - 1 is shared by the two next to it."""
    k = torch.arange(count, device=position.device, dtype=position.dtype)
    return (1 - (position.clamp(0, count - 1).unsqueeze(-1) - k).abs()).clamp_min(0)


def _across(axis: Tensor) -> Tensor:
    """Return some unit vector (n, 1, 3) at a right angle to each axis (n, 1, 3)."""
    eye = torch.eye(3, dtype=axis.dtype, device=axis.device)
    return F.normalize(torch.linalg.cross(axis, eye[axis.abs().argmin(-1)]), dim=-1)
