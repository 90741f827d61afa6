"""Triangle meshes to scan: furnished rooms made from nothing, and clutter for meshes that lack it.

Metres, z up, furniture stands on z = 0. Everything follows from the generator that is passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from vbreg.types import Float64, Int64

Generator = np.random.Generator


@dataclass(frozen=True, eq=False)
class Mesh:
    """Triangles; the faces' orientation carries no meaning."""

    vertices: Float64  # (V, 3)
    faces: Int64  # (F, 3)

    def moved(self, shift: ArrayLike, yaw: float = 0.0, tilt: float = 0.0) -> Mesh:
        """Tilted about x, turned about z, then shifted."""
        c, s, ct, st = np.cos(yaw), np.sin(yaw), np.cos(tilt), np.sin(tilt)
        turn = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]])
        lean = np.array([[1, 0, 0], [0, ct, -st], [0, st, ct]])
        return Mesh(self.vertices @ (turn @ lean).T + np.asarray(shift), self.faces)


def merge(meshes: Sequence[Mesh]) -> Mesh:
    """All triangles of all meshes."""
    starts = np.cumsum([0] + [len(m.vertices) for m in meshes[:-1]])
    return Mesh(
        np.concatenate([m.vertices for m in meshes]),
        np.concatenate([m.faces + start for m, start in zip(meshes, starts, strict=True)]),
    )


def crop(mesh: Mesh, centre: ArrayLike, half: float, edge: float = 1.0) -> Mesh:
    """The faces within `half` of `centre` in x and y; long faces are cut to about `edge` first."""
    triangles = mesh.vertices[mesh.faces]  # (F, 3, 3)
    kept = []
    while len(triangles):
        offset = triangles[..., :2] - np.asarray(centre)[:2]
        touches = (offset.min(1) < half).all(-1) & (offset.max(1) > -half).all(-1)
        triangles = triangles[touches]
        sides = np.linalg.norm(triangles - np.roll(triangles, 1, axis=1), axis=-1)
        long = sides.max(-1) > edge
        kept.append(triangles[~long])
        a, b, c = triangles[long].transpose(1, 0, 2)
        ab, bc, ca = (a + b) / 2, (b + c) / 2, (c + a) / 2
        quarters = [(a, ab, ca), (ab, b, bc), (ca, bc, c), (ab, bc, ca)]
        triangles = np.concatenate([np.stack(q, axis=1) for q in quarters])
    vertices = np.concatenate(kept).reshape(-1, 3)
    return Mesh(vertices, np.arange(len(vertices)).reshape(-1, 3))


def surface_points(mesh: Mesh, count: int, generator: Generator) -> tuple[Float64, Float64]:
    """`count` points (S, 3) spread evenly over the area, and their unit normals (S, 3)."""
    a, b, c = mesh.vertices[mesh.faces].transpose(1, 0, 2)
    normal = np.cross(b - a, c - a)  # twice the area long
    length = np.linalg.norm(normal, axis=-1)
    # One draw per equal slice of the total area: evener than independent draws.
    steps = (np.arange(count) + generator.random(count)) / count * length.sum()
    face = np.minimum(np.searchsorted(np.cumsum(length), steps), len(length) - 1)
    u, v = generator.random((2, count, 1))
    u, v = np.where(u + v > 1, 1 - u, u), np.where(u + v > 1, 1 - v, v)
    points = a[face] + u * (b - a)[face] + v * (c - a)[face]
    return points, normal[face] / np.maximum(length[face], 1e-12)[:, None]


def area(mesh: Mesh) -> float:
    a, b, c = mesh.vertices[mesh.faces].transpose(1, 0, 2)
    return float(np.linalg.norm(np.cross(b - a, c - a), axis=-1).sum() / 2)


# --- shapes -------------------------------------------------------------------------------------


