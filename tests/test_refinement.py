"""A pose that is off by a little becomes exact; one that cannot be mended is left alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation
from torch import Tensor

from tests.verification.conftest import SCALE, matched_pair, pose, surfaces
from vbreg.metrics import pose_error
from vbreg.refinement import MAX_POINTS, refined, with_fewer_points
from vbreg.surfaces import OrientedPoints, SurfacePair


@pytest.fixture(scope="module")
def pair() -> tuple[SurfacePair, Tensor]:
    """Surfaces, and the true pose between them in voxels."""
    matched, T = matched_pair()
    T[:3, 3] /= SCALE.voxel_size
    return with_fewer_points(surfaces(matched)), T


def slip(degrees: float, voxels: float, seed: int = 0) -> Tensor:
    rng = np.random.default_rng(seed)
    axis, way = rng.normal(size=(2, 3))
    T = np.eye(4)
    T[:3, :3] = Rotation.from_rotvec(np.radians(degrees) * axis / np.linalg.norm(axis)).as_matrix()
    T[:3, 3] = voxels * way / np.linalg.norm(way)
    return torch.from_numpy(T)


@pytest.mark.parametrize("seed", range(3))
def test_a_pose_becomes_exact(pair: tuple[SurfacePair, Tensor], seed: int) -> None:
    clouds, T = pair
    start = slip(4.0, 1.5, seed) @ T
    found = refined(clouds, start[None])[0]
    before, after = pose_error(start, T), pose_error(found, T)
    assert float(before.rotation) > 3.9
    assert float(after.rotation) < 0.5
    assert float(after.translation) < 0.2


def test_the_true_pose_stays(pair: tuple[SurfacePair, Tensor]) -> None:
    clouds, T = pair
    error = pose_error(refined(clouds, T[None])[0], T)
    assert float(error.rotation) < 0.3
    assert float(error.translation) < 0.1


def test_a_pose_far_from_all_is_left_alone(pair: tuple[SurfacePair, Tensor]) -> None:
    clouds, T = pair
    away = T.clone()
    away[:3, 3] += 2000.0
    torch.testing.assert_close(refined(clouds, away[None])[0], away)


@pytest.mark.parametrize("seed", range(4))
def test_a_wrong_pose_never_runs_away(pair: tuple[SurfacePair, Tensor], seed: int) -> None:
    clouds, T = pair
    start = pose(seed + 20, far=4.0) @ T
    error = pose_error(refined(clouds, start[None])[0], start)
    assert float(error.rotation) < 15.1
    assert torch.isfinite(refined(clouds, start[None])[0]).all()


def test_only_turns_about_up_are_allowed(pair: tuple[SurfacePair, Tensor]) -> None:
    clouds, T = pair
    up = T[:3, 2] / T[:3, 2].norm()
    start = slip(3.0, 1.0) @ T
    found = refined(clouds, start[None], up)[0]
    axis = Rotation.from_matrix((found @ torch.linalg.inv(start))[:3, :3].numpy()).as_rotvec()
    across = axis - (axis @ up.numpy()) * up.numpy()
    assert np.linalg.norm(across) < 1e-6


def test_a_refinement_moves_no_more_points_than_it_needs() -> None:
    whole = surfaces(matched_pair()[0])
    fewer = with_fewer_points(whole)
    assert MAX_POINTS / 2 < fewer.source.points.shape[1] <= MAX_POINTS
    assert whole.source.points.shape[1] > MAX_POINTS
    assert fewer.target is whole.target


def test_pairs_of_a_batch_are_refined_alone(pair: tuple[SurfacePair, Tensor]) -> None:
    clouds, T = pair

    def twice(points: OrientedPoints, more: int) -> OrientedPoints:
        """The cloud beside itself, with rows that are not real."""
        parts = (
            torch.cat([part, 99 * torch.ones(1, more, 3)], 1).expand(2, -1, -1)
            for part in (points.points, points.normals)
        )
        real = torch.cat([points.real, torch.zeros(1, more).bool()], 1).expand(2, -1)
        return OrientedPoints(*parts, real)

    def again(part: Tensor) -> Tensor:
        """Rows beside themselves, with seven of them once more."""
        return torch.cat([part, part[:, :7]], 1).expand(2, *([-1] * (part.ndim - 1)))

    real = again(clouds.matched_real).clone()
    real[:, clouds.matched_real.shape[1] :] = False
    both = SurfacePair(
        twice(clouds.source, 0),
        twice(clouds.target, 40),
        again(clouds.matched_source),
        again(clouds.matched_target),
        real,
    )
    starts = torch.stack([slip(4.0, 1.5, seed) @ T for seed in (0, 1)])
    found = refined(both, starts)
    for k in range(2):
        alone = refined(clouds, starts[k : k + 1])[0]
        torch.testing.assert_close(found[k], alone, atol=1e-8, rtol=0)
