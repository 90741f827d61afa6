"""Things are moved, taken away or left at home, and only they."""

import numpy as np
import pytest

from vbreg.simulator import make_room
from vbreg.simulator.meshes import box
from vbreg.simulator.movables import Movable, arrange, draw_movables, placed


@pytest.fixture(scope="module")
def movables() -> list[Movable]:
    return draw_movables(
        make_room("office", np.random.default_rng(0)), np.random.default_rng(1), 30, 10
    )


def test_things_stand_on_level_surfaces(movables: list[Movable]) -> None:
    assert len(movables) == 40
    for k, movable in enumerate(movables):
        assert movable.places.shape == (6, 4)
        assert (movable.places[:, 2] > -0.1).all()
        assert (movable.places[:, 2] < (1.55 if k < 30 else 0.1)).all()


def test_shares_are_as_asked_and_a_seed_repeats(movables: list[Movable]) -> None:
    generator = np.random.default_rng(2)
    rounds = [arrange(movables, generator, moved=0.3, absent=0.2) for _ in range(50)]
    there = [[place is not None for place in arrangement] for arrangement in rounds]
    home = [
        place is not None and np.array_equal(place, movable.places[0])
        for arrangement in rounds
        for place, movable in zip(arrangement, movables, strict=True)
    ]
    assert np.mean(there) == pytest.approx(0.8, abs=0.04)
    assert np.mean(home) == pytest.approx(0.5, abs=0.04)
    one, again = (arrange(movables, np.random.default_rng(3)) for _ in range(2))
    for a, b in zip(one, again, strict=True):
        assert (a is None) == (b is None)
        assert a is None or np.array_equal(a, b)


def test_what_is_placed_keeps_its_shape() -> None:
    thing = Movable(box((1, 2, 3)), np.array([[0, 0, 0, 0], [5, 6, 7, np.pi / 2]]))
    (moved,) = placed([thing, thing], (thing.places[1], None))
    np.testing.assert_allclose(moved.vertices.min(0), (4, 5.5, 7))
    np.testing.assert_allclose(moved.vertices.max(0), (6, 6.5, 10))
