"""The votes of one seed, counted in registers: one program a seed, all voters one after another.

Computes what `voting.vote` does with its tally of K x N maps. Only the cosines between features
come from memory; beta is computed from coordinates, and the most compatible correspondences of a
voter are found by halving the interval that their least one lies in.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vbreg.backends.triton.beta import beta_of

WARPS = 8  # of a program, at most
HALVINGS = 32  # of the interval from 0 to the highest score: to the last bit


@triton.jit
def _top(values, k, HALVINGS: tl.constexpr):
    """Which of values (n,) are the k highest, positive ones only; of equal ones the first."""
    positive = tl.sum((values > 0.0).to(tl.int32))
    low = 0.0  # more than k lie above it, unless few are positive
    high = tl.max(values)  # none lies above it
    left = tl.where(positive > k, HALVINGS, 0)
    while left > 0:
        middle = 0.5 * (low + high)
        count = tl.sum((values > middle).to(tl.int32))
        low = tl.where(count >= k, middle, low)
        high = tl.where(count >= k, high, middle)
        done = (count == k) | (middle <= low) & (middle >= high)
        left = tl.where(done, 0, left - 1)
    chosen = values > low
    # `low` has the k highest above it, or, where some are equal, all up to these; `high` fewer.
    surplus = tl.sum(chosen.to(tl.int32)) > k
    sure = values > high
    equal = chosen & (sure == 0)
    room = k - tl.sum(sure.to(tl.int32))
    first = equal & (tl.cumsum(equal.to(tl.int32), 0) <= room)
    return tl.where(surplus, sure | first, chosen)


@triton.jit(do_not_specialize=["K", "VOTERS", "ballot"])
def _elect(
    cosine, points, mask, seeds, sigma, ranks, members, valid, N, K, VOTERS, ballot, part,
    SIZE: tl.constexpr, HALVINGS: tl.constexpr,
):  # fmt: skip
    which = tl.program_id(0).to(tl.int64)  # problem * K + seed
    problem = which // K
    points += problem * N * 6
    rows = tl.arange(0, SIZE)
    inside = rows < N
    seed = tl.load(seeds + which)
    source = tl.zeros([SIZE], dtype=tl.float32)
    target = tl.zeros([SIZE], dtype=tl.float32)
    for axis in tl.static_range(3):
        d = tl.load(points + axis * N + rows, mask=inside, other=0.0)
        d -= tl.load(points + axis * N + seed)
        source += d * d
        d = tl.load(points + (axis + 3) * N + rows, mask=inside, other=0.0)
        d -= tl.load(points + (axis + 3) * N + seed)
        target += d * d
    real = tl.load(mask + problem * N + rows, mask=inside, other=0) != 0
    beta = tl.where(real & (rows != seed), beta_of(source, target), 0.0)
    steepness = tl.load(sigma)
    steepness = 1.0 / (steepness * steepness)
    count = tl.zeros([SIZE], dtype=tl.int32)
    best = tl.zeros([SIZE], dtype=tl.float32)
    support = tl.zeros([SIZE], dtype=tl.float32)
    cosine += which * N
    voter = 0
    while voter < VOTERS:
        alike = tl.load(cosine + rows, mask=inside, other=0.0)
        cosine += part
        alike = 1.0 - (1.0 - alike) * steepness
        alike = tl.minimum(tl.maximum(alike, 0.0), 1.0) * beta
        voter += 1
        named = _top(alike, ballot, HALVINGS)
        count += named.to(tl.int32)
        rank = tl.load(ranks + voter * (VOTERS + 1) + count, mask=named, other=0.0)
        best = tl.maximum(best, rank)
        support += tl.where(named, alike, 0.0)
    score = best + support / (VOTERS + 1)
    elected = _top(tl.where(best > 0.0, score, 0.0), ballot, HALVINGS)
    place = tl.cumsum(elected.to(tl.int32), 0)  # 1 for the first; the seed has place 0
    members += which * (ballot + 1)
    valid += which * (ballot + 1)
    tl.store(members, seed)
    tl.store(valid, 1)
    tl.store(members + place, rows.to(tl.int64), mask=elected)
    tl.store(valid + place, 1, mask=elected)


def elect(
    cosine: Tensor, points: Tensor, mask: Tensor, seeds: Tensor, sigma: Tensor, ranks: Tensor,
    set_size: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return members and whether they are there, (B, K, set_size), the seed first.

    cosine (L, B, K, N) between features of the seeds and of all, the first voter first; points
    (B, 6, N); mask (B, N); seeds (B, K); ranks (L + 1, L + 1) of `voting.wilson_ranks`.
    """
    L, B, K, N = cosine.shape
    members = torch.zeros(B, K, set_size, dtype=torch.long, device=seeds.device)
    valid = torch.zeros(B, K, set_size, dtype=torch.uint8, device=seeds.device)
    size = triton.next_power_of_2(N)
    _elect[(B * K,)](
        cosine, points, mask.contiguous().view(torch.uint8), seeds.contiguous(),
        sigma.float(), ranks, members, valid, N, K, L, set_size - 1, B * K * N,
        SIZE=size, HALVINGS=HALVINGS, num_warps=max(1, min(WARPS, size // 256)),
    )  # fmt: skip
    return members, valid.view(torch.bool)
