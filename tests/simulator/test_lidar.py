"""The LiDAR measures what it should, as noisily as it says, from the road."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.spatial import cKDTree

from vbreg import geometry
from vbreg.simulator import lidar, street_objects, streets
from vbreg.simulator.lidar import Lidar
from vbreg.simulator.meshes import Mesh, box

PERFECT = Lidar(noise=0.0, ring_offset=0.0, reach=math.inf, ceiling=math.inf)
FLAT = streets.Road(6.0, 5.0, 7.0, np.zeros((0, 3)), np.zeros((0, 4)), np.zeros((2, 1)), None)


@pytest.fixture(scope="module")
def street() -> streets.Street:
    return streets.make_street(np.random.default_rng(5), "residential")


def scan(meshes: list[Mesh], sensor: Lidar = PERFECT, seed: int = 0) -> torch.Tensor:
    """What a sensor at the origin sees of smooth meshes."""
    street = streets.assemble_street([(m, 0.0) for m in meshes], FLAT, np.random.default_rng(0))
    return lidar.scan_street(street, np.eye(4), sensor, 0.0, torch.Generator().manual_seed(seed))


def naive_cast(faces: torch.Tensor, sensor: Lidar) -> torch.Tensor:
    """Every ray against every triangle, by solving for where they meet."""
    rays = sensor.rays().double().view(-1, 1, 3)
    a, b, c = faces.double().unbind(1)
    columns = torch.stack(torch.broadcast_tensors(a - b, a - c, rays), dim=-1)  # (K, F, 3, 3)
    u, v, t = torch.linalg.solve(columns, a.expand(columns.shape[:-1])).unbind(-1)
    hit = (u >= 0) & (v >= 0) & (u + v <= 1) & (t > sensor.near) & (t < sensor.far)
    return torch.where(hit, t, torch.inf).amin(1).view(sensor.rings, sensor.columns)


def test_a_wall_is_where_it_is() -> None:
    points = scan([box((0.2, 200, 20), (10.1, 0, -10))])
    torch.testing.assert_close(points[:, 0], torch.full_like(points[:, 0], 10.0), atol=1e-4, rtol=0)
    elevation = torch.rad2deg(torch.asin(points[:, 2] / points.norm(dim=-1)))
    near = points[:, 1].abs() < 5
    rings = torch.unique((elevation[near] * 1e3).round()) / 1e3
    assert len(rings) == 64
    assert float(rings.max()) == pytest.approx(2.5, abs=0.01)
    assert float(rings.min()) == pytest.approx(-24.8, abs=0.01)
    across = 2 * math.atan(5 / 10) / (2 * math.pi) * PERFECT.columns
    assert near.sum() == pytest.approx(64 * across, rel=0.01)


def test_the_ground_is_measured_all_around() -> None:
    points = scan([box((400, 400, 1), (0, 0, -2.73))])
    torch.testing.assert_close(
        points[:, 2], torch.full_like(points[:, 2], -1.73), atol=1e-4, rtol=0
    )
    azimuth = torch.atan2(points[:, 1], points[:, 0])
    counts = torch.histc(azimuth.float(), 8, -math.pi, math.pi)
    assert (counts == counts[0]).all()


def test_the_nearer_hides_the_farther() -> None:
    front, back = box((1, 4, 4), (8.5, 0, -2)), box((1, 60, 20), (20.5, 0, -10))
    points = scan([back, front])
    shadow = (points[:, 1] / points[:, 0]).abs() < 2 / 8 - 0.01
    shadow &= (points[:, 2] / points[:, 0]) > -2 / 8
    assert (points[shadow, 0] < 9.01).all()
    assert (points[~shadow, 0] > 19).any()
    torch.testing.assert_close(points, scan([front, back]))


@pytest.mark.parametrize("field", [360.0, 180.0, 70.0])
@pytest.mark.parametrize("chunk", [1 << 20, 50])
def test_casting_is_as_the_naive_way(
    chunk: int, field: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triangles anywhere: above and below, around the axis, across the seam behind."""
    monkeypatch.setattr(lidar, "MAX_TESTS_AT_ONCE", chunk)
    sensor = Lidar(rings=16, columns=180, field=field, elevation=(30.0, -60.0), near=0.5, far=30.0)
    g = torch.Generator().manual_seed(0)
    centre = 6 * torch.randn(60, 1, 3, generator=g)
    faces = centre + 3 * torch.randn(60, 3, 3, generator=g)
    best, face = lidar.cast_rays(faces, sensor)
    expected = naive_cast(faces, sensor)
    assert torch.equal(best.isinf(), expected.isinf())
    assert torch.equal(face < 0, best.isinf())
    hit = best.isfinite()
    assert 200 < hit.sum() < hit.numel()
    torch.testing.assert_close(best[hit].double(), expected[hit], atol=1e-4, rtol=1e-5)
    points = sensor.rays()[hit] * best[hit].unsqueeze(-1)
    a, b, c = faces[face[hit]].unbind(1)
    normal = torch.nn.functional.normalize(torch.linalg.cross(b - a, c - a), dim=-1)
    assert ((points - a) * normal).sum(-1).abs().max() < 1e-3


