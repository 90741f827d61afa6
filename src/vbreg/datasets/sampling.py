"""Rows drawn at random, the same in every run: fewer keypoints a cloud, fewer matches.

Every pair is drawn from a seed of its own, so that a result does not depend on which other pairs
are run, or in what order.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vbreg.errors import VBRegError
from vbreg.types import Int64

Seed = int | np.random.Generator


def pair_seed(seed: int, name: str) -> int:
    """Return the seed of one pair: the same on every machine and in every run."""
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return int.from_bytes(digest[:8], "little")


def sample_rows(
    total: int, count: int, seed: Seed, weights: NDArray[np.floating[Any]] | None = None
) -> Int64:
    """Draw `count` of `total` rows, ascending, evenly or by `weights`; all if there are no more."""
    if count < 1:
        raise VBRegError(f"{count} points are asked for, expected 1 or more")
    if total <= count:
        return np.arange(total)
    share = None
    if weights is not None:
        share = np.nan_to_num(np.asarray(weights, dtype=np.float64).reshape(-1)).clip(1e-12)
        share = share / share.sum()
    chosen = np.random.default_rng(seed).choice(total, count, replace=False, p=share)
    return np.sort(chosen)
