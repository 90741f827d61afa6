"""A depth camera is carried by hand through a simulated room and makes posed fragments.

A scene is a dense sampling of its surface. A frame keeps the samples that a camera would see, with
the noise that a structured-light sensor would add; some fifty frames along a hand-held path fuse
into a fragment whose pose is known exactly. Everything runs on a CPU or a GPU; numpy's generator
draws paths, torch's (on the scene's device) draws noise.

In the frame of the camera x points right, y down and z forward.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor
from torch.nn import functional

from vbreg import geometry
from vbreg.errors import VBRegError
from vbreg.simulator.meshes import Mesh, area, floor_height, surface_points
from vbreg.types import Float64


@dataclass(frozen=True)
class DepthCamera:
    """This describes a sensor, its errors, and how its frames are fused."""

    width: int = 160  # of the visibility buffer, coarser than a real sensor's image
    height: int = 120
    focal: float = 145.0  # pixels; 58 x 45 degrees
    near: float = 0.4
    far: float = 4.5
    grazing: float = math.radians(78)  # steeper surfaces return nothing
    noise: float = 1.0  # scales depth noise, lens distortion and drift; 0 is a perfect sensor
    depth_noise: tuple[float, float] = (0.0012, 0.0019)  # m rms: a + b (depth - 0.4)^2
    distortion: float = 0.003  # of the lens: relative error of depth, rms
    slack: float = 0.015  # what lies so little behind a surface is taken for a part of it, metres
    disparity_step: float = 1 / 348  # 1/z is quantised in these steps (1/8 pixel, 7.5 cm baseline)
    drift: tuple[float, float] = (0.003, math.radians(0.15))  # of the tracked pose: metres, radians
    keep: float = 0.3  # share of the visible samples that a frame returns
    voxel_size: float = 0.025
    volume: bool = True  # keep the 3 m cube before the first camera, as 3DMatch's fusion does

    @property
    def half_diagonal(self) -> float:
        """The angle between the middle and a corner of the image, in radians."""
        return math.atan(math.hypot(self.width, self.height) / 2 / self.focal)


@dataclass(frozen=True, eq=False)
class Scene:
    """This holds a surface as points with normals, whose sign is unknown."""

    points: Tensor  # (S, 3) float32
    normals: Tensor  # (S, 3) float32
    floor: float

    def to(self, device: torch.device | str) -> Scene:
        """Return the same scene on another device."""
        return replace(self, points=self.points.to(device), normals=self.normals.to(device))

    def joined(self, points: Tensor, normals: Tensor) -> Scene:
        """Return the scene with more samples (S', 3)."""
        points, normals = torch.cat([self.points, points]), torch.cat([self.normals, normals])
        return replace(self, points=points, normals=normals)

    @cached_property
    def coarse(self) -> Float64:
        """Keep some 100,000 of the points on the CPU, for questions about free space."""
        stride = max(1, len(self.points) // 100_000)
        return self.points[::stride].cpu().numpy().astype(np.float64)

    @cached_property
    def _tree(self) -> cKDTree:
        """Index the coarse points for the search of the nearest."""
        return cKDTree(self.coarse)

    def encloses(self, eye: Float64) -> bool:
        """Tell whether surfaces lie about a place (3,) in three quarters of the level directions.

        Behind a wall, where furniture sticks out of it, they lie on one side alone.
        """
        x, y, z = (self.coarse - eye).T
        level = np.abs(z) < 1.0
        sector = np.floor(8 / np.pi * np.arctan2(y[level], x[level])).astype(np.int64)
        return len(np.unique(sector % 16)) >= 12

    def clearance(self, places: Float64) -> float:
        """Return the least distance from any of the places (..., 3) to the surface."""
        return float(np.min(self._tree.query(places)[0]))


def sample_surface(
    mesh: Mesh, generator: np.random.Generator, spacing: float = 0.0125, relief: float = 0.003
) -> Scene:
    """Sample a mesh once per `spacing`^2 and make it uneven by waves of `relief` metres rms."""
    points, normals = uneven_samples(mesh, generator, spacing, relief)
    return Scene(points, normals, floor_height(mesh, generator))


def uneven_samples(
    mesh: Mesh, generator: np.random.Generator, spacing: float, relief: float
) -> tuple[Tensor, Tensor]:
    """Return points (S, 3) and normals (S, 3) of `sample_surface`."""
    points, normals = surface_points(mesh, int(area(mesh) / spacing**2), generator)
    p = torch.from_numpy(points.astype(np.float32))
    n = torch.from_numpy(normals.astype(np.float32))
    for length in np.geomspace(0.2, 2.0, 8):
        wave = generator.normal(size=3)
        wave *= 2 * math.pi / (length * np.linalg.norm(wave))
        height = torch.sin(p @ torch.from_numpy(wave.astype(np.float32)) + generator.uniform(0, 6))
        p = p + n * (relief * math.sqrt(length / 3) * height).unsqueeze(-1)
    return p, n


def visible_samples(points: Tensor, normals: Tensor, camera: DepthCamera) -> tuple[Tensor, Tensor]:
    """Return which samples (S, 3), in the camera's frame, it sees: index (V,) and pixel (V,).

    Every sample covers 3 x 3 pixels of the depth buffer, so that surfaces hide what is behind.
    """
    index, pixel, nearest, deepest = _depth_buffer(points, camera)
    p = points[index]
    z = p[:, 2]
    cosine = (p * normals[index]).sum(-1).abs() / torch.linalg.vector_norm(p, dim=-1)
    tangent = (1 - cosine.square()).clamp_min(0).sqrt() / cosine.clamp_min(0.1)
    fall = 2 * z / camera.focal * tangent  # of a slanted surface in two pixels
    slack = camera.slack + fall
    seen = (z <= nearest + slack) & (cosine > math.cos(camera.grazing))
    seen &= (z > camera.near) & (z < camera.far)
    seen &= deepest - nearest < 0.08 * z  # a sensor loses the pixels beside a jump in depth
    return index[seen], pixel[seen]


def _depth_buffer(points: Tensor, camera: DepthCamera) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return index and pixel of the samples in the image, and least and greatest depth about each.

    The depths are those of the 3 x 3 pixels around.
    """
    x, y, z = points.unbind(-1)
    scale = camera.focal / z.clamp_min(1e-6)
    u = (x * scale + camera.width / 2).floor()
    v = (y * scale + camera.height / 2).floor()
    inside = (z > 0.05) & (u >= 0) & (u < camera.width) & (v >= 0) & (v < camera.height)
    index = inside.nonzero().squeeze(-1)
    pixel = (v[index] * camera.width + u[index]).long()
    buffer = z.new_full((camera.height * camera.width,), torch.inf)
    buffer = buffer.scatter_reduce(0, pixel, z[index], "amin")
    buffer = buffer.view(1, 1, camera.height, camera.width)
    nearest = -functional.max_pool2d(-buffer, 3, stride=1, padding=1)
    deepest = torch.where(buffer.isinf(), 0.0, buffer)
    deepest = functional.max_pool2d(deepest, 3, stride=1, padding=1)
    return index, pixel, nearest.flatten()[pixel], deepest.flatten()[pixel]


def depth_frame(
    points: Tensor,
    normals: Tensor,
    camera: DepthCamera,
    distortion: Tensor,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Return index (V,) and noisy points (V, 3) that one frame makes of samples (S, 3).

    The samples lie in the camera's frame. `distortion` (H * W,) is the relative error of depth that
    this sensor makes at each pixel.
    """
    index, pixel = visible_samples(points, normals, camera)
    chosen = torch.rand(len(index), generator=generator, device=points.device) < camera.keep
    index, pixel = index[chosen], pixel[chosen]
    p = points[index]
    if camera.noise == 0:
        return index, p
    z = p[:, 2]
    least, growth = camera.depth_noise
    sigma = camera.noise * (least + growth * (z - 0.4).square())
    white = torch.randn(len(z), generator=generator, device=z.device)
    patches = _smooth_field(camera, 12, generator)[pixel]  # noise of neighbours goes together
    measured = z * (1 + distortion[pixel]) + sigma * (0.6 * white + 0.8 * patches)
    measured = measured.clamp_min(camera.near)
    measured = 1 / ((1 / measured / camera.disparity_step).round() * camera.disparity_step)
    return index, p * (measured / z).unsqueeze(-1)


def _smooth_field(camera: DepthCamera, cells: int, generator: torch.Generator) -> Tensor:
    """Draw an image (H * W,) of about unit variance that is smooth over `cells` cells each way."""
    coarse = torch.randn(1, 1, cells, cells, generator=generator, device=generator.device)
    size = (camera.height, camera.width)
    return 1.4 * functional.interpolate(coarse, size, mode="bilinear").flatten()


def scan_scene(
    scene: Scene, trajectory: Float64, camera: DepthCamera, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Fuse the frames along `trajectory` (F, 4, 4): return points (N, 3) float64, T_world_fragment.

    The fragment's frame is the first camera's.
    """
    device = scene.points.device
    T_world_camera = torch.as_tensor(trajectory, device=device)
    T_world_fragment = T_world_camera[0]
    near = _in_view(scene.points, T_world_camera[:: max(1, len(trajectory) // 3)], camera)
    points, normals = scene.points[near], scene.normals[near]
    distortion = camera.distortion * camera.noise * _smooth_field(camera, 4, generator)
    T_fragment_camera = geometry.inverse(T_world_fragment) @ T_world_camera
    tracked = T_fragment_camera @ _drift(len(trajectory), camera, generator)
    total, count = torch.zeros_like(points), torch.zeros_like(points[:, 0])
    for k in range(len(trajectory)):
        T_camera_world = geometry.inverse(T_world_camera[k]).float()
        p = geometry.apply(T_camera_world, points)
        n = normals @ T_camera_world[:3, :3].T
        index, p = depth_frame(p, n, camera, distortion, generator)
        total.index_add_(0, index, geometry.apply(tracked[k].float(), p))
        count[index] += 1
    seen = count > 1  # once is taken for an outlier
    fused = total[seen] / count[seen].unsqueeze(-1)  # a spot's mean, as fusion along rays gives
    if camera.volume:
        x, y, z = fused.unbind(-1)
        fused = fused[(x.abs() < 1.5) & (y.abs() < 1.5) & (z > 0.5) & (z < 3.5)]
    return _voxel_means(fused, camera.voxel_size).double(), T_world_fragment


def _in_view(points: Tensor, T_world_camera: Tensor, camera: DepthCamera) -> Tensor:
    """Return the index (V,) of the samples that cameras on this path may see."""
    eye, forward = T_world_camera[0, :3, 3].float(), T_world_camera[0, :3, 2].float()
    distance = torch.linalg.vector_norm(points - eye, dim=-1)
    cone = min(0.6, math.cos(min(camera.half_diagonal + 0.32, math.pi)))
    ahead = (points - eye) @ forward > cone * distance - 1.0
    near = (ahead & (distance < camera.far + 0.5)).nonzero().squeeze(-1)
    candidates = points[near]
    wide = replace(camera, width=camera.width * 4 // 3, height=camera.height * 4 // 3)
    result = torch.zeros(len(near), dtype=torch.bool, device=points.device)
    for T_camera_world in geometry.inverse(T_world_camera).float():
        p = geometry.apply(T_camera_world, candidates)
        index, _, nearest, _ = _depth_buffer(p, wide)
        result[index[p[index, 2] < nearest + 0.25]] = True
    return near[result]


def _drift(frames: int, camera: DepthCamera, generator: torch.Generator) -> Tensor:
    """Draw small motions (F, 4, 4), a random walk of the tracker about the truth."""
    device = generator.device
    walk = torch.randn(frames, 6, generator=generator, device=device).double().cumsum(0)
    walk = (walk - walk.mean(0)) / math.sqrt(frames / 6)  # unit variance, about
    shift = camera.noise * camera.drift[0] * walk[:, :3]
    half = 0.5 * camera.noise * camera.drift[1] * walk[:, 3:]
    q = torch.cat([torch.ones(frames, 1, device=device, dtype=half.dtype), half], dim=-1)
    R = geometry.quaternion_to_matrix(q / torch.linalg.vector_norm(q, dim=-1, keepdim=True))
    return geometry.from_rotation_translation(R, shift)


def _voxel_means(points: Tensor, size: float) -> Tensor:
    """Return the mean (N, 3) of the points in each occupied voxel."""
    cell = (points / size).floor().long()
    cell = cell - cell.amin(0) if len(cell) else cell
    span = cell.amax(0) + 1 if len(cell) else cell.new_ones(3)
    key = (cell[:, 0] * span[1] + cell[:, 1]) * span[2] + cell[:, 2]
    _, inverse, count = torch.unique(key, return_inverse=True, return_counts=True)
    total = points.new_zeros(len(count), 3).index_add_(0, inverse, points)
    return total / count.unsqueeze(-1)


def random_trajectory(
    scene: Scene,
    generator: np.random.Generator,
    focus: Float64 | None = None,
    after: Float64 | None = None,
    frames: int = 50,
    enclosed: bool = False,
) -> Float64:
    """Draw T_world_camera (F, 4, 4), a hand-held path whose gaze slides over the scene.

    The gaze starts within 1.5 m of `focus` (anywhere by default), so that scans which share a focus
    overlap. The path starts some steps from the end of the path `after`, or anywhere too. With
    `enclosed` it never starts behind a wall, where furniture that sticks out looks like floor.
    """
    reach = scene.coarse[scene.coarse[:, 2] < scene.floor + 2.2]
    if focus is not None:
        reach = reach[np.linalg.norm(reach[:, :2] - focus[:2], axis=-1) < 1.5]
    for _ in range(500 if len(reach) else 0):
        target = reach[generator.integers(len(reach))]
        around, distance = generator.uniform(0, 2 * np.pi), generator.uniform(1.3, 3.2)
        eye = target + distance * np.array([np.cos(around), np.sin(around), 0])
        eye[2] = scene.floor + generator.uniform(0.6, 1.9)
        if after is not None:
            eye = after[-1, :3, 3] + generator.normal(0, (0.35, 0.35, 0.15))
            if not 1.2 < np.linalg.norm(eye - target) < 3.4:
                continue
        path = eye + _sway(frames, generator.uniform(0.1, 0.4), generator)
        gaze = target + _sway(frames, generator.uniform(0.1, 0.7), generator)
        if _is_free(scene, path, target) and (not enclosed or scene.encloses(eye)):
            roll = np.radians(5) * _sway(frames, 1.0, generator)[:, 0]
            return np.stack([look_at(*view) for view in zip(path, gaze, roll, strict=True)])
    raise VBRegError("no free place for a camera in this scene; is it a closed room, z up?")


def _sway(frames: int, amplitude: float, generator: np.random.Generator) -> Float64:
    """Draw a smooth curve (F, 3) that starts at zero."""
    time = np.linspace(0, 1, frames)[:, None, None]
    rate = np.array([1.5, 4.0, 11.0])
    size = generator.normal(size=(3, 3)) * np.array([1.0, 0.25, 0.05])
    phase = generator.uniform(0, 2 * np.pi, (3, 3))
    curve = (size * (np.sin(rate * time + phase) - np.sin(phase))).sum(-1)
    return np.asarray(amplitude * curve)


def _is_free(scene: Scene, path: Float64, target: Float64) -> bool:
    """Tell whether the camera has room, floor below it, and nothing before what it looks at."""
    below = np.array([path[0, 0], path[0, 1], scene.floor])
    if scene.clearance(below) > 0.15 or scene.clearance(path[::10]) < 0.35:
        return False
    steps = max(2, int(np.linalg.norm(target - path[0]) / 0.1))
    ray = path[0] + np.linspace(0, 0.8, steps)[:, None] * (target - path[0])
    return scene.clearance(ray) > 0.08


def look_at(eye: Float64, target: Float64, roll: float) -> Float64:
    """Return T_world_camera (4, 4) of a camera at `eye` that looks at `target`."""
    forward = (target - eye) / np.linalg.norm(target - eye)
    right = np.cross(forward, [0.0, 0.0, 1.0])
    right /= max(float(np.linalg.norm(right)), 1e-9)
    down = np.cross(forward, right)
    T = np.eye(4)
    T[:3, 0] = np.cos(roll) * right + np.sin(roll) * down
    T[:3, 1] = np.cos(roll) * down - np.sin(roll) * right
    T[:3, 2], T[:3, 3] = forward, eye
    return T
