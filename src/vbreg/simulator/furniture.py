"""Furniture is made here, centred on the origin, standing on z = 0, its back towards -y."""

from __future__ import annotations

import numpy as np

from vbreg.simulator import small_objects
from vbreg.simulator.meshes import (
    Generator,
    Maker,
    Mesh,
    arc,
    blob,
    box,
    copies,
    lathe,
    make_one_of,
    merge,
    sheet,
    smooth_noise,
    torus,
    tube,
)
from vbreg.simulator.small_objects import scatter_objects, simple_object


def chair(generator: Generator) -> Mesh:
    """Make a chair on four legs, at times with arms."""
    w, seat, back = generator.uniform((0.38, 0.4, 0.35), (0.55, 0.5, 0.6))
    legs = [box((0.04, 0.04, seat), (x, y, 0)) for x in (-w / 2, w / 2) for y in (-w / 2, w / 2)]
    rest = box((w, 0.05, back), (0, -w / 2, seat)).moved((0, 0, 0), 0, generator.normal(0, 0.04))
    arms = [box((0.05, w, 0.04), (x, 0, seat + 0.22)) for x in (-w / 2, w / 2)]
    parts = [*legs, rest, box((w, w, generator.uniform(0.03, 0.1)), (0, 0, seat))]
    return merge(parts + arms if generator.random() < 0.4 else parts)


def table(generator: Generator) -> Mesh:
    """Make a table with objects on it, at times with drawers or a screen."""
    w, d, h = generator.uniform((0.8, 0.5, 0.42), (1.8, 0.9, 0.8))
    legs = [(x, y, 0.0) for x in (0.06 - w / 2, w / 2 - 0.06) for y in (0.06 - d / 2, d / 2 - 0.06)]
    parts = [box((0.06, 0.06, h), leg) for leg in legs] + [box((w, d, 0.04), (0, 0, h))]
    if generator.random() < 0.5:  # drawers
        parts.append(box((0.4, d * 0.9, h * 0.8), (w / 2 - 0.25, 0, h * 0.2)))
    if generator.random() < 0.6:  # a screen on its foot
        parts += [
            box((0.55, 0.05, 0.33), (0, d / 4, h + 0.14)),
            box((0.2, 0.15, 0.15), (0, d / 4, h)),
        ]
    objects = [simple_object(generator) for _ in range(generator.integers(2, 8))]
    spots = generator.uniform((-w / 2, -d / 2), (w / 2, d / 2), (len(objects), 2)) * 0.85
    return merge(
        parts + [t.moved((*s, h + 0.04), s[0] * 9) for t, s in zip(objects, spots, strict=True)]
    )


def shelf(generator: Generator) -> Mesh:
    """Make a shelf full of books and other objects."""
    w, d, h = generator.uniform((0.6, 0.25, 0.9), (1.4, 0.4, 2.2))
    parts = [box((0.03, d, h), (x, 0, 0)) for x in (-w / 2, w / 2)] + [
        box((w, 0.02, h), (0, -d / 2, 0))
    ]
    for z in np.arange(0.05, h, generator.uniform(0.28, 0.42)):
        parts.append(box((w, d, 0.025), (0, 0, z)))
        x = 0.03 - w / 2
        while x < w / 2 - 0.06:  # books of all heights, gaps, and other things
            if generator.random() < 0.12:
                item = simple_object(generator)
                parts.append(item.moved((x + 0.08, 0, z + 0.025)))
                x += generator.uniform(0.1, 0.3)
            width, depth, height = generator.uniform((0.015, 0.12, 0.15), (0.07, d - 0.02, 0.27))
            lean = generator.normal(0, 0.03)
            parts.append(
                box((width, depth, height), (x + width / 2, (depth - d) / 2, z + 0.025)).moved(
                    (0, lean, 0)
                )
            )
            x += width + generator.exponential(0.01)
    return merge(parts)


def sofa(generator: Generator) -> Mesh:
    """Make a sofa with cushions."""
    w, d = generator.uniform((0.8, 0.75), (2.1, 0.95))
    parts = [box((w, d, 0.4)), box((w, 0.22, 0.85), (0, -d / 2, 0))]
    parts += [box((0.2, d, 0.6), (x, 0, 0)) for x in (-w / 2, w / 2)]
    for _ in range(generator.integers(1, 5)):
        cushion = blob(generator.uniform((0.35, 0.12, 0.3), (0.5, 0.2, 0.45)), generator)
        parts.append(cushion.moved((generator.uniform(-w, w) * 0.4, -d / 5, 0.4), 0, 0.3))
    return merge(parts)


