"""Where a sensor stands is drawn here: on free floor, on a pavement, or on a ring round a thing."""

from __future__ import annotations

import numpy as np

from vbreg.errors import VBRegError
from vbreg.simulator.depth_camera import Scene, look_at
from vbreg.simulator.lidar import rotation
from vbreg.simulator.meshes import Generator
from vbreg.simulator.streets import ROAD_HALF_LENGTH, Road
from vbreg.types import Float64

Carrier = tuple[tuple[float, float], float]  # least and greatest height, tilt in radians rms
MAX_DRAWS = 400
MIN_CLEARANCE = 0.35


def random_stand(
    scene: Scene,
    generator: Generator,
    carrier: Carrier,
    earlier: Float64 | None = None,
    focus: Float64 | None = None,
) -> Float64:
    """Draw T_world_sensor (4, 4) on free floor.

    It is some steps from `earlier` (3,), or anywhere, and heads towards `focus` (3,), or anywhere.
    """
    heights, tilt = carrier
    floor = scene.coarse[np.abs(scene.coarse[:, 2] - scene.floor) < 0.05]
    for _ in range(MAX_DRAWS if len(floor) else 0):
        x, y, _ = floor[generator.integers(len(floor))]
        eye = np.array([x, y, scene.floor + generator.uniform(*heights)])
        if earlier is not None and not 1.0 <= np.linalg.norm(eye - earlier) <= 4.0:
            continue
        if scene.clearance(eye) > MIN_CLEARANCE and scene.encloses(eye):
            yaw = generator.uniform(-np.pi, np.pi)
            if focus is not None:
                yaw = np.arctan2(focus[1] - y, focus[0] - x) + generator.normal(0, 0.4)
            T = rotation(yaw, *generator.normal(0, tilt, 2))
            T[:3, 3] = eye
            return T
    raise VBRegError("no free place for a sensor in this scene; is it a closed room, z up?")


def walk_on(
    scene: Scene, generator: Generator, T_world_sensor: Float64, sweeps: int, tilt: float
) -> Float64:
    """Draw poses (sweeps, 4, 4) of a short walk from a pose on, a hand or a step apart."""
    poses = [T_world_sensor]
    yaw = np.arctan2(T_world_sensor[1, 0], T_world_sensor[0, 0])
    for _ in range(MAX_DRAWS):
        if len(poses) == sweeps:
            break
        yaw += generator.normal(0, 0.25)
        stride = generator.uniform(0.1, 0.4) * np.array([np.cos(yaw), np.sin(yaw), 0.0])
        eye = poses[-1][:3, 3] + stride + generator.normal(0, (0, 0, 0.02))
        if scene.clearance(eye) < MIN_CLEARANCE:
            yaw += generator.uniform(-1.5, 1.5)
            continue
        T = rotation(yaw, *generator.normal(0, tilt, 2))
        T[:3, 3] = eye
        poses.append(T)
    return np.stack(poses)


def random_walk_on_pavement(
    road: Road, generator: Generator, count: int, carrier: Carrier, step: tuple[float, float]
) -> Float64:
    """Draw T_world_sensor (count, 4, 4) along the pavements of a street, `step` metres apart.

    Most head along the street, some back or across.
    """
    heights, tilt = carrier
    limit = 0.4 * ROAD_HALF_LENGTH
    along = generator.uniform(*step, count).cumsum()
    along += generator.uniform(-15, 15) - along.mean()
    side, height, poses = generator.choice([-1, 1]), generator.uniform(*heights), []
    for s in limit - np.abs((along + limit) % (4 * limit) - 2 * limit):  # to and fro
        side = -side if generator.random() < 0.2 else side
        T = road.car_pose(s, side * generator.uniform(road.kerb - 0.3, road.edge - 0.3))
        turn = generator.normal(0, 0.5) + np.pi * (generator.random() < 0.2)
        T = T @ rotation(turn, *generator.normal(0, tilt, 2))
        T[2, 3] += height + generator.normal(0, 0.03)
        poses.append(T)
    return np.stack(poses)


def ring_view(
    centre: Float64,
    around: float,
    elevation: float,
    distance: float,
    frames: int,
    generator: Generator,
) -> Float64:
    """Draw T_world_camera (frames, 4, 4) on an arc about `centre`, all looking there.

    The arc starts at the angle `around` and turns by up to 30 degrees, `elevation` above level.
    """
    poses = []
    turn, rise = np.radians(generator.uniform(5, 30)), generator.normal(0, 0.1)
    aim = centre + generator.normal(0, 0.04 * distance, 3)
    for share in np.linspace(0, 1, frames):
        a, e = around + turn * share, elevation + rise * share
        eye = centre + distance * np.array(
            [np.cos(a) * np.cos(e), np.sin(a) * np.cos(e), np.sin(e)]
        )
        poses.append(look_at(eye, aim, generator.normal(0, 0.03)))
    return np.stack(poses)
