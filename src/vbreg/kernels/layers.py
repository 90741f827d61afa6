"""Small layers in one pass over their input instead of ten: context normalisation, gated update.

Compute what `network.ContextNorm` with a ReLU and `network.gated_update` do.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, CHANNELS = 512, 8  # of a tile of the normalisation
BLOCK = 1024  # numbers of the gated update that a program looks at


@triton.jit
def _weights(mask, rows, N, MASKED: tl.constexpr):
    there = rows < N
    if MASKED:
        there = there & (tl.load(mask + rows, mask=there, other=0) != 0)
    return there.to(tl.float32)


@triton.jit
def _normalise(
    x, mask, scale, shift, out, N, C,
    MASKED: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    problem = tl.program_id(0).to(tl.int64)
    channels = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    wide = (channels < C)[None, :]
    x += problem * N * C
    out += problem * N * C
    mask += problem * N
    total = tl.zeros([CHANNELS], dtype=tl.float32)
    count = tl.zeros([ROWS], dtype=tl.float32)
    for start in range(0, N, ROWS):
        rows = start + tl.arange(0, ROWS)
        w = _weights(mask, rows, N, MASKED)
        where = rows[:, None] * C + channels[None, :]
        v = tl.load(x + where, mask=(rows < N)[:, None] & wide, other=0.0)
        total += tl.sum(v * w[:, None], 0)
        count += w
    number = tl.maximum(tl.sum(count), 1.0)
    mean = total / number
    squares = tl.zeros([CHANNELS], dtype=tl.float32)
    for start in range(0, N, ROWS):
        rows = start + tl.arange(0, ROWS)
        w = _weights(mask, rows, N, MASKED)
        where = rows[:, None] * C + channels[None, :]
        v = tl.load(x + where, mask=(rows < N)[:, None] & wide, other=0.0) - mean[None, :]
        squares += tl.sum(v * v * w[:, None], 0)
    factor = tl.rsqrt(squares / number + 1e-5) * tl.load(scale + channels, mask=channels < C)
    offset = tl.load(shift + channels, mask=channels < C)
    for start in range(0, N, ROWS):
        rows = start + tl.arange(0, ROWS)
        inside = (rows < N)[:, None] & wide
        where = rows[:, None] * C + channels[None, :]
        v = tl.load(x + where, mask=inside, other=0.0) - mean[None, :]
        v = tl.maximum(v * factor[None, :] + offset[None, :], 0.0)
        tl.store(out + where, v, mask=inside)


def normalised_relu(x: Tensor, mask: Tensor | None, scale: Tensor, shift: Tensor) -> Tensor:
    """x (B, N, C) float32 of zero mean and unit variance over the rows of mask (B, N), scaled,
    shifted, and cut off below zero."""
    B, N, C = x.shape
    x = x.contiguous()
    out = torch.empty_like(x)
    _normalise[(B, triton.cdiv(C, CHANNELS))](
        x, x if mask is None else mask.contiguous().view(torch.uint8), scale, shift, out, N, C,
        MASKED=mask is not None, ROWS=ROWS, CHANNELS=CHANNELS, num_warps=8,
    )  # fmt: skip
    return out


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _gate(from_input, from_state, state, out, total, H, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < total
    row, channel = at // H, at % H
    three = row * 3 * H + channel
    a, b = from_input + three, from_state + three
    reset = _sigmoid(tl.load(a, mask=inside, other=0.0) + tl.load(b, mask=inside, other=0.0))
    keep = _sigmoid(tl.load(a + H, mask=inside, other=0.0) + tl.load(b + H, mask=inside, other=0.0))
    new = tl.load(a + 2 * H, mask=inside, other=0.0)
    new += reset * tl.load(b + 2 * H, mask=inside, other=0.0)
    new = 2.0 * _sigmoid(2.0 * new) - 1.0  # tanh
    h = tl.load(state + at, mask=inside, other=0.0)
    tl.store(out + at, new + keep * (h - new), mask=inside)


def gated(from_input: Tensor, from_state: Tensor, state: Tensor) -> Tensor:
    """The next state (..., H) from the products (..., 3 H) of input and state with the weights of
    reset, keep and new, biases added."""
    out = torch.empty_like(state)
    _gate[(triton.cdiv(state.numel(), BLOCK),)](
        from_input.contiguous(), from_state.contiguous(), state.contiguous(), out,
        state.numel(), state.shape[-1], BLOCK=BLOCK, num_warps=4,
    )  # fmt: skip
    return out