def floor_lamp(generator: Generator) -> Mesh:
    """Make a lamp that stands on the floor."""
    h, r = generator.uniform((1.1, 0.14), (1.7, 0.26))
    return lathe([0, 0.15, 0.15, 0.02, 0.02, r, r * 0.6], [0, 0, 0.03, 0.04, h, h, h + 0.28])


def plant(generator: Generator) -> Mesh:
    """Make a plant with leaves in a pot."""
    h = generator.uniform(0.3, 1.3)
    parts = [lathe([0, 0.12, 0.17, 0], [0, 0, 0.25, 0.25]), lathe([0.02, 0.02], [0.2, h], 8)]
    for _ in range(generator.integers(8, 20)):
        leaf = blob(generator.uniform((0.05, 0.15, 0.02), (0.16, 0.4, 0.06)), generator)
        shift = (*generator.normal(0, 0.15, 2), h * generator.uniform(0.5, 1.1))
        parts.append(leaf.moved(shift, generator.uniform(0, 6), generator.uniform(-0.9, 0.9)))
    return merge(parts)


def cabinet(generator: Generator) -> Mesh:
    """Make a cabinet with two doors and objects on top."""
    w, d, h = generator.uniform((0.4, 0.35, 0.5), (1.2, 0.6, 2.0))
    doors = [box((w / 2 - 0.02, 0.02, h - 0.06), (x, d / 2, 0.03)) for x in (-w / 4, w / 4)]
    knobs = [box((0.03, 0.06, 0.12), (x, d / 2, h / 2)) for x in (-0.05, 0.05)]
    top = [simple_object(generator).moved((generator.uniform(-w, w) * 0.4, 0, h)) for _ in range(3)]
    return merge([box((w, d, h)), *doors, *knobs, *top])


def curtain(generator: Generator) -> Mesh:
    """Make a curtain in folds."""
    u, v = np.meshgrid(np.linspace(0, 1, 60), np.linspace(0.05, 2.2, 4), indexing="ij")
    folds = 0.05 * np.sin(u * generator.uniform(20, 45) + np.sin(7 * u)) * (1.2 - v / 3)
    return sheet(np.stack([(u - 0.5) * generator.uniform(0.5, 1.4), folds + 0.08, v], axis=-1))


# --- seats ---------------------------------------------------------------------------------------


def swivel_chair(generator: Generator) -> Mesh:
    """Make an office chair on a star of five arms with castors."""
    w, seat, back, lean = generator.uniform((0.42, 0.42, 0.4, 0.0), (0.52, 0.54, 0.7, 0.2))
    arm = merge(
        [tube([[0, 0, 0.1], [0, 0.3, 0.06]], 0.025, 6), torus(0.02, 0.02).moved((0, 0.3, 0))]
    )
    star = copies(arm, [(0, 0, 0, turn) for turn in np.arange(5) * 0.4 * np.pi])
    x, z = np.meshgrid(np.linspace(-w / 2, w / 2, 9), np.linspace(0.1, back, 5), indexing="ij")
    rest = sheet(np.stack([x, 0.5 * x**2 / w - w / 2, z], axis=-1)).moved((0, 0, seat), 0, lean)
    parts = [star, lathe([0.03, 0.03], [0.06, seat], 8), rest, box((w, w, 0.07), (0, 0, seat))]
    parts.append(box((0.06, 0.03, 0.25), (0, -w / 2 - 0.02, seat)))
    if generator.random() < 0.6:
        hoop = tube(arc(0.3, 0.22), 0.015, 6).moved((0, 0, seat), np.pi / 2)
        parts += [hoop.moved((side * (w / 2 + 0.02), 0, 0)) for side in (-1, 1)]
    return merge(parts)


def stool(generator: Generator) -> Mesh:
    """Make a stool with three or four legs."""
    r, h, spread = generator.uniform((0.14, 0.42, 1.0), (0.2, 0.75, 1.5))
    leg = tube([[0, 0.7 * r, h], [0, 0.7 * r * spread, 0]], 0.015, 6)
    legs = int(generator.integers(3, 5))
    ring = torus(0.7 * r * (1 + spread) / 2, 0.01).moved((0, 0, h / 2))
    top = lathe([0, r, r, 0], [h, h, h + 0.04, h + 0.04])
    return merge([top, ring, copies(leg, [(0, 0, 0, 2 * np.pi * k / legs) for k in range(legs)])])


