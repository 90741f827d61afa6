"""Keypoints are thinned here before matching, as in the paper's Table 2: 5000 down to 250.

Every pair is drawn from a seed of its own, so that a result does not depend on which other pairs
are run, or in what order.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from vbreg.datasets.pairs import Pair
from vbreg.errors import VBRegError
from vbreg.types import Float32, Float64, Int64

Points = TypeVar("Points", Float32, Float64)
Seed = int | np.random.Generator


def pair_seed(seed: int, name: str) -> int:
    """Return the seed of one pair, the same on every machine and in every run."""
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    return int.from_bytes(digest[:8], "little")


def sample_rows(
    total: int, count: int, seed: Seed, weights: NDArray[np.floating[Any]] | None = None
) -> Int64:
    """Draw `count` of `total` rows, or all if there are no more, evenly or by `weights`."""
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


def subsample(
    points: Points,
    descriptors: Float32,
    count: int,
    seed: Seed,
    weights: NDArray[np.floating[Any]] | None = None,
) -> tuple[Points, Float32]:
    """Draw at most `count` of the points (N, 3), each with the descriptor that it has among all."""
    if len(points) != len(descriptors):
        raise VBRegError(f"{len(points)} points and {len(descriptors)} descriptors: expected equal")
    if len(points) <= count:
        return points, descriptors
    rows = sample_rows(len(points), count, seed, weights)
    return points[rows], descriptors[rows]


def subsample_pair(pair: Pair, count: int, seed: int = 0) -> Pair:
    """Draw at most `count` keypoints a cloud of a described pair, by their scores if it has any.

    Describe first: `replace(pair, source=..., target=..., descriptors=...)`.
    """
    if pair.descriptors is None:
        raise VBRegError(f"{pair.name} has no descriptors: describe both clouds before sampling")
    generator = np.random.default_rng(pair_seed(seed, pair.name))
    weights = pair.scores or (None, None)
    sizes = len(pair.source), len(pair.target)
    rows = [sample_rows(n, count, generator, w) for n, w in zip(sizes, weights, strict=True)]
    return replace(
        pair,
        source=pair.source[rows[0]],
        target=pair.target[rows[1]],
        descriptors=(pair.descriptors[0][rows[0]], pair.descriptors[1][rows[1]]),
        scores=pair.scores and (pair.scores[0][rows[0]], pair.scores[1][rows[1]]),
    )
