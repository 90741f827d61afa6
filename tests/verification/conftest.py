"""Two clouds of a corner with a box, described, and poses between them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from vbreg.geometry import random_rotation
from vbreg.matching import MatchedClouds, describe, match_clouds
from vbreg.scale import Scale
from vbreg.surfaces import SurfacePair

SCALE = Scale(0.05)


def corner_with_box(seed: int = 0) -> np.ndarray:
    """Points of two walls, a floor and a box, in metres."""
    rng = np.random.default_rng(seed)
    a, b = rng.uniform(0, 1.6, (2, 9000))
    zero = np.zeros_like(a)
    planes = [np.c_[a, b, zero], np.c_[a, zero, 0.7 * b], np.c_[zero, 1.3 * a, 0.6 * b]]
    u, v = rng.uniform(0, 1, (2, 3000))
    top = np.c_[0.4 + 0.5 * u, 0.7 + 0.3 * v, np.full_like(u, 0.35)]
    side = np.c_[0.4 + 0.5 * u, np.full_like(u, 0.7), 0.35 * v]
    end = np.c_[np.full_like(u, 0.9), 0.7 + 0.3 * u, 0.35 * v]
    points = np.concatenate([*planes, top, side, end])
    return points + 0.004 * rng.normal(size=points.shape)


def pose(seed: int, far: float = 1.0) -> Tensor:
    T = torch.eye(4, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    T[:3, :3] = random_rotation(generator=generator, dtype=torch.float64)
    T[:3, 3] = far * torch.randn(3, generator=generator, dtype=torch.float64)
    return T


def matched_pair(seed: int = 0, T_scan: Tensor | None = None) -> tuple[MatchedClouds, Tensor]:
    """Match two samples of the corner -> with the true pose between the local frames, in metres."""
    T = pose(seed + 1) if T_scan is None else T_scan
    source = corner_with_box(2 * seed)
    source = source[source[:, 0] < 1.2]
    target = corner_with_box(2 * seed + 1) @ T[:3, :3].numpy().T + T[:3, 3].numpy()
    ends = [describe(cloud, SCALE, descriptor="fpfh") for cloud in (source, target)]
    matched = match_clouds(*ends, SCALE)
    local = T.clone()
    origins = [torch.from_numpy(end.origin) for end in ends]
    local[:3, 3] += T[:3, :3] @ origins[0] - origins[1]
    return matched, local


def surfaces(matched: MatchedClouds) -> SurfacePair:
    """The surfaces of a pair that has them."""
    found = SurfacePair.of(matched)
    assert found is not None
    return found


@pytest.fixture(scope="session")
def pair() -> tuple[MatchedClouds, Tensor]:
    return matched_pair()