def armchair(generator: Generator) -> Mesh:
    """Make an armchair, a curved shell about a cushion, on short legs."""
    r, seat, back = generator.uniform((0.32, 0.34, 0.65), (0.45, 0.44, 1.0))
    turn = np.linspace(-0.15, 1.15, 21)[:, None] * np.pi
    rim = seat + 0.12 + (back - seat) * np.sin(np.clip(turn, 0, np.pi)) ** 2
    z = 0.12 + np.linspace(0, 1, 6) * (rim - 0.12)
    skin = np.stack([r * np.cos(turn) + 0 * z, -r * np.sin(turn) + 0 * z, z], axis=-1)
    shells = [sheet(skin * (k, k, 1)) for k in (1.0, 0.85)]
    cushion = blob((1.7 * r, 1.7 * r, 0.2), generator, 0.1).moved((0, 0, seat - 0.12))
    base = lathe([0, 0.9 * r, 0.9 * r], [0.12, 0.12, seat - 0.05])
    feet = [box((0.04, 0.04, 0.12), (x, y, 0)) for x in (-r / 2, r / 2) for y in (-r / 2, r / 2)]
    return merge([*shells, cushion, base, *feet])


# --- tables and what stands on them --------------------------------------------------------------


def bare_table(w: float, d: float, h: float, generator: Generator) -> Mesh:
    """Make a table with nothing on it, on four legs, on trestles or on panels."""
    top, style = box((w, d, 0.035), (0, 0, h - 0.035)), generator.integers(3)
    x, y = w / 2 - 0.08, d / 2 - 0.06
    if style == 0:
        leg = box((0.05, 0.05, h - 0.035), skip="zZ")
        return merge([top, *(leg.moved((i, j, 0)) for i in (-x, x) for j in (-y, y))])
    if style == 1:
        strut = tube([[0, 0.06, h - 0.04], [0, y, 0]], 0.02, 6)
        beam = box((0.06, 0.3, 0.06), (0, 0, h - 0.1))
        trestle = merge([strut, strut.moved((0, 0, 0), np.pi), beam])
        return merge([top, trestle.moved((-0.7 * x, 0, 0)), trestle.moved((0.7 * x, 0, 0))])
    cheek = box((0.03, d - 0.08, h - 0.035), skip="zZ")
    apron = box((2 * x, 0.02, 0.4 * h), (0, -0.7 * y, 0.6 * h - 0.035))
    return merge([top, cheek.moved((-x, 0, 0)), cheek.moved((x, 0, 0)), apron])


def round_table(generator: Generator) -> Mesh:
    """Make a round table on one foot."""
    r, h = generator.uniform((0.35, 0.45), (0.65, 0.78))
    foot = generator.uniform(0.4, 0.7) * r
    profile = [0, foot, foot, 0.04, 0.04, r, r, 0]
    return lathe(profile, [0, 0, 0.03, 0.06, h - 0.04, h - 0.03, h, h], 32)


def workstation(w: float, d: float, generator: Generator) -> Mesh:
    """Make a desk to sit at from +y, with screens, keyboard, drawers and a computer below."""
    h = 0.74
    screen, count = small_objects.monitor(generator), int(generator.integers(1, 3))
    parts = [
        bare_table(w, d, h, generator),
        small_objects.keyboard(generator).moved((0, 0.2 * d, h)),
    ]
    for x in (np.arange(count) - (count - 1) / 2) * 0.62:
        parts.append(screen.moved((x, -0.2 * d, h), -0.35 * x))
    pedestal = merge([box((0.4, 0.55, 0.58)), *drawer_fronts(0.4, 0.56, 3, 0.275)])
    parts.append(pedestal.moved((generator.choice([-1, 1]) * (w / 2 - 0.32), 0, 0)))
    tower = box(generator.uniform((0.16, 0.38, 0.36), (0.21, 0.46, 0.46)))
    return merge([*parts, tower.moved((generator.uniform(-0.1, 0.1), -0.1, 0))])


# --- to keep things in ---------------------------------------------------------------------------


def drawer_fronts(w: float, h: float, rows: int, y: float) -> list[Mesh]:
    """Make the fronts of `rows` drawers, each with its grip, on the plane at `y`."""
    step = (h - 0.02) / rows
    front = box((w - 0.02, 0.02, step - 0.015), skip="y").moved((0, y + 0.01, 0.02))
    grip = tube(arc(min(0.16, 0.5 * w), 0.035), 0.008, 6).moved((0, y + 0.02, 0), 0, -np.pi / 2)
    return [
        part.moved((0, 0, k * step + z))
        for k in range(rows)
        for part, z in ((front, 0), (grip, step / 2))
    ]


