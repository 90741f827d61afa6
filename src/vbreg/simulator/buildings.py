"""Rooms in a row are joined to a building here, by passages that one can look and walk through."""

from __future__ import annotations

import numpy as np

from vbreg.simulator.meshes import Generator, Mesh, box, merge
from vbreg.simulator.rooms import ROOM_KINDS, make_room
from vbreg.types import Float64

MAX_EDGE_AT_A_CUT = 0.15  # triangles are cut as small as this where a passage is made
TRIM = 0.16  # width of the frame that hides the ragged edge of a cut
MARGIN = 0.35  # before and behind a passage nothing stands in the way
JOINABLE = tuple(kind for kind in ROOM_KINDS if kind != "staircase")


def cut_out(mesh: Mesh, low: Float64, high: Float64) -> Mesh:
    """Take away what lies in the box from `low` to `high` (3,), true to `MAX_EDGE_AT_A_CUT`."""
    triangles = mesh.vertices[mesh.faces]  # (F, 3, 3)
    touches = ((triangles.max(1) > low) & (triangles.min(1) < high)).all(-1)
    kept, work = [triangles[~touches]], triangles[touches]
    while len(work):
        touches = ((work.max(1) > low) & (work.min(1) < high)).all(-1)
        kept.append(work[~touches])
        work = work[touches]
        sides = np.linalg.norm(work - np.roll(work, 1, axis=1), axis=-1)  # (F, 3): k to k - 1
        short = sides.max(-1) < MAX_EDGE_AT_A_CUT
        middle = work[short].mean(1)
        inside = ((middle > low) & (middle < high)).all(-1)
        kept.append(work[short][~inside])
        work, longest = work[~short], sides[~short].argmax(-1)
        rows = np.arange(len(work))
        a, b, c = (work[rows, (longest + k) % 3] for k in (0, 1, 2))  # the longest is a to c
        half = (a + c) / 2
        work = np.concatenate([np.stack([a, b, half], 1), np.stack([half, b, c], 1)])
    vertices = np.concatenate(kept).reshape(-1, 3)
    return Mesh(vertices, np.arange(len(vertices)).reshape(-1, 3))


def make_building(generator: Generator, rooms: int = 3) -> Mesh:
    """Make a row of `rooms` rooms of random kinds along x, each open to the next."""
    parts: list[Mesh] = []
    passages: list[tuple[float, float, float, float, float]] = []  # x0, x1, y, width, top
    start, last = 0.0, (0.0, 0.0)
    for k in range(rooms):
        mesh = make_room(JOINABLE[generator.integers(len(JOINABLE))], generator)
        low, high = _inner_walls(mesh)
        if k:
            # The rooms overlap in y by as much as the narrower is deep, or shifted by a part.
            depth = min(last[1] - last[0], high[1] - low[1])
            shift = last[0] - low[1] + generator.uniform(-0.3, 0.3) * depth
            gap = generator.uniform(0.35, 0.5)  # niches of both walls have room in between
            move = np.array([start + gap - low[0], shift])
            mesh = mesh.moved((*move, 0))
            south = max(last[0], low[1] + shift) + TRIM
            north = min(last[1], high[1] + shift) - TRIM
            width = min(generator.uniform(0.9, 3.0), north - south)
            spare = max(0.0, north - south - width)
            y = (south + north + generator.uniform(-1, 1) * spare) / 2
            passages.append((start, start + gap, y, width, generator.uniform(2.0, 2.3)))
            low, high = low + move, high + move
        parts.append(mesh)
        start, last = float(high[0]), (float(low[1]), float(high[1]))
    building = merge(parts)
    for x0, x1, y, width, top in passages:
        building = merge([_open(building, x0, x1, y, width, top), _lining(x0, x1, y, width, top)])
    return building


def _inner_walls(mesh: Mesh) -> tuple[Float64, Float64]:
    """Return least and greatest x and y (2,) of the largest level face, half a floor or ceiling."""
    triangles = mesh.vertices[mesh.faces]
    a, b, c = triangles.transpose(1, 0, 2)
    size = np.abs(np.cross(b - a, c - a)[:, 2]) * (np.ptp(triangles[..., 2], axis=1) < 1e-6)
    largest = triangles[size.argmax()]
    return largest[:, :2].min(0), largest[:, :2].max(0)


def _open(mesh: Mesh, x0: float, x1: float, y: float, width: float, top: float) -> Mesh:
    """Cut a passage through both walls, and what stands before it."""
    low = np.array([x0 - MARGIN, y - width / 2, 0.02])
    return cut_out(mesh, low, np.array([x1 + MARGIN, y + width / 2, top]))


def _lining(x0: float, x1: float, y: float, width: float, top: float) -> Mesh:
    """Make floor, sides and lintel of a passage, and frames that hide where the walls were cut."""
    deep, x = x1 - x0 + 0.04, (x0 + x1) / 2
    reveal = box((deep, width, top), (x, y, 0.0), skip="xX")
    frames = []
    for wall in (x0 - 0.02, x1 + 0.02):
        for side in (-1, 1):
            middle = y + side * (width + TRIM) / 2
            frames.append(box((0.05, TRIM, top + TRIM), (wall, middle, 0), "z"))
        frames.append(box((0.05, width, TRIM), (wall, y, top)))
    return merge([reveal, *frames])
