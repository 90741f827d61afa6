"""Scatter small objects over a mesh that lacks them, since real rooms are never tidy."""

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
    per_square_metre: float = 3.0,
    per_wall_square_metre: float = 0.7,
    makers: Sequence[Maker] = (simple_object,),
) -> Mesh:
    """Lay objects of `makers` on level surfaces and hang boxes on walls, so many per square metre.

    Only what is within 2 m of the floor is covered; now and then a piece of furniture joins in.
    """
    floor = floor_height(mesh, generator)
    points, normals = surface_points(mesh, 40000, generator)
    per_point = area(mesh) / len(points)  # square metres
    reach = (points[:, 2] > floor - 0.05) & (points[:, 2] < floor + 2.0)
    added = [mesh]
    level = points[reach & (np.abs(normals[:, 2]) > 0.95)]
    for p in _draw_places(level, per_square_metre * per_point, generator):
        large = generator.random() < 0.12 and p[2] < floor + 0.1  # only on the floor
        piece = make_one_of(LARGE_FURNITURE if large else makers, generator)
        added.append(piece.moved(p, generator.uniform(0, 2 * np.pi)))
    upright = np.c_[points, normals][reach & (np.abs(normals[:, 2]) < 0.05)]
    for p in _draw_places(upright, per_wall_square_metre * per_point, generator):
        yaw = np.arctan2(-p[3], p[4])  # local y looks along the normal
        size = generator.uniform((0.1, 0.02, 0.05), (0.7, 0.18, 0.6))
        added.append(box(size, (0, 0, 0)).moved(p[:3], yaw, 0.0))
    return merge(added)


def _draw_places(points: Float64, per_point: float, generator: Generator) -> Float64:
    """Draw rows of `points`, `per_point` of them on average for each row."""
    count = generator.poisson(per_point * len(points))
    return points[generator.integers(len(points), size=count)] if len(points) else points