def chest_of_drawers(generator: Generator) -> Mesh:
    """Make a chest of drawers with objects on top."""
    w, d, h = generator.uniform((0.4, 0.38, 0.5), (1.1, 0.5, 1.1))
    top = scatter_objects(
        small_objects.BELONGINGS, int(generator.integers(1, 5)), (w, d), h, generator
    )
    return merge([box((w, d, h)), *drawer_fronts(w, h, int(generator.integers(2, 6)), d / 2), *top])


def wardrobe(generator: Generator) -> Mesh:
    """Make a wardrobe, with boxes on top where it is low enough."""
    w, d, h = generator.uniform((0.9, 0.5, 1.8), (1.8, 0.65, 2.3))
    leaves = int(generator.integers(2, 4))
    leaf = box((w / leaves - 0.015, 0.025, h - 0.14), (0, d / 2, 0.08), "y")
    knob = box((0.02, 0.05, 0.16), (0.4 * w / leaves, d / 2 + 0.02, 0.5 * h))
    centres = (np.arange(leaves) + 0.5) * w / leaves - w / 2
    doors = copies(merge([leaf, knob]), [(x, 0, 0, 0) for x in centres])
    above = scatter_objects(
        (small_objects.carton, small_objects.bag, small_objects.open_carton),
        2,
        (w, 0.6 * d),
        h,
        generator,
    )
    return merge([box((w, d, h), skip="z"), doors, *(above if h < 2.1 else ())])


def book_row(w: float, d: float, h: float, generator: Generator) -> list[Mesh]:
    """Make books along x from the origin, backs at y = 0, without the sides that others hide."""
    parts, x = [], 0.0
    while x < w - 0.06:
        thick, deep, high = generator.uniform((0.015, 0.5 * d, 0.55 * h), (0.06, 0.9 * d, 0.92 * h))
        gap = generator.uniform(0.05, 0.4) if generator.random() < 0.06 else 0.0
        hidden = "xyz" if gap else "xXyz"
        parts.append(box((thick, deep, high), (x + thick / 2, deep / 2, 0), hidden))
        x += thick + gap + 0.002
    return parts


def bookcase(w: float, h: float, generator: Generator) -> Mesh:
    """Make a case whose boards hold books, other objects, or nothing."""
    d, step = generator.uniform((0.24, 0.28), (0.36, 0.4))
    parts = [box((0.02, d, h), (x, 0, 0), "z") for x in (-w / 2, w / 2)]
    parts.append(box((w, 0.0, h), (0, -d / 2, 0), "xXyzZ"))
    for z in np.arange(0.06, h, step):
        parts.append(box((w, d, 0.02), (0, 0, z), "xXy"))
        if z + step < h + 0.1 and generator.random() < 0.85:
            row = book_row(w - 0.03, d, step, generator)
            parts += [book.moved((0.02 - w / 2, -d / 2, z + 0.02)) for book in row]
        elif generator.random() < 0.7:
            parts += scatter_objects(small_objects.BELONGINGS, 2, (w, 0.1), z + 0.02, generator)
    return merge(parts)


def storage_rack(w: float, h: float, generator: Generator) -> Mesh:
    """Make steel shelving, open on both sides, with cartons of a few sizes in rows."""
    d, step = generator.uniform((0.35, 0.4), (0.6, 0.65))
    posts = [
        box((0.04, 0.04, h), (x, y, 0), "zZ") for x in (-w / 2, w / 2) for y in (-d / 2, d / 2)
    ]
    brace = tube([[-w / 2, -d / 2, 0.1], [w / 2, -d / 2, h - 0.1]], 0.008, 6)
    parts = [*posts, brace]
    sizes = generator.uniform((0.2, 0.6 * d, 0.12), (0.5, 0.95 * d, 0.85 * step), (3, 3))
    for z in np.arange(0.08, h, step):
        parts.append(box((w, d, 0.03), (0, 0, z), "xX"))
        x = -w / 2 + 0.03
        while x < w / 2 - 0.25 and z + step < h + 0.3:
            size = sizes[generator.integers(3)]
            if generator.random() < 0.8:
                shift = (x + size[0] / 2, generator.normal(0, 0.02), z + 0.03)
                parts.append(box(size, skip="z").moved(shift, generator.normal(0, 0.05)))
            else:
                item = make_one_of(small_objects.KITCHENWARE, generator)
                parts.append(item.moved((x + size[0] / 2, 0, z + 0.03)))
            x += size[0] + generator.exponential(0.06)
    return merge(parts)


