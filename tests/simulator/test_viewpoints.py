"""Sensors stand where there is room, near what they should see."""

import numpy as np
import pytest

from vbreg.errors import VBRegError
from vbreg.simulator import Scene, make_room, make_street, sample_surface, sensors, viewpoints
from vbreg.simulator.meshes import box


@pytest.fixture(scope="module")
def scene() -> Scene:
    generator = np.random.default_rng(0)
    return sample_surface(make_room("meeting", generator), generator, spacing=0.05)


def is_rigid(T: np.ndarray) -> bool:
    R = T[..., :3, :3]
    return bool(np.allclose(R @ np.swapaxes(R, -1, -2), np.eye(3)) and (np.linalg.det(R) > 0).all())


def test_a_stand_is_free_and_at_its_height(scene: Scene) -> None:
    generator = np.random.default_rng(1)
    first = viewpoints.random_stand(scene, generator, sensors.ON_A_ROBOT)
    assert is_rigid(first)
    assert 0.35 < first[2, 3] - scene.floor < 0.65
    next_one = viewpoints.random_stand(scene, generator, sensors.BY_HAND, first[:3, 3])
    assert 1.0 <= np.linalg.norm(next_one[:3, 3] - first[:3, 3]) <= 4.0
    assert scene.clearance(next_one[:3, 3]) > 0.35


def test_a_limited_field_looks_at_its_focus(scene: Scene) -> None:
    generator, focus = np.random.default_rng(2), np.median(scene.coarse, axis=0)
    angles = []
    for _ in range(40):
        T = viewpoints.random_stand(scene, generator, sensors.ON_A_TRIPOD, focus=focus)
        x, y, _ = T[:3, :3].T @ (focus - T[:3, 3])
        angles.append(np.arctan2(y, x))
    assert np.std(angles) == pytest.approx(0.4, abs=0.15)


def test_no_floor_is_told() -> None:
    generator = np.random.default_rng(0)
    full = sample_surface(box((0.4, 0.4, 2.5)), generator, spacing=0.05)
    with pytest.raises(VBRegError, match="free place"):
        viewpoints.random_stand(full, generator, sensors.BY_HAND)


def test_a_walk_goes_in_small_steps(scene: Scene) -> None:
    generator = np.random.default_rng(3)
    start = viewpoints.random_stand(scene, generator, sensors.BY_HAND)
    path = viewpoints.walk_on(scene, generator, start, 6, 0.1)
    np.testing.assert_array_equal(path[0], start)
    assert is_rigid(path)
    assert (np.linalg.norm(np.diff(path[:, :3, 3], axis=0), axis=-1) < 0.6).all()


def test_a_walk_on_the_pavement_stays_there() -> None:
    road = make_street(np.random.default_rng(5), "residential").road
    poses = viewpoints.random_walk_on_pavement(
        road, np.random.default_rng(0), 30, sensors.ON_A_BACKPACK, (3.0, 9.0)
    )
    x, y, z = poses[:, :3, 3].T
    left = np.abs(y - road.centre(x)) / np.hypot(1, road.slope(x))
    assert (left > road.kerb - 0.8).all()
    assert (left < road.edge + 0.3).all()
    assert (np.abs(z - road.height(x, y) - 1.75) < 0.4).all()


def test_a_ring_looks_at_its_middle() -> None:
    centre = np.array([1.0, 2.0, 0.5])
    path = viewpoints.ring_view(centre, 0.3, 0.5, 0.8, 7, np.random.default_rng(0))
    assert is_rigid(path)
    np.testing.assert_allclose(np.linalg.norm(path[:, :3, 3] - centre, axis=-1), 0.8)
    gaze = (centre - path[:, :3, 3]) / 0.8
    assert ((gaze * path[:, :3, 2]).sum(-1) > 0.97).all()