def test_nothing_to_see() -> None:
    assert scan([box((1, 1, 1), (500, 0, 0))]).shape == (0, 3)
    assert scan([box((1, 1, 1), (500, 0, 0))], replace(PERFECT, voxel_size=0.3)).shape == (0, 3)


def test_noise_and_ring_offsets_are_as_said() -> None:
    hall = [box((100, 100, 20), (0, 0, -10))]
    true = scan(hall, replace(PERFECT, far=100.0))
    sensor = replace(PERFECT, far=100.0, noise=0.02)
    error = scan(hall, sensor).norm(dim=-1) - true.norm(dim=-1)
    assert float(error.mean()) == pytest.approx(0, abs=0.001)
    assert float(error.std()) == pytest.approx(0.02, rel=0.02)
    sensor = replace(PERFECT, far=100.0, ring_offset=0.01)
    error = (scan(hall, sensor).norm(dim=-1) - true.norm(dim=-1)).view(64, -1)
    assert float(error.mean(1).std()) == pytest.approx(0.01, rel=0.2)
    assert float(error.std(1).max()) < 1e-4


def test_far_and_slanting_echoes_are_lost() -> None:
    def share(mesh: Mesh) -> float:
        return len(scan([mesh], Lidar(ceiling=math.inf))) / len(scan([mesh]))

    near, far = (box((1, 20, 60), (x, 0, -30)) for x in (10.0, 75.0))
    road = box((20, 6, 1), (50, 0, -2.73), "x")
    assert share(near) > 0.999
    assert share(road) < share(far) < 0.999


def test_limits_and_voxels(street: streets.Street) -> None:
    pose = lidar.random_drive(street, np.random.default_rng(0), 1)[0][0]
    sensor = Lidar()
    points = lidar.scan_street(street, pose, sensor, 0.0, torch.Generator().manual_seed(0))
    distance = points.norm(dim=-1)
    assert len(points) > 50_000
    assert distance.min() > sensor.near - 0.3  # the relief moves a point after it is measured
    assert distance.max() < sensor.far + 0.3
    assert points[:, 2].max() < sensor.ceiling
    thin = replace(sensor, voxel_size=0.3)
    points = lidar.scan_street(street, pose, thin, 0.0, torch.Generator().manual_seed(0))
    assert len(torch.unique((points / 0.3).floor(), dim=0)) == len(points) > 5000


def test_other_sensors_see_fewer_rings(street: streets.Street) -> None:
    pose = lidar.random_drive(street, np.random.default_rng(0), 1)[0][0]
    sensor = Lidar(rings=16, columns=900, elevation=(15.0, -15.0), ceiling=math.inf)
    points = lidar.scan_street(street, pose, sensor, 0.0, torch.Generator().manual_seed(0))
    assert 3000 < len(points) <= 16 * 900


