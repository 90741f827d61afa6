"""ICP: back to the truth from a pose that is off, and a word where there is nothing to hold on."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from vbreg.datasets.icp import refine_pose
from vbreg.datasets.kitti import kitti
from vbreg.errors import VBRegError
from vbreg.metrics import pose_error


def off(T: np.ndarray, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    error = np.eye(4)
    error[:3, :3] = Rotation.from_rotvec(generator.normal(0, 0.01, 3)).as_matrix()
    error[:3, 3] = generator.normal(0, 0.2, 3)
    return error @ T


def test_the_corner_of_a_room() -> None:
    generator = np.random.default_rng(0)
    walls = [np.insert(generator.uniform(0, 10, (4000, 2)), axis, 0, axis=1) for axis in range(3)]
    target = np.concatenate(walls)
    T = np.eye(4)
    T[:3, :3], T[:3, 3] = Rotation.from_rotvec([0.3, -2.0, 0.5]).as_matrix(), (4, 5, -6)
    source = (target[::2] - T[:3, 3]) @ T[:3, :3]
    np.testing.assert_allclose(refine_pose(source, target, off(T, 1)), T, atol=1e-3)


def test_real_scans(data_root: Path) -> None:
    """The ground truth of these pairs was made by another ICP."""
    for seed, pair in enumerate(kitti(data_root / "kitti" / "dev" / "03").select(every=12)):
        start = off(pair.T_target_source, seed)
        refined = refine_pose(pair.source, pair.target, start)
        error = pose_error(torch.from_numpy(refined), torch.from_numpy(pair.T_target_source))
        assert error.success(0.1, 0.03)


def test_clouds_apart() -> None:
    points = np.random.default_rng(0).uniform(0, 5, (1000, 3))
    with pytest.raises(VBRegError, match="0 points near the target"):
        refine_pose(points, points + 100, np.eye(4))
