"""What the learned descriptor is given of a cloud, and how clouds are packed into one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from vbreg.descriptors.fpfh import fpfh
from vbreg.descriptors.pyramid import SPACINGS, Level, Pyramid, build_pyramid, nearest
from vbreg.scale import Scale

LocalShape = Literal["fpfh", "relief"]
MAX_OUTPUT = 64  # numbers a point
FPFH_RADII = (3.0, 5.0)  # voxels


@dataclass(frozen=True)
class DescriptorConfig:
    """The parts of a learned descriptor."""

    local: tuple[LocalShape, ...] = ("relief",)  # what the graph is told of a point
    widths: tuple[int, ...] = (64, 128, 192)  # of the levels at 1, 2 and 4 voxels; none: no graph
    depths: tuple[int, ...] = (2, 3, 3)  # layers of each level on the way down
    depth_up: int = 2  # layers of the finest level on the way up
    neighbors: int = 16  # that a point looks at
    heads: int = 4
    patch_width: int = 96  # 0: no patches
    patch_radius: float = 6.0  # voxels
    patch_points: int = 128
    output: int = 64

    def __post_init__(self) -> None:
        if not self.local and (self.widths or not self.patch_width):
            raise ValueError("local = (): expected 'fpfh' or 'relief', or patches and no graph")
        if self.widths and not len(self.widths) == len(self.depths) == len(SPACINGS):
            raise ValueError(
                f"widths = {self.widths}, depths = {self.depths}: expected {len(SPACINGS)} each"
            )
        if any(width % self.heads for width in self.widths):
            raise ValueError(f"widths = {self.widths}: expected multiples of heads = {self.heads}")
        if not 1 <= self.output <= MAX_OUTPUT:
            raise ValueError(f"output = {self.output}: expected 1 to {MAX_OUTPUT}")


class Prepared(NamedTuple):
    """What the network is given of one cloud, or of several packed into one."""

    pyramid: Pyramid
    fpfh: Tensor | None  # (N, 66)
    around: Tensor | None = None  # (N, P) nearest first, for patches; a gap holds the first again


def prepare(
    points: Tensor,  # (N, 3), one a voxel
    normals: Tensor,  # (N, 3)
    detail: Tensor,  # (F, 3) closer together; the points themselves where nothing finer is known
    scale: Scale,
    config: DescriptorConfig,
) -> Prepared:
    """Return what a network of this configuration sees of a cloud, its lengths in voxels."""
    points, detail = points / scale.voxel_size, detail / scale.voxel_size
    pyramid = build_pyramid(points, normals, detail, neighbors=config.neighbors)
    described = None
    if "fpfh" in config.local:
        described = torch.cat([fpfh(points, normals, radius) for radius in FPFH_RADII], dim=-1)
    return Prepared(pyramid, described)


def with_patches(cloud: Prepared, config: DescriptorConfig) -> Prepared:
    """Return the cloud with the patches of all its points, if the network looks at any."""
    if not config.patch_width:
        return cloud
    return cloud._replace(around=patches_of(cloud, slice(None), config))


def patches_of(cloud: Prepared, rows: Tensor | slice, config: DescriptorConfig) -> Tensor:
    """Return (n, P): the points of the patches round some of the points."""
    if cloud.around is not None:
        return cloud.around[rows]
    points = cloud.pyramid.levels[0].points
    return nearest(points, points[rows], config.patch_radius, config.patch_points)


def pack(clouds: Sequence[Prepared]) -> Prepared:
    """Put clouds into one, whose points look at points of their own cloud alone."""
    pyramids = [cloud.pyramid for cloud in clouds]
    sizes = [[len(level.points) for level in pyramid.levels] for pyramid in pyramids]

    def joined(tables: Sequence[Tensor], seen: Sequence[int]) -> Tensor:
        starts = [sum(seen[:k]) for k in range(len(seen))]
        return torch.cat([t + start for t, start in zip(tables, starts, strict=True)])

    def each(name: str, offset: int) -> tuple[Tensor, ...]:
        tables = [getattr(pyramid, name) for pyramid in pyramids]
        return tuple(
            joined([t[k] for t in tables], [size[k + offset] for size in sizes])
            for k in range(len(tables[0]))
        )

    levels = tuple(
        Level(*(torch.cat(parts) for parts in zip(*same, strict=True)))
        for same in zip(*(pyramid.levels for pyramid in pyramids), strict=True)
    )
    details = [len(pyramid.detail) for pyramid in pyramids]
    pyramid = Pyramid(
        levels,
        each("within", 0),
        each("down", 0),
        each("up", 1),
        torch.cat([p.detail for p in pyramids]),
        joined([p.detail_index for p in pyramids], details),
    )
    described = [cloud.fpfh for cloud in clouds if cloud.fpfh is not None]
    around = [cloud.around for cloud in clouds if cloud.around is not None]
    return Prepared(
        pyramid,
        torch.cat(described) if described else None,
        joined(around, [size[0] for size in sizes]) if around else None,
    )
