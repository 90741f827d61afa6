"""The nearest points of queries by the distances of all pairs, which never leave the registers.

Computes what `neighbors.nearest_by_distances` does, in one launch of one of two kernels.

For one neighbour a program has some queries and goes through all points of their cloud. It reads a
point once for all its queries, and keeps no list that it would have to sort. Products and sums may
be fused, so that a distance may differ from torch's in its last bit.

For more neighbours a program has one query and goes through the points once. It keeps a sorted
list of the nearest that it has seen, and passes over a block of points when none is within the
radius and nearer than the last of the list. So it is quick where points that follow each other lie
beside each other, as those of voxels do; in any other order it gives the same answer, later.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

QUERIES, POINTS, WARPS = 32, 128, 4  # of a program that looks for one neighbour
MAX_NEIGHBORS = 256  # as many keys fit the registers of a program
BLOCK = 256  # points that are passed over together
MIN_SLOTS, SLOTS_OF_WARP = 32, 128  # of the list of a program, and for each of its warps

NO_NEIGHBOR = tl.constexpr(0x7F800000 << 32)  # the key of row 0 at an infinite distance


@triton.jit
def nearest_of(points, real, N, x, y, z, QUERIES: tl.constexpr, POINTS: tl.constexpr):
    """Return the nearest real points of queries (QUERIES,), and their squared distances.

    Of several equally near the lowest row counts; where none is real, the row is 0 and the distance
    infinite.
    """
    best = tl.full([QUERIES, POINTS], float("inf"), dtype=tl.float32)
    which = tl.zeros([QUERIES, POINTS], dtype=tl.int32)
    for start in range(0, N, POINTS):
        columns = start + tl.arange(0, POINTS)
        inside = columns < N
        kept = inside & (tl.load(real + columns, mask=inside, other=0) != 0)
        dx = x[:, None] - tl.load(points + 3 * columns, mask=inside, other=0.0)[None, :]
        dy = y[:, None] - tl.load(points + 3 * columns + 1, mask=inside, other=0.0)[None, :]
        dz = z[:, None] - tl.load(points + 3 * columns + 2, mask=inside, other=0.0)[None, :]
        d = dx * dx + dy * dy + dz * dz
        better = kept[None, :] & (d < best)
        best = tl.where(better, d, best)
        which = tl.where(better, columns[None, :], which)
    distance2 = tl.min(best, 1)
    return tl.min(tl.where(best == distance2[:, None], which, N), 1), distance2


@triton.jit(do_not_specialize=["N", "Q"])
def _one(
    points, queries, real, index, distance2, N, Q, limit,
    QUERIES: tl.constexpr, POINTS: tl.constexpr,
):  # fmt: skip
    cloud = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    asked = rows < Q
    queries += (cloud * Q + rows) * 3
    x = tl.load(queries, mask=asked, other=0.0)
    y = tl.load(queries + 1, mask=asked, other=0.0)
    z = tl.load(queries + 2, mask=asked, other=0.0)
    row, nearest = nearest_of(points + cloud * N * 3, real + cloud * N, N, x, y, z, QUERIES, POINTS)
    near = nearest <= limit
    place = cloud * Q + rows
    tl.store(index + place, tl.where(near, row, 0).to(tl.int64), mask=asked)
    tl.store(distance2 + place, tl.where(near, nearest, float("inf")), mask=asked)


@triton.jit
def _distances2(points, real, columns, N, x, y, z):
    """Return squared distances of some points from (x, y, z), infinite where one is not real."""
    inside = columns < N
    kept = tl.load(real + columns, mask=inside, other=0) != 0
    dx = x - tl.load(points + 3 * columns, mask=inside, other=0.0)
    dy = y - tl.load(points + 3 * columns + 1, mask=inside, other=0.0)
    dz = z - tl.load(points + 3 * columns + 2, mask=inside, other=0.0)
    return tl.where(kept, dx * dx + dy * dy + dz * dz, float("inf"))


@triton.jit
def _distance2_of(key):
    """Return the squared distance that a key has in its upper half."""
    return (key >> 32).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["N", "Q", "K"])
def _many(
    points, queries, real, index, distance2, N, Q, K, limit,
    BLOCK: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    cloud = tl.program_id(1).to(tl.int64)
    row = cloud * Q + tl.program_id(0)
    queries += 3 * row
    x, y, z = tl.load(queries), tl.load(queries + 1), tl.load(queries + 2)
    points += 3 * cloud * N
    real += cloud * N
    slots = tl.arange(0, SLOTS)
    best = tl.full([SLOTS], NO_NEIGHBOR, dtype=tl.int64)  # keys of the nearest so far, ascending
    reach = limit
    start = 0
    while start < N:
        of_block = _distances2(points, real, start + tl.arange(0, BLOCK), N, x, y, z)
        if tl.min(of_block, 0) <= reach:
            part = start
            while part < tl.minimum(start + BLOCK, N):
                columns = part + slots
                d = _distances2(points, real, columns, N, x, y, z)
                if tl.min(d, 0) <= reach:
                    # A positive float is ordered as its bits are, so that one number holds
                    # distance and row.
                    key = (d.to(tl.int32, bitcast=True).to(tl.int64) << 32) | columns
                    key = tl.sort(tl.where(d <= reach, key, NO_NEIGHBOR), descending=True)
                    # One ascends and the other descends: the smaller of each pair are the
                    # smallest of all.
                    best = tl.sort(tl.minimum(best, key))
                    last = tl.max(tl.where(slots == K - 1, best, 0), 0)
                    reach = tl.minimum(limit, _distance2_of(last))
                part += SLOTS
        start += BLOCK
    wanted = slots < K
    tl.store(index + row * K + slots, best & 0xFFFFFFFF, mask=wanted)
    tl.store(distance2 + row * K + slots, _distance2_of(best), mask=wanted)


def supports(k: int) -> bool:
    """Tell whether the kernels find as many neighbours."""
    return k <= MAX_NEIGHBORS


def search(
    points: Tensor, queries: Tensor, real: Tensor, k: int, radius: float
) -> tuple[Tensor, Tensor]:
    """Return index (B, Q, k) and distance2 (B, Q, k), nearest first, then the lowest index.

    points (B, N, 3) and queries (B, Q, 3) float32, real (B, N). Where there is no neighbour, the
    index is 0 and the distance infinite.
    """
    B, Q = queries.shape[:2]
    index = torch.empty(B, Q, k, dtype=torch.int64, device=queries.device)
    distance2 = torch.empty(B, Q, k, dtype=torch.float32, device=queries.device)
    if not index.numel():
        return index, distance2
    given = (
        points.contiguous(), queries.contiguous(), real.contiguous().view(torch.uint8),
        index, distance2, points.shape[1], Q,
    )  # fmt: skip
    limit = min(float(radius) ** 2, torch.finfo(torch.float32).max)
    if k == 1:
        _one[(triton.cdiv(Q, QUERIES), B)](
            *given, limit, QUERIES=QUERIES, POINTS=POINTS, num_warps=WARPS
        )
        return index, distance2
    slots = max(MIN_SLOTS, triton.next_power_of_2(k))
    _many[(Q, B)](
        *given, k, limit, BLOCK=BLOCK, SLOTS=slots, num_warps=max(1, slots // SLOTS_OF_WARP),
        enable_fp_fusion=False,  # distances are rounded as torch rounds them
    )  # fmt: skip
    return index, distance2