# --- to lie and sit on ---------------------------------------------------------------------------


def bed(generator: Generator) -> Mesh:
    """Make a bed with its duvet and pillows, single or double."""
    w, h, head = generator.uniform((0.85, 0.32, 0.5), (1.8, 0.5, 1.1))
    across, along = np.linspace(-0.56, 0.56, 40) * w, np.linspace(-0.25, 1.03, 40)
    x, y = np.meshgrid(across, along, indexing="ij")
    over = np.maximum(0, np.abs(x) / w - 0.5)  # what hangs down at the sides
    drop = 5 * h * over + 0.3 * np.maximum(0, y - 1)
    duvet = sheet(
        np.stack([x, y, h + 0.07 + 0.025 * smooth_noise(x, y, generator, 0.6) - drop], axis=-1)
    )
    pillow = blob((min(0.7, 0.9 * w), 0.42, 0.16), generator, 0.15)
    pillows = [pillow.moved((x, -0.75, h)) for x in ((-0.25 * w, 0.25 * w) if w > 1.3 else (0,))]
    frame = [box((w, 2.0, h - 0.12), (0, 0, 0.12)), box((w + 0.06, 0.06, head), (0, -1.03, 0))]
    feet = [box((0.06, 0.06, 0.12), (x, y, 0)) for x in (-w / 2.2, w / 2.2) for y in (-0.9, 0.9)]
    return merge([*frame, *feet, duvet, *pillows])


def rug(w: float, d: float, generator: Generator) -> Mesh:
    """Make a rug that lies unevenly."""
    u = np.linspace(-0.5, 0.5, 40)
    x, y = np.meshgrid(u * w, u * d, indexing="ij")
    return sheet(np.stack([x, y, 0.014 + 0.005 * smooth_noise(x, y, generator, 0.8)], axis=-1))


def bench(generator: Generator) -> Mesh:
    """Make a bench without a back."""
    w, d, h = generator.uniform((0.9, 0.3, 0.4), (1.8, 0.45, 0.48))
    legs = [box((0.05, d, h - 0.05), (x, 0, 0)) for x in (0.1 - w / 2, w / 2 - 0.1)]
    return merge([box((w, d, 0.05), (0, 0, h - 0.05)), *legs])


# --- kitchen and bathroom ------------------------------------------------------------------------


def tap(generator: Generator) -> Mesh:
    """Make a tap whose spout bends over towards +y."""
    reach, h = generator.uniform((0.12, 0.15), (0.2, 0.35))
    bend = arc(reach, 0.06)[::-1, [1, 0, 2]] + np.array((0, reach / 2, h))
    return tube([np.zeros(3), *bend], 0.014)


def basin_block(w: float, d: float, h: float, deep: float) -> Mesh:
    """Make a block with an oval hollow, as tubs, basins and sinks have it."""
    angle = np.linspace(0, 2 * np.pi, 49)
    lap = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    square = lap / np.abs(lap).max(-1, keepdims=True)
    oval = np.sign(lap) * np.abs(lap) ** 0.6
    rings = [(square, 0.5, 0.5, 0), (square, 0.5, 0.5, h), (oval, 0.46, 0.43, h)]
    rings += [(oval, 0.42, 0.37, h - 0.6 * deep), (oval, 0.34, 0.28, h - deep)]
    rings.append((oval, 0.0, 0.0, h - deep))
    return sheet(np.stack([np.c_[flat * [a * w, b * d], 0 * angle + z] for flat, a, b, z in rings]))


def oven(w: float, d: float, h: float) -> Mesh:
    """Make an oven with door, bar and knobs, and four rings on top."""
    door = box((w - 0.04, 0.03, 0.6 * h), (0, d / 2 + 0.01, 0.12 * h), "y")
    bar = tube([[-0.4 * w, d / 2 + 0.07, 0.66 * h], [0.4 * w, d / 2 + 0.07, 0.66 * h]], 0.012)
    knob = lathe([0.022, 0.022, 0], [0, 0.03, 0.03], 10).moved((0, d / 2, 0), 0, -np.pi / 2)
    knobs = copies(knob, [(x, 0, 0.84 * h, 0) for x in np.linspace(-0.35, 0.35, 5) * w])
    ring = torus(0.08, 0.008)
    rings = [ring.moved((x, y, h)) for x in (-0.22 * w, 0.22 * w) for y in (-0.2 * d, 0.2 * d)]
    return merge([box((w, d, h), skip="xXyz"), door, bar, knobs, *rings])


