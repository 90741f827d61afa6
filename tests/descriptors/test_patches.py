import math

import torch
from tests.descriptors.conftest import SMALL, corner, prepared
from torch import Tensor

from vbreg.descriptors.patches import NEAR_CELLS, POINT_NUMBERS, cells, column_size
from vbreg.descriptors.prepared import (
    MIDDLE,
    Prepared,
    Surface,
    ThinnedCloud,
    patches_of,
    prepare,
)
from vbreg.geometry import random_rotation
from vbreg.scale import Scale

NEAR_NUMBERS = math.prod(NEAR_CELLS)


def two_points() -> Prepared:
    """One neighbour of the first, straight along the x axis at half of the middle reach."""
    points = torch.tensor([[0.0, 0.0, 0.0], [MIDDLE.reach / 2, 0.0, 0.0]])
    up = torch.tensor([[0.0, 0, 1], [0, 0, 1]])
    return prepare(ThinnedCloud(points, up, points, Scale(1.0)))


def held_by(cloud: Prepared, rows: Tensor) -> Tensor:
    return cells(cloud, rows, patches_of(cloud, rows), SMALL)


def middle(table: Tensor) -> Tensor:
    """What is seen from the middle distance: (n, azimuths, rings, heights, numbers)."""
    shape = SMALL.rings, SMALL.heights, POINT_NUMBERS
    return table[..., NEAR_NUMBERS : NEAR_NUMBERS + math.prod(shape)].unflatten(-1, shape)


def moved(cloud: Prepared, R: Tensor) -> Prepared:
    surfaces = tuple(
        Surface(s.points @ R.T, None if s.normals is None else s.normals @ R.T)
        for s in cloud.surfaces
    )
    return cloud._replace(surfaces=surfaces)


def test_a_point_is_shared_by_the_cells_next_to_it() -> None:
    table = held_by(two_points(), torch.tensor([0]))
    assert table.shape == (1, SMALL.azimuths, column_size(SMALL))
    found = middle(table)[0]
    assert math.isclose(float(found[..., 0].sum()), 2.0, rel_tol=0.01)  # the point itself, too
    away = found[:, 1:, :, 0]
    assert math.isclose(float(away.sum()), 1.0, rel_tol=0.01)
    azimuth, ring, height = away.nonzero().unbind(-1)
    assert set(ring.tolist()) == {0}  # the middle of three
    assert set(height.tolist()) == {SMALL.heights // 2}
    assert len(set(azimuth.tolist())) <= 3
    assert math.isclose(float(found[:, 1:, :, 3].sum()), 1.0, rel_tol=0.01)  # normal: the axis
    assert math.isclose(float(table[0, :, :NEAR_NUMBERS].sum()), 1.0, rel_tol=0.01)


def test_every_point_counts_once_and_a_gap_does_not() -> None:
    cloud = prepared(corner())
    rows = torch.arange(50)
    patches = patches_of(cloud, rows)
    patches[1][:, 30:] = patches[1][:, :1]
    table = cells(cloud, rows, patches, SMALL)
    torch.testing.assert_close(
        middle(table)[..., 0].sum((1, 2, 3)), torch.full((50,), 30.0), rtol=0.01, atol=0
    )


def test_a_turned_patch_is_shifted_round_the_circle() -> None:
    """A turn about the axis by one cell moves every number on by one azimuth."""
    cloud = two_points()
    angle = 2 * math.pi / SMALL.azimuths
    c, s = math.cos(angle), math.sin(angle)
    turn = torch.tensor([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])
    rows = torch.tensor([0])
    before, after = (middle(held_by(x, rows))[:, :, 1:] for x in (cloud, moved(cloud, turn)))
    torch.testing.assert_close(before.roll(1, 1), after, atol=1e-4, rtol=0)


def test_what_a_cell_holds_is_the_same_in_every_frame() -> None:
    cloud = prepared(corner())
    R = random_rotation(1, generator=torch.Generator().manual_seed(1))[0]
    rows = torch.arange(0, len(cloud.points), 7)
    before, after = (held_by(x, rows).sum(1) for x in (cloud, moved(cloud, R)))
    torch.testing.assert_close(before, after, atol=0.1, rtol=0)