def box(size: ArrayLike, base: ArrayLike = (0.0, 0.0, 0.0)) -> Mesh:
    """An axis-aligned box whose bottom face is centred on `base`."""
    corners = np.array([[x, y, z] for x in (-0.5, 0.5) for y in (-0.5, 0.5) for z in (0.0, 1.0)])
    quads = [(0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3)]
    faces = [t for a, b, c, d in quads for t in ((a, b, c), (a, c, d))]
    return Mesh(corners * np.asarray(size) + np.asarray(base), np.array(faces))


def sheet(points: Float64) -> Mesh:
    """The surface through a grid of points (U, V, 3)."""
    rows, columns = points.shape[:2]
    index = np.arange(rows * columns).reshape(rows, columns)
    a, b, c, d = index[:-1, :-1], index[1:, :-1], index[1:, 1:], index[:-1, 1:]
    faces = np.concatenate([np.stack(t, -1).reshape(-1, 3) for t in ((a, b, c), (a, c, d))])
    return Mesh(points.reshape(-1, 3), faces)


def lathe(radii: ArrayLike, heights: ArrayLike, segments: int = 24) -> Mesh:
    """A profile turned about z: cylinders, cones, bottles, lamps."""
    angle = np.linspace(0, 2 * np.pi, segments + 1)[None]
    r, z = np.asarray(radii)[:, None], np.asarray(heights)[:, None]
    return sheet(np.stack([r * np.cos(angle), r * np.sin(angle), z + 0 * angle], axis=-1))


def torus(radius: float, thickness: float) -> Mesh:
    u, v = np.meshgrid(np.linspace(0, 2 * np.pi, 25), np.linspace(0, 2 * np.pi, 13), indexing="ij")
    r = radius + thickness * np.cos(v)
    return sheet(np.stack([r * np.cos(u), r * np.sin(u), thickness * (1 + np.sin(v))], axis=-1))


def blob(size: ArrayLike, generator: Generator, rough: float = 0.25) -> Mesh:
    """An ellipsoid of the given extent with smooth dents and bulges, resting on z = 0."""
    u, v = np.meshgrid(np.linspace(0, 2 * np.pi, 25), np.linspace(0, np.pi, 13), indexing="ij")
    unit = np.stack([np.cos(u) * np.sin(v), np.sin(u) * np.sin(v), np.cos(v)], axis=-1)
    waves = generator.normal(size=(6, 3)) * generator.uniform(1.5, 4.5, (6, 1))
    phase = generator.uniform(0, 2 * np.pi, 6)
    swell = 1 + rough * np.sin(unit @ waves.T + phase).mean(-1, keepdims=True) * 1.5
    points = unit * swell * np.asarray(size) / 2
    return sheet(points - [0, 0, points[..., 2].min()])


# --- furniture and small things, each centred on the origin --------------------------------------


def _books(generator: Generator) -> Mesh:
    z, parts = 0.0, []
    for _ in range(generator.integers(2, 9)):
        size = generator.uniform((0.12, 0.15, 0.01), (0.24, 0.32, 0.05))
        parts.append(box(size).moved((*generator.normal(0, 0.015, 2), z), generator.normal(0, 0.3)))
        z += size[2]
    return merge(parts)


def _vessel(generator: Generator) -> Mesh:
    height, radius = generator.uniform(0.06, 0.55), generator.uniform(0.03, 0.22)
    profile = radius * generator.uniform(0.45, 1.0, 5)
    return lathe([0, *profile, 0], np.array([0, 0, 0.25, 0.5, 0.75, 1, 1]) * height)


def _carton(generator: Generator) -> Mesh:
    return box(generator.uniform(0.05, 0.45, 3))


def _thing(generator: Generator) -> Mesh:
    """Two or three shapes grown together: toys, shoes, bags, appliances."""
    parts: list[Mesh] = []
    for _ in range(generator.integers(2, 5)):
        size = generator.uniform(0.05, 0.3, 3)
        part = blob(size, generator, 0.5) if generator.random() < 0.6 else box(size)
        shift = (*generator.normal(0, 0.1, 2), generator.uniform(0, 0.12))
        parts.append(part.moved(shift, generator.uniform(0, np.pi), generator.normal(0, 0.3)))
    return merge(parts)


