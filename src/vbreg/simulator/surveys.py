"""Whole places are scanned here: a sensor is chosen, stands are drawn, things move in between.

A survey draws its sensor, how it is carried and how dense its scans are, then makes six to ten
scans of one place. Before each scan some of the movable things are moved, and some are away. Stands
are far enough from each other that many pairs of scans share little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from vbreg import geometry
from vbreg.errors import VBRegError
from vbreg.simulator import furniture, sensors, small_objects, street_objects
from vbreg.simulator.depth_camera import (
    DepthCamera,
    Scene,
    random_trajectory,
    sample_surface,
    scan_scene,
    uneven_samples,
)
from vbreg.simulator.lidar import (
    Lidar,
    first_in_each_voxel,
    random_drive,
    rotation,
    scan_triangles,
)
from vbreg.simulator.meshes import Generator, Maker, Mesh, area, box, lathe, make_one_of, merge
from vbreg.simulator.movables import Arrangement, Movable, arrange, draw_movables, placed
from vbreg.simulator.relief import random_waves
from vbreg.simulator.streets import Street, make_street
from vbreg.simulator.viewpoints import (
    Carrier,
    random_stand,
    random_walk_on_pavement,
    ring_view,
    walk_on,
)
from vbreg.types import Float64

SCANS = (6, 10)  # of a place, least and most
MAX_SWEEPS = 24  # of a place, all scans together
MAX_SAMPLES = 1_200_000  # of a room before a camera; a large one is sampled less densely
MIN_POINTS = 800  # of a scan that is kept
ROOM_VOXEL = 0.05
SAMPLE_SPACING = 0.014  # of surfaces before a camera: two samples or more in half a voxel
STREET_VOXEL = 0.30
VOXELS_ALONG_AN_OBJECT = (30.0, 50.0)


@dataclass(frozen=True, eq=False)
class PosedScan:
    """This is one scan in its sensor's frame, and the true pose of that frame in the world."""

    points: npt.NDArray[np.float32]  # (N, 3)
    T_world_scan: Float64  # (4, 4)
    viewpoint: Float64 | None  # (3,) where the sensor was, in the scan's frame; None: many places


Survey = tuple[float, list[PosedScan]]  # voxel size to work with, and the scans


def _posed(points: torch.Tensor, T_world_scan: Float64, single: bool) -> PosedScan:
    """Make a scan from points (N, 3); `single` says that all were seen from the origin."""
    viewpoint = np.zeros(3) if single else None
    return PosedScan(points.numpy().astype(np.float32), np.asarray(T_world_scan), viewpoint)


def _noise(generator: Generator) -> torch.Generator:
    """Return torch's generator, seeded by numpy's."""
    return torch.Generator().manual_seed(int(generator.integers(1 << 62)))


# --- cameras in rooms ----------------------------------------------------------------------------


def survey_with_cameras(mesh: Mesh, generator: Generator, cameras: Sequence[DepthCamera]) -> Survey:
    """Scan a room with a camera in a hand; every fragment fuses few or many frames.

    One camera makes all scans, or (in a place of three) each scan draws its own.
    """
    g, noise = generator, _noise(generator)
    spacing = max(SAMPLE_SPACING, math.sqrt(area(mesh) / MAX_SAMPLES))
    still = sample_surface(mesh, g, spacing, g.uniform(0.001, 0.005))
    movables = draw_movables(mesh, g, int(g.integers(4, 16)), int(g.integers(0, 4)))
    samples = [uneven_samples(movable.mesh, g, SAMPLE_SPACING, 0.002) for movable in movables]
    mixed, camera = g.random() < 0.33, cameras[int(g.integers(len(cameras)))]
    foci = _foci(still, g)
    scans: list[PosedScan] = []
    trajectory: Float64 | None = None
    count = int(g.integers(*SCANS, endpoint=True))
    for _ in range(2 * count):
        scene = _joined(still, samples, arrange(movables, g))
        focus = foci[0 if g.random() < 0.4 else g.integers(len(foci))]
        after = trajectory if g.random() < 0.65 else None  # walk on, or jump
        chosen = cameras[int(g.integers(len(cameras)))] if mixed else camera
        most = 40 if chosen.half_diagonal < 0.8 else 18  # wide frames cost more and fuse sooner
        frames = round(float(np.exp(g.uniform(np.log(6), np.log(most)))))
        try:
            trajectory = random_trajectory(scene, g, focus, after, frames, enclosed=True)
        except VBRegError:
            trajectory = None
            continue
        chosen = replace(
            chosen,
            noise=g.uniform(0.4, 1.4),
            keep=min(0.9, max(g.uniform(0.2, 0.5), 5 / frames)),
            voxel_size=0.5 * ROOM_VOXEL,
            volume=chosen.volume and g.random() < 0.6,
        )
        points, T_world_scan = scan_scene(scene, trajectory, chosen, noise)
        if len(points) > MIN_POINTS:
            scans.append(_posed(points, T_world_scan.numpy(), single=False))
        if len(scans) == count:
            break
    return ROOM_VOXEL, scans


