"""Passages join the rooms of a building, and nothing else of a room is lost."""

import numpy as np
import pytest
import torch

from vbreg.simulator import make_room, meshes
from vbreg.simulator.buildings import (
    JOINABLE,
    MAX_EDGE_AT_A_CUT,
    _inner_walls,
    cut_out,
    make_building,
)
from vbreg.simulator.lidar import cast_rays
from vbreg.simulator.sensors import LIDAR_16


def test_a_hole_is_as_large_as_asked() -> None:
    hall = meshes.box((6, 4, 3))
    low, high = np.array([2.5, -0.5, 0.5]), np.array([3.5, 0.5, 2.5])
    cut = cut_out(hall, low, high)
    lost = meshes.area(hall) - meshes.area(cut)
    assert lost == pytest.approx(1.0 * 2.0, abs=6 * MAX_EDGE_AT_A_CUT / 2)
    points, _ = meshes.surface_points(cut, 20000, np.random.default_rng(0))
    inside = ((points > low + MAX_EDGE_AT_A_CUT) & (points < high - MAX_EDGE_AT_A_CUT)).all(-1)
    assert not inside.any()


def test_cutting_air_loses_nothing() -> None:
    hall = meshes.box((6, 4, 3))
    cut = cut_out(hall, np.array([-1.0, -1, 1]), np.array([1.0, 1, 2]))
    assert meshes.area(cut) == pytest.approx(meshes.area(hall))


@pytest.mark.parametrize("seed", range(3))
def test_rooms_stand_in_a_row_and_can_be_looked_through(seed: int) -> None:
    one, three = (make_building(np.random.default_rng(seed), rooms) for rooms in (1, 3))
    assert np.isfinite(three.vertices).all()
    assert np.ptp(three.vertices[:, 0]) > np.ptp(one.vertices[:, 0]) + 4
    width = float(_inner_walls(one)[1][0])
    farthest = 0.0
    for y in np.linspace(one.vertices[:, 1].min() + 0.3, one.vertices[:, 1].max() - 0.3, 12):
        eye = torch.tensor([width - 0.1, y, 1.2])
        distance, _ = cast_rays((three.triangles() - eye).double(), LIDAR_16)
        hit = LIDAR_16.rays()[distance.isfinite()] * distance[distance.isfinite()].unsqueeze(-1)
        farthest = max(farthest, float(hit[:, 0].max()))
    assert farthest > 1.5  # from before the wall into the next room


@pytest.mark.parametrize("kind", JOINABLE)
def test_walls_are_found_behind_what_stands_before_them(kind: str) -> None:
    for seed in range(3):
        low, high = _inner_walls(make_room(kind, np.random.default_rng(seed)))
        np.testing.assert_allclose(low, 0, atol=1e-9)  # rooms begin at the origin
        assert (high > 1.4).all()
        assert high.max() < 14


def test_seeds_repeat() -> None:
    one, again = (make_building(np.random.default_rng(4), 2) for _ in range(2))
    np.testing.assert_array_equal(one.vertices, again.vertices)
