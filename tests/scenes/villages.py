"""Scans of made-up places, small enough to be registered in a test."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from vbreg.motions import exponential
from vbreg.simulator.meshes import box, merge, surface_points
from vbreg.types import Float64

VOXEL_SIZE = 0.12


class Village(NamedTuple):
    """Overlapping scans of one place, the last one of another place, and the true poses."""

    scans: list[Float64]  # (N, 3) each, in frames of their own
    T_world_scan: Float64  # (K, 4, 4)


def make_village() -> Village:
    """Return four scans along a street of boxes, and one of another street."""
    rng = np.random.default_rng(0)
    here, elsewhere = _street(rng), _street(np.random.default_rng(1))
    parts = [_scan(here, x, rng) for x in (-2.1, -0.7, 0.7, 2.1)] + [_scan(elsewhere, 0.0, rng)]
    return Village([points for points, _ in parts], np.stack([T for _, T in parts]))


def _street(rng: np.random.Generator) -> Float64:
    boxes = [box((9.0, 5.0, 0.1), (0, 0, -0.1))]
    for _ in range(45):
        size = tuple(rng.uniform(0.2, 0.9, 3))
        boxes.append(box(size, (rng.uniform(-4.2, 4.2), rng.uniform(-2.2, 2.2), 0.0)))
    return surface_points(merge(boxes), 40_000, rng)[0]


def _scan(points: Float64, x: float, rng: np.random.Generator) -> tuple[Float64, Float64]:
    own = points[(np.abs(points[:, 0] - x) < 2.2) & (rng.random(len(points)) < 0.7)]
    own = own + rng.normal(0, 0.004, own.shape)
    T = exponential(np.concatenate([rng.normal(size=3), rng.uniform(-5, 5, 3)]))
    return (own - T[:3, 3]) @ T[:3, :3], T
