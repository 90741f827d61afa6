"""Matches in a made-up room, for benchmarks that need no data."""

from __future__ import annotations

import numpy as np
import torch

from vbreg.geometry import random_rotation
from vbreg.types import Float64

EXTENT, THRESHOLD, RIGHT = 3.0, 0.1, 0.12  # metres, metres, share of right matches


def made_up_matches(n: int, seed: int = 0) -> tuple[Float64, Float64]:
    """Source and target ends (n, 3), an eighth of them right."""
    generator = np.random.default_rng(seed)
    R = random_rotation(generator=torch.Generator().manual_seed(seed)).double().numpy()
    source = generator.uniform(0, EXTENT, (n, 3))
    target = source @ R.T + generator.normal(0, 0.1 * THRESHOLD, (n, 3))
    wrong = generator.random(n) > RIGHT
    target[wrong] = generator.uniform(0, EXTENT, (int(wrong.sum()), 3))
    return source, target