def _foci(scene: Scene, generator: Generator) -> Float64:
    """Draw three spots (3, 3) that the cameras look at; the second and third lie apart."""
    low = scene.coarse[scene.coarse[:, 2] - scene.floor < 1.5]
    middle = np.median(low[:, :2], axis=0)
    near = low[np.abs(low[:, :2] - middle).max(-1) < 2.5]
    near = near if len(near) else low
    first = near[generator.integers(len(near))]
    distance = np.linalg.norm(low[:, :2] - first[:2], axis=-1)
    ring = low[(distance > 0.5) & (distance < 1.8)]
    ring = ring if len(ring) else near
    return np.concatenate([first[None], ring[generator.integers(len(ring), size=2)]])


def _joined(
    still: Scene, samples: Sequence[tuple[torch.Tensor, torch.Tensor]], arrangement: Arrangement
) -> Scene:
    """Return the scene with the samples of things at their places."""
    points, normals = [still.points[:0]], [still.normals[:0]]
    for (p, n), place in zip(samples, arrangement, strict=True):
        if place is not None:
            R = torch.from_numpy(rotation(float(place[3]), 0.0, 0.0)[:3, :3]).float()
            points.append(p @ R.T + torch.from_numpy(place[:3]).float())
            normals.append(n @ R.T)
    return still.joined(torch.cat(points), torch.cat(normals))


# --- LiDARs and tripods in rooms and buildings ---------------------------------------------------


