"""Whole interiors to scan: closed rooms of ten kinds, each furnished by its own habits.

Metres, z up, the floor on z = 0 with one corner at the origin. Where a kind repeats itself (chairs,
desks, doors, windows), the copies are congruent: what a place looks like does not tell where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from vbreg.datasets import furniture, things
from vbreg.datasets.scenes import add_clutter
from vbreg.datasets.shapes import Generator, Mesh, box, copies, lathe, merge, tube
from vbreg.datasets.things import Maker, pick, strewn
from vbreg.errors import VBRegError
from vbreg.types import Float64


def interior(kind: str, generator: Generator) -> Mesh:
    """A scene of one of the kinds in `INTERIORS`."""
    if kind not in INTERIORS:
        raise VBRegError(f"no interior is called {kind!r}; choose one of {', '.join(INTERIORS)}")
    return INTERIORS[kind](generator)


# --- walls ---------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Opening:
    """A part of a wall that is set back by `depth`: a door, a window, a niche."""

    width: float
    low: float
    top: float
    depth: float
    fittings: Mesh  # in the wall's frame, about x = 0


Openings = Sequence[tuple[float, Opening]]  # each with the place of its middle along the wall


@dataclass(frozen=True)
class Room:
    """Four walls; wall k starts at corner k and runs counter-clockwise, the room on its left.

    In the frame of a wall x runs along it and y into the room.
    """

    width: float
    depth: float
    height: float

    def length(self, side: int) -> float:
        return (self.width, self.depth)[side % 2]

    def at(self, side: int, mesh: Mesh) -> Mesh:
        """From the frame of a wall to the room's."""
        corner = [(0, 0), (self.width, 0), (self.width, self.depth), (0, self.depth)][side % 4]
        return mesh.moved((*corner, 0), side * np.pi / 2)

    def beside(self, side: int, x: float, thing: Mesh, z: float = 0.0, gap: float = 0.01) -> Mesh:
        """With its back to a wall, its middle `x` along it."""
        low, high = thing.vertices.min(0), thing.vertices.max(0)
        return self.at(side, thing.moved((x - (low[0] + high[0]) / 2, gap - low[1], z)))

    def along(
        self, side: int, makers: Sequence[Maker], generator: Generator, openings: Openings = ()
    ) -> list[Mesh]:
        """Furniture side by side at a wall, clear of the doors in it."""
        doors = [(x - o.width / 2, x + o.width / 2) for x, o in openings if o.low == 0]
        placed, x = [], generator.uniform(0.05, 0.5)
        while x < self.length(side) - 0.6:
            thing = pick(makers, generator)
            wide = float(np.ptp(thing.vertices[:, 0]))
            blocked = [end for start, end in doors if x < end and x + wide > start]
            if blocked:
                x = max(blocked) + 0.1
                continue
            if x + wide < self.length(side) - 0.1:
                gap = generator.uniform(0.0, 0.06)
                placed.append(self.beside(side, x + wide / 2, thing, gap=gap))
            x += wide + generator.exponential(0.25)
        return placed

    def shell(self, *openings: Openings) -> Mesh:
        """Floor, ceiling and the walls, each with its openings."""
        walls = [
            self.at(side, _wall(self.length(side), self.height, holes))
            for side, holes in zip(range(4), openings, strict=True)
        ]
        slabs = box((self.width, self.depth, self.height), skip="xXyY")
        return merge([slabs.moved((self.width / 2, self.depth / 2, 0)), *walls])


def _wall(length: float, height: float, openings: Openings) -> Mesh:
    """Along x from the origin, open towards +y where it is set back."""

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
    """A leaf in its frame, at times ajar."""
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
    """Panes between mullions, a sill, at times a radiator below."""
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
        parts.append(furniture.radiator(0.9 * w, 0.65 * sill))
    return Opening(w, sill, top, depth, merge(parts))


def evenly(opening: Opening, count: int, length: float) -> list[tuple[float, Opening]]:
    """The same opening `count` times (fewer on a short wall), symmetric about the middle."""
    count = min(count, int(length / (opening.width + 0.15)))
    return [((k + 0.5) * length / count, opening) for k in range(count)]


def somewhere(opening: Opening, length: float, generator: Generator) -> list[tuple[float, Opening]]:
    margin = opening.width / 2 + 0.15
    return [(float(generator.uniform(margin, length - margin)), opening)]


