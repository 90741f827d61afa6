"""The shell of a room is made here: walls with doors and windows, and what stands against them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vbreg.simulator.furniture import radiator
from vbreg.simulator.meshes import Generator, Maker, Mesh, box, make_one_of, merge, tube


@dataclass(frozen=True, eq=False)
class Opening:
    """This is a part of a wall that is set back by `depth`: a door, a window, a niche."""

    width: float
    low: float
    top: float
    depth: float
    fittings: Mesh  # in the wall's frame, about x = 0


Openings = Sequence[tuple[float, Opening]]  # each with the place of its middle along the wall


@dataclass(frozen=True)
class Room:
    """This is a room of four walls; wall k starts at corner k and runs counter-clockwise.

    In the frame of a wall x runs along it and y into the room, which is on its left.
    """

    width: float
    depth: float
    height: float

    def wall_length(self, side: int) -> float:
        """Return the length of a wall."""
        return (self.width, self.depth)[side % 2]

    def from_wall(self, side: int, mesh: Mesh) -> Mesh:
        """Bring a mesh from the frame of a wall to the room's."""
        corner = [(0, 0), (self.width, 0), (self.width, self.depth), (0, self.depth)][side % 4]
        return mesh.moved((*corner, 0), side * np.pi / 2)

    def against_wall(
        self, side: int, x: float, piece: Mesh, z: float = 0.0, gap: float = 0.01
    ) -> Mesh:
        """Put furniture with its back to a wall, its middle `x` along it."""
        low, high = piece.vertices.min(0), piece.vertices.max(0)
        return self.from_wall(side, piece.moved((x - (low[0] + high[0]) / 2, gap - low[1], z)))

    def line_wall(
        self, side: int, makers: Sequence[Maker], generator: Generator, openings: Openings = ()
    ) -> list[Mesh]:
        """Put furniture side by side at a wall, clear of the doors in it."""
        doors = [(x - o.width / 2, x + o.width / 2) for x, o in openings if o.low == 0]
        placed, x = [], generator.uniform(0.05, 0.5)
        while x < self.wall_length(side) - 0.6:
            piece = make_one_of(makers, generator)
            wide = float(np.ptp(piece.vertices[:, 0]))
            blocked = [end for start, end in doors if x < end and x + wide > start]
            if blocked:
                x = max(blocked) + 0.1
                continue
            if x + wide < self.wall_length(side) - 0.1:
                gap = generator.uniform(0.0, 0.06)
                placed.append(self.against_wall(side, x + wide / 2, piece, gap=gap))
            x += wide + generator.exponential(0.25)
        return placed

    def shell(self, *openings: Openings) -> Mesh:
        """Make floor, ceiling and the walls, each with its openings."""
        walls = [
            self.from_wall(side, _wall(self.wall_length(side), self.height, holes))
            for side, holes in zip(range(4), openings, strict=True)
        ]
        slabs = box((self.width, self.depth, self.height), skip="xXyY")
        return merge([slabs.moved((self.width / 2, self.depth / 2, 0)), *walls])


def _wall(length: float, height: float, openings: Openings) -> Mesh:
    """Make a wall along x from the origin, whose openings are set back from the room at +y."""

    def panel(left: float, right: float, low: float, top: float) -> Mesh:
        return box((right - left, 0, top - low), ((left + right) / 2, 0, low), skip="xXyzZ")

    parts, end = [], 0.0
    for x, o in sorted(openings, key=lambda placed: placed[0]):
        left, right = x - o.width / 2, x + o.width / 2
        niche = box((o.width, o.depth, o.top - o.low), (x, -o.depth / 2, o.low), skip="Y")
        parts += [panel(end, left, 0, height), niche, o.fittings.moved((x, 0, 0))]
        parts += [panel(left, right, 0, o.low), panel(left, right, o.top, height)]
        end = right
    return merge([*parts, panel(end, length, 0, height)])


def door(generator: Generator) -> Opening:
    """Make a leaf in its frame, at times ajar."""
    w, top, depth, trim = generator.uniform((0.75, 1.95, 0.03, 0.04), (1.0, 2.15, 0.12, 0.09))
    frame = [box((trim, 0.03, top), (x, 0.015, 0), "yz") for x in (-w / 2, w / 2)]
    frame.append(box((w + 2 * trim, 0.03, trim), (0, 0.015, top), "y"))
    panels = int(generator.integers(0, 3))  # raised fields on the leaf
    leaf = [
        box((0.65 * w, 0.015, 0.75 * top / panels), (0, 0.01, (k + 0.12) * top / panels), "y")
        for k in range(panels)
    ]
    grip = tube(np.array([(0, 0, 0), (0, 0.05, 0), (-0.11, 0.05, 0)]), 0.01, 6)
    leaf.append(grip.moved((0.42 * w, 0, 1.02)))
    if generator.random() < 0.25:
        open_leaf = merge([box((w, 0.04, top - 0.01), (0, -0.02, 0.005)), *leaf])
        swing = open_leaf.moved((w / 2, 0, 0)).moved((-w / 2, 0.02, 0), generator.uniform(0.6, 1.7))
        return Opening(w, 0.0, top, 0.3, merge([*frame, swing]))
    return Opening(w, 0.0, top, depth, merge([*frame, *(p.moved((0, -depth, 0)) for p in leaf)]))


def window(generator: Generator, low: tuple[float, float] = (0.75, 1.1)) -> Opening:
    """Make panes between mullions, a sill, at times a radiator below."""
    sill = generator.uniform(*low)
    w, top, depth = generator.uniform((0.7, 1.9, 0.06), (1.6, 2.3, 0.25))
    across, up = generator.integers(1, 4), generator.integers(1, 3)
    bars = [
        box((0.05, 0.06, top - sill), (x, 0.03 - depth, sill), "yzZ")
        for x in np.linspace(-w / 2, w / 2, across + 1)
    ]
    bars += [
        box((w, 0.06, 0.05), (0, 0.03 - depth, z), "xXy") for z in np.linspace(sill, top, up + 1)
    ]
    parts = [*bars, box((w + 0.12, 0.2, 0.03), (0, 0.04, sill - 0.03))]
    if sill < 1.2 and generator.random() < 0.6:
        parts.append(radiator(0.9 * w, 0.65 * sill))
    return Opening(w, sill, top, depth, merge(parts))


def evenly_spaced(opening: Opening, count: int, length: float) -> list[tuple[float, Opening]]:
    """Place the same opening `count` times (fewer on a short wall), symmetric about the middle."""
    count = min(count, int(length / (opening.width + 0.15)))
    return [((k + 0.5) * length / count, opening) for k in range(count)]


def at_random_place(
    opening: Opening, length: float, generator: Generator
) -> list[tuple[float, Opening]]:
    """Place an opening anywhere along a wall of `length`, clear of the corners."""
    margin = opening.width / 2 + 0.15
    return [(float(generator.uniform(margin, length - margin)), opening)]
