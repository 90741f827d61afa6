"""A LiDAR scans triangles; a spinning one is driven through a simulated street.

Rays meet triangles exactly: every triangle is tested against the rays of the rings and columns
that its outline spans, the nearest hit wins. Everything runs on a CPU or a GPU; numpy's generator
draws paths, torch's (on the street's device) draws noise.

In the frame of the sensor x points forward, y left and z up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from vbreg import geometry
from vbreg.simulator.streets import ROAD_HALF_LENGTH, Street
from vbreg.types import Float64

MAX_TESTS_AT_ONCE = 1 << 18  # ray-triangle tests at a time, which a cache can hold


@dataclass(frozen=True)
class Lidar:
    """This describes a sensor; by default it has 64 rings on a roof, as in the KITTI drives."""

    rings: int = 64
    columns: int = 2000
    elevation: tuple[float, ...] = (2.5, -8.3, -24.8)  # degrees; as many rings between each two
    field: float = 360.0  # degrees from the right to the left, straight ahead in the middle
    pattern: Literal["raster", "rosette"] = "raster"  # all rays, or those that a rosette meets
    pulses: int = 60_000  # of a rosette, which meets some rays more than once
    height: float = 1.73  # above the road
    near: float = 2.7  # rays begin here
    far: float = 80.0
    ceiling: float = 2.9  # nothing higher above the sensor is kept, as in the published scans
    noise: float = 0.02  # of the range, metres rms
    ring_offset: float = 0.01  # constant error of the range of each ring, metres rms
    reach: float = 160.0  # a wall that faces the sensor there loses 37 % of its echoes; inf: none
    voxel_size: float | None = None  # keep one return per voxel

    def elevations(self) -> Tensor:
        """Return the angle of every ring above the horizon (R,), in radians, falling."""
        knots = np.linspace(0, len(self.elevation) - 1, self.rings)
        degrees = np.interp(knots, np.arange(len(self.elevation)), self.elevation)
        return torch.from_numpy(np.radians(degrees))

    def rays(self) -> Tensor:
        """Return unit directions (R, C, 3) float32; the columns turn left through the field."""
        e = self.elevations()[:, None]
        field = math.radians(self.field)
        a = (torch.arange(self.columns) + 0.5) * (field / self.columns) - field / 2
        x, y, z = e.cos() * a.cos(), e.cos() * a.sin(), e.sin().expand(-1, self.columns)
        return torch.stack([x, y, z], dim=-1).float()

    def fired(self, generator: torch.Generator) -> Tensor:
        """Draw which rays (R, C) one scan fires: all of a raster, and a new rosette every time."""
        hit = torch.ones(self.rings, self.columns, dtype=torch.bool, device=generator.device)
        if self.pattern == "raster":
            return hit
        # Two prisms turn against each other, 122 and 78 times a second at 100,000 pulses.
        turn = 1e4 * torch.rand(2, 1, generator=generator, device=generator.device).double()
        rate = 2 * math.pi * torch.tensor([[121.57e-5], [-77.73e-5]], device=turn.device)
        angle = turn + rate * torch.arange(self.pulses, device=turn.device)  # (2, P)
        across, up = 0.5 * angle.cos().sum(0), 0.5 * angle.sin().sum(0)  # in the unit disc
        column = ((across + 1) / 2 * self.columns).long().clamp(0, self.columns - 1)
        ring = ((1 - up) / 2 * self.rings).long().clamp(0, self.rings - 1)
        hit[:] = False
        hit[ring, column] = True
        return hit


def cast_rays(triangles: Tensor, lidar: Lidar) -> tuple[Tensor, Tensor]:
    """Return range (R, C), inf for none, and face (R, C) where rays meet triangles (F, 3, 3).

    The triangles lie in the sensor's frame.
    """
    rays = lidar.rays().to(triangles.device).view(-1, 3)
    best = torch.full_like(rays[:, 0], torch.inf)
    face = torch.full_like(best, -1, dtype=torch.long)
    for index, owner, ray in _candidates(triangles, lidar):
        a, b, c = triangles[index].double().unbind(1)
        normal = torch.linalg.cross(b - a, c - a)
        # A ray passes inside where it lies on one side of the three planes through eye and edge.
        edges = [torch.linalg.cross(a, b), torch.linalg.cross(b, c), torch.linalg.cross(c, a)]
        planes = torch.stack([*edges, normal], dim=1).float()  # (F', 4, 3)
        side = (planes[owner] * rays[ray].unsqueeze(1)).sum(-1)  # (K, 4)
        t = (a * normal).sum(-1).float()[owner] / side[:, 3]
        hit = (side[:, :3] >= 0).all(-1) | (side[:, :3] <= 0).all(-1)
        hit &= (t > lidar.near) & (t < lidar.far)
        owner, ray, t = owner[hit], ray[hit], t[hit]
        best.scatter_reduce_(0, ray, t, "amin")
        won = t == best[ray]
        # Chunks come in the order of the faces, so whoever wins later has the greater index.
        face.scatter_reduce_(0, ray[won], index[owner[won]], "amax")
    shape = (lidar.rings, lidar.columns)
    return best.view(shape), face.view(shape)


def _candidates(triangles: Tensor, lidar: Lidar) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield tests in chunks: faces (F',), and of each test its place in F' (K,) and ray (K,)."""
    first, count = _ring_and_column_span(triangles, lidar)
    total = count.prod(-1)
    faces = total.nonzero().squeeze(-1)
    chunk = total[faces].cumsum(0) // MAX_TESTS_AT_ONCE
    for f in torch.split(faces, chunk.bincount().tolist() or [0]):
        owner = torch.repeat_interleave(torch.arange(len(f), device=f.device), total[f])
        start = total[f].cumsum(0) - total[f]
        k = torch.arange(len(owner), device=f.device) - start[owner]
        columns = count[f, 1][owner]
        ring = first[f, 0][owner] + k // columns
        column = (first[f, 1][owner] + k % columns) % lidar.columns
        yield f, owner, ring * lidar.columns + column


