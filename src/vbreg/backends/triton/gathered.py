"""Products of gathered rows that never leave the registers, and where no row is, no product.

Computes what `backends.gathered` does. A program of `_product` has some rows of the result and goes
through the offsets of the kernel; one of `_outer` has an offset and goes through some of the rows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, WARPS, STAGES = 128, 4, 3  # of the result of a product that a program has
MAX_CHANNELS = 64  # of x that are multiplied at a time
MAX_OUTPUTS = 128  # columns of the result that a program has
OUTER_ROWS, OUTER_CHANNELS, OUTER_WARPS = 64, 64, 4
OUTER_PROGRAMS = 2048  # at least, so that a GPU is busy
MIN_CHANNELS = 16  # of a matrix product
PRECISION = "tf32x3"  # of factors in float32: nearly as they are


def supports(x: Tensor, channels: int, outputs: int) -> bool:
    """Tell whether the kernels are made for the type of x and these numbers of channels."""
    wide = all(_width(width, MAX_CHANNELS) >= MIN_CHANNELS for width in (channels, outputs))
    return wide and x.dtype in (torch.float32, torch.bfloat16, torch.float16)


@triton.jit(do_not_specialize=["M", "N"])
def _product(
    x, index, kernel, out, M, N,
    K: tl.constexpr, C: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr, OUTPUTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    outputs = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    inside = rows < M
    index += rows.to(tl.int64) * K
    total = tl.zeros([ROWS, OUTPUTS], dtype=tl.float32)
    for k in range(K):
        at = tl.load(index + k, mask=inside, other=N)
        seen = at < N
        if tl.max(seen.to(tl.int32), 0) > 0:
            begin = x + at.to(tl.int64) * C
            for first in range(0, C, CHANNELS):
                channels = first + tl.arange(0, CHANNELS)
                part = tl.load(begin[:, None] + channels[None, :], mask=seen[:, None], other=0.0)
                weights = tl.load(kernel + (k * C + channels)[:, None] * D + outputs[None, :])
                total = tl.dot(part, weights, total, input_precision=PRECISION)
    place = rows.to(tl.int64)[:, None] * D + outputs[None, :]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=inside[:, None])


@triton.jit(do_not_specialize=["M", "N", "SPAN"])
def _outer(
    x, index, y, parts, M, N, SPAN,
    K: tl.constexpr, C: tl.constexpr, D: tl.constexpr,
    ROWS: tl.constexpr, CHANNELS: tl.constexpr, OUTPUTS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    k = tl.program_id(0)
    tiles = D // OUTPUTS
    channels = tl.program_id(1) // tiles * CHANNELS + tl.arange(0, CHANNELS)
    outputs = tl.program_id(1) % tiles * OUTPUTS + tl.arange(0, OUTPUTS)
    start = tl.program_id(2) * SPAN
    end = tl.minimum(start + SPAN, M)
    total = tl.zeros([CHANNELS, OUTPUTS], dtype=tl.float32)
    while start < end:
        rows = start + tl.arange(0, ROWS)
        at = tl.load(index + rows.to(tl.int64) * K + k, mask=rows < end, other=N)
        seen = at < N
        if tl.max(seen.to(tl.int32), 0) > 0:
            begin = x + at.to(tl.int64) * C
            part = tl.load(begin[:, None] + channels[None, :], mask=seen[:, None], other=0.0)
            begin = y + rows.to(tl.int64) * D
            other = tl.load(begin[:, None] + outputs[None, :], mask=seen[:, None], other=0.0)
            total = tl.dot(tl.trans(part), other, total, input_precision=PRECISION)
        start += ROWS
    place = (tl.program_id(2) * K + k) * C * D + channels[:, None] * D + outputs[None, :]
    tl.store(parts + place, total)


def product(x: Tensor, index: Tensor, kernel: Tensor) -> Tensor:
    """Return (M, D) of x (N, C), a table (M, K) and a kernel (K, C, D)."""
    (M, K), (C, D) = index.shape, kernel.shape[1:]
    out = torch.empty(M, D, dtype=x.dtype, device=x.device)
    outputs = _width(D, MAX_OUTPUTS)
    if M:
        _product[(triton.cdiv(M, ROWS), D // outputs)](
            x.contiguous(), index.contiguous(), kernel.contiguous(), out, M, len(x),
            K=K, C=C, D=D, ROWS=ROWS, CHANNELS=_width(C, MAX_CHANNELS), OUTPUTS=outputs,
            PRECISION=PRECISION, num_warps=WARPS, num_stages=STAGES,
        )  # fmt: skip
    return out


def outer(x: Tensor, index: Tensor, y: Tensor) -> Tensor:
    """Return (K, C, D) of x (N, C), a table (M, K) and y (M, D)."""
    (M, K), C, D = index.shape, x.shape[1], y.shape[1]
    channels, outputs = _width(C, OUTER_CHANNELS), _width(D, OUTER_CHANNELS)
    tiles = (C // channels) * (D // outputs)
    shares = max(1, min(triton.cdiv(OUTER_PROGRAMS, K * tiles), triton.cdiv(M, 4 * OUTER_ROWS)))
    parts = torch.empty(shares, K, C, D, dtype=torch.float32, device=x.device)
    _outer[(K, tiles, shares)](
        x.contiguous(), index.contiguous(), y.contiguous(), parts,
        M, len(x), triton.cdiv(max(M, 1), shares),
        K=K, C=C, D=D, ROWS=OUTER_ROWS, CHANNELS=channels, OUTPUTS=outputs,
        PRECISION=PRECISION, num_warps=OUTER_WARPS,
    )  # fmt: skip
    return parts.sum(0).to(y.dtype)


def _width(channels: int, most: int) -> int:
    """Return the largest power of two that divides a number of channels, at most `most`."""
    return min(channels & -channels, most)
