"""How time and memory grow with the number of matches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

GROWTH_FROM = 5000  # matches; below, fixed costs hide how a cost grows


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """Return the exponent of the power law through the costs of sizes from `GROWTH_FROM` on.

    It is not a number where fewer than two sizes are that large.
    """
    points = [(size, cost) for size, cost in zip(sizes, costs, strict=True) if size >= GROWTH_FROM]
    if len(points) < 2:
        return float("nan")
    x, y = np.log(np.array(points, dtype=np.float64)).T
    return float(np.polyfit(x, y, 1)[0])
