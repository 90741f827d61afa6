import math

import pytest
import torch
from tests.descriptors.conftest import EVERYTHING, corner, prepared

from vbreg.descriptors import patches
from vbreg.descriptors.patches import (
    AZIMUTHS,
    CELL_NUMBERS,
    HEIGHTS,
    RINGS,
    PatchNetwork,
    cells,
)
from vbreg.descriptors.pyramid import Level


def test_every_point_is_in_one_ring_and_height_and_two_azimuths() -> None:
    """One neighbour, straight along the first axis at half of the radius, a little above."""
    points = torch.tensor([[0.0, 0.0, 0.0], [2.5, 0.0, 0.1]])
    level = Level(points, torch.tensor([[0.0, 0, 1], [0, 0, 1]]))
    table = cells(level, slice(0, 1), torch.tensor([[0, 1]]), torch.tensor([2]), 5.0)
    table = table.view(RINGS, HEIGHTS, CELL_NUMBERS, AZIMUTHS)
    count = table[:, :, 0]
    unit = RINGS * HEIGHTS / 2
    assert math.isclose(float(count.sum()), unit, rel_tol=1e-3)  # the point itself has no azimuth
    ring, height, _ = count.nonzero().unique(dim=0).unbind(-1)
    assert set(ring.tolist()) == {0}
    assert set(height.tolist()) == {HEIGHTS // 2}
    assert math.isclose(float(table[:, :, 3].sum()), unit, rel_tol=1e-3)  # its normal is the axis


def test_points_beyond_the_count_do_not_count() -> None:
    pyramid = prepared(corner(), EVERYTHING).pyramid
    around, count = pyramid.around[:50], pyramid.around_count[:50].clamp_max(10)
    few = cells(pyramid.levels[0], slice(0, 50), around, count, 5.0)
    other = around.clone()
    other[:, 10:] = 0
    again = cells(pyramid.levels[0], slice(0, 50), other, count, 5.0)
    torch.testing.assert_close(few, again)


def test_the_beginning_of_the_azimuth_does_not_matter() -> None:
    torch.manual_seed(0)
    network = PatchNetwork(16, 5.0).eval()
    x = torch.rand(3, RINGS * HEIGHTS * CELL_NUMBERS, AZIMUTHS)

    def pooled(table: torch.Tensor) -> torch.Tensor:
        for k, layer in enumerate(network.layers):
            y = layer(table)
            table = torch.relu(y + table if k else y)
        return torch.cat([table.mean(-1), table.amax(-1)], dim=-1)

    with torch.no_grad():
        torch.testing.assert_close(pooled(x), pooled(x.roll(5, -1)))


@torch.no_grad()
def test_chunks_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    pyramid = prepared(corner(), EVERYTHING).pyramid
    network = PatchNetwork(16, 5.0).eval()
    ends = pyramid.levels[0], pyramid.around, pyramid.around_count
    whole = network(*ends)
    monkeypatch.setattr(patches, "MAX_PATCH_PAIRS", 3000)
    torch.testing.assert_close(network(*ends), whole)
