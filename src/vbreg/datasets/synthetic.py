"""Pairs are made here from simulated rooms: nothing to download, and a truth without error."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from vbreg import geometry, metrics
from vbreg.datasets.pairs import Pair, PairEntry, PairSequence
from vbreg.errors import VBRegError
from vbreg.simulator import (
    DepthCamera,
    make_room,
    random_trajectory,
    sample_surface,
    scan_scene,
)
from vbreg.simulator.rooms import check_room_kind
from vbreg.types import Float64

OVERLAP_RADIUS = 0.05  # metres within which a point counts as seen by both scans
MAX_ROOMS = 10  # tried for one pair
MAX_SCANS = 12  # tried in one room
MIN_POINTS = 4000  # of a scan: fewer show too little of the room


def synthetic(
    count: int = 100,
    seed: int = 0,
    min_overlap: float = 0.3,
    max_overlap: float = 1.0,
    room: str = "living_room",
) -> PairSequence:
    """Return `count` pairs, each of a simulated room that a depth camera scans twice.

    A pair is made when it is asked for, in some seconds, from its own seed: pair k is the same
    whatever the count. An overlap of 0.1 to 0.3 is that of 3DLoMatch. `room` is one of
    `vbreg.simulator.ROOM_KINDS`.
    """
    if count < 0 or not 0 <= min_overlap < max_overlap <= 1:
        raise VBRegError(
            f"{count} pairs of {min_overlap} to {max_overlap} overlap: expected 0 or more pairs, "
            "and two rising shares of 0 to 1"
        )
    check_room_kind(room)  # now, and not when the first pair is asked for
    make = partial(_make_pair, seed=seed, kind=room, overlap=(min_overlap, max_overlap))
    scenes = (f"{room}-{seed}-{k}" for k in range(count))
    return PairSequence(
        PairEntry(f"{scene}/0-1", scene, partial(make, k)) for k, scene in enumerate(scenes)
    )


def scan_pair(
    kind: str,
    generator: np.random.Generator,
    noise: torch.Generator,
    *,
    overlap: tuple[float, float],
    points: tuple[int, int] = (MIN_POINTS, 1 << 30),
    tries: int = MAX_SCANS,
    frames: int = 50,
) -> tuple[Tensor, Tensor, Tensor, float] | None:
    """Scan a new room until two scans suit: return source, target, T_target_source and overlap.

    A scan suits with between `points` points. None means that no two of `tries` scans did.
    """
    scene = sample_surface(make_room(kind, generator), generator)
    focus = np.median(scene.coarse, axis=0)  # about the middle of the room, so that scans overlap
    trajectory: Float64 | None = None
    scans: list[tuple[Tensor, Tensor]] = []
    for _ in range(tries):
        trajectory = random_trajectory(scene, generator, focus, trajectory, frames)
        target, T_world_target = scan_scene(scene, trajectory, DepthCamera(), noise)
        if not points[0] < len(target) < points[1]:
            continue
        for source, T_world_source in scans:
            T_target_source = geometry.inverse(T_world_target) @ T_world_source
            shared = metrics.overlap(source, target, T_target_source, OVERLAP_RADIUS)
            if overlap[0] < shared < overlap[1]:
                return source, target, T_target_source, shared
        scans.append((target, T_world_target))
    return None


def _make_pair(k: int, seed: int, kind: str, overlap: tuple[float, float]) -> Pair:
    """Make pair `k`: the first of some rooms in which two scans overlap as asked."""
    scene = f"{kind}-{seed}-{k}"
    for number in range(MAX_ROOMS):
        generator = np.random.default_rng([seed, k, number])
        noise = torch.Generator().manual_seed(int(generator.integers(1 << 62)))
        try:
            found = scan_pair(kind, generator, noise, overlap=overlap, frames=30)
        except VBRegError:  # a room without a place to stand
            continue
        if found is not None:
            source, target, T, shared = found
            T_source_scan = _random_frame(noise)
            moved = geometry.apply(T_source_scan, source).numpy()
            T = T @ geometry.inverse(T_source_scan)
            return Pair(f"{scene}/0-1", moved, target.numpy(), T.numpy(), shared, scene, (0, 1))
    raise VBRegError(
        f"no two scans of {MAX_ROOMS} rooms overlap by {overlap}; ask for a wider range"
    )


def _random_frame(generator: torch.Generator) -> Tensor:
    """Draw a pose (4, 4), since the camera hardly turns between scans and nobody may profit."""
    R = geometry.random_rotation(generator=generator, dtype=torch.float64)
    t = torch.randn(3, generator=generator, dtype=torch.float64)
    return geometry.from_rotation_translation(R, t)