# --- arrangements --------------------------------------------------------------------------------


def shaken(places: ArrayLike, generator: Generator, shift: float, turn: float) -> Float64:
    """Places (P, 4) as people leave them."""
    exact = np.asarray(places, dtype=np.float64)
    return exact + generator.normal(size=exact.shape) * [shift, shift, 0, turn]


def seats(w: float, d: float, count: int, ends: bool) -> list[tuple[float, float, float, float]]:
    """Places round a table of w x d that face it: `count` on each long side, and at its ends."""
    xs = (np.arange(count) + 0.5) * w / count - w / 2
    y, x = d / 2 + 0.22, w / 2 + 0.25
    rows = [(k, side * y, 0.0, 0.0 if side < 0 else np.pi) for side in (-1, 1) for k in xs]
    heads = [(-x, 0.0, 0.0, -np.pi / 2), (x, 0.0, 0.0, np.pi / 2)]
    return [*rows, *heads] if ends else rows


def lights(space: Room, lamp: Mesh, columns: int, rows: int) -> Mesh:
    """The same lamp, made below z = 0, in a grid under the ceiling."""
    xs = (np.arange(columns) + 0.5) * space.width / columns
    ys = (np.arange(rows) + 0.5) * space.depth / rows
    return copies(lamp, [(x, y, space.height, 0) for x in xs for y in ys])


def panel_light(generator: Generator) -> Mesh:
    w, d, h = generator.uniform((0.12, 0.6, 0.03), (0.6, 1.3, 0.09))
    return box((w, d, h), (0, 0, -h), "Z")


def pictures(space: Room, side: int, count: int, generator: Generator) -> list[Mesh]:
    spots = generator.uniform(
        (0.15 * space.length(side), 1.2), (0.85 * space.length(side), 1.6), (count, 2)
    )
    return [space.beside(side, x, furniture.picture(generator), z=z) for x, z in spots]


def dining(generator: Generator, ware: Sequence[Maker]) -> Mesh:
    """A table about the origin with equal chairs."""
    chair = pick((furniture.chair, furniture.chair, furniture.stool), generator)
    w, d, high = generator.uniform((0.9, 0.7, 0.72), (1.8, 0.95, 0.78))
    places = seats(w, d, round(w / 0.7), bool(generator.random() < 0.3))
    table = furniture.board(w, d, high, generator)
    if generator.random() < 0.3:
        table = furniture.round_table(generator)
        w, _, high = np.ptp(table.vertices, axis=0)
        d, r = w, w / 2 + 0.15
        turns = np.arange(generator.integers(2, 5)) * np.pi / 2
        places = [(r * np.sin(turn), -r * np.cos(turn), 0.0, turn) for turn in turns]
    top = strewn(ware, int(generator.integers(2, 9)), (0.8 * w, 0.8 * d), high, generator)
    return merge([table, copies(chair, shaken(places, generator, 0.06, 0.2)), *top])


def midway(space: Room, generator: Generator) -> tuple[float, float, float]:
    x, y = generator.uniform(0.4, 0.6, 2)
    return x * space.width, y * space.depth, 0.0


# --- the kinds -----------------------------------------------------------------------------------


def _some_bookcase(generator: Generator) -> Mesh:
    w, h = generator.uniform((0.6, 0.9), (1.2, 2.1))
    return furniture.bookcase(w, h, generator)


CASES: tuple[Maker, ...] = (
    furniture.drawers, furniture.plant, furniture.lamp, furniture.shelf, furniture.cabinet,
    furniture.wardrobe, _some_bookcase, _some_bookcase,
)  # fmt: skip


def room(generator: Generator) -> Mesh:
    """A place to live or to sleep in."""
    space = Room(*generator.uniform((3.4, 3.2, 2.4), (5.5, 4.8, 2.9)))
    pane = window(generator)
    windows = evenly(pane, int(generator.integers(1, 3)), space.width)
    doorway = somewhere(door(generator), space.depth, generator)
    parts = [space.shell((), doorway, windows, ())]
    if generator.random() < 0.7:
        pair = furniture.drapes(pane.width, min(pane.top + 0.15, space.height - 0.05), generator)
        parts += [space.beside(2, x, pair, gap=0.06) for x, _ in windows]
    parts += _bedroom(space, generator) if generator.random() < 0.5 else _lounge(space, generator)
    parts += space.along(1, CASES, generator, doorway)
    parts += pictures(space, 0, int(generator.integers(1, 4)), generator)
    if generator.random() < 0.6:
        w, d = generator.uniform((1.4, 1.0), (2.4, 1.7))
        rug = furniture.rug(w, d, generator)
        parts.append(rug.moved(midway(space, generator), generator.normal(0, 0.1)))
    parts.append(lights(space, furniture.pendant(generator), 1, 1))
    return add_clutter(merge(parts), generator, 0.8, 0.06, things.BELONGINGS)


