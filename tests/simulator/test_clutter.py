"""Clutter lies on level surfaces and hangs on walls, as much of it as was asked for."""

import numpy as np
import pytest

from vbreg.simulator import add_clutter, meshes


def cube(generator: meshes.Generator) -> meshes.Mesh:
    return meshes.box((0.02, 0.02, 0.02))


def added(level: float, wall: float, seed: int = 0) -> np.ndarray:
    """Corners (K, 8, 3) of the boxes that clutter adds to an empty hall of 5 x 4 x 2.5 m."""
    hall = meshes.box((5.0, 4.0, 2.5))
    full = add_clutter(hall, np.random.default_rng(seed), level, wall, (cube,))
    assert np.array_equal(full.vertices[:8], hall.vertices)
    return full.vertices[8:].reshape(-1, 8, 3)


def test_walls_carry_their_share() -> None:
    boxes = added(level=0.0, wall=0.7)
    # 45 m^2 of wall, of which four fifths are within 2 m of the floor
    assert len(boxes) == pytest.approx(0.7 * 45 * 0.8, rel=0.4)
    middle = boxes.mean(1)
    gap = np.minimum(np.abs(np.abs(middle[:, 0]) - 2.5), np.abs(np.abs(middle[:, 1]) - 2.0))
    assert gap.max() < 0.2


def test_the_floor_carries_its_share_and_a_seed_repeats() -> None:
    hall = meshes.box((5.0, 4.0, 2.5))

    def full(level: float) -> meshes.Mesh:
        return add_clutter(hall, np.random.default_rng(1), level, 0.0, (cube,))

    once, again, more = full(1.0), full(1.0), full(4.0)
    np.testing.assert_array_equal(once.vertices, again.vertices)
    assert len(hall.vertices) < len(once.vertices) < len(more.vertices)
    assert (once.vertices[:, 2] > -0.2).all()
