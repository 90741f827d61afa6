"""A pose that is off by a little becomes exact; one that cannot be mended is left alone."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation
from torch import Tensor

from tests.verification.conftest import SCALE, matched_pair, pose
from vbreg.matching import MatchedClouds
from vbreg.metrics import pose_error
from vbreg.refinement import refined


@pytest.fixture(scope="module")
def pair() -> tuple[MatchedClouds, Tensor]:
    return matched_pair()


def slip(degrees: float, voxels: float, seed: int = 0) -> Tensor:
    rng = np.random.default_rng(seed)
    axis, way = rng.normal(size=(2, 3))
    T = np.eye(4)
    T[:3, :3] = Rotation.from_rotvec(np.radians(degrees) * axis / np.linalg.norm(axis)).as_matrix()
    T[:3, 3] = voxels * SCALE.voxel_size * way / np.linalg.norm(way)
    return torch.from_numpy(T)


@pytest.mark.parametrize("seed", range(3))
def test_a_pose_becomes_exact(pair: tuple[MatchedClouds, Tensor], seed: int) -> None:
    matched, T = pair
    start = slip(4.0, 1.5, seed) @ T
    found = refined(matched, start)
    before, after = pose_error(start, T), pose_error(found, T)
    assert float(before.rotation) > 3.9
    assert float(after.rotation) < 0.5
    assert float(after.translation) < 0.2 * SCALE.voxel_size


def test_the_true_pose_stays(pair: tuple[MatchedClouds, Tensor]) -> None:
    matched, T = pair
    error = pose_error(refined(matched, T), T)
    assert float(error.rotation) < 0.3
    assert float(error.translation) < 0.1 * SCALE.voxel_size


def test_a_pose_far_from_all_is_left_alone(pair: tuple[MatchedClouds, Tensor]) -> None:
    matched, T = pair
    away = T.clone()
    away[:3, 3] += 100.0
    torch.testing.assert_close(refined(matched, away), away)


@pytest.mark.parametrize("seed", range(4))
def test_a_wrong_pose_never_runs_away(pair: tuple[MatchedClouds, Tensor], seed: int) -> None:
    matched, T = pair
    start = pose(seed + 20, far=0.2) @ T
    error = pose_error(refined(matched, start), start)
    assert float(error.rotation) < 15.1
    assert torch.isfinite(refined(matched, start)).all()


def test_only_turns_about_up_are_allowed(pair: tuple[MatchedClouds, Tensor]) -> None:
    matched, T = pair
    up = T[:3, 2] / T[:3, 2].norm()
    start = slip(3.0, 1.0) @ T
    found = refined(matched, start, up)
    axis = Rotation.from_matrix((found @ torch.linalg.inv(start))[:3, :3].numpy()).as_rotvec()
    across = axis - (axis @ up.numpy()) * up.numpy()
    assert np.linalg.norm(across) < 1e-6


def test_without_surfaces_nothing_is_done(pair: tuple[MatchedClouds, Tensor]) -> None:
    matched, T = pair
    bare = dataclasses.replace(matched, source=dataclasses.replace(matched.source, surface=None))
    assert refined(bare, T) is T