def survey_with_lidar(
    mesh: Mesh,
    generator: Generator,
    lidar: Lidar,
    carrier: Carrier,
    voxel_size: float,
    sweeps: tuple[int, int] = (1, 1),
) -> Survey:
    """Scan a room or a building from free floor; a scan fuses some sweeps of a short walk."""
    g, noise = generator, _noise(generator)
    waves, relief = random_waves(g, 0.2, 2.0), g.uniform(0.001, 0.004)
    still = mesh.triangles()
    movables = draw_movables(mesh, g, int(g.integers(6, 24)), int(g.integers(1, 7)))
    scene = sample_surface(mesh, g, spacing=0.05, relief=0.0)
    count = int(g.integers(*SCANS, endpoint=True))
    fused = min(int(g.integers(*sweeps, endpoint=True)), max(1, MAX_SWEEPS // count))
    lidar = replace(lidar, columns=round(lidar.columns * g.uniform(0.6, 1.0)), voxel_size=None)
    foci = _foci(scene, g)
    limited = lidar.field < 360  # then the scans look at the same spots, and jump less
    scans: list[PosedScan] = []
    earlier: Float64 | None = foci[0] if limited else None
    for _ in range(2 * count):
        focus = foci[g.integers(len(foci))] if limited else None
        try:
            T = random_stand(scene, g, carrier, earlier, focus)
        except VBRegError:
            earlier = None
            continue
        jumps = g.random() < (0.2 if limited else 0.6)
        earlier = None if jumps else T[:3, 3]  # or walk on
        moving = [piece.triangles() for piece in placed(movables, arrange(movables, g))]
        triangles = torch.cat([still, *moving])
        rough = torch.full((len(triangles),), relief)
        path = walk_on(scene, g, T, fused, carrier[1])
        points: list[torch.Tensor] = []
        for pose in path:
            seen = scan_triangles(triangles, rough, waves, pose, lidar, noise)
            drift = rotation(*g.normal(0, 0.001, 3)) if len(points) else np.eye(4)
            drift[:3, 3] = g.normal(0, 0.003, 3) if len(points) else 0.0
            T_scan_sweep = np.linalg.inv(T) @ pose @ drift
            points.append(geometry.apply(torch.from_numpy(T_scan_sweep), seen))
        thinned = first_in_each_voxel(torch.cat(points), 0.5 * voxel_size)
        if len(thinned) > MIN_POINTS:
            scans.append(_posed(thinned, T, single=len(path) == 1))
        if len(scans) == count:
            break
    return voxel_size, scans


# --- streets -------------------------------------------------------------------------------------


def survey_street(generator: Generator, lidar: Lidar, carrier: Carrier, on_road: bool) -> Survey:
    """Scan a street from the road or from its pavements; traffic and some parked cars move."""
    g, noise = generator, _noise(generator)
    street = make_street(g)
    movables = _street_movables(street, g)
    count = int(g.integers(*SCANS, endpoint=True))
    step = (4.0, 12.0) if g.random() < 0.5 else (8.0, 22.0)
    if on_road:
        poses, times = random_drive(street, g, count, g.uniform(*carrier[0]), step)
    else:
        poses = random_walk_on_pavement(
            street.road, g, count, carrier, (0.45 * step[0], 0.45 * step[1])
        )
        times = g.uniform(0, 300, count)
    lidar = replace(
        lidar,
        columns=round(lidar.columns * g.uniform(0.6, 1.0)),
        noise=g.uniform(0.01, 0.03),
        reach=lidar.reach * g.uniform(0.7, 1.1),
        voxel_size=0.5 * STREET_VOXEL,
    )
    scans = []
    for T, time in zip(poses, times, strict=True):
        triangles, relief = street.triangles_at(time, T[:2, 3])
        things = placed(movables, arrange(movables, g))
        things = [
            m for m in things if np.linalg.norm(m.vertices[:, :2] - T[:2, 3], axis=-1).min() > 2
        ]
        moving = [triangles[:0], *(m.triangles() for m in things)]
        metal = relief.new_full((sum(map(len, moving)),), street_objects.METAL)
        points = scan_triangles(
            torch.cat([triangles, *moving]),
            torch.cat([relief, metal]),
            street.waves,
            T,
            lidar,
            noise,
        )
        if len(points) > MIN_POINTS:
            scans.append(_posed(points, T, single=True))
    return STREET_VOXEL, scans


def _street_movables(street: Street, generator: Generator) -> list[Movable]:
    """Draw parked cars that come and go, and people on the pavements."""
    g, road = generator, street.road
    movables = []
    for make, count in (
        (street_objects.car, g.poisson(8)),
        (street_objects.pedestrian, g.poisson(6)),
    ):
        for _ in range(count):
            spots = []
            for s, side in zip(g.uniform(-70, 70, 4), g.choice([-1, 1], 4), strict=True):
                t = road.kerb - 1.1 if make is street_objects.car else (road.kerb + road.edge) / 2
                x, y, z, yaw = road.place_on_road(s, side * t)
                spots.append((x, y, z, yaw + np.pi * g.integers(2) + g.normal(0, 0.03)))
            movables.append(Movable(make(g), np.array(spots)))
    return movables


# --- objects -------------------------------------------------------------------------------------


def _still_life(generator: Generator) -> Mesh:
    """Make two to five small things close together, which look different from every side."""
    g = generator
    makers: tuple[Maker, ...] = (
        small_objects.compound_object, small_objects.simple_object, small_objects.kettle,
        small_objects.bag, small_objects.shoes, small_objects.cup, small_objects.microwave,
        small_objects.desk_lamp, small_objects.book_stack, small_objects.bottle,
        small_objects.clothes_heap, small_objects.open_carton,
    )  # fmt: skip
    pieces = [make_one_of(makers, g) for _ in range(g.integers(2, 6))]
    return merge([p.moved((*g.normal(0, 0.12, 2), 0), g.uniform(0, 6)) for p in pieces])


THINGS: tuple[Maker, ...] = (
    furniture.chair, furniture.swivel_chair, furniture.armchair, furniture.plant, furniture.bicycle,
    furniture.table, furniture.sofa, furniture.fire_extinguisher, furniture.toilet, furniture.stool,
    furniture.cabinet, furniture.bed, furniture.shelf, furniture.coat_rack,
    _still_life, _still_life, _still_life, _still_life, _still_life, _still_life, _still_life,
)  # fmt: skip


def survey_object(generator: Generator, on_table: bool) -> Survey:
    """Scan one thing from a ring of cameras, 0.4 to 1.5 m away or as far as its size asks for.

    On a turntable its background is taken away and it is seen from below too; on a table it stays,
    and small things around it are moved between the scans.
    """
    g, noise = generator, _noise(generator)
    mesh = make_one_of(THINGS, g)
    mesh = Mesh(mesh.vertices * g.uniform(0.4, 1.2), mesh.faces)
    low, high = mesh.vertices.min(0), mesh.vertices.max(0)
    centre, size = (low + high) / 2, float((high - low).max())
    voxel_size = size / g.uniform(*VOXELS_ALONG_AN_OBJECT)
    spacing, relief = voxel_size / 4, 0.1 * voxel_size
    movables: list[Movable] = []
    if on_table:
        mesh, movables = _table_under(mesh, size, g)
    points, normals = uneven_samples(mesh, g, spacing, relief)
    still = Scene(points, normals, 0.0)
    samples = [uneven_samples(movable.mesh, g, spacing, relief) for movable in movables]
    count = int(g.integers(*SCANS, endpoint=True))
    start, scans = g.uniform(0, 2 * np.pi), []
    for k in range(count):
        around = start + 2 * np.pi * (k + g.uniform(-0.3, 0.3)) / count
        elevation = g.uniform(0.1, 0.9) if on_table else g.uniform(-0.7, 1.1)
        distance = np.clip(size * g.uniform(0.7, 1.5), 0.4, max(1.5, size))
        path = ring_view(centre, around, elevation, float(distance), int(g.integers(3, 12)), g)
        camera = DepthCamera(
            width=240, height=180, focal=217.0, near=0.15, far=5.0, noise=1.0,
            depth_noise=(voxel_size * g.uniform(0.05, 0.4), 0.0), distortion=0.0005,
            disparity_step=1e-6, slack=0.6 * voxel_size, keep=0.8, volume=False,
            drift=(0.1 * voxel_size, 0.1 * voxel_size / size), voxel_size=0.5 * voxel_size,
        )  # fmt: skip
        scene = _joined(still, samples, arrange(movables, g))
        seen, T_world_scan = scan_scene(scene, path, camera, noise)
        centre_in_scan = geometry.apply(
            geometry.inverse(T_world_scan), torch.from_numpy(centre).unsqueeze(0)
        )
        seen = seen[torch.linalg.vector_norm(seen - centre_in_scan, dim=-1) < size]
        if len(seen) > MIN_POINTS // 2:
            scans.append(_posed(seen, T_world_scan.numpy(), single=False))
    return voxel_size, scans


def _table_under(mesh: Mesh, size: float, generator: Generator) -> tuple[Mesh, list[Movable]]:
    """Put a board below the thing, and draw small things that may lie on it."""
    g = generator
    wide, deep = size * g.uniform(1.1, 1.8, 2)
    board = box((wide, deep, 0.04 * size), (0, 0, -0.04 * size))
    if g.random() < 0.3:
        r = wide / 2
        board = lathe([0, r, r, 0], np.array([-0.04, -0.04, 0, 0]) * size, 40)
    movables = []
    for _ in range(g.integers(1, 6)):
        piece = make_one_of(small_objects.BELONGINGS, g)
        scale = size * g.uniform(0.1, 0.35) / float(np.ptp(piece.vertices, axis=0).max())
        spots = np.c_[
            g.uniform(-0.45, 0.45, (4, 2)) * (wide, deep), np.zeros(4), g.uniform(0, 6, 4)
        ]
        movables.append(Movable(Mesh(piece.vertices * scale, piece.faces), spots))
    return merge([mesh, board]), movables


def random_carrier(generator: Generator) -> Carrier:
    """Draw who carries a LiDAR indoors: a hand, a backpack or a robot."""
    carriers = (sensors.BY_HAND, sensors.ON_A_BACKPACK, sensors.ON_A_ROBOT)
    return carriers[generator.integers(len(carriers))]
