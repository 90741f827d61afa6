"""Places with posed scans are made here by kind and seed.

    place = make_place("building_tripod", seed=3)

A place is the same in every run: it follows from its kind and its seed alone.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from vbreg.errors import VBRegError
from vbreg.simulator import sensors, surveys
from vbreg.simulator.buildings import make_building
from vbreg.simulator.clutter import add_clutter
from vbreg.simulator.meshes import Generator, Mesh, crop, floor_height, surface_points
from vbreg.simulator.rooms import ROOM_KINDS, make_room
from vbreg.simulator.surveys import PosedScan, Survey

__all__ = ["MESH", "PLACE_KINDS", "Place", "PosedScan", "make_place"]

MIN_SCANS = 4  # of a place; one with fewer is drawn again
MAX_ATTEMPTS = 10
MESH = "mesh"  # the kind of place that is cut out of a mesh of the user's


@dataclass(frozen=True, eq=False)
class Place:
    """This holds some scans of one place, one point for each half of the voxel size."""

    kind: str
    seed: int
    voxel_size: float  # to work with
    scans: tuple[PosedScan, ...]


# --- the kinds -----------------------------------------------------------------------------------


def _random_room(generator: Generator) -> Mesh:
    """Make a room of any kind."""
    kinds = list(ROOM_KINDS)
    return make_room(kinds[generator.integers(len(kinds))], generator)


def _random_building(generator: Generator) -> Mesh:
    """Make a room of any kind, or a building of up to four rooms."""
    if generator.random() < 0.2:
        return _random_room(generator)
    return make_building(generator, int(generator.integers(2, 5)))


def _camera_survey(mesh: Mesh, generator: Generator) -> Survey:
    """Scan with a narrow or a normal camera."""
    cameras = (sensors.NARROW_CAMERA, sensors.NORMAL_CAMERA, sensors.NORMAL_CAMERA)
    return surveys.survey_with_cameras(mesh, generator, cameras)


def _wide_camera_survey(mesh: Mesh, generator: Generator) -> Survey:
    """Scan with cameras of 90 or 120 degrees, at times with a normal one among them."""
    cameras = (sensors.WIDE_CAMERA, sensors.WIDEST_CAMERA, sensors.WIDEST_CAMERA)
    mixed = (*cameras, sensors.NORMAL_CAMERA)
    return surveys.survey_with_cameras(
        mesh, generator, mixed if generator.random() < 0.3 else cameras
    )


def _tripod_survey(mesh: Mesh, generator: Generator) -> Survey:
    """Scan with a terrestrial scanner."""
    voxel_size = generator.uniform(0.05, 0.1)
    return surveys.survey_with_lidar(
        mesh, generator, sensors.TERRESTRIAL_SCANNER, sensors.ON_A_TRIPOD, voxel_size
    )


def _lidar_survey(mesh: Mesh, generator: Generator) -> Survey:
    """Scan with a spinning LiDAR of 16, 32 or 64 rings; fewer rings fuse more sweeps."""
    lidar, sweeps = (
        (sensors.LIDAR_16, (3, 6)),
        (sensors.LIDAR_32, (2, 4)),
        (replace(sensors.LIDAR_64, near=0.5, ceiling=np.inf), (1, 2)),
    )[generator.integers(3)]
    if generator.random() < 0.25:
        sweeps = (1, 1)
    carrier = surveys.random_carrier(generator)
    voxel_size = generator.uniform(0.08, 0.12)
    return surveys.survey_with_lidar(mesh, generator, lidar, carrier, voxel_size, sweeps)


def _solid_state_survey(mesh: Mesh, generator: Generator) -> Survey:
    """Scan with a LiDAR of a limited field, from one place or along a few steps."""
    lidars = list(sensors.SOLID_STATE_LIDARS.values())
    sweeps = (1, 1) if generator.random() < 0.5 else (2, 5)
    return surveys.survey_with_lidar(
        mesh,
        generator,
        lidars[generator.integers(len(lidars))],
        surveys.random_carrier(generator),
        generator.uniform(0.05, 0.1),
        sweeps,
    )


def _street_by_car(generator: Generator) -> Survey:
    """Scan a street from a car, with 64 rings, 32 rings or a solid-state LiDAR."""
    lidars = (sensors.LIDAR_64, sensors.LIDAR_64, sensors.LIDAR_32, sensors.RASTER_LIDAR)
    lidar = replace(lidars[generator.integers(len(lidars))], near=2.7)
    return surveys.survey_street(generator, lidar, sensors.ON_A_CAR, on_road=True)


def _street_on_foot(generator: Generator) -> Survey:
    """Scan a street from its pavements, by a robot or on a back."""
    lidars = (sensors.LIDAR_16, sensors.LIDAR_32, sensors.LIDAR_32, sensors.ROSETTE_LIDAR)
    lidar = lidars[generator.integers(len(lidars))]
    carrier = surveys.random_carrier(generator)
    return surveys.survey_street(generator, lidar, carrier, on_road=False)


# Each kind is a survey of something that the generator makes up.
_MAKERS: Mapping[str, Callable[[Generator], Survey]] = {
    "room_camera": lambda g: _camera_survey(_random_room(g), g),
    "room_wide_camera": lambda g: _wide_camera_survey(_random_room(g), g),
    "building_tripod": lambda g: _tripod_survey(_random_building(g), g),
    "building_lidar": lambda g: _lidar_survey(_random_building(g), g),
    "building_solid_state": lambda g: _solid_state_survey(_random_building(g), g),
    "street_car": _street_by_car,
    "street_walk": _street_on_foot,
    "object_turntable": lambda g: surveys.survey_object(g, on_table=False),
    "object_table": lambda g: surveys.survey_object(g, on_table=True),
}
PLACE_KINDS: tuple[str, ...] = (*_MAKERS, MESH)
# Indoor surveys, each with half of the extent that it is given of a mesh, metres.
_INDOOR: tuple[tuple[Callable[[Mesh, Generator], Survey], float], ...] = (
    (_camera_survey, 4.0),
    (_camera_survey, 4.0),
    (_wide_camera_survey, 4.0),
    (_tripod_survey, 5.0),
    (_lidar_survey, 7.0),
    (_solid_state_survey, 6.0),
)


def _survey_of_mesh(path: Path, generator: Generator) -> Survey:
    """Cut a furnished part out of a mesh, strew things over it and scan it by a random sensor."""
    whole = _read_mesh(path)
    floor = floor_height(whole, generator)
    points, _ = surface_points(whole, 20000, generator)
    furnished = points[(points[:, 2] > floor + 0.2) & (points[:, 2] < floor + 1.5)]
    if not len(furnished):
        raise VBRegError(f"{path} has nothing between 0.2 and 1.5 m above its floor; is z up?")
    centre = furnished[generator.integers(len(furnished))]
    survey, half = _INDOOR[generator.integers(len(_INDOOR))]
    part = crop(whole, centre, half)
    return survey(add_clutter(part, generator, generator.uniform(0.5, 3.0)), generator)


def _read_mesh(path: Path) -> Mesh:
    """Read `vertices` (V, 3) and `faces` (F, 3) from a .npz file."""
    try:
        with np.load(path, allow_pickle=False) as data:
            return Mesh(data["vertices"].astype(np.float64), data["faces"].astype(np.int64))
    except (OSError, KeyError, ValueError) as error:
        raise VBRegError(
            f"{path} is no mesh: a .npz file with vertices (V, 3) and faces (F, 3) is needed"
        ) from error


def make_place(kind: str, seed: int, mesh: Path | str | None = None) -> Place:
    """Make the place of one of `PLACE_KINDS` that a seed stands for.

    The kind "mesh" scans a part of a mesh of yours: a .npz file with `vertices` (V, 3) and `faces`
    (F, 3), metres, z up.
    """
    _check(kind, mesh is not None)
    if seed < 0:
        raise VBRegError(f"the seed of a place is {seed}; it must not be negative")
    for attempt in range(MAX_ATTEMPTS):
        generator = np.random.default_rng([zlib.crc32(kind.encode()), seed, attempt])
        try:
            voxel_size, scans = (
                _MAKERS[kind](generator) if mesh is None else _survey_of_mesh(Path(mesh), generator)
            )
        except VBRegError:
            if attempt == MAX_ATTEMPTS - 1:
                raise
            continue
        if len(scans) >= MIN_SCANS:
            return Place(kind, seed, voxel_size, tuple(scans))
    raise VBRegError(f"no {MIN_SCANS} scans of a place {kind!r} with seed {seed} could be made")


def _check(kind: str, has_mesh: bool) -> None:
    """Complain about an unknown kind, and about a mesh that is missing or of no use."""
    if kind not in PLACE_KINDS:
        raise VBRegError(f"no kind of place is {kind!r}; choose one of {', '.join(PLACE_KINDS)}")
    if (kind == MESH) != has_mesh:
        raise VBRegError(f"a place {kind!r} needs {'a' if kind == MESH else 'no'} mesh file")
