"""What scans share under poses of their own: how much, and exact poses between two of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vbreg.backends.devices import chunk_size
from vbreg.errors import VBRegError
from vbreg.matching import DescribedCloud, ThinnedSurface, evenly, match_clouds
from vbreg.motions import inverse
from vbreg.refinement import refined, with_fewer_points
from vbreg.scale import Scale
from vbreg.surfaces import OrientedPoints, SurfacePair
from vbreg.types import Float64, Int64
from vbreg.uncertainty import shared_planes, uncertainty

LOOKED_AT = 400  # points of a scan
MIN_SHARED, MAX_PARTNERS = 0.15, 20  # overlap, and partners of a scan, that are refined
TOGETHER, TOGETHER_CPU = 32, 1  # pairs that are refined in one run of tensors


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


def pairs_within(component: Int64) -> list[tuple[int, int]]:
    """Return all pairs (i < j) of scans of one component (K,)."""
    i, j = np.triu_indices(len(component), 1)
    same = component[i] == component[j]
    return list(zip(i[same].tolist(), j[same].tolist(), strict=True))


def overlapping_pairs(
    surfaces: Sequence[ScanSurface], T_world_scan: Float64, component: Int64, scale: Scale
) -> list[tuple[int, int]]:
    """Return the pairs of each component that share enough, the most first for each scan."""
    shared = overlaps(surfaces, T_world_scan, pairs_within(component), scale)
    given = np.zeros(len(surfaces), dtype=np.int64)
    found = []
    for pair in sorted(shared, key=lambda pair: (-shared[pair], pair)):
        if shared[pair] >= MIN_SHARED and min(given[list(pair)]) < MAX_PARTNERS:
            given[list(pair)] += 1
            found.append(pair)
    return found


@torch.inference_mode()
def exact_poses(
    scans: Sequence[DescribedCloud],
    T_world_scan: Float64,
    pairs: Sequence[tuple[int, int]],  # source, target
    scale: Scale,
) -> Iterator[tuple[Float64, Float64] | None]:
    """Yield for each pair T_target_source near the poses (K, 4, 4), and its covariance.

    It lays the two scans onto each other. A pair with too few matches to hold it there has None.
    Some pairs are refined together, as the device likes.
    """
    if not pairs:
        return
    size = chunk_size(scans[0].points.device, cpu=TOGETHER_CPU, gpu=TOGETHER)
    for first in range(0, len(pairs), size):
        some = pairs[first : first + size]
        surfaces = {(s, t): _surfaces(scans[s], scans[t], scale) for s, t in some}
        held = {pair: found for pair, found in surfaces.items() if found is not None}
        starts = [
            local_pose(inverse(T_world_scan[t]) @ T_world_scan[s], scans[s].origin, scans[t].origin)
            for s, t in held
        ]
        poses = dict(zip(held, _refined(list(held.values()), starts, scale), strict=True))
        for s, t in some:
            yield _exact(scans[s], scans[t], poses[s, t], scale) if (s, t) in poses else None


def _exact(
    source: DescribedCloud, target: DescribedCloud, T: Tensor, scale: Scale
) -> tuple[Float64, Float64]:
    """Return a pose (4, 4) between local frames in the user's, and its covariance."""
    planes = shared_planes(_surface(source), _surface(target), T, scale.inlier_threshold)
    covariance = uncertainty(planes, scale, target.origin).covariance
    return local_pose(T.cpu().numpy(), -source.origin, -target.origin), covariance


def _surfaces(source: DescribedCloud, target: DescribedCloud, scale: Scale) -> SurfacePair | None:
    """Return what a refinement of two scans looks at; None where they have too few matches."""
    try:
        matched = match_clouds(source, target, scale)
    except VBRegError:
        return None
    pair = SurfacePair.of(matched)
    if pair is None:
        raise VBRegError("a scan without its surface: describe it with vbreg.matching.describe")
    return with_fewer_points(pair)


def _refined(pairs: Sequence[SurfacePair], T: Sequence[Float64], scale: Scale) -> Sequence[Tensor]:
    """Return poses (B, 4, 4) of pairs, refined from these; in float64 and local frames."""
    if not pairs:
        return []
    together = SurfacePair.together(pairs)
    start = torch.from_numpy(np.stack(T)).to(together.source.points.device)
    start[:, :3, 3] /= scale.voxel_size
    found = refined(together, start).double()
    found[:, :3, 3] *= scale.voxel_size
    return list(found)