def _bedroom(space: Room, generator: Generator) -> list[Mesh]:
    """The bed at wall 0 between two equal stands, a wardrobe at wall 3."""
    bed, x = furniture.bed(generator), space.width * generator.uniform(0.4, 0.6)
    lamp = things.desk_lamp(generator).moved((0, 0, 0.48))
    stand = merge([box((0.42, 0.38, 0.48)), *furniture.fronts(0.42, 0.48, 2, 0.19), lamp])
    out = float(np.ptp(bed.vertices[:, 0])) / 2 + 0.3
    return [
        space.beside(0, x, bed, gap=0.03),
        *(space.beside(0, x + side * out, stand) for side in (-1, 1)),
        space.beside(3, space.depth * 0.4, furniture.wardrobe(generator)),
    ]


def _lounge(space: Room, generator: Generator) -> list[Mesh]:
    """A sofa and a screen face to face, a low table and two equal armchairs between."""
    w, d, h = generator.uniform((0.7, 0.45, 0.36), (1.2, 0.7, 0.46))
    x, y = 0.5 * space.width, generator.uniform(1.4, 1.8)
    places = [(x + side * 1.2, y, 0, side * 1.8) for side in (-1, 1)]
    return [
        space.beside(0, x, furniture.sofa(generator), gap=0.05),
        space.beside(2, x, furniture.television(generator), gap=0.2),
        furniture.board(w, d, h, generator).moved((x, y, 0)),
        copies(furniture.armchair(generator), shaken(places, generator, 0.1, 0.25)),
        *space.along(3, CASES, generator),
    ]


def corridor(generator: Generator) -> Mesh:
    """Long plain walls with the same door over and over."""
    space = Room(*generator.uniform((8.0, 1.7, 2.4), (13.0, 2.6, 2.9)))
    leaf, pitch = door(generator), generator.uniform(1.8, 2.7)
    count = int(space.width / pitch)
    opposite = evenly(leaf, count, space.width) if generator.random() < 0.6 else ()
    end = evenly(door(generator) if generator.random() < 0.5 else window(generator), 1, space.depth)
    parts = [space.shell(evenly(leaf, count, space.width), end, opposite, ())]
    parts.append(lights(space, panel_light(generator), count, 1))
    between = np.arange(1, count) * space.width / count
    makers: tuple[Maker, ...] = (
        furniture.bench, furniture.plant, things.bucket, furniture.cabinet, furniture.extinguisher,
        furniture.coat_rack, furniture.ladder, things.open_carton, furniture.drawers,
    )  # fmt: skip
    for x in between[generator.random(len(between)) < 0.6]:
        thing = pick(makers, generator)
        parts.append(space.beside(int(generator.choice([0, 2])), x, thing))
    for x in between[generator.random(len(between)) < 0.4]:
        parts.append(space.beside(0, x, furniture.picture(generator), z=1.4))
    if generator.random() < 0.5:  # pipes under the ceiling
        for y, r in ((0.2, 0.05), (0.34, 0.03), (0.46, 0.03)):
            ends = [(x, y, space.height - 0.15) for x in (0.0, space.width)]
            parts.append(tube(ends, r))
    return add_clutter(merge(parts), generator, 0.15, 0.04, things.LEFTOVERS)


