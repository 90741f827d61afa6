"""Clouds to train on: scans of one place, made ready, and which of them overlap.

Worker processes make them ready, so that the device that trains does nothing but train. What a
cloud becomes depends on what is trained: `Prepared` for a descriptor, `DescribedScan` for what
comes behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from vbreg.clouds import normals
from vbreg.datasets.poses import inverse_pose
from vbreg.descriptors import descriptor_named
from vbreg.descriptors.prepared import Prepared, ThinnedCloud, prepare, with_patches
from vbreg.frames import LocalCloud
from vbreg.geometry import random_rotation
from vbreg.matching import thin, thin_to_detail
from vbreg.metrics import overlap
from vbreg.scale import Scale
from vbreg.types import Float64

MIN_POINTS = 300  # of a cloud at one a voxel
MAX_POINTS = 12_000  # of a cloud to train on; larger ones are cropped about a point
MIN_OVERLAP = 0.1
DETAILED = 0.8  # share of the clouds whose finer points are seen

FEW_POINTS = 16  # of a cloud whose voxel size is wrong
WRONG_SIZES = (0.5, 2.0, 3.0, 4.0, 8.0, 20.0)  # voxel sizes, by the one that suits a place
SPOILT = 0.5  # share of the scans of a place with scans that are mirrored, or made of noise

MAX_BY_FPFH, MAX_LEARNED = 4096, 2048  # keypoints of a scan
VIEWPOINT_KNOWN = 0.5  # share of the places where normals point to the sensor, if there is one


class Scan(NamedTuple):
    """A scan of a place."""

    points: Float64  # (N, 3)
    T_world_scan: Float64  # (4, 4)
    viewpoint: Float64 | None = None  # (3,) of the sensor, in the scan's frame; None: many


class CloudPair(NamedTuple):
    """Two clouds of a place that see some of the same."""

    source: int
    target: int
    T_target_source: Float64  # (4, 4) in voxels
    overlap: float


class InVoxels(Protocol):
    """A cloud that is ready, whatever else it holds."""

    @property
    def points(self) -> Tensor:
        """The points (N, 3) in voxels."""


C = TypeVar("C", bound=InVoxels)
Trouble: TypeAlias = Literal["wrong size", "mirrored", "noise"]
MakeReady = Callable[[ThinnedCloud, torch.Generator], C]


@dataclass(frozen=True, eq=False)
class ReadyPlace(Generic[C]):
    """Clouds of a place, in voxels, each in a frame of its own, and the pairs to train on."""

    kind: str
    clouds: tuple[C, ...]
    pairs: tuple[CloudPair, ...]
    genuine: tuple[bool, ...] = ()  # of each cloud; False where it is mirrored or made of noise
    unit: float = 1.0  # the voxel size that suits the place, in voxels


class DescribedScan(NamedTuple):
    """Points of a scan in an order drawn by chance, and what describes the first of them."""

    points: Tensor  # (N, 3) in voxels
    normals: Tensor  # (N, 3) of length 1
    fpfh: Tensor  # (n, 33)
    learned: Tensor  # (k, 64)


def prepared(cloud: ThinnedCloud, generator: torch.Generator) -> Prepared:
    """Return what a descriptor's network sees of every point of a cloud."""
    return with_patches(prepare(cloud))


def described(
    cloud: ThinnedCloud, generator: torch.Generator, max_learned: int = MAX_LEARNED
) -> DescribedScan:
    """Return the points of a cloud, some of them described as `register` does."""
    rows = torch.randperm(len(cloud.points), generator=generator)
    fpfh, learned = (
        descriptor_named(name).rows(cloud, rows[:most])
        for name, most in (("fpfh", MAX_BY_FPFH), ("learned", max_learned))
    )
    points = cloud.points[rows] / cloud.scale.voxel_size
    return DescribedScan(points, cloud.normals[rows], fpfh, learned)