def _ring_and_column_span(triangles: Tensor, lidar: Lidar) -> tuple[Tensor, Tensor]:
    """Return the first ring and column (F, 2) of each triangle's outline, and how many it spans."""
    flat, z = triangles[..., :2].double(), triangles[..., 2].double()
    ahead = flat.roll(-1, 1)
    turn = flat[..., 0] * ahead[..., 1] - flat[..., 1] * ahead[..., 0]  # (F, 3)
    below = (turn >= 0).all(-1) | (turn <= 0).all(-1)  # the axis of the sensor passes through
    edge = ahead - flat
    along = -(flat * edge).sum(-1) / edge.square().sum(-1).clamp_min(1e-12)
    closest = torch.linalg.vector_norm(flat + along.clamp(0, 1).unsqueeze(-1) * edge, dim=-1)
    nearest = torch.where(below, 0.0, closest.amin(-1)).clamp_min(1e-3)
    furthest = torch.linalg.vector_norm(flat, dim=-1).amax(-1).clamp_min(1e-3)
    low, high = z.amin(-1), z.amax(-1)
    top = torch.atan2(high, torch.where(high > 0, nearest, furthest))
    bottom = torch.atan2(low, torch.where(low < 0, nearest, furthest))
    depth = -lidar.elevations().to(z.device)  # rising
    ring = torch.searchsorted(depth, -top)
    rings = torch.searchsorted(depth, -bottom, right=True) - ring
    azimuth = torch.atan2(flat[..., 1], flat[..., 0])
    middle = azimuth[:, :1]
    swing = torch.remainder(azimuth - middle + math.pi, 2 * math.pi) - math.pi
    field = math.radians(lidar.field)
    step = field / lidar.columns
    left, right = ((middle + swing + field / 2) / step - 0.5).aminmax(dim=-1)
    column = left.ceil()
    columns = torch.where(below, lidar.columns, right.floor() - column + 1)
    if lidar.field < 360:
        column, columns = _within_field(left, right, below, lidar)
    seen = (nearest < lidar.far) & (rings > 0) & (columns > 0)
    count = torch.stack([rings, columns.long()], dim=-1) * seen.unsqueeze(-1)
    return torch.stack([ring, column.long()], dim=-1), count


def _within_field(
    left: Tensor, right: Tensor, below: Tensor, lidar: Lidar
) -> tuple[Tensor, Tensor]:
    """Return first column and number of columns (F,) of spans in a field of up to 180 degrees."""
    circle = 360 / lidar.field * lidar.columns
    middle = (left + right) / 2 - (lidar.columns - 1) / 2  # columns to the left of straight ahead
    turns = circle * (middle / circle).round()
    first = torch.where(below, 0.0, (left - turns).ceil().clamp_min(0))
    last = torch.where(below, lidar.columns - 1.0, (right - turns).floor())
    return first, last.clamp_max(lidar.columns - 1) - first + 1


def scan_street(
    street: Street,
    T_world_sensor: Float64,
    lidar: Lidar,
    time: float,
    generator: torch.Generator,
) -> Tensor:
    """Turn the sensor once at `time` seconds: return points (N, 3) float64 in its frame."""
    triangles, relief = street.triangles_at(time, T_world_sensor[:2, 3])
    return scan_triangles(triangles, relief, street.waves, T_world_sensor, lidar, generator)


