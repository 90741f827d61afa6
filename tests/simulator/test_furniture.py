"""Pieces of furniture stand on the floor, their back towards -y, and fit into a room."""

import inspect

import numpy as np
import pytest

from vbreg.simulator import furniture
from vbreg.simulator.meshes import Maker

HUNG = {"pendant_lamp"}  # below a ceiling at z = 0
MAKERS = [
    make
    for name, make in inspect.getmembers(furniture, inspect.isfunction)
    if make.__module__ == furniture.__name__
    and list(inspect.signature(make).parameters) == ["generator"]
]


@pytest.mark.parametrize("make", MAKERS, ids=lambda maker: maker.__name__)
def test_it_stands_on_the_floor_and_fits_into_a_room(make: Maker) -> None:
    for seed in range(4):
        mesh = make(np.random.default_rng(seed))
        assert np.isfinite(mesh.vertices).all()
        low, high = mesh.vertices.min(0), mesh.vertices.max(0)
        assert (high - low < 3.2).all()
        assert (low[:2] < 0.05).all()
        assert (high[:2] > -0.05).all()
        if make.__name__ in HUNG:
            assert high[2] == pytest.approx(0, abs=0.01)
        else:
            assert low[2] > -0.15


def test_the_list_of_makers_is_not_empty() -> None:
    assert len(MAKERS) > 25
    assert {*furniture.LARGE_FURNITURE, *furniture.WALL_FURNITURE} <= set(MAKERS)


def test_a_basin_is_hollow() -> None:
    basin = furniture.basin_block(1.6, 0.7, 0.5, 0.4)
    middle = np.linalg.norm(basin.vertices[:, :2], axis=-1) < 0.01
    assert basin.vertices[middle, 2] == pytest.approx(0.1)
    assert basin.vertices[:, 2].max() == pytest.approx(0.5)


def test_cupboards_in_a_row_are_alike() -> None:
    one, three = (
        furniture.cupboards(count, 0.6, 0.5, 0.8, np.random.default_rng(1)) for count in (1, 3)
    )
    assert np.ptp(three.vertices[:, 0]) - np.ptp(one.vertices[:, 0]) == pytest.approx(1.2)
