"""FPFH as Open3D has it (extra `baselines`), to compare with: the papers match by it.

`vbreg.descriptors.fpfh` is ours.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vbreg.errors import MissingExtraError
from vbreg.scale import Scale

NORMAL_NEIGHBORS = 30  # at most, within the normal radius
FEATURE_NEIGHBORS = 100  # at most, within the feature radius


def open3d_voxels(points: Tensor, scale: Scale) -> Tensor:
    """Return one point a voxel (M, 3), the mean of those in it, as Open3D thins a cloud (N, 3)."""
    thinned = _cloud(points).voxel_down_sample(scale.voxel_size)
    return torch.from_numpy(np.array(thinned.points)).to(points)


def open3d_fpfh(points: Tensor, scale: Scale) -> Tensor:
    """Return Open3D's FPFH (N, 33) of points (N, 3), with normals that it estimates."""
    cloud = _cloud(points)
    o3d = _open3d()
    search = o3d.geometry.KDTreeSearchParamHybrid
    cloud.estimate_normals(search(scale.normal_radius, NORMAL_NEIGHBORS))
    feature = o3d.pipelines.registration.compute_fpfh_feature(
        cloud, search(scale.feature_radius, FEATURE_NEIGHBORS)
    )
    return torch.from_numpy(np.array(feature.data.T)).to(points)


def _cloud(points: Tensor) -> Any:
    o3d = _open3d()
    rows = o3d.utility.Vector3dVector(points.double().cpu().numpy())
    return o3d.geometry.PointCloud(rows)


def _open3d() -> Any:
    try:
        return importlib.import_module("open3d")
    except ImportError as error:
        raise MissingExtraError("open3d", "baselines", "FPFH as Open3D has it") from error