def cooker_hood(w: float, height: float) -> Mesh:
    """Make a hood, a pyramid under a chimney of `height`, its lower rim at z = 0."""
    skirt = lathe(np.array([0.71, 0.71, 0.2]) * w, [0, 0.06, 0.3], 4).moved((0, 0, 0), np.pi / 4)
    return merge([skirt, box((0.28 * w, 0.28 * w, height - 0.3), (0, 0, 0.3), "zZ")])


def fridge(generator: Generator) -> Mesh:
    """Make a fridge with two doors."""
    w, h, split = generator.uniform((0.55, 1.4, 0.55), (0.7, 2.0, 0.7))
    doors = [
        box((w, 0.04, split * h - 0.01), (0, 0.32, 0.03), "y"),
        box((w, 0.04, (1 - split) * h - 0.03), (0, 0.32, split * h + 0.03), "y"),
    ]
    grip = tube([[0, 0.34, 0], [0, 0.39, 0.03], [0, 0.39, 0.35], [0, 0.34, 0.38]], 0.012)
    grips = [grip.moved((-0.4 * w, 0, z)) for z in (split * h - 0.42, split * h + 0.06)]
    return merge([box((w, 0.6, h), skip="z"), *doors, *grips])


def cupboards(count: int, w: float, d: float, h: float, generator: Generator) -> Mesh:
    """Make a row of equal cupboards with one kind of grip, from x = 0."""
    leaf = box((w - 0.01, 0.02, h - 0.02), (0, d / 2, 0.01), "y")
    long, upright = generator.uniform(0.03, 0.3), generator.random() < 0.5
    grip = box((0.015, 0.03, long) if upright else (long, 0.03, 0.015))
    unit = merge(
        [
            leaf,
            grip.moved((0.35 * w if upright else 0, d / 2 + 0.02, generator.uniform(0.2, 0.7) * h)),
        ]
    )
    row = copies(unit, [((k + 0.5) * w, 0, 0, 0) for k in range(count)])
    return merge([row, box((count * w, d, h), (count * w / 2, 0, 0))])


def washing_machine(generator: Generator) -> Mesh:
    """Make a washing machine with its round door."""
    r = generator.uniform(0.15, 0.2)
    ring = merge([torus(r, 0.025), lathe([r, 0.6 * r, 0], [0.02, -0.03, -0.04])])
    drum = ring.moved((0, 0.29, 0.45), 0, -np.pi / 2)
    return merge([box((0.6, 0.58, 0.85), skip="z"), box((0.56, 0.01, 0.1), (0, 0.295, 0.73)), drum])


def toilet(generator: Generator) -> Mesh:
    """Make a toilet with its tank, the lid up or down."""
    r, h = generator.uniform((0.17, 0.38), (0.2, 0.45))
    profile = lathe(
        r * np.array([0.6, 0.5, 0.9, 1, 1, 0.75, 0.5, 0]),
        np.array([0, 0.4, 0.85, 0.9, 1, 1, 0.6, 0.5]) * h,
    )
    bowl = Mesh(profile.vertices * [1, 1.3, 1] + [0, 0.1, 0], profile.faces)
    lid = lathe([0, r, r, 0], [0, 0, 0.03, 0.03])
    lid = Mesh(lid.vertices * [1, 1.3, 1] + [0, 1.3 * r, 0], lid.faces)
    tilt = generator.choice([0.0, 1.75])
    tank = box((0.38, 0.17, 0.4), (0, -0.28, h - 0.05))
    return merge(
        [bowl, tank, lid.moved((0, 0.1 - 1.3 * r, h), 0, tilt), box((0.2, 0.2, h), (0, -0.2, 0))]
    )


def washstand(generator: Generator) -> Mesh:
    """Make a basin on a pedestal or a cupboard, with the mirror's cabinet above."""
    w, h = generator.uniform((0.45, 0.8), (0.9, 0.9))
    bowl = [
        basin_block(w, 0.46, 0.16, 0.13).moved((0, 0, h - 0.16)),
        tap(generator).moved((0, -0.2, h)),
    ]
    below = lathe([0.12, 0.09, 0.14], [0, 0.4, h - 0.16])
    if generator.random() < 0.5:
        below = cupboards(2, w / 2, 0.42, 0.5, generator).moved((-w / 2, 0, h - 0.66))
    mirror = box((w, generator.uniform(0.03, 0.16), 0.6), (0, -0.15, h + 0.35))
    return merge([*bowl, below, mirror])


