"""What scans share under poses of their own: how much, and the exact pose between two of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vbreg.errors import VBRegError
from vbreg.matching import DescribedCloud, ThinnedSurface, evenly, match_clouds
from vbreg.motions import inverse
from vbreg.refinement import refined, with_fewer_points
from vbreg.scale import Scale
from vbreg.surfaces import OrientedPoints, SurfacePair
from vbreg.types import Float64
from vbreg.uncertainty import shared_planes, uncertainty

LOOKED_AT = 400  # points of a scan


@dataclass(frozen=True, eq=False)
class ScanSurface:
    """The surface of a scan, to lay others upon; lengths in voxels, in its local frame."""

    surface: OrientedPoints  # (1, M)
    sample: Tensor  # (S, 3) some of the points
    middle: Float64  # (3,) of the points, in the user's frame
    radius: float  # about the middle, in the user's unit
    origin: Float64  # (3,) of the local frame, in the user's

    @staticmethod
    def of(scan: DescribedCloud, scale: Scale) -> ScanSurface:
        """Return the surface of a described scan."""
        points, normals = _surface(scan)
        surface = OrientedPoints.of(points, normals, scale.voxel_size)
        rows = evenly(len(points), LOOKED_AT).to(points.device)
        middle = points.mean(0)
        radius = float((points - middle).norm(dim=-1).max())
        return ScanSurface(
            surface,
            surface.points[0, rows],
            middle.double().cpu().numpy() + scan.origin,
            radius,
            scan.origin,
        )


def _surface(scan: DescribedCloud) -> ThinnedSurface:
    if scan.surface is None:
        raise VBRegError("a scan without its surface: describe it with vbreg.matching.describe")
    return scan.surface


def overlap(one: ScanSurface, other: ScanSurface, T_other_one: Float64, scale: Scale) -> float:
    """Return the share of either scan's points that land on the other, the mean of both ways."""
    middle = T_other_one[:3, :3] @ one.middle + T_other_one[:3, 3]
    if np.linalg.norm(middle - other.middle) > one.radius + other.radius:
        return 0.0
    there = _share(one, other, T_other_one, scale)
    back = _share(other, one, inverse(T_other_one), scale)
    return (there + back) / 2


def _share(one: ScanSurface, other: ScanSurface, T_other_one: Float64, scale: Scale) -> float:
    T = torch.from_numpy(local_pose(T_other_one, one.origin, other.origin)).to(one.sample)
    T[:3, 3] /= scale.voxel_size
    moved = one.sample @ T[:3, :3].T + T[:3, 3]
    reach = scale.inlier_threshold / scale.voxel_size
    return float(other.surface.searchable.nearest(moved[None], reach, 1)[2].double().mean())


def local_pose(T_target_source: Float64, source_origin: Float64, target_origin: Float64) -> Float64:
    """Return the pose between the local frames of two scans."""
    T = T_target_source.copy()
    T[:3, 3] += T[:3, :3] @ source_origin - target_origin
    return T


def overlaps(
    surfaces: Sequence[ScanSurface],
    T_world_scan: Float64,
    pairs: Iterable[tuple[int, int]],
    scale: Scale,
) -> dict[tuple[int, int], float]:
    """Return how much each pair of scans shares under poses (K, 4, 4)."""
    return {
        (s, t): overlap(surfaces[s], surfaces[t], inverse(T_world_scan[t]) @ T_world_scan[s], scale)
        for s, t in pairs
    }


@torch.inference_mode()
def exact_pose(
    source: DescribedCloud, target: DescribedCloud, T_target_source: Float64, scale: Scale
) -> tuple[Float64, Float64]:
    """Return the pose near this one that lays two scans onto each other, and its covariance."""
    matched = match_clouds(source, target, scale)
    pair = SurfacePair.of(matched)
    if pair is None:
        raise VBRegError("a scan without its surface: describe it with vbreg.matching.describe")
    T = local_pose(T_target_source, source.origin, target.origin)
    in_voxels = torch.from_numpy(T).to(pair.source.points.device)
    in_voxels[:3, 3] /= scale.voxel_size
    found = refined(with_fewer_points(pair), in_voxels[None])[0].double()
    found[:3, 3] *= scale.voxel_size
    planes = shared_planes(_surface(source), _surface(target), found, scale.inlier_threshold)
    covariance = uncertainty(planes, scale, target.origin).covariance
    T = local_pose(found.cpu().numpy(), -source.origin, -target.origin)
    return T, covariance
