"""Shapes have the size, the area and the sides that they were asked for."""

import numpy as np
import pytest

from tests.simulator.congruence import pieces
from vbreg.simulator import meshes


def test_copies_keep_their_shape() -> None:
    generator = np.random.default_rng(0)
    blob = meshes.blob((0.3, 0.5, 0.7), generator)
    twice = meshes.copies(blob, [(0, 0, 0, 0.5), (3, 1, 0.2, 2.0)])
    assert set(pieces(twice).values()) == {2}
    assert meshes.area(twice) == pytest.approx(2 * meshes.area(blob))


def test_a_box_leaves_out_the_faces_it_is_told_to() -> None:
    open_box = meshes.box((1, 2, 3), skip="xXZ")
    assert meshes.area(open_box) == pytest.approx(2 * 1 * 3 + 1 * 2)
    assert meshes.area(meshes.box((1, 2, 3))) == pytest.approx(2 * (2 + 3 + 6))


def test_a_tube_keeps_its_radius() -> None:
    path = np.array([(0, 0, 0), (0, 0, 0.5), (0, 0, 2.0)])
    tube = meshes.tube(path, 0.1, segments=64)
    np.testing.assert_allclose(np.linalg.norm(tube.vertices[:, :2], axis=-1), 0.1)
    assert meshes.area(tube) == pytest.approx(2 * np.pi * 0.1 * 2.0, rel=0.01)


def test_points_lie_on_their_faces_in_proportion_to_the_area() -> None:
    mesh = meshes.box((1, 2, 3))
    points, normals = meshes.surface_points(mesh, 4400, np.random.default_rng(0))
    on_top = np.abs(points[:, 2] - 3) < 1e-12
    assert abs(on_top.sum() - 400) <= 2  # 2 of 22 square metres
    np.testing.assert_allclose(np.abs(normals[on_top, 2]), 1)
    half = np.abs(points - [0, 0, 1.5]) / [0.5, 1, 1.5]
    np.testing.assert_allclose(half.max(-1), 1)


def test_crop_keeps_the_area_inside() -> None:
    floor = meshes.sheet(np.array([[[-9.0, -9, 0], [-9, 9, 0]], [[9, -9, 0], [9, 9, 0]]]))
    cut = meshes.crop(floor, (1.0, 2.0), half=2.0, edge=0.5)
    assert 16 <= meshes.area(cut) < 26
    assert np.abs(cut.vertices[:, :2] - [1, 2]).max() < 2.6


def test_the_floor_is_the_lowest_large_level_area() -> None:
    table = meshes.box((1.5, 1.0, 0.7))
    hall = meshes.box((5, 4, 2.5), (1, 0, -0.3))
    height = meshes.floor_height(meshes.merge([hall, table]), np.random.default_rng(0))
    assert height == pytest.approx(-0.3, abs=0.01)


def test_moving_tilts_then_turns_then_shifts() -> None:
    tip = meshes.Mesh(np.array([[0.0, 0, 1]]), np.zeros((0, 3), dtype=np.int64))
    moved = tip.moved((10, 20, 30), yaw=np.pi / 2, tilt=np.pi / 2)
    np.testing.assert_allclose(moved.vertices, [[11, 20, 30]], atol=1e-12)


def test_noise_is_smooth_and_of_about_unit_variance() -> None:
    line = np.linspace(0, 50, 5001)
    height = meshes.smooth_noise(line, 0 * line, np.random.default_rng(0), length=1.0)
    assert 0.5 < height.std() < 1.5
    assert np.abs(np.diff(height)).max() < 0.5  # a centimetre is a hundredth of a wave


def test_one_of_the_makers_makes_it() -> None:
    makers = [lambda g, size=size: meshes.box((size, 1, 1)) for size in (1, 2, 3)]
    generator = np.random.default_rng(0)
    widths = {
        round(float(np.ptp(meshes.make_one_of(makers, generator).vertices[:, 0])))
        for _ in range(40)
    }
    assert widths == {1, 2, 3}
