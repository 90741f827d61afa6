"""Pairs from rooms that never were: nothing to download, and a ground truth without error."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from vbreg import correspondences, geometry
from vbreg.datasets import scenes, virtual
from vbreg.datasets.pairs import Pair, PairEntry, PairSequence
from vbreg.errors import VBRegError
from vbreg.types import Float64

RADIUS = 0.05  # at which the overlap is measured, metres
ROOMS = 10  # tried for one pair
SCANS = 12  # tried in one room


def synthetic(
    count: int = 100, seed: int = 0, min_overlap: float = 0.3, max_overlap: float = 1.0
) -> PairSequence:
    """`count` pairs, each of a furnished room of its own scanned twice by a virtual depth camera.

    A pair is made when it is asked for, in some seconds, from its own seed: pair k is the same
    whatever the count. An overlap of 0.1 to 0.3 is that of 3DLoMatch.
    """
    if count < 0 or not 0 <= min_overlap < max_overlap <= 1:
        raise VBRegError(
            f"{count} pairs of {min_overlap} to {max_overlap} overlap: expected 0 or more pairs, "
            "and two rising shares of 0 to 1"
        )
    make = partial(_make, seed=seed, overlap=(min_overlap, max_overlap))
    return PairSequence(
        PairEntry(f"room-{seed}-{k}/0-1", f"room-{seed}-{k}", partial(make, k))
        for k in range(count)
    )


def scan_pair(
    generator: np.random.Generator,
    noise: torch.Generator,
    *,
    overlap: tuple[float, float],
    points: tuple[int, int] = (4000, 1 << 30),
    tries: int = SCANS,
    frames: int = 50,
) -> tuple[Tensor, Tensor, Tensor, float] | None:
    """Source, target, T_target_source and overlap: the first two scans of a new room that suit.

    A scan has between `points` points. None where no two of `tries` scans suit each other.
    """
    scene = virtual.sample_surface(scenes.procedural_room(generator), generator)
    focus = np.median(scene.coarse, axis=0)
    trajectory: Float64 | None = None
    scans: list[tuple[Tensor, Tensor]] = []
    for _ in range(tries):
        trajectory = virtual.random_trajectory(scene, generator, focus, trajectory, frames)
        target, T_world_target = virtual.scan(scene, trajectory, virtual.Camera(), noise)
        if not points[0] < len(target) < points[1]:
            continue
        for source, T_world_source in scans:
            T_target_source = geometry.inverse(T_world_target) @ T_world_source
            shared = correspondences.overlap(source, target, T_target_source, RADIUS)
            if overlap[0] < shared < overlap[1]:
                return source, target, T_target_source, shared
        scans.append((target, T_world_target))
    return None


def _make(k: int, seed: int, overlap: tuple[float, float]) -> Pair:
    scene = f"room-{seed}-{k}"
    for room in range(ROOMS):
        generator = np.random.default_rng([seed, k, room])
        noise = torch.Generator().manual_seed(int(generator.integers(1 << 62)))
        try:
            found = scan_pair(generator, noise, overlap=overlap, frames=30)
        except VBRegError:  # a room without a place to stand
            continue
        if found is not None:
            source, target, T, shared = found
            T_source_scan = _any_frame(noise)
            moved = geometry.apply(T_source_scan, source).numpy()
            T = T @ geometry.inverse(T_source_scan)
            return Pair(f"{scene}/0-1", moved, target.numpy(), T.numpy(), shared, scene, (0, 1))
    raise VBRegError(f"no two scans of {ROOMS} rooms overlap by {overlap}; ask for a wider range")


def _any_frame(generator: torch.Generator) -> Tensor:
    """The camera hardly turns between two scans; a registration must not profit from that."""
    R = geometry.random_rotation(generator=generator, dtype=torch.float64)
    t = torch.randn(3, generator=generator, dtype=torch.float64)
    return geometry.from_rotation_translation(R, t)
