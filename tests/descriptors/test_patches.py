import math

import pytest
import torch
from tests.descriptors.conftest import EVERYTHING, corner, prepared
from torch import Tensor

from vbreg.descriptors import patches
from vbreg.descriptors.patches import (
    AZIMUTHS,
    HEIGHTS,
    NEAR_HEIGHTS,
    NEAR_RINGS,
    POINT_NUMBERS,
    RINGS,
    PatchNetwork,
    cells,
)
from vbreg.descriptors.prepared import patches_of
from vbreg.descriptors.pyramid import Level, Pyramid, build_pyramid
from vbreg.geometry import random_rotation

RADIUS = 5.0
WHOLE = RINGS * HEIGHTS * POINT_NUMBERS


def two_points() -> Pyramid:
    """One neighbour of the first, straight along the x axis at half of the radius."""
    points = torch.tensor([[0.0, 0.0, 0.0], [2.5, 0.0, 0.0]])
    up = torch.tensor([[0.0, 0, 1], [0, 0, 1]])
    return build_pyramid(points, up, points, neighbors=2)


def whole(table: Tensor) -> Tensor:
    return table[..., :WHOLE].unflatten(-1, (RINGS, HEIGHTS, POINT_NUMBERS))


def test_a_point_is_shared_by_the_cells_next_to_it() -> None:
    table = cells(two_points(), torch.tensor([0]), torch.tensor([[0, 1, 0]]), RADIUS)
    found = whole(table)[0]  # (azimuths, rings, heights, numbers)
    assert math.isclose(float(found[..., 0].sum()), 1.0, rel_tol=1e-5)
    azimuth, ring, height = found[..., 0].nonzero().unbind(-1)
    assert set(ring.tolist()) == {1}  # the middle of three
    assert set(height.tolist()) == {HEIGHTS // 2}
    assert len(set(azimuth.tolist())) <= 3
    assert math.isclose(float(found[..., 3].sum()), 1.0, rel_tol=1e-5)  # its normal is the axis
    middle = table[0, :, WHOLE:].unflatten(-1, (NEAR_RINGS, NEAR_HEIGHTS))
    assert math.isclose(float(middle.sum()), 1.0, rel_tol=1e-5)  # the point itself, no other


def test_every_point_counts_once_and_a_gap_does_not() -> None:
    cloud = prepared(corner(), EVERYTHING)
    rows = torch.arange(50)
    around = patches_of(cloud, rows, EVERYTHING)
    around[:, 30:] = around[:, :1]
    table = cells(cloud.pyramid, rows, around, RADIUS)
    torch.testing.assert_close(whole(table)[..., 0].sum((1, 2, 3)), torch.full((50,), 29.0))


def test_a_turned_patch_is_shifted_round_the_circle() -> None:
    """A turn about the axis by one cell moves every number on by one azimuth."""
    pyramid = two_points()
    R = random_rotation(1, generator=torch.Generator().manual_seed(1))[0]
    angle = 2 * math.pi / AZIMUTHS
    c, s = math.cos(angle), math.sin(angle)
    turn = torch.tensor([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])
    other = Level(pyramid.levels[0].points @ turn.T, pyramid.levels[0].normals)
    rows, around = torch.tensor([0]), torch.tensor([[0, 1]])
    before = whole(cells(pyramid, rows, around, RADIUS))
    turned = pyramid._replace(levels=(other, *pyramid.levels[1:]))
    after = whole(cells(turned, rows, around, RADIUS))
    torch.testing.assert_close(before.roll(1, 1), after, atol=1e-4, rtol=0)
    level = Level(*(part @ R.T for part in pyramid.levels[0]))  # and the whole cloud
    moved = whole(
        cells(pyramid._replace(levels=(level, *pyramid.levels[1:])), rows, around, RADIUS)
    )
    torch.testing.assert_close(moved.sum(1), before.sum(1), atol=1e-4, rtol=0)


def test_the_beginning_of_the_azimuth_does_not_matter() -> None:
    torch.manual_seed(0)
    network = PatchNetwork(16, RADIUS).eval()
    x = torch.rand(3, AZIMUTHS, patches.COLUMN)
    with torch.no_grad():
        torch.testing.assert_close(network.described(x), network.described(x.roll(5, 1)))


@torch.no_grad()
def test_chunks_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    cloud = prepared(corner(), EVERYTHING)
    network = PatchNetwork(16, RADIUS).eval()
    rows = torch.arange(len(cloud.pyramid.levels[0].points))
    around = patches_of(cloud, rows, EVERYTHING)
    at_once = network(cloud.pyramid, rows, around)
    monkeypatch.setattr(patches, "MAX_PATCH_POINTS", 3000)
    torch.testing.assert_close(network(cloud.pyramid, rows, around), at_once)
    assert network(cloud.pyramid, rows[:0], around[:0]).shape == (0, 16)
