"""The nearest points of queries by the distances of all pairs, which never leave the registers.

Computes what `neighbors.nearest_by_distances` does. A program has some queries and goes through all
points of their cloud; for every further neighbour it goes through them once more.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

QUERIES, POINTS, WARPS = 32, 128, 4  # of a program


@triton.jit(do_not_specialize=["N", "Q", "K"])
def _nearest(
    points, queries, real, index, distance2, N, Q, K,
    QUERIES: tl.constexpr, POINTS: tl.constexpr,
):  # fmt: skip
    cloud = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    asked = rows < Q
    queries += (cloud * Q + rows) * 3
    x = tl.load(queries, mask=asked, other=0.0)[:, None]
    y = tl.load(queries + 1, mask=asked, other=0.0)[:, None]
    z = tl.load(queries + 2, mask=asked, other=0.0)[:, None]
    points += cloud * N * 3
    real += cloud * N
    last = tl.full([QUERIES], -1.0, dtype=tl.float32)  # distance of the neighbour found before
    before = tl.full([QUERIES], -1, dtype=tl.int32)  # and its row
    k = 0
    while k < K:
        best = tl.full([QUERIES, POINTS], float("inf"), dtype=tl.float32)
        which = tl.zeros([QUERIES, POINTS], dtype=tl.int32)
        start = 0
        while start < N:
            columns = start + tl.arange(0, POINTS)
            inside = columns < N
            kept = tl.load(real + columns, mask=inside, other=0) != 0
            dx = x - tl.load(points + 3 * columns, mask=inside, other=0.0)[None, :]
            dy = y - tl.load(points + 3 * columns + 1, mask=inside, other=0.0)[None, :]
            dz = z - tl.load(points + 3 * columns + 2, mask=inside, other=0.0)[None, :]
            d = dx * dx + dy * dy + dz * dz
            further = (d > last[:, None]) | ((d == last[:, None]) & (columns > before[:, None]))
            better = further & kept[None, :] & (d < best)
            best = tl.where(better, d, best)
            which = tl.where(better, columns[None, :], which)
            start += POINTS
        last = tl.min(best, 1)
        # Of several equally near the lowest row counts.
        before = tl.min(tl.where(best == last[:, None], which, N), 1)
        place = (cloud * Q + rows) * K + k
        tl.store(index + place, before.to(tl.int64), mask=asked)
        tl.store(distance2 + place, last, mask=asked)
        k += 1


def search(points: Tensor, queries: Tensor, real: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return index (B, Q, k) and distance2 (B, Q, k), nearest first, infinite where there is none.

    points (B, N, 3) and queries (B, Q, 3) float32, real (B, N).
    """
    B, Q = queries.shape[:2]
    index = torch.empty(B, Q, k, dtype=torch.int64, device=queries.device)
    distance2 = torch.empty(B, Q, k, dtype=torch.float32, device=queries.device)
    if Q:
        _nearest[(triton.cdiv(Q, QUERIES), B)](
            points.contiguous(), queries.contiguous(), real.contiguous().view(torch.uint8),
            index, distance2, points.shape[1], Q, k,
            QUERIES=QUERIES, POINTS=POINTS, num_warps=WARPS,
        )  # fmt: skip
    return index, distance2
