"""Clouds to train a descriptor on: scans of one place, made ready, and which of them overlap.

Worker processes make them ready, so that the device that trains does nothing but train.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor
from torch.utils._pytree import tree_map_only

from vbreg.clouds import normals, voxel_downsample
from vbreg.descriptors.prepared import DescriptorConfig, Prepared, prepare
from vbreg.geometry import random_rotation
from vbreg.scale import Scale
from vbreg.types import Float64

MIN_POINTS = 300  # of a cloud at one a voxel
MAX_POINTS = 12_000  # of a cloud to train on; larger ones are cropped about a point
MIN_OVERLAP = 0.1
DETAIL = 0.5  # voxels between the points of a cloud with detail


class CloudPair(NamedTuple):
    """Two clouds of a place that see some of the same."""

    source: int
    target: int
    R: Float64  # (3, 3) maps source points into the target's frame
    t: Float64  # (3,) in voxels
    overlap: float


class ReadyPlace(NamedTuple):
    """Clouds of a place, in voxels, each in a frame of its own, and the pairs to train on."""

    kind: str
    clouds: tuple[Prepared, ...]
    pairs: tuple[CloudPair, ...]


def ready_place(
    kind: str,
    scans: Sequence[tuple[Float64, Float64]],  # points (N, 3), T_world_scan (4, 4)
    scale: Scale,
    config: DescriptorConfig,
    seed: int,
) -> ReadyPlace:
    """Turn each scan by chance, thin it, and prepare what the network sees of it."""
    generator = torch.Generator().manual_seed(seed)
    clouds, poses, trees = [], [], []
    for points, T_world_scan in scans:
        R = random_rotation(1, generator=generator)[0].double().numpy()
        middle = points.mean(0)
        local = torch.from_numpy((points - middle) @ R.T / scale.voxel_size).float()
        at_voxels = _cropped(voxel_downsample(local, 1.0), generator)
        if len(at_voxels) < MIN_POINTS:
            continue
        fine = (
            voxel_downsample(local, DETAIL)
            if bool(torch.rand((), generator=generator) < 0.8)
            else at_voxels
        )
        direction = normals(at_voxels, scale.normal_radius / scale.voxel_size)
        clouds.append(prepare(at_voxels, direction, fine, config))
        T = np.eye(4)  # of the world, in voxels, from the cloud's own frame
        T[:3, :3] = T_world_scan[:3, :3] @ R.T
        T[:3, 3] = (T_world_scan[:3, :3] @ middle + T_world_scan[:3, 3]) / scale.voxel_size
        poses.append(T)
        trees.append(at_voxels.double().numpy() @ T[:3, :3].T + T[:3, 3])
    pairs = [
        CloudPair(i, j, *_relative(poses[i], poses[j]), overlap)
        for i in range(len(clouds))
        for j in range(len(clouds))
        if i < j and (overlap := _overlap(trees[i], trees[j])) >= MIN_OVERLAP
    ]
    return ReadyPlace(kind, tuple(clouds), tuple(pairs))


def _cropped(points: Tensor, generator: torch.Generator) -> Tensor:
    """Return the points nearest to some point of a cloud that is too large."""
    if len(points) <= MAX_POINTS:
        return points
    centre = points[torch.randint(len(points), (), generator=generator)]
    return points[(points - centre).norm(dim=-1).topk(MAX_POINTS, largest=False).indices.sort()[0]]


def _relative(T_world_a: Float64, T_world_b: Float64) -> tuple[Float64, Float64]:
    R = T_world_b[:3, :3].T @ T_world_a[:3, :3]
    return R, T_world_b[:3, :3].T @ (T_world_a[:3, 3] - T_world_b[:3, 3])


def _overlap(a: Float64, b: Float64) -> float:
    """Return the share of the smaller cloud that lies within 1.5 voxels of the other."""
    few, many = (a, b) if len(a) <= len(b) else (b, a)
    distance, _ = cKDTree(many).query(few[:: max(1, len(few) // 1000)], distance_upper_bound=1.5)
    return float(np.isfinite(distance).mean())


def to_arrays(place: ReadyPlace) -> ReadyPlace:
    """Return the place as arrays, small enough to be sent between processes."""
    return _mapped(place, Tensor, _small_array)


def to_tensors(place: ReadyPlace, device: torch.device) -> ReadyPlace:
    """Return the place as tensors on a device."""
    return _mapped(place, np.ndarray, lambda a: _tensor(a, device))


def _mapped(place: ReadyPlace, kind: type, change: Callable[..., object]) -> ReadyPlace:
    clouds: tuple[Prepared, ...] = tree_map_only(kind, change, place.clouds)
    return place._replace(clouds=clouds)


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
