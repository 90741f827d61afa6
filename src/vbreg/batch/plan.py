"""In which order rows are worked on: those that share clouds are near each other.

Clouds are numbered so that partners have near numbers (reverse Cuthill-McKee), and pairs follow a
curve through the square of both numbers that stays in one corner before it goes to the next
(Z-order). So a worker that keeps a few clouds finds most of them again, however many there are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import reverse_cuthill_mckee

from vbreg.batch.rows import PairRow
from vbreg.types import Int64


def work_order(rows: Sequence[PairRow]) -> list[PairRow]:
    """Return the rows in an order in which few clouds are needed at a time."""
    if not rows:
        return []
    number: dict[str, int] = {}
    ends = np.array([[number.setdefault(path, len(number)) for path in row[1:3]] for row in rows])
    rank = _ranks(ends, len(number))[ends]  # (R, 2)
    keys = _z_order(rank.min(axis=1), rank.max(axis=1))
    return [rows[k] for k in np.argsort(keys, kind="stable")]


def _ranks(ends: Int64, clouds: int) -> Int64:
    """Return the place (clouds,) of every cloud in an order in which partners are near."""
    ones = np.ones(len(ends), dtype=np.int8)
    one_way = coo_matrix((ones, (ends[:, 0], ends[:, 1])), shape=(clouds, clouds)).tocsr()
    order = reverse_cuthill_mckee((one_way + one_way.T).tocsr(), symmetric_mode=True)
    rank = np.empty(clouds, dtype=np.int64)
    rank[order] = np.arange(clouds)
    return rank


def _z_order(x: Int64, y: Int64) -> Int64:
    """Return the place of each pair of numbers below 2^31 on the curve: their bits in turn."""
    key = np.zeros(len(x), dtype=np.int64)
    for bit in range(int(max(x.max(), y.max())).bit_length()):
        key |= ((x >> bit) & 1) << (2 * bit) | ((y >> bit) & 1) << (2 * bit + 1)
    return key


class Plan:
    """What is left to do: a stretch of rows for each worker, cut into chunks."""

    def __init__(self, rows: Sequence[PairRow], workers: int, chunk: int) -> None:
        ordered = work_order(rows)
        self.stretches: list[deque[list[PairRow]]] = []
        for part in np.array_split(np.arange(len(ordered)), workers):
            starts = range(0, len(part), chunk)
            chunks = ([ordered[k] for k in part[start : start + chunk]] for start in starts)
            self.stretches.append(deque(chunks))
        self.again: deque[list[PairRow]] = deque()

    def __bool__(self) -> bool:
        return bool(self.again) or any(self.stretches)

    def take(self, worker: int) -> list[PairRow] | None:
        """Return the next chunk of a worker; one that is done takes from who has most left."""
        if self.again:
            return self.again.popleft()
        if self.stretches[worker]:
            return self.stretches[worker].popleft()
        longest = max(self.stretches, key=len)
        return longest.pop() if longest else None

    def put_back(self, rows: Sequence[PairRow]) -> None:
        """Put rows back, each by itself: one of them may have killed its worker."""
        self.again.extend([row] for row in rows)
