"""Closed rooms of many kinds are made here, each furnished by its own habits.

Lengths are metres, z points up, the floor lies on z = 0 with one corner at the origin. Where a kind
repeats itself (chairs, desks, doors, windows), the copies are congruent: what a place looks like
does not tell where it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from vbreg.errors import VBRegError
from vbreg.simulator import furniture, small_objects
from vbreg.simulator.clutter import add_clutter
from vbreg.simulator.meshes import (
    Generator,
    Maker,
    Mesh,
    box,
    copies,
    lathe,
    make_one_of,
    merge,
    tube,
)
from vbreg.simulator.small_objects import scatter_objects
from vbreg.simulator.walls import Room, at_random_place, door, evenly_spaced, window
from vbreg.types import Float64


def make_room(kind: str, generator: Generator) -> Mesh:
    """Make a furnished room of one of the kinds in `ROOM_KINDS`."""
    check_room_kind(kind)
    return ROOM_KINDS[kind](generator)


def check_room_kind(kind: str) -> None:
    """Complain about a kind that is not in `ROOM_KINDS`, and list those that are."""
    if kind not in ROOM_KINDS:
        raise VBRegError(f"no kind of room is {kind!r}; choose one of {', '.join(ROOM_KINDS)}")


# --- arrangements --------------------------------------------------------------------------------


def jittered(places: ArrayLike, generator: Generator, shift: float, turn: float) -> Float64:
    """Shift and turn places (P, 4) a little, as people leave their chairs."""
    exact = np.asarray(places, dtype=np.float64)
    return exact + generator.normal(size=exact.shape) * [shift, shift, 0, turn]


def seat_places(
    w: float, d: float, count: int, ends: bool
) -> list[tuple[float, float, float, float]]:
    """Return places round a table of w x d: `count` on each long side, and at its `ends`."""
    xs = (np.arange(count) + 0.5) * w / count - w / 2
    y, x = d / 2 + 0.22, w / 2 + 0.25
    rows = [(k, side * y, 0.0, 0.0 if side < 0 else np.pi) for side in (-1, 1) for k in xs]
    heads = [(-x, 0.0, 0.0, -np.pi / 2), (x, 0.0, 0.0, np.pi / 2)]
    return [*rows, *heads] if ends else rows


def ceiling_lamps(room: Room, lamp: Mesh, columns: int, rows: int) -> Mesh:
    """Hang the same lamp, made below z = 0, in a grid under the ceiling."""
    xs = (np.arange(columns) + 0.5) * room.width / columns
    ys = (np.arange(rows) + 0.5) * room.depth / rows
    return copies(lamp, [(x, y, room.height, 0) for x in xs for y in ys])


def panel_light(generator: Generator) -> Mesh:
    """Make a flat lamp that hangs from a ceiling at z = 0."""
    w, d, h = generator.uniform((0.12, 0.6, 0.03), (0.6, 1.3, 0.09))
    return box((w, d, h), (0, 0, -h), "Z")


def hang_pictures(room: Room, side: int, count: int, generator: Generator) -> list[Mesh]:
    """Hang `count` pictures at random places of a wall."""
    spots = generator.uniform(
        (0.15 * room.wall_length(side), 1.2), (0.85 * room.wall_length(side), 1.6), (count, 2)
    )
    return [room.against_wall(side, x, furniture.picture(generator), z=z) for x, z in spots]


def dining_set(generator: Generator, ware: Sequence[Maker]) -> Mesh:
    """Make a table about the origin, with equal chairs and some `ware` on it."""
    chair = make_one_of((furniture.chair, furniture.chair, furniture.stool), generator)
    w, d, high = generator.uniform((0.9, 0.7, 0.72), (1.8, 0.95, 0.78))
    places = seat_places(w, d, round(w / 0.7), bool(generator.random() < 0.3))
    table = furniture.bare_table(w, d, high, generator)
    if generator.random() < 0.3:
        table = furniture.round_table(generator)
        w, _, high = np.ptp(table.vertices, axis=0)
        d, r = w, w / 2 + 0.15
        turns = np.arange(generator.integers(2, 5)) * np.pi / 2
        places = [(r * np.sin(turn), -r * np.cos(turn), 0.0, turn) for turn in turns]
    top = scatter_objects(ware, int(generator.integers(2, 9)), (0.8 * w, 0.8 * d), high, generator)
    return merge([table, copies(chair, jittered(places, generator, 0.06, 0.2)), *top])


def near_the_middle(room: Room, generator: Generator) -> tuple[float, float, float]:
    """Draw a spot on the floor near the middle of the room."""
    x, y = generator.uniform(0.4, 0.6, 2)
    return x * room.width, y * room.depth, 0.0


# --- the kinds -----------------------------------------------------------------------------------


def _bookcase_of_any_size(generator: Generator) -> Mesh:
    """Make a bookcase of a random width and height."""
    w, h = generator.uniform((0.6, 0.9), (1.2, 2.1))
    return furniture.bookcase(w, h, generator)


HOME_FURNITURE: tuple[Maker, ...] = (
    furniture.chest_of_drawers, furniture.plant, furniture.floor_lamp, furniture.shelf,
    furniture.cabinet, furniture.wardrobe, _bookcase_of_any_size, _bookcase_of_any_size,
)  # fmt: skip


def living_room(generator: Generator) -> Mesh:
    """Make a room to live or to sleep in."""
    room = Room(*generator.uniform((3.4, 3.2, 2.4), (5.5, 4.8, 2.9)))
    pane = window(generator)
    windows = evenly_spaced(pane, int(generator.integers(1, 3)), room.width)
    doorway = at_random_place(door(generator), room.depth, generator)
    parts = [room.shell((), doorway, windows, ())]
    if generator.random() < 0.7:
        pair = furniture.curtain_pair(
            pane.width, min(pane.top + 0.15, room.height - 0.05), generator
        )
        parts += [room.against_wall(2, x, pair, gap=0.06) for x, _ in windows]
    parts += (
        _bedroom_furniture(room, generator)
        if generator.random() < 0.5
        else _lounge_furniture(room, generator)
    )
    parts += room.line_wall(1, HOME_FURNITURE, generator, doorway)
    parts += hang_pictures(room, 0, int(generator.integers(1, 4)), generator)
    if generator.random() < 0.6:
        w, d = generator.uniform((1.4, 1.0), (2.4, 1.7))
        rug = furniture.rug(w, d, generator)
        parts.append(rug.moved(near_the_middle(room, generator), generator.normal(0, 0.1)))
    parts.append(ceiling_lamps(room, furniture.pendant_lamp(generator), 1, 1))
    return add_clutter(merge(parts), generator, 0.8, 0.06, small_objects.BELONGINGS)


def _bedroom_furniture(room: Room, generator: Generator) -> list[Mesh]:
    """Put the bed at wall 0 between two equal stands, and a wardrobe at wall 3."""
    bed, x = furniture.bed(generator), room.width * generator.uniform(0.4, 0.6)
    lamp = small_objects.desk_lamp(generator).moved((0, 0, 0.48))
    stand = merge([box((0.42, 0.38, 0.48)), *furniture.drawer_fronts(0.42, 0.48, 2, 0.19), lamp])
    out = float(np.ptp(bed.vertices[:, 0])) / 2 + 0.3
    return [
        room.against_wall(0, x, bed, gap=0.03),
        *(room.against_wall(0, x + side * out, stand) for side in (-1, 1)),
        room.against_wall(3, room.depth * 0.4, furniture.wardrobe(generator)),
    ]


def _lounge_furniture(room: Room, generator: Generator) -> list[Mesh]:
    """Put a sofa and a screen face to face, a low table and two equal armchairs between."""
    w, d, h = generator.uniform((0.7, 0.45, 0.36), (1.2, 0.7, 0.46))
    x, y = 0.5 * room.width, generator.uniform(1.4, 1.8)
    places = [(x + side * 1.2, y, 0, side * 1.8) for side in (-1, 1)]
    return [
        room.against_wall(0, x, furniture.sofa(generator), gap=0.05),
        room.against_wall(2, x, furniture.television(generator), gap=0.2),
        furniture.bare_table(w, d, h, generator).moved((x, y, 0)),
        copies(furniture.armchair(generator), jittered(places, generator, 0.1, 0.25)),
        *room.line_wall(3, HOME_FURNITURE, generator),
    ]


def corridor(generator: Generator) -> Mesh:
    """Make long plain walls with the same door over and over."""
    room = Room(*generator.uniform((8.0, 1.7, 2.4), (13.0, 2.6, 2.9)))
    leaf, pitch = door(generator), generator.uniform(1.8, 2.7)
    count = int(room.width / pitch)
    opposite = evenly_spaced(leaf, count, room.width) if generator.random() < 0.6 else ()
    end = evenly_spaced(
        door(generator) if generator.random() < 0.5 else window(generator), 1, room.depth
    )
    parts = [room.shell(evenly_spaced(leaf, count, room.width), end, opposite, ())]
    parts.append(ceiling_lamps(room, panel_light(generator), count, 1))
    between = np.arange(1, count) * room.width / count
    makers: tuple[Maker, ...] = (
        furniture.bench, furniture.plant, small_objects.bucket, furniture.cabinet,
        furniture.fire_extinguisher, furniture.coat_rack, furniture.ladder,
        small_objects.open_carton, furniture.chest_of_drawers,
    )  # fmt: skip
    for x in between[generator.random(len(between)) < 0.6]:
        item = make_one_of(makers, generator)
        parts.append(room.against_wall(int(generator.choice([0, 2])), x, item))
    for x in between[generator.random(len(between)) < 0.4]:
        parts.append(room.against_wall(0, x, furniture.picture(generator), z=1.4))
    if generator.random() < 0.5:  # pipes under the ceiling
        for y, r in ((0.2, 0.05), (0.34, 0.03), (0.46, 0.03)):
            ends = [(x, y, room.height - 0.15) for x in (0.0, room.width)]
            parts.append(tube(ends, r))
    return add_clutter(merge(parts), generator, 0.15, 0.04, small_objects.LEFTOVERS)


def kitchen(generator: Generator) -> Mesh:
    """Make worktops along one or two walls, a table with chairs, and much kitchenware."""
    room = Room(*generator.uniform((3.2, 3.0, 2.4), (5.0, 4.5, 2.8)))
    windows = at_random_place(window(generator), room.depth - 0.8, generator)
    doorway = at_random_place(door(generator), room.width, generator)
    unit, deep, high = generator.uniform((0.5, 0.56, 0.84), (0.62, 0.64, 0.92))
    count, more = int((room.width - 0.75) / unit), int(generator.integers(2, 4))
    run = _kitchen_row(count, unit, deep, high, room.height, generator)
    parts = [
        room.shell((), windows, doorway, ()),
        room.against_wall(0, count * unit / 2, run, gap=0.0),
    ]
    parts.append(room.against_wall(0, room.width - 0.38, furniture.fridge(generator)))
    if generator.random() < 0.5:  # round the corner
        second = _worktop(range(more), unit, deep, high, generator)
        x = room.depth - deep - more * unit / 2
        parts.append(room.against_wall(3, x, second, gap=0.0))
    else:
        parts.append(room.against_wall(3, 0.5 * room.depth, furniture.shelf(generator)))
    table = dining_set(generator, small_objects.KITCHENWARE)
    spot = (room.width * generator.uniform(0.45, 0.6), deep + (room.depth - deep) * 0.55, 0)
    parts.append(table.moved(spot, generator.choice([0, np.pi / 2])))
    parts += room.line_wall(
        2, (small_objects.bucket, furniture.cabinet, furniture.plant), generator, doorway
    )
    parts += hang_pictures(room, 3, 2, generator)
    parts.append(ceiling_lamps(room, furniture.pendant_lamp(generator), 1, 1))
    return add_clutter(merge(parts), generator, 0.7, 0.06, small_objects.KITCHENWARE)


def _worktop(
    units: Sequence[int], unit: float, deep: float, high: float, generator: Generator
) -> Mesh:
    """Make equal cupboards at the given places of a row, each under its board and its ware."""
    below = furniture.cupboards(1, unit, deep - 0.03, high - 0.1, generator).moved((0, 0, 0.1))
    base = merge([below, box((unit, deep, 0.04), (unit / 2, 0, high), "xXy")])
    parts = [copies(base, [(k * unit, 0, 0, 0) for k in units])]
    for k in units:
        count, size = generator.poisson(1.5), (unit, 0.4)
        ware = scatter_objects(small_objects.KITCHENWARE, count, size, high + 0.04, generator)
        parts += [item.moved(((k + 0.5) * unit, 0, 0)) for item in ware]
    return merge(parts)


def _kitchen_row(
    count: int, unit: float, deep: float, high: float, ceiling: float, generator: Generator
) -> Mesh:
    """Make a row of `count` units from x = 0 with an oven below its hood, a sink and cupboards."""
    hob, sink = int(generator.integers(0, count // 2)), int(generator.integers(count // 2, count))
    board = _worktop([k for k in range(count) if k not in (hob, sink)], unit, deep, high, generator)
    oven = furniture.oven(unit, deep, high + 0.04).moved(((hob + 0.5) * unit, 0, 0))
    bowl = merge([
        furniture.basin_block(unit, deep, 0.22, 0.18).moved((0, 0, high - 0.18)),
        furniture.tap(generator).moved((0, 0.05 - deep / 2, high + 0.04)),
    ])  # fmt: skip
    front = furniture.cupboards(1, unit, deep - 0.03, high - 0.3, generator)
    above = furniture.cupboards(1, unit, 0.34, generator.uniform(0.5, 0.8), generator)
    over = [(k * unit, 0.17 - deep / 2, high + 0.55, 0) for k in range(count) if k != hob]
    hood = furniture.cooker_hood(0.9 * unit, ceiling - high - 0.7)
    return merge([
        board,
        oven,
        bowl.moved(((sink + 0.5) * unit, 0, 0)),
        front.moved((sink * unit, 0, 0.1)),
        copies(above, over),
        hood.moved(((hob + 0.5) * unit, 0.45 * unit - deep / 2, high + 0.7)),
    ])  # fmt: skip


def office(generator: Generator) -> Mesh:
    """Make islands of equal desks face to face, with equal chairs."""
    columns, islands = [(2, 1), (3, 1), (4, 1), (2, 2)][generator.integers(4)]
    w, d, aisle = generator.uniform((1.2, 0.65, 1.3), (1.6, 0.8, 1.6))
    room = Room(columns * w + 1.9, islands * (2 * d + aisle) + 0.9, generator.uniform(2.5, 3.0))
    pane, leaf = window(generator), door(generator)
    doorway = [(room.depth - 0.8, leaf)]
    parts = [room.shell(evenly_spaced(pane, columns, room.width), doorway, (), ())]
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
        parts += [copies(desk, facing), copies(chair, jittered(behind, generator, 0.1, 0.5))]
        parts += [fence.moved((left + (columns - 1) * w / 2, y, 0))] if screened else []
        for x, v, _, _ in facing:
            own = scatter_objects(
                small_objects.PAPERWORK, generator.poisson(1.5), (w, 0.6 * d), 0.74, generator
            )
            parts += [item.moved((x, v, 0)) for item in own]
    cabinet = merge([box((0.8, 0.42, 1.3), skip="z"), *furniture.drawer_fronts(0.8, 1.3, 4, 0.21)])
    row = 0.6 + 0.82 * np.arange(generator.integers(1, max(2, int(room.width / 1.6))))
    parts += [room.against_wall(2, x, cabinet) for x in row]
    parts += room.line_wall(
        3, (furniture.plant, furniture.coat_rack, small_objects.bucket), generator
    )
    parts += [room.against_wall(1, 0.4 * room.depth, furniture.whiteboard(generator), z=0.95)]
    parts.append(ceiling_lamps(room, panel_light(generator), columns, islands + 1))
    return add_clutter(merge(parts), generator, 0.25, 0.03, small_objects.PAPERWORK)


def storage_room(generator: Generator) -> Mesh:
    """Make rows of racks with cartons, or of bookcases back to back."""
    rows, bays = [(2, 2), (2, 3), (3, 2)][generator.integers(3)]
    bay, high, aisle = generator.uniform((0.85, 1.7, 1.05), (1.15, 2.2, 1.3))
    library = generator.random() < 0.5
    pitch = aisle + 0.65
    room = Room(rows * pitch + aisle * 0.5, bays * bay + 2.3, high + generator.uniform(0.3, 0.8))
    leaf = door(generator)
    parts = [room.shell(at_random_place(leaf, room.width, generator), (), (), ())]
    for k in range(rows):
        x = 0.75 * aisle + 0.33 + k * pitch
        for j in range(bays):
            y = 1.25 + (j + 0.5) * bay
            if library:
                for side in (-1, 1):
                    case = furniture.bookcase(bay, high, generator)
                    parts.append(case.moved((x + side * 0.17, y, 0), -side * np.pi / 2))
            else:
                parts.append(
                    furniture.storage_rack(bay, high, generator).moved((x, y, 0), np.pi / 2)
                )
    parts.append(room.against_wall(2, 0.4, furniture.ladder(generator)))
    makers: tuple[Maker, ...] = (
        small_objects.open_carton,
        small_objects.carton,
        small_objects.bucket,
        furniture.stool,
    )
    parts += [
        make_one_of(makers, generator).moved((x, y, 0), generator.uniform(0, 6))
        for x, y in generator.uniform((0.3, 0.3), (room.width - 0.3, 0.9), (4, 2))
    ]
    parts.append(ceiling_lamps(room, panel_light(generator), rows, 2))
    return add_clutter(merge(parts), generator, 0.15, 0.02, small_objects.LEFTOVERS)


def bathroom(generator: Generator) -> Mesh:
    """Make a room that is small, smooth and full of fittings."""
    room = Room(*generator.uniform((2.5, 2.3, 2.3), (3.4, 3.2, 2.7)))
    doorway = at_random_place(door(generator), room.width, generator)
    pane = window(generator, low=(1.4, 1.6))
    parts = [room.shell(at_random_place(pane, room.width, generator), (), doorway, ())]
    tub = make_one_of((furniture.bathtub, furniture.shower), generator)
    wide = float(np.ptp(tub.vertices[:, 0]))
    y, v = room.depth * generator.uniform(0.55, 0.75, 2)
    tiles = box((room.width - 0.4, 0.012, 1.3), skip="yz")
    bottles = scatter_objects(
        (small_objects.bottle, small_objects.cup), 5, (0.6, 0.08), 0.02, generator
    )
    parts += [
        room.against_wall(0, room.width - wide / 2 - 0.01, tub),
        room.against_wall(0, room.width / 2, tiles, gap=0.0),
        room.against_wall(1, y, furniture.toilet(generator)),
        room.against_wall(1, y, merge([box((0.6, 0.14, 0.02)), *bottles]), z=1.3),
        room.against_wall(2, 0.4, furniture.towel_rail(generator)),
        room.against_wall(3, v, furniture.washstand(generator)),
        room.against_wall(3, 0.5, tube([(0, 0, 0.1), (0.8, 0, 0.1), (0.8, 0, 0.5)], 0.02)),
        furniture.rug(0.7, 0.5, generator).moved(
            near_the_middle(room, generator), generator.normal(0, 0.3)
        ),
    ]
    if room.width - wide > 0.8:
        parts.append(room.against_wall(0, 0.35, furniture.washing_machine(generator)))
    return add_clutter(merge(parts), generator, 0.8, 0.03, small_objects.TOILETRIES)


def staircase(generator: Generator) -> Mesh:
    """Make a hall through two storeys, with stairs up to a landing and back above."""
    rise, tread, wide = generator.uniform((0.165, 0.26, 0.95), (0.185, 0.3, 1.25))
    steps = int(generator.integers(7, 10))
    run, landing = steps * tread, steps * rise
    room = Room(
        run + wide + generator.uniform(1.4, 2.2),
        2 * wide + generator.uniform(0.8, 1.8),
        landing + generator.uniform(2.3, 2.8),
    )
    below = evenly_spaced(door(generator), 2, room.width)
    panes = at_random_place(window(generator), room.depth, generator)
    thick = 0.06 if generator.random() < 0.5 else 0.2
    treads = [
        box((tread + 0.02, wide, thick), ((k + 0.5) * tread, wide / 2, (k + 1) * rise - thick))
        for k in range(steps)
    ]
    foot, top = np.array([0, wide, 0]), np.array([run, wide, landing])
    flight = merge([*treads, *railing(foot, top)])
    back = Mesh(flight.vertices * [-1, -1, 1] + [run, 2 * wide + 0.1, landing], flight.faces)
    shown = back.vertices[back.faces][:, :, 2].max(1) < room.height  # what is not yet upstairs
    far = room.width - wide
    parts = [room.shell((), panes, below, ()), flight.moved((far - run, 0, 0))]
    parts.append(Mesh(back.vertices, back.faces[shown]).moved((far - run, 0, 0)))
    parts.append(box((wide, 2 * wide + 0.1, 0.18), (far + wide / 2, wide + 0.05, landing - 0.18)))
    edge = np.array([far, 2 * wide + 0.1, landing])
    parts += railing(edge, edge + np.array((wide, 0, 0)))
    makers: tuple[Maker, ...] = (
        furniture.plant, furniture.bench, furniture.coat_rack, furniture.chest_of_drawers,
        furniture.bicycle,
    )  # fmt: skip
    parts += room.line_wall(2, makers, generator, below)
    parts += hang_pictures(room, 0, 2, generator)
    parts.append(ceiling_lamps(room, furniture.pendant_lamp(generator), 2, 1))
    return add_clutter(merge(parts), generator, 0.4, 0.04, small_objects.LEFTOVERS)


def railing(start: Float64, end: Float64) -> list[Mesh]:
    """Make a handrail 0.9 m above the line from `start` to `end`, on balusters."""
    feet = np.linspace(start, end, max(2, int(np.linalg.norm(end - start) / 0.16)))
    post, rail = tube([(0, 0, 0), (0, 0, 0.9)], 0.012, 6), feet + np.array((0, 0, 0.9))
    return [copies(post, np.c_[feet, 0 * feet[:, 0]]), tube(rail, 0.03)]


def meeting_room(generator: Generator) -> Mesh:
    """Make a long table with equal chairs about it and equal windows along it."""
    count = int(generator.integers(3, 7))
    w, d = count * generator.uniform(0.62, 0.75), generator.uniform(0.95, 1.4)
    room = Room(
        w + generator.uniform(1.9, 2.6),
        d + generator.uniform(2.0, 2.8),
        generator.uniform(2.4, 3.0),
    )
    panes = evenly_spaced(window(generator), max(2, int(room.width / 1.9)), room.width)
    doorway = [(0.8, door(generator))]
    parts = [room.shell(panes, doorway, (), ())]
    chair = make_one_of((furniture.chair, furniture.swivel_chair, furniture.armchair), generator)
    table = furniture.bare_table(w, d, 0.74, generator)
    places = jittered(
        seat_places(w, d, count, bool(generator.random() < 0.5)), generator, 0.05, 0.15
    )
    top = scatter_objects(
        small_objects.PAPERWORK, int(generator.integers(0, 8)), (w, d), 0.74, generator
    )
    middle = (0.5 * room.width, 0.5 * room.depth, 0)
    parts.append(merge([table, copies(chair, places), *top]).moved(middle))
    parts.append(room.against_wall(3, 0.5 * room.depth, furniture.whiteboard(generator), z=0.9))
    parts.append(room.against_wall(2, 0.5 * room.width, furniture.television(generator)))
    parts += [room.against_wall(2, x, furniture.plant(generator)) for x in (0.4, room.width - 0.4)]
    parts.append(ceiling_lamps(room, panel_light(generator), count // 2 + 1, 2))
    return add_clutter(merge(parts), generator, 0.2, 0.03, small_objects.PAPERWORK)


def symmetric_room(generator: Generator) -> Mesh:
    """Furnish two halves alike, mirrored or turned; a few objects tell them apart."""
    room = Room(*generator.uniform((4.2, 3.4, 2.4), (6.0, 4.6, 2.9)))
    w, d = room.width, room.depth
    panes = evenly_spaced(window(generator), int(generator.choice([2, 4])), w)
    doorway = evenly_spaced(door(generator), 1, d)
    makers = (*HOME_FURNITURE, furniture.armchair, furniture.bed)
    upright = (furniture.plant, furniture.floor_lamp)
    half = merge([
        room.against_wall(0, 0.25 * w, make_one_of(makers, generator), gap=0.1),
        room.against_wall(2, 0.75 * w, make_one_of(makers, generator), gap=0.1),
        room.against_wall(3, 0.82 * d, make_one_of(upright, generator)),
        room.against_wall(3, 0.2 * d, furniture.picture(generator), z=1.4),
        dining_set(generator, small_objects.BELONGINGS).moved((0.28 * w, 0.5 * d, 0), np.pi / 2),
    ])  # fmt: skip
    if generator.random() < 0.5:
        twin = Mesh(half.vertices * [-1, 1, 1] + [w, 0, 0], half.faces)
    else:
        twin = half.moved((w, d, 0), np.pi)
    parts = [room.shell(panes, doorway, panes, doorway), half, twin]
    parts.append(ceiling_lamps(room, furniture.pendant_lamp(generator), 2, 1))
    parts += hang_pictures(room, 1, 1, generator)
    odd = make_one_of((furniture.stool, furniture.plant), generator)
    parts.append(odd.moved(near_the_middle(room, generator)))
    return add_clutter(merge(parts), generator, 0.12, 0.03, small_objects.BELONGINGS)


def plain_room(generator: Generator) -> Mesh:
    """Make long bare walls and next to nothing to hold on to."""
    room = Room(*generator.uniform((5.5, 4.0, 2.6), (8.5, 5.5, 3.4)))
    panes = evenly_spaced(window(generator), int(generator.integers(0, 4)), room.width)
    doorway = at_random_place(door(generator), room.depth, generator)
    parts = [room.shell(panes, doorway, (), ())]
    if generator.random() < 0.5:
        r = generator.uniform(0.1, 0.25)
        pillar = lathe([r, r], [0, room.height], int(generator.choice([4, 32])))
        places = [(x * room.width, y * room.depth, 0, 0) for x in (0.3, 0.7) for y in (0.3, 0.7)]
        parts.append(copies(pillar, places))
    makers: tuple[Maker, ...] = (
        furniture.bench, furniture.plant, furniture.bicycle, furniture.ladder, furniture.cabinet
    )  # fmt: skip
    for _ in range(generator.integers(1, 4)):
        side, item = int(generator.integers(4)), make_one_of(makers, generator)
        x = generator.uniform(0.2, 0.8) * room.wall_length(side)
        parts.append(room.against_wall(side, x, item, gap=0.05))
    parts += hang_pictures(room, 2, int(generator.integers(0, 3)), generator)
    parts.append(ceiling_lamps(room, panel_light(generator), 3, 2))
    return add_clutter(merge(parts), generator, 0.08, 0.02, small_objects.LEFTOVERS)


def cluttered_room(generator: Generator) -> Mesh:
    """Line every wall with furniture and strew small objects everywhere."""
    room = Room(*generator.uniform((3.0, 3.0, 2.4), (6.5, 6.0, 3.0)))
    openings = [
        at_random_place(
            door(generator) if generator.random() < 0.4 else window(generator),
            room.wall_length(side),
            generator,
        )
        for side in range(4)
    ]
    parts = [room.shell(*openings)]
    for side, holes in enumerate(openings):
        parts += room.line_wall(side, furniture.WALL_FURNITURE, generator, holes)
    for _ in range(generator.integers(2, 6)):
        x, y = generator.uniform(0.28, 0.72, 2) * (room.width, room.depth)
        piece = make_one_of(furniture.LARGE_FURNITURE, generator)
        parts.append(piece.moved((x, y, 0), generator.uniform(0, 2 * np.pi)))
    parts.append(ceiling_lamps(room, furniture.pendant_lamp(generator), 1, 1))
    return add_clutter(merge(parts), generator)


ROOM_KINDS: Mapping[str, Maker] = {
    "living_room": living_room,
    "corridor": corridor,
    "kitchen": kitchen,
    "office": office,
    "storage": storage_room,
    "bathroom": bathroom,
    "staircase": staircase,
    "meeting": meeting_room,
    "symmetric": symmetric_room,
    "plain": plain_room,
    "clutter": cluttered_room,
}
