"""What the learned descriptor is given of a cloud, and how clouds are packed into one.

A point is described by the patch of surface round it, which is looked at from near, from a middle
distance and from afar. Lengths are in voxels, so one set of weights serves rooms, streets and
single objects. Shapes: N points, n of them with patches of P points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vbreg.backends.neighbors import neighbors_within
from vbreg.clouds import Voxels
from vbreg.scale import Scale

MAX_OUTPUT = 64  # numbers a point


class ThinnedCloud(NamedTuple):
    """What a descriptor is given of a cloud."""

    points: Tensor  # (N, 3), one a voxel
    normals: Tensor  # (N, 3) of length 1
    detail: Tensor  # (F, 3) closer together; the points themselves where nothing finer is known
    scale: Scale
    real: Tensor | None = None  # (N,) which of the points count; None where all do
    real_detail: Tensor | None = None  # (F,)


class Zoom(NamedTuple):
    """One distance from which patches are looked at."""

    reach: float  # radius of the patch in voxels
    most: int  # points that are looked at, the nearest


NEAR = Zoom(2.0, 40)  # of points that are finer than one a voxel
MIDDLE = Zoom(6.0, 128)
WIDE = Zoom(12.0, 128)  # of points that are coarser
WIDE_SPACING = 2.0  # voxels between them
ZOOMS = (NEAR, MIDDLE, WIDE)


@dataclass(frozen=True)
class DescriptorConfig:
    """The parts of a learned descriptor."""

    azimuths: int = 16  # cells of a patch round its axis,
    rings: int = 4  # outwards
    heights: int = 7  # and along the axis
    width: int = 128  # of the network
    depth: int = 3  # convolutions round the axis
    output: int = 64

    def __post_init__(self) -> None:
        for name, least in (
            ("azimuths", 4),
            *((k, 1) for k in ("rings", "heights", "width", "depth")),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"{name} = {getattr(self, name)}: expected at least {least}")
        if not 1 <= self.output <= MAX_OUTPUT:
            raise ValueError(f"output = {self.output}: expected 1 to {MAX_OUTPUT}")


class Surface(NamedTuple):
    """Points of a cloud at one spacing."""

    points: Tensor  # (N, 3) in voxels
    normals: Tensor | None  # (N, 3) of length 1; None where the spacing is too fine for them
    real: Tensor | None = None  # (N,) which of the points count; None where all do


class Prepared(NamedTuple):
    """What the network is given of one cloud, or of several packed into one."""

    surfaces: tuple[Surface, ...]  # that the zooms look at; the second has the points described
    patches: tuple[Tensor, ...] = ()  # (N, P) of each zoom for every point, if known by now

    @property
    def points(self) -> Tensor:
        """The points (N, 3) that are described."""
        return self.surfaces[1].points


def prepare(cloud: ThinnedCloud) -> Prepared:
    """Return what a network sees of a cloud."""
    unit = cloud.scale.voxel_size
    near = Surface(cloud.detail / unit, None, cloud.real_detail)
    middle = Surface(cloud.points / unit, cloud.normals, cloud.real)
    return Prepared((near, middle, _coarser(middle, WIDE_SPACING)))


def patches_of(cloud: Prepared, rows: Tensor) -> list[Tensor]:
    """Return, of every zoom, the patches (n, P) round some of the points."""
    if cloud.patches:
        return [table.index_select(0, rows) for table in cloud.patches]
    middles = cloud.points[rows]
    return [
        _patches(surface, middles, zoom)
        for surface, zoom in zip(cloud.surfaces, ZOOMS, strict=True)
    ]


def with_patches(cloud: Prepared) -> Prepared:
    """Return the cloud with the patches of all its points, so that no step looks for them."""
    every = torch.arange(len(cloud.points), device=cloud.points.device)
    return cloud._replace(patches=tuple(patches_of(cloud, every)))


def pack(clouds: Sequence[Prepared]) -> Prepared:
    """Put clouds into one, whose patches hold points of their own cloud alone."""

    def joined(tables: Sequence[Tensor], surface: int) -> Tensor:
        sizes = [len(cloud.surfaces[surface].points) for cloud in clouds]
        return torch.cat([t + sum(sizes[:k]) for k, t in enumerate(tables)])

    surfaces = []
    for same in zip(*(cloud.surfaces for cloud in clouds), strict=True):
        normals = [surface.normals for surface in same if surface.normals is not None]
        points = torch.cat([surface.points for surface in same])
        surfaces.append(Surface(points, torch.cat(normals) if normals else None))
    every = zip(*(cloud.patches for cloud in clouds), strict=True)
    patches = tuple(joined(tables, k) for k, tables in enumerate(every))
    return Prepared(tuple(surfaces), patches)


def _patches(surface: Surface, middles: Tensor, zoom: Zoom) -> Tensor:
    """Return (n, P): the points round each middle; where there are fewer, the nearest again."""
    found = neighbors_within(surface.points, middles, zoom.reach, zoom.most, surface.real)
    index, _, valid = found
    index = torch.where(valid, index, index[:, :1])
    return torch.cat([index, index[:, :1].expand(-1, zoom.most - index.shape[1])], dim=1)


def _coarser(surface: Surface, spacing: float) -> Surface:
    """Return the means of points and normals in larger voxels.

    Where only some points are real, there are as many as before, of which the first are real.
    """
    points, normals, real = surface
    assert normals is not None
    voxels = Voxels.of(points, spacing, real)
    means = [voxels.means(part) for part in (points, normals)]
    if real is None:
        means = [part[: int(voxels.count)] for part in means]
    else:
        real = torch.arange(len(points), device=points.device) < voxels.count
    return Surface(means[0], F.normalize(means[1], dim=-1), real)
