"""Furnished rooms made from nothing, and clutter for meshes that lack it.

Metres, z up, furniture stands on z = 0. Everything follows from the generator that is passed in.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vbreg.simulator.furniture import LARGE_FURNITURE
from vbreg.simulator.meshes import (
    Generator,
    Maker,
    Mesh,
    area,
    box,
    floor_height,
    make_one_of,
    merge,
    surface_points,
)
from vbreg.simulator.small_objects import simple_object
from vbreg.types import Float64


def add_clutter(
    mesh: Mesh,
    generator: Generator,
    level: float = 3.0,
    wall: float = 0.7,
    strew: Sequence[Maker] = (simple_object,),
) -> Mesh:
    """Strew things on floors, tables and boards (`level` per m^2) and hang some on walls."""
    floor = floor_height(mesh, generator)
    points, normals = surface_points(mesh, 40000, generator)
    per_point = area(mesh) / len(points)
    reach = (points[:, 2] > floor - 0.05) & (points[:, 2] < floor + 2.0)
    added = [mesh]
    for p in _pick(points[reach & (np.abs(normals[:, 2]) > 0.95)], level * per_point, generator):
        grown = generator.random() < 0.12 and p[2] < floor + 0.1
        thing = make_one_of(LARGE_FURNITURE if grown else strew, generator)
        added.append(thing.moved(p, generator.uniform(0, 2 * np.pi)))
    upright = reach & (np.abs(normals[:, 2]) < 0.05)
    for p in _pick(np.c_[points, normals][upright], wall * per_point, generator):
        yaw = np.arctan2(-p[3], p[4])  # local y looks along the normal
        size = generator.uniform((0.1, 0.02, 0.05), (0.7, 0.18, 0.6))
        added.append(box(size, (0, 0, 0)).moved(p[:3], yaw, 0.0))
    return merge(added)


def _pick(points: Float64, per_point: float, generator: Generator) -> Float64:
    count = generator.poisson(per_point * len(points))
    return points[generator.integers(len(points), size=count)] if len(points) else points