def ready_place(
    kind: str,
    scans: Sequence[Scan],
    scale: Scale,
    seed: int,
    make_ready: MakeReady[C],
    *,
    trouble: Trouble | None = None,
    min_overlap: float = MIN_OVERLAP,
    detailed: float = DETAILED,
) -> ReadyPlace[C]:
    """Turn each scan by chance, thin it as `register` does, and make it ready.

    Pairs that overlap less than `min_overlap` are left out; the finer points of a share of the
    clouds are seen.
    """
    generator = torch.Generator().manual_seed(seed)
    seen_from = float(torch.rand((), generator=generator)) < VIEWPOINT_KNOWN
    fewest, unit = MIN_POINTS, 1.0
    if trouble == "wrong size":
        factor = WRONG_SIZES[int(torch.randint(len(WRONG_SIZES), (), generator=generator))]
        scale, unit, fewest = Scale(scale.voxel_size * factor), 1 / factor, FEW_POINTS
    clouds, whole, poses, genuine = [], [], [], []
    for points, T_world_scan, viewpoint in scans:
        turn = np.eye(4)
        turn[:3, :3] = random_rotation(generator=generator, dtype=torch.float64).numpy()
        spoilt = trouble in ("mirrored", "noise")
        spoilt = spoilt and float(torch.rand((), generator=generator)) < SPOILT
        if spoilt and trouble == "mirrored":
            turn[:3, 0] *= -1
        if spoilt and trouble == "noise":
            points = _noise_like(points, generator)
        local = LocalCloud.of(points @ turn[:3, :3].T, "a scan")
        at_voxels = _cropped(thin(local, scale), generator)
        if len(at_voxels) < fewest:
            continue
        fine = at_voxels
        if float(torch.rand((), generator=generator)) < detailed:
            fine = thin_to_detail(local, scale)
        sensor = None
        if viewpoint is not None and seen_from:
            sensor = torch.from_numpy(turn[:3, :3] @ viewpoint - local.origin)
        direction = normals(at_voxels, scale.normal_radius, viewpoint=sensor)
        clouds.append(make_ready(ThinnedCloud(at_voxels, direction, fine, scale), generator))
        whole.append(at_voxels / scale.voxel_size)
        shift = np.eye(4)
        shift[:3, 3] = local.origin
        T_world_cloud = T_world_scan @ inverse_pose(turn) @ shift
        T_world_cloud[:3, 3] /= scale.voxel_size
        poses.append(T_world_cloud)
        genuine.append(not spoilt)
    pairs = [
        CloudPair(i, j, T, shared)
        for i, j in combinations(range(len(clouds)), 2)
        if (shared := _overlap(whole[i], whole[j], T := inverse_pose(poses[j]) @ poses[i]))
        >= min_overlap
    ]
    return ReadyPlace(kind, tuple(clouds), tuple(pairs), tuple(genuine), unit)


def _noise_like(points: Float64, generator: torch.Generator) -> Float64:
    """Return as many points (N, 3) that fill the box of a cloud evenly, or crowd in its middle."""
    low, high = points.min(0), points.max(0)
    even = torch.rand(len(points), 3, generator=generator, dtype=torch.float64).numpy()
    if float(torch.rand((), generator=generator)) < 0.5:
        return np.asarray(low + even * (high - low))
    crowd = torch.randn(len(points), 3, generator=generator, dtype=torch.float64).numpy()
    return np.asarray((low + high) / 2 + crowd * (high - low) / 6)


def _cropped(points: Tensor, generator: torch.Generator) -> Tensor:
    """Return the points nearest to some point of a cloud that is too large."""
    if len(points) <= MAX_POINTS:
        return points
    centre = points[torch.randint(len(points), (), generator=generator)]
    nearest = (points - centre).norm(dim=-1).topk(MAX_POINTS, largest=False).indices
    return points[nearest.sort().values]


def _overlap(x: Tensor, y: Tensor, T_y_x: Float64) -> float:
    return overlap(x[:: 1 + len(x) // 1000], y, torch.from_numpy(T_y_x), 1.5)


def to_arrays(place: ReadyPlace[C]) -> ReadyPlace[C]:
    """Return the place as arrays, small enough to be sent between processes."""
    return _mapped(place, Tensor, _small_array)


def to_tensors(place: ReadyPlace[C], device: torch.device) -> ReadyPlace[C]:
    """Return the place as tensors on a device."""
    return _mapped(place, np.ndarray, lambda a: _tensor(a, device))


def _mapped(place: ReadyPlace[C], kind: type, change: Callable[..., object]) -> ReadyPlace[C]:
    clouds: tuple[C, ...] = tree_map_only(kind, change, place.clouds)
    return replace(place, clouds=clouds)


def _small_array(tensor: Tensor) -> object:
    array = tensor.numpy()
    if array.dtype == np.int64:
        return array.astype(np.uint16 if array.size == 0 or array.max() < 2**16 else np.int32)
    return array.astype(np.float16) if array.ndim == 2 and array.shape[1] > 3 else array


def _tensor(array: object, device: torch.device) -> Tensor:
    assert isinstance(array, np.ndarray)
    if array.dtype in (np.uint16, np.int32):
        return torch.from_numpy(array.astype(np.int32)).to(device)
    return torch.from_numpy(array.astype(np.float32)).to(device)
