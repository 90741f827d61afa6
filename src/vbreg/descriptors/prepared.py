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

from vbreg.backends.neighbors import radius_knn
from vbreg.clouds import voxel_index
from vbreg.scale import Scale

MAX_OUTPUT = 64  # numbers a point


class Zoom(NamedTuple):
    """One distance from which patches are looked at."""

    reach: float  # radius of the patch in voxels
    most: int  # points that are looked at, the nearest
    spacing: float | None  # voxels between them, where it is not that of the points described


NEAR = Zoom(2.0, 40, None)  # of points that are finer than one a voxel
MIDDLE = Zoom(6.0, 128, None)
WIDE = Zoom(12.0, 128, 2.0)
ZOOMS = (NEAR, MIDDLE, WIDE)


@dataclass(frozen=True)
class DescriptorConfig:
    """The parts of a learned descriptor."""

    wide: bool = True  # whether patches are also looked at from afar
    azimuths: int = 16  # cells of a patch round its axis,
    rings: int = 3  # outwards
    heights: int = 7  # and along the axis
    width: int = 96  # of the network
    depth: int = 3  # convolutions round the axis
    output: int = 64

    def __post_init__(self) -> None:
        for name in ("azimuths", "rings", "heights", "width", "depth"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: expected at least 1")
        if not 1 <= self.output <= MAX_OUTPUT:
            raise ValueError(f"output = {self.output}: expected 1 to {MAX_OUTPUT}")

    @property
    def zooms(self) -> tuple[Zoom, ...]:
        """From where patches are looked at."""
        return ZOOMS if self.wide else ZOOMS[:2]


class Surface(NamedTuple):
    """Points of a cloud at one spacing."""

    points: Tensor  # (N, 3) in voxels
    normals: Tensor | None  # (N, 3) of length 1; None where the spacing is too fine for them


class Prepared(NamedTuple):
    """What the network is given of one cloud, or of several packed into one."""

    surfaces: tuple[Surface, ...]  # that the zooms look at; the second has the points described
    near: Tensor  # (N, P) of the first surface: the patch of every point, nearest first
    patches: tuple[Tensor, ...] = ()  # (N, P) of the other surfaces, if they are known by now

    @property
    def points(self) -> Tensor:
        """The points (N, 3) that are described."""
        return self.surfaces[1].points


def prepare(
    points: Tensor,  # (N, 3), one a voxel
    normals: Tensor,  # (N, 3)
    detail: Tensor,  # (F, 3) closer together; the points themselves where nothing finer is known
    scale: Scale,
    config: DescriptorConfig,
) -> Prepared:
    """Return what a network of this configuration sees of a cloud."""
    fine = Surface(detail / scale.voxel_size, None)
    middle = Surface(points / scale.voxel_size, normals)
    further = (_coarser(points / scale.voxel_size, normals, z.spacing) for z in config.zooms[2:])
    return Prepared((fine, middle, *further), _patches(fine.points, middle.points, NEAR))


def patches_of(cloud: Prepared, rows: Tensor, config: DescriptorConfig) -> list[Tensor]:
    """Return, of every zoom, the patches (n, P) round some of the points."""
    if cloud.patches:
        further = [table[rows] for table in cloud.patches]
    else:
        further = [
            _patches(surface.points, cloud.points[rows], zoom)
            for surface, zoom in zip(cloud.surfaces[1:], config.zooms[1:], strict=True)
        ]
    return [cloud.near[rows], *further]


def with_patches(cloud: Prepared, config: DescriptorConfig) -> Prepared:
    """Return the cloud with the patches of all its points, so that no step looks for them."""
    every = torch.arange(len(cloud.points), device=cloud.points.device)
    return cloud._replace(patches=tuple(patches_of(cloud, every, config)[1:]))


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
    near = joined([cloud.near for cloud in clouds], 0)
    further = zip(*(cloud.patches for cloud in clouds), strict=True)
    patches = tuple(joined(tables, k) for k, tables in enumerate(further, start=1))
    return Prepared(tuple(surfaces), near, patches)


def _patches(points: Tensor, middles: Tensor, zoom: Zoom) -> Tensor:
    """Return (n, P): the points round each middle; where there are fewer, the nearest again."""
    index, _, valid = radius_knn(points, middles, zoom.reach, zoom.most)
    index = torch.where(valid, index, index[:, :1])
    return torch.cat([index, index[:, :1].expand(-1, zoom.most - index.shape[1])], dim=1)


def _coarser(points: Tensor, normals: Tensor, spacing: float | None) -> Surface:
    """Return the means of points and normals in larger voxels."""
    assert spacing is not None
    voxel = voxel_index(points, spacing)
    order = torch.argsort(voxel, stable=True)
    count = torch.bincount(voxel)
    first = count.cumsum(0) - count
    mean = [F.embedding_bag(order, part, first, mode="mean") for part in (points, normals)]
    return Surface(mean[0], F.normalize(mean[1], dim=-1))
