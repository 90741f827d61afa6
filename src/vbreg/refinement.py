"""Refinement on the clouds: a pose that is right to some voxels becomes exact.

Steps of `alignment` lay the clouds onto each other, in the form that the device has for them.
Lengths are in voxels. Shapes: B pairs of clouds, n source points, M target points, N matches.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vbreg import backends
from vbreg.alignment import Surfaces, weighted_mean
from vbreg.backends.plain import Backend
from vbreg.geometry import apply, rotation_angle
from vbreg.surfaces import SurfacePair

MAX_POINTS = 1500  # of the source that are looked at
REACHES, ROUNDS = (4.0, 2.0), 5  # voxels within which a point has a partner; steps for each
MAX_TURN = math.radians(15.0)  # of a pose that is refined; what turns more was something else
MAX_SHIFT = 8.0  # voxels, of the middle of the source


def with_fewer_points(pair: SurfacePair) -> SurfacePair:
    """Return the pair with as many points of the source as a refinement needs."""
    every = max(1, -(-pair.source.points.shape[1] // MAX_POINTS))
    return pair._replace(source=pair.source.take(slice(None, None, every)))


@torch.no_grad()
def refined(
    pair: SurfacePair,
    T_target_source: Tensor,  # (B, 4, 4) in voxels
    up: Tensor | None = None,  # (3,) in the target: the only axis to turn about, if given
) -> Tensor:
    """Return the poses near these that lay the clouds onto each other, or these.

    A pose stays as it is where the new one fits no better, or is not near at all.
    """
    surfaces = exact_surfaces(pair)
    start = T_target_source.to(surfaces.source)
    (T, better), _ = backends.run(
        lambda backend: _stepped(backend, surfaces, start, up), start.device
    )
    turn = rotation_angle(T[:, :3, :3] @ start[:, :3, :3].mT)
    middle = surfaces.middle.unsqueeze(1)
    shift = (apply(T, middle) - apply(start, middle)).norm(dim=-1).squeeze(1)
    better = better & (turn < MAX_TURN) & (shift < MAX_SHIFT) & T.isfinite().all(-1).all(-1)
    return torch.where(better[:, None, None], T, start).to(T_target_source)


def exact_surfaces(pair: SurfacePair) -> Surfaces:
    """Return a pair as steps look at it, source and matches in float64.

    Neighbours are found in the precision that the target has.
    """
    source, real = pair.source.points.double(), pair.source.real
    return Surfaces(
        source,
        pair.source.normals.double(),
        real,
        weighted_mean(source, real.to(source)),
        pair.target.searchable,
        pair.target.normals,
        pair.matched_source.double(),
        pair.matched_target.double(),
        pair.matched_real,
    )


def _stepped(
    backend: Backend, surfaces: Surfaces, start: Tensor, up: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return poses (B, 4, 4) after all steps, and which of them fit better than before (B,)."""
    T = start
    for reach in REACHES:
        for _ in range(ROUNDS):
            T = backend.aligned(surfaces, T, reach, up)
    before, after = (backend.alignment_gain(surfaces, pose, REACHES[-1]) for pose in (start, T))
    return T, after > before