def bathtub(generator: Generator) -> Mesh:
    """Make a bathtub whose long side lies along x."""
    w, d, h = generator.uniform((1.5, 0.68, 0.5), (1.8, 0.8, 0.62))
    return merge([basin_block(w, d, h, 0.8 * h), tap(generator).moved((0.3 * w, -d / 2 + 0.03, h))])


def shower(generator: Generator) -> Mesh:
    """Make a shower: a tray, two glass walls, a riser with its head."""
    w = generator.uniform(0.8, 1.0)
    tray = merge([box((w, w, 0.1), skip="z"), lathe([0, 0.05], [0.105, 0.105])])
    glass = [
        box((w, 0.008, 1.9), (0, w / 2, 0.1)),
        box((0.008, 0.5 * w, 1.9), (w / 2, -0.25 * w, 0.1)),
    ]
    rail = tube([[0, 0.06 - w / 2, 1.0], [0, 0.06 - w / 2, 2.0], [0, 0.3 - w / 2, 2.1]], 0.012)
    return merge(
        [tray, *glass, rail, lathe([0, 0.1, 0.02], [0, 0, 0.05]).moved((0, 0.3 - w / 2, 2.05))]
    )


def towel_rail(generator: Generator) -> Mesh:
    """Make a ladder of pipes on the wall, partly hidden by a towel."""
    w, h = generator.uniform((0.45, 0.9), (0.6, 1.6))
    posts = [tube([[x, 0.06, 0.3], [x, 0.06, 0.3 + h]], 0.018) for x in (-w / 2, w / 2)]
    rungs = [
        tube([[-w / 2, 0.06, z], [w / 2, 0.06, z]], 0.012, 6)
        for z in np.arange(0.35, 0.3 + h, 0.09)
    ]
    x, z = np.meshgrid(np.linspace(-0.4, 0.4, 20) * w, np.linspace(0.5, 1.0, 6) * h, indexing="ij")
    towel = sheet(np.stack([x, 0.1 + 0.012 * smooth_noise(x, z, generator, 0.2), z], axis=-1))
    return merge([*posts, *rungs, towel])


# --- on walls, on ceilings, and the rest ----------------------------------------------------------


def picture(generator: Generator) -> Mesh:
    """Make a framed picture whose lower edge is at z = 0."""
    w, h = generator.uniform((0.25, 0.25), (1.0, 0.8))
    rim, deep = generator.uniform((0.02, 0.015), (0.07, 0.05))
    bars = [box((w, deep, rim), (0, 0, z)) for z in (0, h - rim)]
    bars += [box((rim, deep, h), (x, 0, 0)) for x in ((rim - w) / 2, (w - rim) / 2)]
    return merge([*bars, box((w, 0.004, h))])


def whiteboard(generator: Generator) -> Mesh:
    """Make a whiteboard with its tray, the lower edge at z = 0."""
    w, h = generator.uniform((1.2, 0.9), (2.4, 1.2))
    return merge([box((w, 0.03, h)), box((0.7 * w, 0.1, 0.02), (0, 0.06, 0))])


def television(generator: Generator) -> Mesh:
    """Make a television on a low cabinet."""
    w, h = generator.uniform((0.9, 0.4), (1.5, 0.6))
    low = cupboards(3, (w + 0.3) / 3, 0.4, h, generator).moved((-(w + 0.3) / 2, 0, 0))
    stand = box((0.4 * w, 0.22, 0.05), (0, 0, h))
    return merge([low, stand, box((w, 0.05, 0.56 * w), (0, 0, h + 0.05))])


def radiator(w: float, h: float) -> Mesh:
    """Make a radiator of upright ribs."""
    ribs = box((0.045, 0.09, h), skip="z")
    return copies(ribs, [(x, 0.06, 0.12, 0) for x in np.arange(0.03 - w / 2, w / 2, 0.065)])


def curtain_pair(w: float, height: float, generator: Generator) -> Mesh:
    """Make a rod above an opening `w` wide with the same curtain drawn aside at both ends."""
    wide, waves, deep = generator.uniform((0.25, 4, 0.02), (0.55, 9, 0.05))
    u, z = np.meshgrid(np.linspace(0, 1, 60), np.linspace(0.04, height, 5), indexing="ij")
    fold = deep * np.sin(2 * np.pi * waves * u + 0.8 * np.sin(7 * u)) * (1.25 - 0.4 * z / height)
    half = sheet(np.stack([(u - 0.5) * wide, fold + 0.1, z], axis=-1))
    rod = tube([[-0.6 * w - 0.1, 0.1, height], [0.6 * w + 0.1, 0.1, height]], 0.014)
    flipped = Mesh(half.vertices * [-1, 1, 1], half.faces)
    return merge([rod, half.moved((-w / 2, 0, 0)), flipped.moved((w / 2, 0, 0))])


