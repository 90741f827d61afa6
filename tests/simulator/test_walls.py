"""Walls close a room but for their openings, and furniture goes against them."""

from itertools import pairwise

import numpy as np
import pytest

from vbreg.simulator import meshes
from vbreg.simulator.walls import Room, at_random_place, door, evenly_spaced, window

ROOM = Room(4.0, 3.0, 2.5)
AREA = 2 * 4 * 3 + 2 * (4 + 3) * 2.5


def test_a_room_without_openings_is_a_box() -> None:
    shell = ROOM.shell((), (), (), ())
    assert meshes.area(shell) == pytest.approx(AREA)
    np.testing.assert_allclose(shell.vertices.min(0), 0, atol=1e-9)
    np.testing.assert_allclose(shell.vertices.max(0), (4, 3, 2.5))


def test_an_opening_is_set_back_and_closed() -> None:
    generator = np.random.default_rng(0)
    pane = window(generator)
    shell = ROOM.shell([(2.0, pane)], (), (), ())
    around = 2 * pane.depth * (pane.width + pane.top - pane.low)  # reveal, sill and lintel
    expected = AREA + around + meshes.area(pane.fittings)
    assert meshes.area(shell) == pytest.approx(expected)
    assert shell.vertices[:, 1].min() == pytest.approx(-pane.depth, abs=0.02)


@pytest.mark.parametrize("side", range(4))
def test_furniture_stands_with_its_back_to_the_wall(side: int) -> None:
    piece = ROOM.against_wall(side, 1.0, meshes.box((0.6, 0.4, 1.0)), gap=0.05)
    low, high = piece.vertices.min(0), piece.vertices.max(0)
    walls = low[1], 4 - high[0], 3 - high[1], low[0]
    assert walls[side] == pytest.approx(0.05)
    start = low[0] - 0.7, low[1] - 0.7, 4 - high[0] - 0.7, 3 - high[1] - 0.7
    assert start[side] == pytest.approx(0, abs=1e-9)


def test_furniture_along_a_wall_keeps_clear_of_doors() -> None:
    def crate(generator: meshes.Generator) -> meshes.Mesh:
        return meshes.box((generator.uniform(0.3, 0.8), 0.4, 1.0))

    for seed in range(20):
        generator = np.random.default_rng(seed)
        doorway = at_random_place(door(generator), ROOM.wall_length(0), generator)
        ((x, leaf),) = doorway
        placed = ROOM.line_wall(0, (crate,), generator, doorway)
        assert placed
        ends = sorted((m.vertices[:, 0].min(), m.vertices[:, 0].max()) for m in placed)
        assert all(b <= x - leaf.width / 2 or a >= x + leaf.width / 2 for a, b in ends)
        assert all(first[1] <= second[0] for first, second in pairwise(ends))
        assert ends[0][0] >= 0
        assert ends[-1][1] <= 4


def test_equal_openings_are_symmetric_and_fit() -> None:
    pane = window(np.random.default_rng(1))
    places = [x for x, _ in evenly_spaced(pane, 3, 8.0)]
    assert places == pytest.approx([8.0 - x for x in places[::-1]])
    crowded = evenly_spaced(pane, 9, 2.0)
    assert len(crowded) * pane.width < 2.0
