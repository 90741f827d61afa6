"""A patch of surface round a point, seen in the cells of a cylinder that stands on it.

The axis is the normal. Nothing says where the azimuth begins; the network treats all beginnings
alike. Shapes: n patches of P points, A azimuths, C numbers of a cell. Points stand last, where
neighbours in memory are worked on together.
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
    own, normals, _ = cloud.surfaces[1]
    assert normals is not None
    axis = normals.index_select(0, rows)  # (n, 3)
    first = _across(axis)
    frame = torch.stack([first, torch.linalg.cross(axis, first), axis], dim=1)  # (n, 3, xyz)
    middle = own.index_select(0, rows).T.unsqueeze(-1)  # (xyz, n, 1)
    seen = []
    for k, (surface, index, zoom) in enumerate(zip(cloud.surfaces, patches, ZOOMS, strict=True)):
        at = _in_frame(_taken(surface.points, index) - middle, frame)
        counts = _is_new(index) & (at.square().sum(1) <= zoom.reach**2)
        values = _values(at, surface, index, frame) * counts.unsqueeze(1)
        shape = (config.rings, config.heights) if k else NEAR_CELLS
        seen.append(_binned(at, values, zoom, shape, config.azimuths))
    return torch.cat(seen, dim=1).transpose(1, 2)


def _taken(vectors: Tensor, index: Tensor) -> Tensor:
    """Return the vectors (N, 3) of a table (n, P) as (xyz, n, P)."""
    return vectors.T.contiguous().index_select(1, index.reshape(-1)).view(3, *index.shape)


def _in_frame(vectors: Tensor, frame: Tensor) -> Tensor:
    """Return vectors (xyz, n, P) along the three directions (n, 3, xyz) of frames: (n, 3, P)."""
    x, y, z = vectors.unsqueeze(2)  # (n, 1, P) each
    along_x, along_y, along_z = frame.unsqueeze(-1).unbind(2)  # (n, 3, 1) each
    # Products and sums, not a product of matrices, which training would round.
    return (along_x * x).addcmul_(along_y, y).addcmul_(along_z, z)


def _values(at: Tensor, surface: Surface, index: Tensor, frame: Tensor) -> Tensor:
    """Return (n, 4, P): 1, and the normal outwards, round the axis and along it; else (n, 1, P)."""
    x, y, _ = at.unbind(1)
    one = torch.ones_like(x)
    if surface.normals is None:
        return one.unsqueeze(1)
    u, v, w = _in_frame(_taken(surface.normals, index), frame).unbind(1)
    r = (x * x + y * y).clamp_min(1e-12).sqrt()
    return torch.stack([one, (u * x + v * y) / r, (v * x - u * y) / r, w], dim=1)


def _is_new(index: Tensor) -> Tensor:
    """Tell which entries of a table are no gaps: a gap holds the first entry again."""
    new = index != index[:, :1]
    new[:, 0] = True
    return new


def _binned(
    at: Tensor,  # (n, 3, P)
    values: Tensor,  # (n, C, P)
    zoom: Zoom,
    shape: tuple[int, int],  # rings and heights
    azimuths: int,
) -> Tensor:
    """Return (n, rings x heights x C, A): sums of the values of the points in each cell."""
    x, y, z = at.unbind(1)
    rings, heights = shape
    r = (x * x + y * y).sqrt()
    out = r * (rings / zoom.reach) - 0.5
    # A point near the axis has no azimuth: all have the same share of it.
    none = (-2 * out).clamp_min(0).unsqueeze(1)
    turn = _azimuth_shares(at[:, :2] / r.clamp_min(1e-6).unsqueeze(1), azimuths)
    turn = turn.mul_(1 - none).add_(none / azimuths)
    up = z / zoom.reach
    # Finer about the surface, where most points are.
    level = _shares((up.sign() * up.abs().sqrt() + 1) * ((heights - 1) / 2), heights)
    place = (_shares(out, rings).unsqueeze(2) * level.unsqueeze(1)).flatten(1, 2)
    held = (values.unsqueeze(2) * turn.unsqueeze(1)).flatten(1, 2)  # (n, C x A, P)
    table = torch.bmm(place, held.transpose(1, 2))  # (n, rings x heights, C x A)
    return table.view(len(x), -1, azimuths)


def _azimuth_shares(direction: Tensor, azimuths: int) -> Tensor:
    """Return (n, A, P): how unit vectors (n, 2, P) are shared by the azimuths about them.

    It is the cosine of the angle between, above a floor, squared: smooth, so that where the circle
    begins hardly matters, and wide enough for the two or three next to it. Sums are one
    within 1 %.
    """
    step = 2 * math.pi / azimuths
    floor = math.cos(AZIMUTH_REACH * step)
    most = math.sqrt((1 - floor) ** 2 + 2 * (math.cos(step) - floor) ** 2)
    angle = torch.arange(azimuths, device=direction.device, dtype=direction.dtype) * step
    x, y = direction.unsqueeze(2).unbind(1)  # (n, 1, P) each
    # A product and a sum, not a product of matrices, which training would round.
    along = (x * (angle.cos() / most).unsqueeze(-1)).sub_(floor / most)
    return along.addcmul_(y, (angle.sin() / most).unsqueeze(-1)).relu_().square_()


def _shares(position: Tensor, count: int) -> Tensor:
    """Return (n, count, P): how positions (n, P) fall to the two whole ones next to each."""
    k = torch.arange(count, device=position.device, dtype=position.dtype).unsqueeze(-1)
    away = (position.clamp(0, count - 1).unsqueeze(1) - k).abs_()
    return away.neg_().add_(1).relu_()


def _across(axis: Tensor) -> Tensor:
    """Return some unit vector (n, 3) at a right angle to each axis (n, 3)."""
    eye = torch.eye(3, dtype=axis.dtype, device=axis.device)
    return F.normalize(torch.linalg.cross(axis, eye[axis.abs().argmin(-1)]), dim=-1)
