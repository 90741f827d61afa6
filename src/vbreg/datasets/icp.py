"""Point-to-plane ICP makes a ground truth exact that is off by decimetres."""

from __future__ import annotations

import numpy as np
import torch
from scipy.spatial import cKDTree
from scipy.spatial.transform import Rotation

from vbreg import clouds
from vbreg.errors import VBRegError
from vbreg.types import Float64

VOXEL_SIZE = 0.3  # metres
REACHES = (4.0, 2.0, 1.0)  # voxels; the first bridges the error, the last decides
MAX_ITERATIONS = 30  # for each of the reaches
MIN_PARTNERS = 100  # points near the target that a pose may rest on


def refine_pose(source: Float64, target: Float64, T_target_source: Float64) -> Float64:
    """Return the pose near `T_target_source` that lays the source onto the planes of the target.

    Both clouds are thinned to `VOXEL_SIZE` first. The start must be right to about four voxels.
    """
    moving, fixed = (_thinned(cloud) for cloud in (source, target))
    normals = clouds.normals(torch.from_numpy(fixed), 3 * VOXEL_SIZE).numpy()
    tree = cKDTree(fixed)
    T = np.array(T_target_source, dtype=np.float64)
    for reach in REACHES:
        for _ in range(MAX_ITERATIONS):
            here = moving @ T[:3, :3].T + T[:3, 3]
            distance, nearest = tree.query(here, distance_upper_bound=reach * VOXEL_SIZE)
            hit = np.isfinite(distance)
            if hit.sum() < MIN_PARTNERS:
                raise VBRegError(
                    f"ICP has {hit.sum()} points near the target, needs {MIN_PARTNERS}"
                )
            partner = np.asarray(nearest)[hit]
            step = _step(here[hit], fixed[partner], normals[partner])
            T = step @ T
            if np.abs(step - np.eye(4)).max() < 1e-5:
                break
    return T


def _thinned(points: Float64) -> Float64:
    """Return one point per voxel."""
    return clouds.voxel_downsample(torch.tensor(points), VOXEL_SIZE).numpy()


def _step(points: Float64, partners: Float64, normals: Float64) -> Float64:
    """Return the small motion (4, 4) of least squared distance to the partners' planes."""
    centre = points.mean(0)  # turning about it keeps rotation and translation apart
    J = np.concatenate([np.cross(points - centre, normals), normals], axis=1)  # (N, 6)
    distance = ((partners - points) * normals).sum(-1)
    motion = np.linalg.lstsq(J.T @ J, J.T @ distance, rcond=None)[0]
    T = np.eye(4)
    T[:3, :3] = Rotation.from_rotvec(motion[:3]).as_matrix()
    T[:3, 3] = motion[3:] + centre - T[:3, :3] @ centre
    return T
