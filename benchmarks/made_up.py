"""Matches in a made-up room, for benchmarks that need no data."""

from __future__ import annotations

import numpy as np
import torch

from vbreg.geometry import random_rotation
from vbreg.types import Float64

EXTENT, THRESHOLD, RIGHT = 3.0, 0.1, 0.12  # metres, metres, share of right matches


def made_up_pose(seed: int = 0) -> Float64:
    """The pose (4, 4) that the right ones of `made_up_matches` agree with: a turn."""
    T = np.eye(4)
    T[:3, :3] = random_rotation(generator=torch.Generator().manual_seed(seed)).double().numpy()
    return T


def made_up_matches(n: int, seed: int = 0, right: float = RIGHT) -> tuple[Float64, Float64]:
    """Source and target ends (n, 3), of which about the share `right` is right."""
    generator = np.random.default_rng(seed)
    source = generator.uniform(0, EXTENT, (n, 3))
    target = source @ made_up_pose(seed)[:3, :3].T
    target += generator.normal(0, 0.1 * THRESHOLD, (n, 3))
    wrong = generator.random(n) > right
    target[wrong] = generator.uniform(0, EXTENT, (int(wrong.sum()), 3))
    return source, target
