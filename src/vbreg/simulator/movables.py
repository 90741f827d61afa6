"""Things that are moved, added or taken away between two scans of one place are held here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vbreg.simulator.furniture import LARGE_FURNITURE
from vbreg.simulator.meshes import Generator, Maker, Mesh, floor_height, make_one_of, surface_points
from vbreg.simulator.small_objects import BELONGINGS
from vbreg.simulator.street_objects import pedestrian
from vbreg.types import Float64

LARGE_THINGS: Sequence[Maker] = (*LARGE_FURNITURE, pedestrian, pedestrian)
MAX_PLACES = 6  # where one thing may stand
Arrangement = tuple[Float64 | None, ...]  # of each thing x, y, z and turn about z; None: not there


@dataclass(frozen=True, eq=False)
class Movable:
    """This is a thing, made about the origin, and the places where it may stand."""

    mesh: Mesh
    places: Float64  # (P, 4) x, y, z and the turn about z; the first is its home

    def at(self, place: Float64) -> Mesh:
        """Return the thing at a place (4,)."""
        return self.mesh.moved(place[:3], float(place[3]))


def draw_movables(mesh: Mesh, generator: Generator, small: int, large: int) -> list[Movable]:
    """Draw things for a mesh: `small` ones on any level surface, `large` ones on the floor.

    Surfaces higher than 1.5 m above the floor stay empty.
    """
    floor = floor_height(mesh, generator)
    points, normals = surface_points(mesh, 20000, generator)
    level = points[(np.abs(normals[:, 2]) > 0.95) & (points[:, 2] < floor + 1.5)]
    level = level[level[:, 2] > floor - 0.05]
    ground = level[level[:, 2] < floor + 0.05]
    movables = []
    for makers, count, spots in ((BELONGINGS, small, level), (LARGE_THINGS, large, ground)):
        for _ in range(count if len(spots) else 0):
            chosen = spots[generator.integers(len(spots), size=MAX_PLACES)]
            turns = generator.uniform(0, 2 * np.pi, (MAX_PLACES, 1))
            movables.append(Movable(make_one_of(makers, generator), np.hstack([chosen, turns])))
    return movables


def arrange(
    movables: Sequence[Movable], generator: Generator, moved: float = 0.3, absent: float = 0.2
) -> Arrangement:
    """Draw where each thing is: elsewhere with probability `moved`, away with `absent`, or home."""
    arrangement: list[Float64 | None] = []
    for movable in movables:
        draw = generator.random()
        other = 1 + int(generator.integers(max(1, len(movable.places) - 1)))
        place = movable.places[other % len(movable.places)] if draw < moved else movable.places[0]
        arrangement.append(None if draw > 1 - absent else place)
    return tuple(arrangement)


def placed(movables: Sequence[Movable], arrangement: Arrangement) -> list[Mesh]:
    """Return the things that are there, each at its place."""
    pairs = zip(movables, arrangement, strict=True)
    return [movable.at(place) for movable, place in pairs if place is not None]
