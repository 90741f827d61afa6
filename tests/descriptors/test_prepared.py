import pytest
import torch
from tests.descriptors.conftest import corner, prepared

from vbreg.clouds import normals, voxel_downsample
from vbreg.descriptors.prepared import (
    ZOOMS,
    DescriptorConfig,
    ThinnedCloud,
    pack,
    patches_of,
    prepare,
    with_patches,
)
from vbreg.scale import Scale


def test_patches_hold_the_nearest_points_of_their_surface() -> None:
    cloud = prepared(corner())
    rows = torch.arange(3, len(cloud.points), 50)
    for surface, table, zoom in zip(cloud.surfaces, patches_of(cloud, rows), ZOOMS, strict=True):
        assert table.shape == (len(rows), zoom.most)
        away = (surface.points[table] - cloud.points[rows].unsqueeze(1)).norm(dim=-1)
        assert float(away.max()) <= zoom.reach + 1e-4
        nearest = torch.cdist(cloud.points[rows].double(), surface.points.double()).min(1).values
        torch.testing.assert_close(away[:, 0].double(), nearest, atol=1e-4, rtol=0)
    assert len(cloud.surfaces[2].points) < len(cloud.points) / 2  # further apart


def test_known_patches_are_those_that_are_looked_for() -> None:
    cloud = prepared(corner())
    rows = torch.arange(0, 60, 3)
    known = patches_of(with_patches(cloud), rows)
    for table, same in zip(known, patches_of(cloud, rows), strict=True):
        assert torch.equal(table, same)


def test_a_lone_point_sees_itself() -> None:
    points = torch.cat([voxel_downsample(corner(), 1.0), torch.tensor([[500.0, 0.0, 0.0]])])
    cloud = prepare(ThinnedCloud(points, normals(points, 2.0), points, Scale(1.0)))
    last = torch.tensor([len(points) - 1])
    near, middle, _ = patches_of(cloud, last)
    assert set(near.flatten().tolist()) == set(middle.flatten().tolist()) == {len(points) - 1}


def test_packed_patches_hold_points_of_their_own_cloud() -> None:
    clouds = [with_patches(prepared(corner(k, 2000))) for k in range(2)]
    packed = pack(clouds)
    for k, table in enumerate(packed.patches):
        count = len(clouds[0].surfaces[k].points)
        rows = len(clouds[0].points)
        assert int(table[:rows].max()) < count <= int(table[rows:].min())


def test_lengths_are_in_voxels() -> None:
    one = prepared(corner())
    small = voxel_downsample(corner(), 1.0) * 0.05
    same = prepare(ThinnedCloud(small, normals(small, 0.1), corner() * 0.05, Scale(0.05)))
    for a, b in zip(one.surfaces, same.surfaces, strict=True):
        torch.testing.assert_close(a.points, b.points, atol=1e-4, rtol=0)


@pytest.mark.parametrize("bad", [{"width": 0}, {"output": 65}, {"azimuths": 0}])
def test_a_configuration_that_cannot_be(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="expected"):
        DescriptorConfig(**bad)  # type: ignore[arg-type]