def scan_triangles(
    triangles: Tensor,
    relief: Tensor,
    waves: Callable[[Tensor], Tensor],
    T_world_sensor: Float64,
    lidar: Lidar,
    generator: torch.Generator,
) -> Tensor:
    """Scan triangles (F, 3, 3) of the world once: return points (N, 3) in the sensor's frame.

    `relief` (F,) is the rms height of the `waves` on each; these return heights of unit variance.
    """
    device = triangles.device
    T = torch.as_tensor(T_world_sensor, device=device)
    local = geometry.apply(geometry.inverse(T), triangles.double().view(-1, 3)).view(-1, 3, 3)
    distance, face = cast_rays(local, lidar)
    ring, column = ((face >= 0) & lidar.fired(generator)).nonzero().unbind(-1)
    distance, face = distance[ring, column], face[ring, column]
    a, b, c = local[face].float().unbind(1)
    normal = torch.nn.functional.normalize(torch.linalg.cross(b - a, c - a), dim=-1)
    ray = lidar.rays().to(device)[ring, column]
    bump = relief[face] * waves(geometry.apply(T.float(), ray * distance.unsqueeze(-1)))
    cosine = (ray * normal).sum(-1).abs()
    # An echo weakens with the square of the range and with the slant.
    strength = cosine * (lidar.reach / distance).square()
    kept = torch.rand(len(ring), generator=generator, device=device) >= (-strength).exp()
    white = torch.randn(len(ring), generator=generator, device=device)
    constant = math.sqrt(2) * torch.sin(ring * 12.9898)  # a sensor's own, the same in every scan
    measured = distance + lidar.noise * white + lidar.ring_offset * constant
    points = ray * measured.unsqueeze(-1) + normal * bump.unsqueeze(-1)
    kept &= (measured > lidar.near) & (measured < lidar.far) & (points[:, 2] < lidar.ceiling)
    points = points[kept].double()
    return points if lidar.voxel_size is None else first_in_each_voxel(points, lidar.voxel_size)


def first_in_each_voxel(points: Tensor, size: float) -> Tensor:
    """Return the first point (N, 3) of each voxel."""
    x, y, z = (points / size).floor().long().unbind(-1)
    voxels, voxel = torch.unique((x << 40) + (y << 20) + z, return_inverse=True)
    order = torch.arange(len(points), device=points.device)
    first = torch.full_like(voxels, len(points)).scatter_reduce(0, voxel, order, "amin")
    return points[first]


def random_drive(
    street: Street,
    generator: np.random.Generator,
    count: int,
    height: float = Lidar.height,
    step: tuple[float, float] = (4.0, 12.0),
) -> tuple[Float64, Float64]:
    """Draw T_world_sensor (count, 4, 4) along the road, `step` m apart, and times (count,).

    Some look back, from the other lane and at another time; on a crossing some are turning.
    """
    limit = 0.4 * ROAD_HALF_LENGTH
    steps = generator.uniform(*step, count).cumsum()
    steps += generator.uniform(-15, 15) - steps.mean()
    poses, times = [], []
    for s in limit - np.abs((steps + limit) % (4 * limit) - 2 * limit):  # to and fro
        back = generator.random() < 0.25
        lane = street.road.width / 4 * (1 if back else -1) + generator.normal(0, 0.4)
        yaw = generator.normal(0, 0.03) + back * np.pi
        if street.road.crosses(s) and generator.random() < 0.4:
            yaw += generator.uniform(-1.5, 1.5)
        T = street.road.car_pose(s, lane) @ rotation(yaw, *generator.normal(0, 0.008, 2))
        T[2, 3] += height + generator.normal(0, 0.02)
        poses.append(T)
        times.append(generator.uniform(200, 300) if back else s / 8)
    return np.stack(poses), np.array(times)


def rotation(yaw: float, pitch: float, roll: float) -> Float64:
    """Return the pose (4, 4) that rolls about x, pitches about y, then yaws about z."""
    (cy, cp, cr), (sy, sp, sr) = np.cos([yaw, pitch, roll]), np.sin([yaw, pitch, roll])
    T = np.eye(4)
    T[:3, :3] = (
        np.array([[cy, -sy, 0], [sy, cy, 0], [0, 0, 1]])
        @ np.array([[cp, 0, sp], [0, 1, 0], [-sp, 0, cp]])
        @ np.array([[1, 0, 0], [0, cr, -sr], [0, sr, cr]])
    )
    return T


def drive_and_scan(
    street: Street,
    generator: np.random.Generator,
    count: int = 8,
    lidar: Lidar = Lidar(voxel_size=0.3),
) -> list[tuple[Tensor, Tensor]]:
    """Drive through a street and return `count` scans, each with its pose.

    A scan is points (N, 3) in the sensor's frame and T_world_sensor (4, 4), both float64.
    """
    noise = torch.Generator(street.device).manual_seed(int(generator.integers(1 << 62)))
    poses, times = random_drive(street, generator, count, lidar.height)
    return [
        (scan_street(street, T, lidar, time, noise), torch.as_tensor(T, device=street.device))
        for T, time in zip(poses, times, strict=True)
    ]