def kitchen(generator: Generator) -> Mesh:
    """Worktops along one or two walls, a table with chairs, and many small things."""
    space = Room(*generator.uniform((3.2, 3.0, 2.4), (5.0, 4.5, 2.8)))
    windows = somewhere(window(generator), space.depth - 0.8, generator)
    doorway = somewhere(door(generator), space.width, generator)
    unit, deep, high = generator.uniform((0.5, 0.56, 0.84), (0.62, 0.64, 0.92))
    count, more = int((space.width - 0.75) / unit), int(generator.integers(2, 4))
    run = _cooking(count, unit, deep, high, space.height, generator)
    parts = [space.shell((), windows, doorway, ()), space.beside(0, count * unit / 2, run, gap=0.0)]
    parts.append(space.beside(0, space.width - 0.38, furniture.fridge(generator)))
    if generator.random() < 0.5:  # round the corner
        second = _worktop(range(more), unit, deep, high, generator)
        x = space.depth - deep - more * unit / 2
        parts.append(space.beside(3, x, second, gap=0.0))
    else:
        parts.append(space.beside(3, 0.5 * space.depth, furniture.shelf(generator)))
    table = dining(generator, things.KITCHENWARE)
    spot = (space.width * generator.uniform(0.45, 0.6), deep + (space.depth - deep) * 0.55, 0)
    parts.append(table.moved(spot, generator.choice([0, np.pi / 2])))
    parts += space.along(2, (things.bucket, furniture.cabinet, furniture.plant), generator, doorway)
    parts += pictures(space, 3, 2, generator)
    parts.append(lights(space, furniture.pendant(generator), 1, 1))
    return add_clutter(merge(parts), generator, 0.7, 0.06, things.KITCHENWARE)


def _worktop(
    units: Sequence[int], unit: float, deep: float, high: float, generator: Generator
) -> Mesh:
    """Equal cupboards at the given places of a row, each under its piece of board and its ware."""
    below = furniture.cupboards(1, unit, deep - 0.03, high - 0.1, generator).moved((0, 0, 0.1))
    base = merge([below, box((unit, deep, 0.04), (unit / 2, 0, high), "xXy")])
    parts = [copies(base, [(k * unit, 0, 0, 0) for k in units])]
    for k in units:
        count, size = generator.poisson(1.5), (unit, 0.4)
        ware = strewn(things.KITCHENWARE, count, size, high + 0.04, generator)
        parts += [thing.moved(((k + 0.5) * unit, 0, 0)) for thing in ware]
    return merge(parts)


