"""Triangle meshes, and the shapes that every scene is put together from, are made here.

Lengths are metres and z points up. Everything random follows from the generator passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from vbreg.types import Float64, Int64

Generator = np.random.Generator


@dataclass(frozen=True, eq=False)
class Mesh:
    """This holds triangles; the orientation of a face carries no meaning."""

    vertices: Float64  # (V, 3)
    faces: Int64  # (F, 3)

    def moved(self, shift: ArrayLike, yaw: float = 0.0, tilt: float = 0.0) -> Mesh:
        """Return the mesh tilted about x, turned about z, then shifted."""
        c, s, ct, st = np.cos(yaw), np.sin(yaw), np.cos(tilt), np.sin(tilt)
        turn = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]])
        lean = np.array([[1, 0, 0], [0, ct, -st], [0, st, ct]])
        return Mesh(self.vertices @ (turn @ lean).T + np.asarray(shift), self.faces)

    def triangles(self) -> Tensor:
        """Return the corners (F, 3, 3) of all faces, float32."""
        return torch.from_numpy(self.vertices[self.faces].astype(np.float32))


Maker = Callable[[Generator], Mesh]


def make_one_of(makers: Sequence[Maker], generator: Generator) -> Mesh:
    """Draw one of the makers and return what it makes."""
    return makers[int(generator.integers(len(makers)))](generator)


def merge(meshes: Sequence[Mesh]) -> Mesh:
    """Put all triangles of all meshes into one."""
    starts = np.cumsum([0] + [len(m.vertices) for m in meshes[:-1]])
    return Mesh(
        np.concatenate([m.vertices for m in meshes]),
        np.concatenate([m.faces + start for m, start in zip(meshes, starts, strict=True)]),
    )


def copies(mesh: Mesh, places: ArrayLike) -> Mesh:
    """Put the same mesh at every place (P, 4): x, y, z and the turn about z."""
    return merge([mesh.moved(place[:3], place[3]) for place in np.asarray(places)])


def crop(mesh: Mesh, centre: ArrayLike, half: float, edge: float = 1.0) -> Mesh:
    """Keep the faces within `half` of `centre` in x and y, those longer than `edge` cut first."""
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
    """Spread `count` points (S, 3) evenly over the area; return them and unit normals (S, 3)."""
    a, b, c = mesh.vertices[mesh.faces].transpose(1, 0, 2)
    normal = np.cross(b - a, c - a)  # twice the area long
    length = np.linalg.norm(normal, axis=-1)
    ends = np.cumsum(length)
    # One draw per equal slice of the total area: evener than independent draws, and sorted.
    steps = (np.arange(count) + generator.random(count)) / count * length.sum()
    last = np.searchsorted(steps, ends, side="right")
    last[-1] = count
    share = np.diff(last, prepend=0)  # points on each face
    u, v = generator.random((2, count, 1))
    outside = u + v > 1
    np.subtract(1, u, out=u, where=outside)
    np.subtract(1, v, out=v, where=outside)
    points = np.repeat(a, share, axis=0)
    points += u * np.repeat(b - a, share, axis=0)
    points += v * np.repeat(c - a, share, axis=0)
    return points, np.repeat(normal / np.maximum(length, 1e-12)[:, None], share, axis=0)


def area(mesh: Mesh) -> float:
    """Return the area of all faces in square metres."""
    a, b, c = mesh.vertices[mesh.faces].transpose(1, 0, 2)
    return float(np.linalg.norm(np.cross(b - a, c - a), axis=-1).sum() / 2)


def floor_height(mesh: Mesh, generator: Generator) -> float:
    """Return the height at which most of the level area in the lower half lies."""
    points, normals = surface_points(mesh, 20000, generator)
    z = points[np.abs(normals[:, 2]) > 0.95, 2]
    z = z[z < np.median(points[:, 2]) + 0.1]
    counts, edges = np.histogram(z, bins=np.arange(z.min() - 0.05, z.max() + 0.1, 0.05))
    return float(z[np.abs(z - edges[counts.argmax()] - 0.025) < 0.05].mean())


# --- shapes -------------------------------------------------------------------------------------


_CORNERS = np.array([[x, y, z] for x in (-0.5, 0.5) for y in (-0.5, 0.5) for z in (0.0, 1.0)])
_QUADS = [(0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3)]
_TRIANGLES = np.array([((a, b, c), (a, c, d)) for a, b, c, d in _QUADS])  # (6, 2, 3)


def box(size: ArrayLike, base: ArrayLike = (0.0, 0.0, 0.0), skip: str = "") -> Mesh:
    """Make an axis-aligned box whose bottom face is centred on `base`.

    `skip` leaves out faces that nobody sees, named by their axis: x, y, z low and X, Y, Z high.
    """
    faces = _TRIANGLES[[side not in skip for side in "xXyYzZ"]].reshape(-1, 3)
    return Mesh(_CORNERS * np.asarray(size) + np.asarray(base), faces)


def sheet(points: Float64) -> Mesh:
    """Make the surface through a grid of points (U, V, 3)."""
    rows, columns = points.shape[:2]
    index = np.arange(rows * columns).reshape(rows, columns)
    a, b, c, d = index[:-1, :-1], index[1:, :-1], index[1:, 1:], index[:-1, 1:]
    faces = np.concatenate([np.stack(t, -1).reshape(-1, 3) for t in ((a, b, c), (a, c, d))])
    return Mesh(points.reshape(-1, 3), faces)


def lathe(radii: ArrayLike, heights: ArrayLike, segments: int = 24) -> Mesh:
    """Turn a profile about z, which makes cylinders, cones, bottles and lamps."""
    angle = np.linspace(0, 2 * np.pi, segments + 1)[None]
    r, z = np.asarray(radii)[:, None], np.asarray(heights)[:, None]
    return sheet(np.stack([r * np.cos(angle), r * np.sin(angle), z + 0 * angle], axis=-1))


def tube(path: ArrayLike, radius: float, segments: int = 8) -> Mesh:
    """Make a round rod along the points (N, 3), for pipes, cables, handles and legs."""
    points = np.asarray(path, dtype=np.float64)
    forward = np.gradient(points, axis=0)
    level = np.eye(3)[np.abs(forward).max(0).argmin()]  # the axis that the path follows least
    right = np.cross(forward, level)
    right /= np.linalg.norm(right, axis=-1, keepdims=True)
    up = np.cross(right, forward)
    up /= np.linalg.norm(up, axis=-1, keepdims=True)
    angle = np.linspace(0, 2 * np.pi, segments + 1)[:, None]
    ring = np.cos(angle) * right[:, None] + np.sin(angle) * up[:, None]  # (N, segments + 1, 3)
    return sheet(points[:, None] + radius * ring)


def torus(radius: float, thickness: float) -> Mesh:
    """Make a ring of `radius` that lies on z = 0."""
    u, v = np.meshgrid(np.linspace(0, 2 * np.pi, 25), np.linspace(0, 2 * np.pi, 13), indexing="ij")
    r = radius + thickness * np.cos(v)
    return sheet(np.stack([r * np.cos(u), r * np.sin(u), thickness * (1 + np.sin(v))], axis=-1))


def blob(size: ArrayLike, generator: Generator, rough: float = 0.25) -> Mesh:
    """Make an ellipsoid with smooth dents and bulges that rests on z = 0."""
    u, v = np.meshgrid(np.linspace(0, 2 * np.pi, 25), np.linspace(0, np.pi, 13), indexing="ij")
    unit = np.stack([np.cos(u) * np.sin(v), np.sin(u) * np.sin(v), np.cos(v)], axis=-1)
    waves = generator.normal(size=(6, 3)) * generator.uniform(1.5, 4.5, (6, 1))
    phase = generator.uniform(0, 2 * np.pi, 6)
    swell = 1 + rough * np.sin(unit @ waves.T + phase).mean(-1, keepdims=True) * 1.5
    points = unit * swell * np.asarray(size) / 2
    return sheet(points - [0, 0, points[..., 2].min()])


def arc(width: float, height: float, points: int = 9) -> Float64:
    """Return half an ellipse (points, 3) that stands on the x axis, for handles and straps."""
    angle = np.linspace(0, np.pi, points)
    return np.stack([np.cos(angle) * width / 2, 0 * angle, np.sin(angle) * height], axis=-1)


def smooth_noise(x: Float64, y: Float64, generator: Generator, length: float) -> Float64:
    """Draw a smooth field over x and y of unit variance, its waves some `length` metres long."""
    turn, rate = generator.uniform((0, 0.5), (2 * np.pi, 1.5), (8, 2)).T
    phase = 2 * np.pi / length * rate * (x[..., None] * np.cos(turn) + y[..., None] * np.sin(turn))
    return 0.5 * np.sin(phase + generator.uniform(0, 2 * np.pi, 8)).sum(-1)
