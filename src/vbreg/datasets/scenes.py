"""Furnished rooms made from nothing, and clutter for meshes that lack it.

Metres, z up, furniture stands on z = 0. Everything follows from the generator that is passed in.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vbreg.datasets.furniture import LARGE, WALL_SIDE
from vbreg.datasets.shapes import Generator, Mesh, area, box, floor_height, merge, surface_points
from vbreg.datasets.things import Maker, pick, small
from vbreg.types import Float64


def add_clutter(
    mesh: Mesh,
    generator: Generator,
    level: float = 3.0,
    wall: float = 0.7,
    strew: Sequence[Maker] = (small,),
) -> Mesh:
    """Strew things on floors, tables and boards (`level` per m^2) and hang some on walls."""
    floor = floor_height(mesh, generator)
    points, normals = surface_points(mesh, 40000, generator)
    per_point = area(mesh) / len(points)
    reach = (points[:, 2] > floor - 0.05) & (points[:, 2] < floor + 2.0)
    added = [mesh]
    for p in _pick(points[reach & (np.abs(normals[:, 2]) > 0.95)], level * per_point, generator):
        grown = generator.random() < 0.12 and p[2] < floor + 0.1
        thing = pick(LARGE if grown else strew, generator)
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


def procedural_room(generator: Generator) -> Mesh:
    """One furnished room, 3 to 6 m wide, with its corner at the origin."""
    w, d, h = generator.uniform((3.0, 3.0, 2.4), (6.5, 6.0, 3.0))
    slab = box((w + 1, d + 1, 0.1), (w / 2, d / 2, -0.1))
    parts = [slab, slab.moved((0, 0, h + 0.1))]
    corners = [((0, 0, 0), 0.0, w), ((w, 0, 0), 0.5, d), ((w, d, 0), 1.0, w), ((0, d, 0), 1.5, d)]
    for corner, turn, length in corners:
        parts.append(_wall(length, h, generator).moved(corner, turn * np.pi))
        x = generator.uniform(0.3, 0.8)
        while x < length - 0.8:  # furniture with its back to the wall
            thing = pick(WALL_SIDE, generator)
            lo, hi = thing.vertices.min(0), thing.vertices.max(0)
            if x + hi[0] - lo[0] < length - 0.3:
                gap = generator.uniform(0.0, 0.06)
                parts.append(thing.moved((x - lo[0], gap - lo[1], 0)).moved(corner, turn * np.pi))
            x += hi[0] - lo[0] + generator.exponential(0.35)
    for _ in range(generator.integers(2, 6)):  # and some in the middle
        spot = (*generator.uniform((0.28 * w, 0.28 * d), (0.72 * w, 0.72 * d)), 0)
        parts.append(pick(LARGE, generator).moved(spot, generator.uniform(0, 6)))
    return add_clutter(merge(parts), generator)


def _wall(length: float, height: float, generator: Generator) -> Mesh:
    """A wall along x from the origin, the room on its +y side, with doors and windows set back."""
    parts, x, thick = [], 0.0, 0.12
    while x < length:
        solid = min(generator.uniform(0.3, 2.0), length - x)
        parts.append(box((solid, thick, height), (x + solid / 2, -thick / 2, 0)))
        x += solid
        width = min(generator.uniform(0.7, 1.5), length - x)
        low = 0.0 if generator.random() < 0.4 else generator.uniform(0.7, 1.1)
        top, depth = generator.uniform(1.9, 2.2), generator.uniform(0.06, 0.25)
        mid = x + width / 2
        parts.append(box((width, thick, low), (mid, -thick / 2, 0)))
        parts.append(box((width, thick, height - top), (mid, -thick / 2, top)))
        parts.append(box((width, 0.02, top - low), (mid, -depth, low)))  # the leaf or the pane
        parts.append(box((0.05, depth, top - low), (mid, -depth / 2, low)))  # its mullion
        if low > 0:  # a sill, and a radiator below
            parts.append(box((width + 0.1, 0.2, 0.03), (mid, 0.0, low)))
            ribs = np.arange(x + 0.1, x + width - 0.1, 0.08)
            parts += [box((0.04, 0.1, low * 0.7), (rib, 0.09, 0.1)) for rib in ribs]
        x += width
    return merge(parts)
