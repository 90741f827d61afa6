"""The depth camera sees what it should, says where it is, and repeats by its seed."""

import math

import numpy as np
import pytest
import torch
from scipy.spatial import cKDTree

from vbreg import geometry
from vbreg.simulator import (
    add_clutter,
    depth_camera,
    make_room,
    meshes,
    random_trajectory,
    scan_scene,
)
from vbreg.simulator.depth_camera import DepthCamera, Scene

PERFECT = DepthCamera(noise=0.0, keep=1.0, volume=False)


@pytest.fixture(scope="module")
def scene() -> Scene:
    generator = np.random.default_rng(3)
    return depth_camera.sample_surface(make_room("clutter", generator), generator, spacing=0.025)


def wall_sampled(z: float, half: float, spacing: float = 0.01) -> torch.Tensor:
    line = torch.arange(-half, half, spacing)
    x, y = torch.meshgrid(line, line, indexing="ij")
    return torch.stack([x, y, torch.full_like(x, z)], dim=-1).reshape(-1, 3)


def test_a_wall_hides_what_is_behind() -> None:
    front, back = wall_sampled(1.5, 0.4), wall_sampled(2.5, 1.5)
    points = torch.cat([front, back])
    normals = torch.tensor([0.0, 0.0, 1.0]).expand_as(points)
    index, _ = depth_camera.visible_samples(points, normals, DepthCamera())
    seen = points[index]
    shadow = (seen[:, :2] / seen[:, 2:]).abs().amax(-1) < 0.4 / 1.5
    assert (index < len(front)).sum() > 0.8 * len(front)
    assert (seen[shadow, 2] < 2).all()
    assert (seen[~shadow, 2] > 2).any()


def test_range_and_grazing_angle() -> None:
    camera = DepthCamera()
    for z, expected in ((0.3, False), (1.0, True), (4.6, False)):
        points = wall_sampled(z, 0.2)
        normals = torch.tensor([0.0, 0.0, 1.0]).expand_as(points)
        assert bool(len(depth_camera.visible_samples(points, normals, camera)[0])) is expected
    steep = torch.tensor([math.cos(math.radians(5)), 0.0, math.sin(math.radians(5))])
    points = wall_sampled(1.0, 0.02)
    assert len(depth_camera.visible_samples(points, steep.expand_as(points), camera)[0]) == 0


def test_perfect_scans_agree_under_their_poses(scene: Scene) -> None:
    generator = np.random.default_rng(0)
    noise = torch.Generator().manual_seed(0)
    first = random_trajectory(scene, generator, frames=4)
    second = random_trajectory(scene, generator, after=first, frames=4)
    surface = cKDTree(scene.points.numpy())
    for trajectory in (first, second):
        fragment, T_world_fragment = scan_scene(scene, trajectory, PERFECT, noise)
        np.testing.assert_array_equal(T_world_fragment.numpy(), trajectory[0])
        world = geometry.apply(T_world_fragment, fragment).numpy()
        distance = surface.query(world)[0]
        assert len(fragment) > 1000
        assert np.median(distance) < 0.012  # a voxel's mean lies between the samples
        assert distance.max() < 0.025 * math.sqrt(3)


def test_noise_stays_at_its_level(scene: Scene) -> None:
    trajectory = random_trajectory(scene, np.random.default_rng(1), frames=4)
    camera = DepthCamera(keep=1.0)
    fragment, T = scan_scene(scene, trajectory, camera, torch.Generator().manual_seed(0))
    distance = cKDTree(scene.points.numpy()).query(geometry.apply(T, fragment).numpy())[0]
    assert np.median(distance) < 0.02
    assert (distance < 0.1).mean() > 0.98


def test_seeds_repeat() -> None:
    def fragment(seed: int) -> np.ndarray:
        generator = np.random.default_rng(seed)
        mesh = add_clutter(meshes.box((3.0, 4.0, 2.5)), generator)
        scene = depth_camera.sample_surface(mesh, generator, spacing=0.05)
        trajectory = random_trajectory(scene, generator, frames=3)
        noise = torch.Generator().manual_seed(seed)
        return np.asarray(scan_scene(scene, trajectory, DepthCamera(keep=1.0), noise)[0])

    np.testing.assert_array_equal(fragment(5), fragment(5))
    assert len(fragment(5)) != len(fragment(6))


def test_trajectory_is_rigid_and_in_the_room(scene: Scene) -> None:
    T = random_trajectory(scene, np.random.default_rng(2))
    assert T.shape == (50, 4, 4)
    np.testing.assert_allclose(
        T[:, :3, :3] @ T[:, :3, :3].transpose(0, 2, 1), np.eye(3)[None].repeat(50, 0), atol=1e-12
    )
    np.testing.assert_allclose(np.linalg.det(T[:, :3, :3]), 1.0)
    low, high = scene.coarse.min(0), scene.coarse.max(0)
    assert ((T[:, :3, 3] > low) & (T[:, :3, 3] < high)).all()


def test_behind_a_wall_is_not_enclosed(scene: Scene) -> None:
    low, high = np.percentile(scene.coarse, (2, 98), axis=0)
    middle = np.array([*(low + high)[:2] / 2, 1.2])
    assert scene.encloses(middle)
    for k in (0, 1):
        for wall, out in ((low, -1.0), (high, 1.0)):
            outside = middle.copy()
            outside[k] = wall[k] + 1.5 * out
            assert not scene.encloses(outside)
    generator = np.random.default_rng(4)
    for _ in range(10):
        eye = random_trajectory(scene, generator, frames=3, enclosed=True)[0, :3, 3]
        assert scene.encloses(eye)


def test_floor_height(scene: Scene) -> None:
    assert scene.floor == pytest.approx(0.0, abs=0.03)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_scan_on_the_gpu_agrees(scene: Scene) -> None:
    trajectory = random_trajectory(scene, np.random.default_rng(0), frames=3)
    results = []
    for device in ("cpu", "cuda"):
        noise = torch.Generator(device).manual_seed(0)
        results.append(scan_scene(scene.to(device), trajectory, PERFECT, noise)[0].cpu().numpy())
    distance = cKDTree(results[0]).query(results[1])[0]
    assert (distance < 1e-3).mean() > 0.99