def _cooking(
    count: int, unit: float, deep: float, high: float, ceiling: float, generator: Generator
) -> Mesh:
    """A row of `count` units from x = 0: an oven below its hood, a sink, cupboards."""
    hob, sink = int(generator.integers(0, count // 2)), int(generator.integers(count // 2, count))
    board = _worktop([k for k in range(count) if k not in (hob, sink)], unit, deep, high, generator)
    oven = furniture.oven(unit, deep, high + 0.04).moved(((hob + 0.5) * unit, 0, 0))
    bowl = merge([
        furniture.trough(unit, deep, 0.22, 0.18).moved((0, 0, high - 0.18)),
        furniture.tap(generator).moved((0, 0.05 - deep / 2, high + 0.04)),
    ])  # fmt: skip
    front = furniture.cupboards(1, unit, deep - 0.03, high - 0.3, generator)
    above = furniture.cupboards(1, unit, 0.34, generator.uniform(0.5, 0.8), generator)
    over = [(k * unit, 0.17 - deep / 2, high + 0.55, 0) for k in range(count) if k != hob]
    hood = furniture.hood(0.9 * unit, ceiling - high - 0.7)
    return merge([
        board,
        oven,
        bowl.moved(((sink + 0.5) * unit, 0, 0)),
        front.moved((sink * unit, 0, 0.1)),
        copies(above, over),
        hood.moved(((hob + 0.5) * unit, 0.45 * unit - deep / 2, high + 0.7)),
    ])  # fmt: skip


def office(generator: Generator) -> Mesh:
    """Islands of equal desks face to face, with equal chairs."""
    columns, islands = [(2, 1), (3, 1), (4, 1), (2, 2)][generator.integers(4)]
    w, d, aisle = generator.uniform((1.2, 0.65, 1.3), (1.6, 0.8, 1.6))
    space = Room(columns * w + 1.9, islands * (2 * d + aisle) + 0.9, generator.uniform(2.5, 3.0))
    pane, leaf = window(generator), door(generator)
    doorway = [(space.depth - 0.8, leaf)]
    parts = [space.shell(evenly(pane, columns, space.width), doorway, (), ())]
    desk, chair = furniture.workstation(w, d, generator), furniture.swivel_chair(generator)
    fence = box((columns * w, 0.04, generator.uniform(0.4, 0.65)), (0, 0, 0.72))
    screened = generator.random() < 0.5
    left = 0.9 + w / 2
    for k in range(islands):
        y = 0.45 + aisle / 2 + d + k * (2 * d + aisle)
        xs = left + np.arange(columns) * w
        facing = [
            (x, y + s * (d / 2 + 0.02), 0, 0 if s > 0 else np.pi) for x in xs for s in (-1, 1)
        ]
        behind = [(x, y + s * (d + 0.25), 0, np.pi if s > 0 else 0) for x in xs for s in (-1, 1)]
        parts += [copies(desk, facing), copies(chair, shaken(behind, generator, 0.1, 0.5))]
        parts += [fence.moved((left + (columns - 1) * w / 2, y, 0))] if screened else []
        for x, v, _, _ in facing:
            own = strewn(things.PAPERWORK, generator.poisson(1.5), (w, 0.6 * d), 0.74, generator)
            parts += [thing.moved((x, v, 0)) for thing in own]
    cabinet = merge([box((0.8, 0.42, 1.3), skip="z"), *furniture.fronts(0.8, 1.3, 4, 0.21)])
    row = 0.6 + 0.82 * np.arange(generator.integers(1, max(2, int(space.width / 1.6))))
    parts += [space.beside(2, x, cabinet) for x in row]
    parts += space.along(3, (furniture.plant, furniture.coat_rack, things.bucket), generator)
    parts += [space.beside(1, 0.4 * space.depth, furniture.whiteboard(generator), z=0.95)]
    parts.append(lights(space, panel_light(generator), columns, islands + 1))
    return add_clutter(merge(parts), generator, 0.25, 0.03, things.PAPERWORK)


def storage(generator: Generator) -> Mesh:
    """Rows of racks with cartons, or of bookcases back to back."""
    rows, bays = [(2, 2), (2, 3), (3, 2)][generator.integers(3)]
    bay, high, aisle = generator.uniform((0.85, 1.7, 1.05), (1.15, 2.2, 1.3))
    library = generator.random() < 0.5
    pitch = aisle + 0.65
    space = Room(rows * pitch + aisle * 0.5, bays * bay + 2.3, high + generator.uniform(0.3, 0.8))
    leaf = door(generator)
    parts = [space.shell(somewhere(leaf, space.width, generator), (), (), ())]
    for k in range(rows):
        x = 0.75 * aisle + 0.33 + k * pitch
        for j in range(bays):
            y = 1.25 + (j + 0.5) * bay
            if library:
                for side in (-1, 1):
                    case = furniture.bookcase(bay, high, generator)
                    parts.append(case.moved((x + side * 0.17, y, 0), -side * np.pi / 2))
            else:
                parts.append(furniture.rack(bay, high, generator).moved((x, y, 0), np.pi / 2))
    parts.append(space.beside(2, 0.4, furniture.ladder(generator)))
    makers: tuple[Maker, ...] = (things.open_carton, things.carton, things.bucket, furniture.stool)
    parts += [
        pick(makers, generator).moved((x, y, 0), generator.uniform(0, 6))
        for x, y in generator.uniform((0.3, 0.3), (space.width - 0.3, 0.9), (4, 2))
    ]
    parts.append(lights(space, panel_light(generator), rows, 2))
    return add_clutter(merge(parts), generator, 0.15, 0.02, things.LEFTOVERS)


def bathroom(generator: Generator) -> Mesh:
    """Small, smooth and full of fittings."""
    space = Room(*generator.uniform((2.5, 2.3, 2.3), (3.4, 3.2, 2.7)))
    doorway = somewhere(door(generator), space.width, generator)
    pane = window(generator, low=(1.4, 1.6))
    parts = [space.shell(somewhere(pane, space.width, generator), (), doorway, ())]
    tub = pick((furniture.bathtub, furniture.shower), generator)
    wide = float(np.ptp(tub.vertices[:, 0]))
    y, v = space.depth * generator.uniform(0.55, 0.75, 2)
    tiles = box((space.width - 0.4, 0.012, 1.3), skip="yz")
    bottles = strewn((things.bottle, things.cup), 5, (0.6, 0.08), 0.02, generator)
    parts += [
        space.beside(0, space.width - wide / 2 - 0.01, tub),
        space.beside(0, space.width / 2, tiles, gap=0.0),
        space.beside(1, y, furniture.toilet(generator)),
        space.beside(1, y, merge([box((0.6, 0.14, 0.02)), *bottles]), z=1.3),
        space.beside(2, 0.4, furniture.towel_rail(generator)),
        space.beside(3, v, furniture.washstand(generator)),
        space.beside(3, 0.5, tube([(0, 0, 0.1), (0.8, 0, 0.1), (0.8, 0, 0.5)], 0.02)),
        furniture.rug(0.7, 0.5, generator).moved(
            midway(space, generator), generator.normal(0, 0.3)
        ),
    ]
    if space.width - wide > 0.8:
        parts.append(space.beside(0, 0.35, furniture.washing_machine(generator)))
    return add_clutter(merge(parts), generator, 0.8, 0.03, things.TOILETRIES)


def staircase(generator: Generator) -> Mesh:
    """A hall through two storeys: up to a landing, and back above."""
    rise, tread, wide = generator.uniform((0.165, 0.26, 0.95), (0.185, 0.3, 1.25))
    steps = int(generator.integers(7, 10))
    run, landing = steps * tread, steps * rise
    space = Room(
        run + wide + generator.uniform(1.4, 2.2),
        2 * wide + generator.uniform(0.8, 1.8),
        landing + generator.uniform(2.3, 2.8),
    )
    below = evenly(door(generator), 2, space.width)
    panes = somewhere(window(generator), space.depth, generator)
    thick = 0.06 if generator.random() < 0.5 else 0.2
    treads = [
        box((tread + 0.02, wide, thick), ((k + 0.5) * tread, wide / 2, (k + 1) * rise - thick))
        for k in range(steps)
    ]
    foot, top = np.array([0, wide, 0]), np.array([run, wide, landing])
    flight = merge([*treads, *railing(foot, top)])
    back = Mesh(flight.vertices * [-1, -1, 1] + [run, 2 * wide + 0.1, landing], flight.faces)
    shown = back.vertices[back.faces][:, :, 2].max(1) < space.height  # what is not yet upstairs
    far = space.width - wide
    parts = [space.shell((), panes, below, ()), flight.moved((far - run, 0, 0))]
    parts.append(Mesh(back.vertices, back.faces[shown]).moved((far - run, 0, 0)))
    parts.append(box((wide, 2 * wide + 0.1, 0.18), (far + wide / 2, wide + 0.05, landing - 0.18)))
    edge = np.array([far, 2 * wide + 0.1, landing])
    parts += railing(edge, edge + np.array((wide, 0, 0)))
    makers: tuple[Maker, ...] = (
        furniture.plant, furniture.bench, furniture.coat_rack, furniture.drawers, furniture.bicycle
    )  # fmt: skip
    parts += space.along(2, makers, generator, below)
    parts += pictures(space, 0, 2, generator)
    parts.append(lights(space, furniture.pendant(generator), 2, 1))
    return add_clutter(merge(parts), generator, 0.4, 0.04, things.LEFTOVERS)


def railing(start: Float64, end: Float64) -> list[Mesh]:
    """A handrail 0.9 m above the line, on balusters."""
    feet = np.linspace(start, end, max(2, int(np.linalg.norm(end - start) / 0.16)))
    post, rail = tube([(0, 0, 0), (0, 0, 0.9)], 0.012, 6), feet + np.array((0, 0, 0.9))
    return [copies(post, np.c_[feet, 0 * feet[:, 0]]), tube(rail, 0.03)]


def meeting(generator: Generator) -> Mesh:
    """A long table, equal chairs about it, equal windows along it."""
    count = int(generator.integers(3, 7))
    w, d = count * generator.uniform(0.62, 0.75), generator.uniform(0.95, 1.4)
    space = Room(
        w + generator.uniform(1.9, 2.6),
        d + generator.uniform(2.0, 2.8),
        generator.uniform(2.4, 3.0),
    )
    panes = evenly(window(generator), max(2, int(space.width / 1.9)), space.width)
    doorway = [(0.8, door(generator))]
    parts = [space.shell(panes, doorway, (), ())]
    chair = pick((furniture.chair, furniture.swivel_chair, furniture.armchair), generator)
    table = furniture.board(w, d, 0.74, generator)
    places = shaken(seats(w, d, count, bool(generator.random() < 0.5)), generator, 0.05, 0.15)
    top = strewn(things.PAPERWORK, int(generator.integers(0, 8)), (w, d), 0.74, generator)
    middle = (0.5 * space.width, 0.5 * space.depth, 0)
    parts.append(merge([table, copies(chair, places), *top]).moved(middle))
    parts.append(space.beside(3, 0.5 * space.depth, furniture.whiteboard(generator), z=0.9))
    parts.append(space.beside(2, 0.5 * space.width, furniture.television(generator)))
    parts += [space.beside(2, x, furniture.plant(generator)) for x in (0.4, space.width - 0.4)]
    parts.append(lights(space, panel_light(generator), count // 2 + 1, 2))
    return add_clutter(merge(parts), generator, 0.2, 0.03, things.PAPERWORK)


def symmetric(generator: Generator) -> Mesh:
    """Furnished twice alike, a mirror or half a turn apart; a few things tell the halves apart."""
    space = Room(*generator.uniform((4.2, 3.4, 2.4), (6.0, 4.6, 2.9)))
    w, d = space.width, space.depth
    panes = evenly(window(generator), int(generator.choice([2, 4])), w)
    doorway = evenly(door(generator), 1, d)
    makers = (*CASES, furniture.armchair, furniture.bed)
    half = merge([
        space.beside(0, 0.25 * w, pick(makers, generator), gap=0.1),
        space.beside(2, 0.75 * w, pick(makers, generator), gap=0.1),
        space.beside(3, 0.82 * d, pick((furniture.plant, furniture.lamp), generator)),
        space.beside(3, 0.2 * d, furniture.picture(generator), z=1.4),
        dining(generator, things.BELONGINGS).moved((0.28 * w, 0.5 * d, 0), np.pi / 2),
    ])  # fmt: skip
    if generator.random() < 0.5:
        twin = Mesh(half.vertices * [-1, 1, 1] + [w, 0, 0], half.faces)
    else:
        twin = half.moved((w, d, 0), np.pi)
    parts = [space.shell(panes, doorway, panes, doorway), half, twin]
    parts.append(lights(space, furniture.pendant(generator), 2, 1))
    parts += pictures(space, 1, 1, generator)
    odd = pick((furniture.stool, furniture.plant), generator)
    parts.append(odd.moved(midway(space, generator)))
    return add_clutter(merge(parts), generator, 0.12, 0.03, things.BELONGINGS)


def plain(generator: Generator) -> Mesh:
    """Long bare walls and next to nothing to hold on to."""
    space = Room(*generator.uniform((5.5, 4.0, 2.6), (8.5, 5.5, 3.4)))
    panes = evenly(window(generator), int(generator.integers(0, 4)), space.width)
    doorway = somewhere(door(generator), space.depth, generator)
    parts = [space.shell(panes, doorway, (), ())]
    if generator.random() < 0.5:
        r = generator.uniform(0.1, 0.25)
        pillar = lathe([r, r], [0, space.height], int(generator.choice([4, 32])))
        places = [(x * space.width, y * space.depth, 0, 0) for x in (0.3, 0.7) for y in (0.3, 0.7)]
        parts.append(copies(pillar, places))
    makers: tuple[Maker, ...] = (
        furniture.bench, furniture.plant, furniture.bicycle, furniture.ladder, furniture.cabinet
    )  # fmt: skip
    for _ in range(generator.integers(1, 4)):
        side, thing = int(generator.integers(4)), pick(makers, generator)
        x = generator.uniform(0.2, 0.8) * space.length(side)
        parts.append(space.beside(side, x, thing, gap=0.05))
    parts += pictures(space, 2, int(generator.integers(0, 3)), generator)
    parts.append(lights(space, panel_light(generator), 3, 2))
    return add_clutter(merge(parts), generator, 0.08, 0.02, things.LEFTOVERS)


INTERIORS: Mapping[str, Callable[[Generator], Mesh]] = {
    "room": room,
    "corridor": corridor,
    "kitchen": kitchen,
    "office": office,
    "storage": storage,
    "bathroom": bathroom,
    "staircase": staircase,
    "meeting": meeting,
    "symmetric": symmetric,
    "plain": plain,
}
