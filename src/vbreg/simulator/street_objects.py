"""What stands and moves along a street is made here: plants, houses, vehicles, people.

Objects are made with x along the road and y away from it, on z = 0. A part is a surface with the
height of the waves on it, by its material.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from vbreg.simulator.meshes import Generator, Mesh, blob, box, copies, lathe, merge, sheet, tube
from vbreg.types import Float64

Part = tuple[Mesh, float]  # a surface, and the rms height of the waves on it

# Metres rms of the waves on each material.
ASPHALT, PAVING, METAL, WALL, GRASS, LEAVES = 0.008, 0.012, 0.004, 0.02, 0.05, 0.05


# --- plants ---------------------------------------------------------------------------------------


def leaves(points: Float64, size: float, generator: Generator) -> Mesh:
    """Put a triangle of about `size`, turned anyhow, at each of the points (N, 3)."""
    corners = points[:, None] + generator.normal(0, size / 2, (len(points), 3, 3))
    return Mesh(corners.reshape(-1, 3), np.arange(3 * len(points)).reshape(-1, 3))


def foliage(size: ArrayLike, generator: Generator, density: float = 80.0) -> Mesh:
    """Make leaves in lumps that fill an ellipsoid of the given extent, resting on z = 0."""
    half = np.asarray(size) / 2
    lumps = _points_in_ball(0.65, int(generator.integers(4, 10)), generator)
    count = int(np.clip(density * half.prod() ** (2 / 3), 24, 1200))
    around = _points_in_ball(0.6, count, generator)
    points = (lumps[generator.integers(len(lumps), size=count)] + around) * half
    points[:, 2] = np.maximum(points[:, 2] + half[2], 0.05)
    return leaves(points, generator.uniform(0.18, 0.32), generator)


def _points_in_ball(radius: float, count: int, generator: Generator) -> Float64:
    """Draw points (count, 3) in a ball, denser than even towards its centre."""
    direction = generator.normal(size=(count, 3))
    distance = radius * generator.random((count, 1)) ** 0.4
    return distance * direction / np.linalg.norm(direction, axis=-1, keepdims=True)


def bush(generator: Generator) -> list[Part]:
    """Make a bush of any size."""
    wide, high = generator.uniform((0.6, 0.5), (3.6, 3.2)) * generator.choice([0.6, 1.0])
    return [(foliage((wide, wide * generator.uniform(0.7, 1.4), high), generator), LEAVES)]


def tree(generator: Generator) -> list[Part]:
    """Make a trunk under a crown."""
    bole, radius = generator.uniform(0.8, 3.0), generator.uniform(0.08, 0.3)
    crown = generator.uniform((2.0, 2.0, 2.5), (6.0, 6.0, 7.0))
    lean = generator.normal(0, 0.15, 2)
    trunk = tube([(0, 0, -0.5), (0.3 * lean[0], 0.3 * lean[1], bole), (*lean, bole + 2)], radius)
    return [(trunk, WALL), (foliage(crown, generator).moved((*lean, bole)), LEAVES)]


def thicket(length: float, generator: Generator) -> list[Part]:
    """Make bushes grown into each other, some metres deep."""
    deep, high, gap = generator.uniform((0.5, 1.2, 0.9), (5.0, 4.0, 1.8))
    places = [
        (x, generator.uniform(0, deep), 0, generator.uniform(0, 6))
        for x in np.arange(-length / 2, length / 2, gap / (0.5 + deep / 3))
    ]
    some = [foliage(generator.uniform(0.6, 1.2, 3) * (2.2, 2.2, high), generator) for _ in range(4)]
    return [(merge([some[generator.integers(4)].moved(p[:3], p[3]) for p in places]), LEAVES)]


def hedge(length: float, generator: Generator) -> list[Part]:
    """Make a clipped hedge with leaves that stick out."""
    deep, high = generator.uniform((0.4, 0.8), (1.2, 2.2))
    core = box((length, deep, high + 0.4), (0, 0, -0.4), "z")
    half = np.array([length / 2, deep / 2, high / 2])
    spots = generator.uniform(-half, half, (int(9 * length * high), 3))
    spots[:, 2] += high / 2
    beside = generator.random(len(spots)) < 0.6  # the others on top
    out = generator.exponential(0.1, len(spots))
    spots[:, 1] = np.where(beside, np.sign(spots[:, 1]) * (deep / 2 + out), spots[:, 1])
    spots[:, 2] = np.where(beside, spots[:, 2], high + out)
    return [(core, 1.6 * LEAVES), (leaves(spots, 0.2, generator), LEAVES)]


# --- houses and what stands before them -----------------------------------------------------------


def _facade(width: float, levels: int, generator: Generator) -> tuple[Mesh, float]:
    """Make a front along x, the same bay again and again, its face at y = 0; return its depth."""
    g = generator
    bays = max(1, round(width / g.uniform(2.0, 4.2)))
    pitch = width / bays
    thick = g.uniform(0.2, 0.4) if g.random() < 0.85 else g.uniform(0.8, 1.8)
    gap = pitch * g.uniform(0.3, 0.65)  # of a window
    sill, top, storey = g.uniform((0.6, 2.0, 2.7), (1.2, 2.5, 3.2))
    recess = thick * g.uniform(0.4, 0.95)
    sills, balconies, ribs = g.random(3) < (0.6, 0.3, 0.3)
    doors = g.integers(bays, size=1 + bays // 4)
    middles = (np.arange(bays) + 0.5) * pitch - width / 2
    pier = box((pitch - gap, thick, storey * levels + 1), (-pitch / 2, thick / 2, -1), "zY")
    parts = [pier.moved((x, 0, 0)) for x in (*middles, width / 2 + pitch / 2)]
    for level in range(min(levels, 2)):  # the rays do not reach higher
        z, root = level * storey, 1 - level
        for bay, x in enumerate(middles):
            door = level == 0 and bay in doors
            low, high = (0.1, top + 0.1) if door else (sill, top)
            parts += [
                box((gap, thick, low + root), (x, thick / 2, z - root), "xXY"),
                box((gap, thick, storey - high), (x, thick / 2, z + high), "xXY"),
                box((gap, 0.02, high - low), (x, recess, z + low), "xXzZY"),
            ]
            if door:
                w, d, h = g.uniform((0.9, 0.3, 0.1), (2.0, 1.2, 0.5))
                parts.append(box((w, d, h + 0.5), (x, -d / 2, -0.5), "z"))
                if g.random() < 0.4:
                    parts.append(box((gap + 0.5, 1.0, 0.12), (x, -0.5, high + 0.1)))
            elif sills:
                parts.append(box((gap + 0.2, 0.3, 0.1), (x, 0, z + low - 0.1), "Y"))
            if balconies and level == 1:
                parts.append(box((gap + 0.8, 1.1, 0.15), (x, -0.55, z)))
                parts.append(box((gap + 0.8, 0.05, 1.0), (x, -1.1, z)))
            if ribs:
                parts.append(box((0.15, 0.15, storey), (x - pitch / 2, 0, z), "zZ"))
    parts.append(box((width, 0.1, 0.25), (0, 0, storey - 0.2), "Y"))
    if levels > 2:
        parts.append(box((width, thick, storey * (levels - 2)), (0, thick / 2, 2 * storey), "zY"))
    return merge(parts), thick


def house(width: float, levels: int, generator: Generator) -> list[Part]:
    """Make a house with windows and doors, a roof, and what leans at its front."""
    g = generator
    front, thick = _facade(width, levels, g)
    deep, high = g.uniform(7, 13), 3.0 * levels
    roof = [(0, high), (thick + deep / 2, high + g.uniform(1.5, 4.0)), (thick + deep, high)]
    gables = np.array([[(x, *yz) for yz in roof] for x in (-width / 2, width / 2)])
    body = box((width, deep, high + 1), (0, thick + deep / 2, -1), "z")
    parts = [front, body, sheet(gables)]
    for _ in range(g.poisson(width / 6)):  # pipes, cabinets, planters, bays
        w, d, h = g.uniform((0.1, 0.1, 0.4), (1.4, 0.7, 2.6)) * g.choice([0.4, 1.0])
        parts.append(box((w, d, h + 0.5), (g.uniform(-0.5, 0.5) * width, -d / 2, -0.5), "z"))
    if g.random() < 0.35:  # a porch, a garage, a wing
        w, d, h = g.uniform((2.0, 1.0, 2.3), (4.0, 4.0, 3.2))
        parts.append(box((w, d, h + 1), (g.uniform(-0.4, 0.4) * (width - w), -d / 2, -1), "zY"))
    return [(merge(parts), WALL)]


def fence(length: float, generator: Generator) -> list[Part]:
    """Make a fence of posts and rails."""
    high, gap, rail = generator.uniform((0.8, 1.2, 0.06), (1.6, 2.6, 0.18))
    parts = [box((0.09, 0.09, high + 0.5), (x, 0, -0.5), "z") for x in _post_positions(gap, length)]
    levels = np.linspace(0.2, high - 0.1, generator.integers(2, 5))
    return [(merge([*parts, *(box((length, 0.04, rail), (0, 0, z)) for z in levels)]), METAL)]


def garden_wall(length: float, generator: Generator) -> list[Part]:
    """Make a low wall with pillars."""
    high, thick, gap = generator.uniform((0.4, 0.15, 2.0), (2.0, 0.4, 5.0))
    pillars = [
        box((0.45, 0.45, high + 0.8), (x, 0, -0.6), "z") for x in _post_positions(gap, length)
    ]
    return [(merge([box((length, thick, high + 0.6), (0, 0, -0.6), "z"), *pillars]), WALL)]


def guard_rail(length: float, generator: Generator) -> list[Part]:
    """Make a guard rail on posts."""
    posts = [box((0.1, 0.12, 1.1), (x, 0.1, -0.4), "z") for x in _post_positions(2.5, length)]
    return [(merge([box((length, 0.08, 0.32), (0, 0, 0.42)), *posts]), METAL)]


def _post_positions(gap: float, length: float) -> Float64:
    """Return where posts stand along x, `gap` apart."""
    return np.arange(-length / 2, length / 2, gap)


# --- on the pavement ------------------------------------------------------------------------------


def _street_lamp(generator: Generator) -> Mesh:
    """Make a lamp post whose arm reaches over the road."""
    high, arm = generator.uniform((4, 0.3), (8, 1.8))
    foot = lathe([0.12, 0.12, 0.07, 0.05], [-0.3, 0.9, 1.0, high], 8)
    return merge([foot, tube([(0, 0, high), (0, -arm, high + 0.2)], 0.05)])


def _sign(generator: Generator) -> Mesh:
    """Make a road sign on its pole."""
    high, wide, tall = generator.uniform((1.8, 0.4, 0.4), (3.0, 1.2, 1.0))
    pole = lathe([0.04, 0.04], [-0.3, high + tall], 8)
    return merge([pole, box((0.03, wide, tall), (0, 0, high))])


def _bins(generator: Generator) -> Mesh:
    """Make one to four dustbins side by side."""
    size = generator.uniform((0.45, 0.5, 0.9), (1.3, 0.9, 1.3))
    spots = [(1.1 * size[0] * k, 0, 0, generator.normal(0, 0.1)) for k in range(4)]
    return copies(box(size, skip="z"), spots[: generator.integers(1, 5)])


def _bollards(generator: Generator) -> Mesh:
    """Make a row of two to five bollards."""
    post = lathe([0.1, 0.1, 0], [-0.2, generator.uniform(0.6, 1.1), 1.1], 8)
    return copies(post, [(k * 1.5, 0, 0, 0) for k in range(generator.integers(2, 6))])


def _bench(generator: Generator) -> Mesh:
    """Make a bench with a back."""
    legs = [box((0.1, 0.4, 0.42), (x, 0, 0)) for x in (-0.7, 0.7)]
    back = box((1.7, 0.06, 0.4), (0, 0.25, 0.5))
    return merge([*legs, back, box((1.7, 0.45, 0.08), (0, 0, 0.42))])


def _shelter(generator: Generator) -> Mesh:
    """Make the shelter of a bus stop with its bench."""
    w = generator.uniform(2.5, 4.5)
    glass = [box((w, 0.05, 2.2), (0, 0.7, 0.1)), box((0.05, 1.2, 2.2), (w / 2, 0, 0.1))]
    return merge([*glass, box((w, 1.5, 0.1), (0, 0, 2.3)), _bench(generator).moved((0, 0.4, 0))])


def _cabinet(generator: Generator) -> Mesh:
    """Make a cabinet of the kind that holds switches."""
    return box(generator.uniform((0.5, 0.3, 0.7), (1.6, 0.6, 1.5)), (0, 0, -0.05), "z")


PAVEMENT_OBJECTS = (
    _street_lamp,
    _street_lamp,
    _sign,
    _sign,
    _bins,
    _bollards,
    _bench,
    _shelter,
    _cabinet,
)


# --- what drives and walks ------------------------------------------------------------------------

# Saloon, hatchback and van: length, width, height, and the outline of the side from front to back,
# x in lengths and z in heights.
_CARS = (
    ((4.5, 1.78, 1.45),
     ((0.5, 0.15), (0.5, 0.45), (0.46, 0.55), (0.22, 0.64), (0.06, 0.97), (-0.2, 1.0), (-0.4, 0.7),
      (-0.5, 0.66), (-0.5, 0.15))),
    ((4.0, 1.72, 1.5),
     ((0.5, 0.15), (0.5, 0.42), (0.45, 0.52), (0.26, 0.6), (0.1, 0.96), (-0.36, 1.0), (-0.46, 0.62),
      (-0.5, 0.5), (-0.5, 0.15))),
    ((5.2, 1.95, 2.2),
     ((0.5, 0.12), (0.49, 0.4), (0.38, 0.52), (0.26, 0.95), (0.2, 1.0), (-0.49, 1.0),
      (-0.5, 0.12))),
)  # fmt: skip


def car(generator: Generator) -> Mesh:
    """Make a saloon, hatchback or van along x, its wheels on z = 0."""
    size, outline = _CARS[generator.choice(3, p=[0.4, 0.45, 0.15])]
    length, width, high = np.array(size) * generator.uniform(0.93, 1.07, 3)
    x, z = (np.array(outline) * (length, high)).T
    half = np.where(z > 0.62 * high, 0.43, 0.5) * width  # the cabin narrows upwards
    right, left = (np.stack([x, side * half, z], -1) for side in (-1, 1))  # (P, 3)
    hub = np.array([0, width / 2, high / 2])
    flanks = [
        sheet(np.stack([rim, np.broadcast_to(middle, rim.shape)]))
        for rim, middle in ((right, hub * (1, -1, 1)), (left, hub))
    ]
    wheel = lathe([0, 0.31, 0.31, 0], [-0.1, -0.1, 0.1, 0.1], 12).moved((0, 0, 0), 0, np.pi / 2)
    spots = [(sx * 0.31 * length, sy * 0.42 * width, 0.31, 0) for sx in (-1, 1) for sy in (-1, 1)]
    return merge([sheet(np.stack([right, left])), *flanks, copies(wheel, spots)])


def pedestrian(generator: Generator) -> Mesh:
    """Make a person who walks along x."""
    high = generator.uniform(1.5, 1.9)
    stride = generator.uniform(0.05, 0.25)
    legs = [tube([(x, y, 0), (0, 0, high / 2)], 0.09) for x, y in ((stride, 0.1), (-stride, -0.1))]
    trunk = blob((0.32, 0.5, 0.4 * high), generator, 0.1).moved((0, 0, 0.45 * high))
    return merge([*legs, trunk, blob((0.22, 0.2, 0.25), generator, 0.1).moved((0, 0, 0.86 * high))])


def cyclist(generator: Generator) -> Mesh:
    """Make a person on a bicycle along x."""
    wheel = lathe([0.33, 0.36, 0.36, 0.33], [-0.02, -0.02, 0.02, 0.02], 12)
    wheels = [wheel.moved((x, 0, 0.35), 0, np.pi / 2) for x in (-0.52, 0.52)]
    bike = tube([(-0.52, 0, 0.35), (0, 0, 0.3), (0.1, 0, 0.6), (0.45, 0, 0.95)], 0.04)
    return merge([*wheels, bike, pedestrian(generator).moved((-0.1, 0, 0.25))])
