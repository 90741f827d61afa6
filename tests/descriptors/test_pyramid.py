import torch
from tests.descriptors.conftest import EVERYTHING, corner, prepared

from vbreg.clouds import normals, voxel_downsample
from vbreg.descriptors.pyramid import (
    DETAIL_POINTS,
    SPACINGS,
    UP,
    Level,
    build_pyramid,
    edge_numbers,
    relief_numbers,
)
from vbreg.geometry import random_rotation


def test_tables_name_near_points_of_the_right_level() -> None:
    pyramid = prepared(corner(), EVERYTHING).pyramid
    sizes = [len(level.points) for level in pyramid.levels]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > 2 * sizes[1] > 4 * sizes[2] / 2
    for k, spacing in enumerate(SPACINGS):
        level, index = pyramid.levels[k], pyramid.within[k]
        assert index.shape == (sizes[k], EVERYTHING.neighbors)
        torch.testing.assert_close(index[:, 0], torch.arange(sizes[k]))  # itself first
        away = (level.points[index] - level.points.unsqueeze(1)).norm(dim=-1)
        assert float(away.max()) <= 4 * spacing
        assert bool((away.diff(dim=-1)[:, :3] >= -1e-5).all())  # nearest first
    for k in range(2):
        fine, coarse = (pyramid.levels[j].points for j in (k, k + 1))
        assert pyramid.down[k].shape == (len(coarse), EVERYTHING.neighbors)
        assert pyramid.up[k].shape == (len(fine), UP)
        nearest = torch.cdist(fine.double(), coarse.double()).min(1).values.float()
        found = (coarse[pyramid.up[k][:, 0]] - fine).norm(dim=-1)
        torch.testing.assert_close(found, nearest, atol=1e-4, rtol=0)
    assert pyramid.detail_index.shape == (sizes[0], DETAIL_POINTS)


def test_a_lone_point_looks_at_itself() -> None:
    points = torch.cat([voxel_downsample(corner(), 1.0), torch.tensor([[500.0, 0.0, 0.0]])])
    pyramid = build_pyramid(points, normals(points, 2.0), points, neighbors=8)
    assert set(pyramid.within[0][-1].tolist()) == {len(points) - 1}


def test_fewer_points_than_neighbours() -> None:
    points = torch.tensor([[0.0, 0, 0], [1, 0, 0], [0, 1, 0]])
    up = torch.tensor([[0.0, 0, 1]]).expand(3, 3)
    pyramid = build_pyramid(points, up, points, neighbors=8)
    assert pyramid.within[0].shape == (3, 8)
    assert bool((pyramid.within[0] < 3).all())


def test_edges_are_the_same_in_every_frame_and_tell_left_from_right() -> None:
    pyramid = prepared(corner(), EVERYTHING).pyramid
    level, index = pyramid.levels[0], pyramid.within[0]
    R = random_rotation(1, generator=torch.Generator().manual_seed(1))[0]
    turned = Level(level.points @ R.T + 7, level.normals @ R.T)
    before, after = (edge_numbers(x, x, index, 1.0)[:, 1:] for x in (level, turned))
    torch.testing.assert_close(before, after, atol=2e-3, rtol=0)
    mirror = torch.tensor([-1.0, 1.0, 1.0])
    other = edge_numbers(*[Level(level.points * mirror, level.normals * mirror)] * 2, index, 1.0)[
        :, 1:
    ]
    torch.testing.assert_close(other[..., :4], before[..., :4], atol=2e-3, rtol=0)
    torch.testing.assert_close(other[..., 4], -before[..., 4], atol=2e-3, rtol=0)
    assert float(before[..., 4].abs().max()) > 0.3


def test_relief_of_a_step() -> None:
    """A flat floor has no height; a box stands above it."""
    pyramid = prepared(corner(), EVERYTHING).pyramid
    seen = relief_numbers(pyramid)
    assert seen.shape == (len(pyramid.levels[0].points), DETAIL_POINTS, 2)
    assert bool((seen[..., 0] >= 0).all())
    assert float(seen.norm(dim=-1).max()) <= 2.0 + 1e-4
    assert float(seen[..., 1].abs().median()) < 0.1 < float(seen[..., 1].abs().max())
