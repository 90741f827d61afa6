"""Things along a street have the size of their kind and stand on the ground."""

from collections.abc import Callable

import numpy as np
import pytest

from vbreg.simulator import street_objects
from vbreg.simulator.meshes import Generator, Maker, merge
from vbreg.simulator.street_objects import Part

Border = Callable[[float, Generator], list[Part]]


@pytest.mark.parametrize(
    ("make", "low", "high"),
    [
        (street_objects.car, (3.5, 1.5, 1.2), (5.7, 2.2, 2.5)),
        (street_objects.pedestrian, (0.1, 0.2, 1.4), (0.9, 0.9, 2.1)),
        (street_objects.cyclist, (1.6, 0.2, 1.5), (2.0, 0.9, 2.4)),
    ],
)
def test_what_moves_has_its_size(
    make: Maker, low: tuple[float, ...], high: tuple[float, ...]
) -> None:
    for seed in range(6):
        mesh = make(np.random.default_rng(seed))
        extent = np.ptp(mesh.vertices, axis=0)
        assert (extent > low).all()
        assert (extent < high).all()
        assert mesh.vertices[:, 2].min() == pytest.approx(0, abs=0.15)


@pytest.mark.parametrize(
    "make",
    [
        street_objects.hedge,
        street_objects.fence,
        street_objects.garden_wall,
        street_objects.guard_rail,
        street_objects.thicket,
    ],
)
def test_borders_run_along_the_road(make: Border) -> None:
    for seed in range(3):
        parts = make(12.0, np.random.default_rng(seed))
        mesh = merge([mesh for mesh, _ in parts])
        assert np.ptp(mesh.vertices[:, 0]) == pytest.approx(12, abs=3.5)
        assert 0.3 < mesh.vertices[:, 2].max() < 7
        assert all(relief > 0 for _, relief in parts)


def test_a_house_turns_its_front_to_the_road() -> None:
    for seed in range(3):
        ((mesh, _),) = street_objects.house(10.0, 3, np.random.default_rng(seed))
        low, high = mesh.vertices.min(0), mesh.vertices.max(0)
        assert -5 < low[1] < 0.1
        assert 7 < high[1] < 16
        assert high[2] > 9


def test_foliage_fills_its_ellipsoid() -> None:
    mesh = street_objects.foliage((4.0, 3.0, 2.0), np.random.default_rng(0))
    low, high = mesh.vertices.min(0), mesh.vertices.max(0)
    assert (high - low > np.array((4.0, 3.0, 2.0)) / 2).all()
    assert (high - low < np.array((4.0, 3.0, 2.0)) * 1.6 + 1).all()


@pytest.mark.parametrize("make", sorted(set(street_objects.PAVEMENT_OBJECTS), key=str))
def test_what_stands_on_the_pavement_stands(make: Maker) -> None:
    mesh = make(np.random.default_rng(0))
    assert -0.35 < mesh.vertices[:, 2].min() <= 0.0
    assert 0.5 < mesh.vertices[:, 2].max() < 9
