"""Made-up corners of rooms that lie nearly on each other, for steps of a refinement."""

from __future__ import annotations

import torch
from torch import Tensor

from vbreg.geometry import apply, from_rotation_translation, random_rotation, rotation_of_vector
from vbreg.surfaces import OrientedPoints, SurfacePair


def corner(B: int, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return points (B, n, 3) of three walls, 10 voxels wide, and normals that look either way."""
    wall = torch.randint(3, (B, n), generator=generator)
    normals = torch.nn.functional.one_hot(wall, 3) + 0.1 * torch.randn(B, n, 3, generator=generator)
    points = 10 * torch.rand(B, n, 3, generator=generator) * (1 - torch.eye(3)[wall])
    points += 0.1 * torch.randn(B, n, 3, generator=generator) + 30
    side = torch.rand(B, n, 1, generator=generator).sub(0.5).sign()
    return points, side * torch.nn.functional.normalize(normals, dim=-1)


def corner_pairs(B: int, device: torch.device, seed: int = 0) -> tuple[SurfacePair, Tensor]:
    """Return corners of 110 and 170 points with 40 matches, and poses some way off.

    Some rows are not real and hold numbers that would be noticed.
    """
    generator = torch.Generator().manual_seed(seed)
    source, source_normals = corner(B, 110, generator)
    target, target_normals = corner(B, 170, generator)
    R = random_rotation(B, generator=generator)
    t = 5 * torch.randn(B, 3, generator=generator)
    T = from_rotation_translation(R, t)
    real = [torch.rand(B, n, generator=generator) < 0.8 for n in (110, 170, 40)]
    matched = corner(B, 40, generator)[0]
    noise = torch.randn(B, 40, 3, generator=generator)
    for part, kept in zip((source, target, matched), real, strict=True):
        part[~kept] = 31.0
    pair = SurfacePair(
        OrientedPoints(source, source_normals, real[0]),
        OrientedPoints(apply(T, target), target_normals @ R.mT, real[1]),
        matched,
        apply(T, matched) + noise,
        real[2],
    )
    slip = 0.015 * torch.randn(B, 3, generator=generator, dtype=torch.float64)
    off = from_rotation_translation(rotation_of_vector(slip), 10 * slip.flip(-1))
    return _on_device(pair, device), (off @ T.double()).to(device)


def _on_device(pair: SurfacePair, device: torch.device) -> SurfacePair:
    ends = (
        OrientedPoints(end.points.to(device), end.normals.to(device), end.real.to(device))
        for end in (pair.source, pair.target)
    )
    return SurfacePair(*ends, *(part.to(device) for part in pair[2:]))