def test_static_surfaces_coincide_in_the_world(street: streets.Street) -> None:
    still = replace(street, movers=())
    world = []
    for s in (-3.0, 3.0):
        T = street.road.car_pose(s, 0.0)
        T[2, 3] += 1.73
        points = lidar.scan_street(still, T, PERFECT, 0.0, torch.Generator().manual_seed(0))
        world.append(geometry.apply(torch.from_numpy(T), points).numpy())
    road = [
        w[(np.abs(w[:, 1] - street.road.centre(w[:, 0])) < 2) & (np.abs(w[:, 0]) < 9)]
        for w in world
    ]
    distance, index = cKDTree(road[0][:, :2]).query(road[1][:, :2])
    near = distance < 0.1
    assert near.sum() > 500
    assert np.abs(road[0][index[near], 2] - road[1][near, 2]).max() < 0.02
    distance, _ = cKDTree(world[0]).query(world[1])
    assert np.mean(distance < 0.3) > 0.75


def test_seeds_repeat(street: streets.Street) -> None:
    def scans(seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return lidar.drive_and_scan(street, np.random.default_rng(seed), 2, Lidar(columns=300))

    one, again, other = scans(1), scans(1), scans(2)
    for (p, T), (q, S) in zip(one, again, strict=True):
        assert torch.equal(p, q)
        assert torch.equal(T, S)
    assert one[0][0].shape != other[0][0].shape


def test_traffic_is_elsewhere_later() -> None:
    car = street_objects.car(np.random.default_rng(0))
    triangles = torch.from_numpy(car.vertices[car.faces]).float()
    mover = streets.Mover(triangles, 10.0, -2.0, 5.0)
    wall = (box((60, 1, 10), (0, 12.5, -5)), 0.0)
    street = streets.assemble_street([wall], FLAT, np.random.default_rng(0), [mover])
    T = np.eye(4)
    T[2, 3] = 1.73
    now, later = (
        lidar.scan_street(street, T, PERFECT, time, torch.Generator().manual_seed(0))
        for time in (0.0, 2.0)
    )
    assert torch.equal(now[now[:, 1] > 5], later[later[:, 1] > 5])
    now, later = now[now[:, 1] < 5], later[later[:, 1] < 5]
    assert float(later[:, 0].min() - now[:, 0].min()) == pytest.approx(10, abs=0.3)


def test_a_drive_is_on_the_road(street: streets.Street) -> None:
    poses, times = lidar.random_drive(street, np.random.default_rng(0), 40)
    assert poses.shape == (40, 4, 4)
    assert times.shape == (40,)
    for T in poses:
        np.testing.assert_allclose(T[:3, :3] @ T[:3, :3].T, np.eye(3), atol=1e-9)
        x, y, z = T[:3, 3]
        assert abs(y - street.road.centre(x)) < street.road.kerb
        assert abs(z - street.road.height(x, y) - 1.73) < 0.15
    forward = poses[:, 0, 0]
    assert (forward < -0.8).any()
    assert (forward > 0.8).mean() > 0.5
    gap = np.linalg.norm(np.diff(poses[:, :3, 3], axis=0), axis=-1)
    assert np.median(gap) == pytest.approx(8, abs=2.5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_scan_on_the_gpu_agrees(street: streets.Street) -> None:
    pose = lidar.random_drive(street, np.random.default_rng(0), 1, PERFECT.height)[0][0]
    results = [
        lidar.scan_street(
            street.to(device), pose, PERFECT, 0.0, torch.Generator(device).manual_seed(0)
        ).cpu()
        for device in ("cpu", "cuda")
    ]
    distance = cKDTree(results[0]).query(results[1])[0]
    assert (distance < 1e-2).mean() > 0.99