def pendant_lamp(generator: Generator) -> Mesh:
    """Make a lamp that hangs from a ceiling at z = 0."""
    drop, r = generator.uniform((0.3, 0.1), (0.9, 0.28))
    shade = r * generator.uniform(0.3, 1.0, 5)
    cord = tube([[0, 0, -drop], [0, 0, 0]], 0.006, 6)
    return merge([cord, lathe([*shade, 0.02], -drop - r + np.linspace(0, 1, 6) * 1.2 * r)])


def coat_rack(generator: Generator) -> Mesh:
    """Make a board with hooks at the wall, some with coats and bags."""
    w = generator.uniform(0.6, 1.4)
    parts = [box((w, 0.03, 0.12), (0, 0, 1.65))]
    for x in np.arange(0.1, w, 0.2) - w / 2:
        parts.append(tube([[x, 0.01, 1.68], [x, 0.07, 1.7], [x, 0.08, 1.75]], 0.008, 6))
        if generator.random() < 0.6:
            coat = blob(generator.uniform((0.25, 0.14, 0.5), (0.42, 0.22, 1.1)), generator, 0.5)
            parts.append(coat.moved((x, 0.12, 1.72 - np.ptp(coat.vertices[:, 2]))))
    return merge(parts)


def ladder(generator: Generator) -> Mesh:
    """Make a ladder that leans at the wall behind it."""
    h, w, lean = generator.uniform((1.6, 0.36, 0.12), (2.6, 0.48, 0.3))
    rails = [box((0.03, 0.07, h), (x, 0, 0)) for x in (-w / 2, w / 2)]
    rungs = [box((w, 0.04, 0.03), (0, 0, z)) for z in np.arange(0.25, h - 0.1, 0.28)]
    return merge([*rails, *rungs]).moved((0, 0, 0.01), 0, lean)


def bicycle(generator: Generator) -> Mesh:
    """Make a bicycle that leans a little."""
    r, base = generator.uniform((0.31, 0.98), (0.36, 1.08))
    rim = torus(r - 0.02, 0.02).moved((0, 0, 0), 0, np.pi / 2)
    spokes = [
        tube([[0, 0, 0], [r * np.cos(a), 0, r * np.sin(a)]], 0.004, 4)
        for a in np.arange(12) * np.pi / 6
    ]
    wheel = merge([rim.moved((0, 0.02, 0)), *spokes]).moved((0, 0, r))
    rear, front = np.array([-base / 2, 0, r]), np.array([base / 2, 0, r])
    crank, seat, head = (
        np.array([-0.08, 0, 0.28]),
        np.array([-0.24, 0, 0.85]),
        np.array([0.34, 0, 0.8]),
    )
    lines = [(rear, crank), (rear, seat), (crank, seat), (crank, head), (seat, head), (front, head)]
    bars = [tube(line, 0.016, 6) for line in lines]
    grip = tube(
        [[0.3, -0.28, 0.98], [0.38, -0.1, 0.98], [0.38, 0.1, 0.98], [0.3, 0.28, 0.98]], 0.014, 6
    )
    stem = tube([head, head + np.array((0.03, 0, 0.18))], 0.016, 6)
    saddle = blob((0.26, 0.15, 0.07), generator, 0.1).moved((-0.26, 0, 0.88))
    whole = merge(
        [wheel.moved((rear[0], 0, 0)), wheel.moved((front[0], 0, 0)), *bars, grip, stem, saddle]
    )
    return whole.moved((0, 0, 0.01), 0, generator.normal(0, 0.08))


def fire_extinguisher(generator: Generator) -> Mesh:
    """Make a fire extinguisher with its hose."""
    h = generator.uniform(0.4, 0.55)
    hose = tube([[0.03, 0.0, h], [0.1, 0.02, h - 0.05], [0.1, 0.02, 0.3 * h]], 0.01, 6)
    return merge(
        [lathe([0, 0.075, 0.075, 0.03, 0.03, 0], np.array([0, 0, 0.8, 0.9, 1, 1]) * h), hose]
    )


LARGE_FURNITURE: tuple[Maker, ...] = (
    table, table, chair, chair, shelf, shelf, sofa, floor_lamp, plant, cabinet
)  # fmt: skip
WALL_FURNITURE: tuple[Maker, ...] = (shelf, sofa, cabinet, table, plant, curtain, floor_lamp)