def _chair(generator: Generator) -> Mesh:
    w, seat, back = generator.uniform((0.38, 0.4, 0.35), (0.55, 0.5, 0.6))
    legs = [box((0.04, 0.04, seat), (x, y, 0)) for x in (-w / 2, w / 2) for y in (-w / 2, w / 2)]
    rest = box((w, 0.05, back), (0, -w / 2, seat)).moved((0, 0, 0), 0, generator.normal(0, 0.04))
    arms = [box((0.05, w, 0.04), (x, 0, seat + 0.22)) for x in (-w / 2, w / 2)]
    parts = [*legs, rest, box((w, w, generator.uniform(0.03, 0.1)), (0, 0, seat))]
    return merge(parts + arms if generator.random() < 0.4 else parts)


def _table(generator: Generator) -> Mesh:
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
    things = [_small(generator) for _ in range(generator.integers(2, 8))]
    spots = generator.uniform((-w / 2, -d / 2), (w / 2, d / 2), (len(things), 2)) * 0.85
    return merge(
        parts + [t.moved((*s, h + 0.04), s[0] * 9) for t, s in zip(things, spots, strict=True)]
    )


def _shelf(generator: Generator) -> Mesh:
    w, d, h = generator.uniform((0.6, 0.25, 0.9), (1.4, 0.4, 2.2))
    parts = [box((0.03, d, h), (x, 0, 0)) for x in (-w / 2, w / 2)] + [
        box((w, 0.02, h), (0, -d / 2, 0))
    ]
    for z in np.arange(0.05, h, generator.uniform(0.28, 0.42)):
        parts.append(box((w, d, 0.025), (0, 0, z)))
        x = 0.03 - w / 2
        while x < w / 2 - 0.06:  # books of all heights, gaps, and other things
            if generator.random() < 0.12:
                thing = _small(generator)
                parts.append(thing.moved((x + 0.08, 0, z + 0.025)))
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


def _sofa(generator: Generator) -> Mesh:
    w, d = generator.uniform((0.8, 0.75), (2.1, 0.95))
    parts = [box((w, d, 0.4)), box((w, 0.22, 0.85), (0, -d / 2, 0))]
    parts += [box((0.2, d, 0.6), (x, 0, 0)) for x in (-w / 2, w / 2)]
    for _ in range(generator.integers(1, 5)):
        cushion = blob(generator.uniform((0.35, 0.12, 0.3), (0.5, 0.2, 0.45)), generator)
        parts.append(cushion.moved((generator.uniform(-w, w) * 0.4, -d / 5, 0.4), 0, 0.3))
    return merge(parts)


def _lamp(generator: Generator) -> Mesh:
    h, r = generator.uniform((1.1, 0.14), (1.7, 0.26))
    return lathe([0, 0.15, 0.15, 0.02, 0.02, r, r * 0.6], [0, 0, 0.03, 0.04, h, h, h + 0.28])


def _plant(generator: Generator) -> Mesh:
    h = generator.uniform(0.3, 1.3)
    parts = [lathe([0, 0.12, 0.17, 0], [0, 0, 0.25, 0.25]), lathe([0.02, 0.02], [0.2, h], 8)]
    for _ in range(generator.integers(8, 20)):
        leaf = blob(generator.uniform((0.05, 0.15, 0.02), (0.16, 0.4, 0.06)), generator)
        shift = (*generator.normal(0, 0.15, 2), h * generator.uniform(0.5, 1.1))
        parts.append(leaf.moved(shift, generator.uniform(0, 6), generator.uniform(-0.9, 0.9)))
    return merge(parts)


def _cabinet(generator: Generator) -> Mesh:
    w, d, h = generator.uniform((0.4, 0.35, 0.5), (1.2, 0.6, 2.0))
    doors = [box((w / 2 - 0.02, 0.02, h - 0.06), (x, d / 2, 0.03)) for x in (-w / 4, w / 4)]
    knobs = [box((0.03, 0.06, 0.12), (x, d / 2, h / 2)) for x in (-0.05, 0.05)]
    top = [_small(generator).moved((generator.uniform(-w, w) * 0.4, 0, h)) for _ in range(3)]
    return merge([box((w, d, h)), *doors, *knobs, *top])


def _curtain(generator: Generator) -> Mesh:
    u, v = np.meshgrid(np.linspace(0, 1, 60), np.linspace(0.05, 2.2, 4), indexing="ij")
    folds = 0.05 * np.sin(u * generator.uniform(20, 45) + np.sin(7 * u)) * (1.2 - v / 3)
    return sheet(np.stack([(u - 0.5) * generator.uniform(0.5, 1.4), folds + 0.08, v], axis=-1))


def _small(generator: Generator) -> Mesh:
    kinds: list[Callable[[Generator], Mesh]] = [_books, _vessel, _carton, _thing, _thing]
    kinds.append(lambda g: torus(g.uniform(0.06, 0.2), g.uniform(0.015, 0.05)))
    kinds.append(lambda g: blob(g.uniform(0.08, 0.4, 3), g, 0.5))
    return kinds[generator.integers(len(kinds))](generator)


LARGE: tuple[Callable[[Generator], Mesh], ...] = (
    _table, _table, _chair, _chair, _shelf, _shelf, _sofa, _lamp, _plant, _cabinet
)  # fmt: skip


# --- whole scenes -------------------------------------------------------------------------------


def floor_height(mesh: Mesh, generator: Generator) -> float:
    """The height that most of the level area in the lower half of the mesh lies at."""
    points, normals = surface_points(mesh, 20000, generator)
    z = points[np.abs(normals[:, 2]) > 0.95, 2]
    z = z[z < np.median(points[:, 2]) + 0.1]
    counts, edges = np.histogram(z, bins=np.arange(z.min() - 0.05, z.max() + 0.1, 0.05))
    return float(z[np.abs(z - edges[counts.argmax()] - 0.025) < 0.05].mean())


def add_clutter(mesh: Mesh, generator: Generator, level: float = 3.0, wall: float = 0.7) -> Mesh:
    """Strew things on floors, tables and boards (`level` per m^2) and hang some on walls."""
    floor = floor_height(mesh, generator)
    points, normals = surface_points(mesh, 40000, generator)
    per_point = area(mesh) / len(points)
    reach = (points[:, 2] > floor - 0.05) & (points[:, 2] < floor + 2.0)
    added = [mesh]
    for p in _pick(points[reach & (np.abs(normals[:, 2]) > 0.95)], level * per_point, generator):
        grown = generator.random() < 0.12 and p[2] < floor + 0.1
        make = LARGE[generator.integers(len(LARGE))] if grown else _small
        added.append(make(generator).moved(p, generator.uniform(0, 2 * np.pi)))
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
            make = (_shelf, _sofa, _cabinet, _table, _plant, _curtain, _lamp)[generator.integers(7)]
            thing = make(generator)
            lo, hi = thing.vertices.min(0), thing.vertices.max(0)
            if x + hi[0] - lo[0] < length - 0.3:
                gap = generator.uniform(0.0, 0.06)
                parts.append(thing.moved((x - lo[0], gap - lo[1], 0)).moved(corner, turn * np.pi))
            x += hi[0] - lo[0] + generator.exponential(0.35)
    for _ in range(generator.integers(2, 6)):  # and some in the middle
        spot = (*generator.uniform((0.28 * w, 0.28 * d), (0.72 * w, 0.72 * d)), 0)
        parts.append(
            LARGE[generator.integers(len(LARGE))](generator).moved(spot, generator.uniform(0, 6))
        )
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
