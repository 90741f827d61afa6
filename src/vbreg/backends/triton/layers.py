"""Linear layers together with what goes before and after them.

The normalisation over a problem's rows is shared out: the layer before counts sums for each tile of
rows, the layer after puts them together and normalises what it reads. Computes what
`network.NormedMLP`, `network.LatentBranch` and `network.gated_update` do. Shapes: B problems,
N correspondences; G branches, M rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS, STEP = 64, 64, 64  # of a tile of the products; STEP of their inner dimension
WARPS, STAGES = 4, 3  # of a program
NORMED_ROWS, NORMED_COLUMNS = 64, 64  # of a layer with normalisation
TILES = 32  # whose sums are put together at once
MAX_WIDTH = 128  # channels of a layer with normalisation, all of which a program holds


@triton.jit
def _load(matrix, rows, columns, M, WIDTH: tl.constexpr):
    """Some rows and columns of a matrix (M, WIDTH), zero beyond its ends."""
    inside = (rows < M)[:, None] & (columns < WIDTH)[None, :]
    return tl.load(matrix + rows[:, None] * WIDTH + columns[None, :], mask=inside, other=0.0)


@triton.jit
def _product(
    sums, left, right, rows, columns, M,
    INNER: tl.constexpr, OUT: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """sums + left (M, INNER) @ right (INNER, OUT), for some rows and columns."""
    for start in range(0, INNER, STEP):
        inner = start + tl.arange(0, STEP)
        b = _load(right, inner, columns, INNER, OUT)
        a = _load(left, rows, inner, M, INNER).to(b.dtype)
        sums = tl.dot(a, b, sums, input_precision=PRECISION)
    return sums


@triton.jit
def _affine(
    first, second, weight, bias, out, M, shift,
    FIRST: tl.constexpr, SECOND: tl.constexpr, OUT: tl.constexpr, RELU: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    branch = tl.program_id(2).to(tl.int64)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    weight += branch * (FIRST + SECOND) * OUT
    sums = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    sums = _product(
        sums, first + branch * M * FIRST, weight, rows, columns, M, FIRST, OUT, STEP, PRECISION
    )
    if SECOND > 0:
        sums = _product(
            sums, second + branch * shift, weight + FIRST * OUT, rows, columns, M,
            SECOND, OUT, STEP, PRECISION,
        )  # fmt: skip
    sums += tl.load(bias + branch * OUT + columns, mask=columns < OUT, other=0.0)[None, :]
    if RELU:
        sums = tl.maximum(sums, 0.0)
    inside = (rows < M)[:, None] & (columns < OUT)[None, :]
    where = out + branch * M * OUT + rows[:, None] * OUT + columns[None, :]
    tl.store(where, sums.to(out.dtype.element_ty), mask=inside)


class Affine(NamedTuple):
    """The same linear layer of G branches."""

    weight: Tensor  # (G, width in, width out)
    bias: Tensor  # (G, width out) float32

    def __call__(
        self, first: Tensor, second: Tensor | None = None, *, relu: bool = False
    ) -> Tensor:
        """Return the layer of [first, second], in the precision of the weights.

        first (G, M, width), second the same or (M, width) for all branches.
        """
        G, M, K = first.shape
        extra = 0 if second is None else second.shape[-1]
        width = self.weight.shape[-1]
        out = self.weight.new_empty(G, M, width)
        _affine[(triton.cdiv(width, COLUMNS), triton.cdiv(M, ROWS), G)](
            first, first if second is None else second, self.weight, self.bias, out, M,
            M * extra if second is not None and second.ndim == 3 else 0,
            FIRST=K, SECOND=extra, OUT=width, RELU=relu,
            ROWS=ROWS, COLUMNS=COLUMNS, STEP=STEP, PRECISION="tf32x3",
            num_warps=WARPS, num_stages=STAGES,
        )  # fmt: skip
        return out


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _three_products(
    first, second, third, left, right, rows, columns, M,
    INNER: tl.constexpr, H: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """As `_product`, with the same columns of each third of right (INNER, 3 H)."""
    for start in range(0, INNER, STEP):
        inner = start + tl.arange(0, STEP)
        a = _load(left, rows, inner, M, INNER)
        w = right + inner[:, None] * (3 * H) + columns[None, :]
        inside = (inner < INNER)[:, None] & (columns < H)[None, :]
        first = tl.dot(a, tl.load(w, mask=inside, other=0.0), first, input_precision=PRECISION)
        b = tl.load(w + H, mask=inside, other=0.0)
        second = tl.dot(a, b, second, input_precision=PRECISION)
        b = tl.load(w + 2 * H, mask=inside, other=0.0)
        third = tl.dot(a, b, third, input_precision=PRECISION)
    return first, second, third


@triton.jit
def _gate(
    x, state, low, w_input, w_state, b_input, b_state, out, out_low, M,
    X: tl.constexpr, H: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    branch = tl.program_id(2).to(tl.int64)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    x += branch * M * X
    low += branch * M * H
    w_input += branch * X * 3 * H
    w_state += branch * H * 3 * H
    b_input += branch * 3 * H + columns
    b_state += branch * 3 * H + columns
    reset = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    keep = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    new = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    old = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    there = columns < H
    reset, keep, new = _three_products(
        reset, keep, new, x, w_input, rows, columns, M, X, H, STEP, PRECISION
    )
    reset, keep, old = _three_products(
        reset, keep, old, low, w_state, rows, columns, M, H, H, STEP, PRECISION
    )
    b = tl.load(b_input, mask=there, other=0.0) + tl.load(b_state, mask=there, other=0.0)
    reset = _sigmoid(reset + b[None, :])
    b = tl.load(b_input + H, mask=there, other=0.0) + tl.load(b_state + H, mask=there, other=0.0)
    keep = _sigmoid(keep + b[None, :])
    new += tl.load(b_input + 2 * H, mask=there, other=0.0)[None, :]
    new += reset * (old + tl.load(b_state + 2 * H, mask=there, other=0.0)[None, :])
    new = 2.0 * _sigmoid(2.0 * new) - 1.0  # tanh
    inside = (rows < M)[:, None] & there[None, :]
    where = branch * M * H + rows[:, None] * H + columns[None, :]
    h = tl.load(state + where, mask=inside, other=0.0)
    h = new + keep * (h - new)
    tl.store(out + where, h, mask=inside)
    tl.store(out_low + where, h.to(out_low.dtype.element_ty), mask=inside)


def gated(
    x: Tensor, state: Tensor, low: Tensor, of_input: Affine, of_state: Affine
) -> tuple[Tensor, Tensor]:
    """Return the next state (G, M, H) float32, and the same as it goes into products.

    x (G, M, X) and `low`, which is the state, are in the precision of the weights. The two layers
    give what goes into reset, keep and new, side by side.
    """
    G, M, H = state.shape
    out, lowered = torch.empty_like(state), torch.empty_like(low)
    _gate[(triton.cdiv(H, COLUMNS), triton.cdiv(M, ROWS), G)](
        x, state, low, of_input.weight, of_state.weight, of_input.bias, of_state.bias, out, lowered,
        M, X=x.shape[-1], H=H, ROWS=ROWS, COLUMNS=COLUMNS, STEP=STEP, PRECISION="tf32x3",
        num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip
    return out, lowered


@triton.jit
def _moments(parts, channels, T, C: tl.constexpr, TILES: tl.constexpr):
    """Mean and variance of some channels, from the sums, squares about the mean and counts of T
    tiles of rows."""
    total = tl.zeros([channels.shape[0]], dtype=tl.float32)
    count = tl.zeros([channels.shape[0]], dtype=tl.float32)
    for start in range(0, T, TILES):
        tiles = start + tl.arange(0, TILES)
        inside = (tiles < T)[:, None] & (channels < C)[None, :]
        at = parts + tiles[:, None] * (3 * C) + channels[None, :]
        total += tl.sum(tl.load(at, mask=inside, other=0.0), 0)
        count += tl.sum(tl.load(at + 2 * C, mask=inside, other=0.0), 0)
    count = tl.maximum(count, 1.0)
    mean = total / count
    squares = tl.zeros([channels.shape[0]], dtype=tl.float32)
    for start in range(0, T, TILES):
        tiles = start + tl.arange(0, TILES)
        inside = (tiles < T)[:, None] & (channels < C)[None, :]
        at = parts + tiles[:, None] * (3 * C) + channels[None, :]
        n = tl.load(at + 2 * C, mask=inside, other=0.0)
        away = tl.load(at, mask=inside, other=0.0) / tl.maximum(n, 1.0) - mean[None, :]
        squares += tl.sum(tl.load(at + C, mask=inside, other=0.0) + n * away * away, 0)
    return mean, squares / count


@triton.jit
def _normed(
    x, parts, scale, shift, weight, bias, residual, mask, out, counted, N, T,
    C: tl.constexpr, WIDTH: tl.constexpr, OUT: tl.constexpr,
    NORMED: tl.constexpr, COUNTED: tl.constexpr, RESIDUAL: tl.constexpr, MASKED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, TILES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    problem = tl.program_id(2).to(tl.int64)
    tile = tl.program_id(1)
    rows = tile * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    channels = tl.arange(0, WIDTH)
    v = _load(x + problem * N * C, rows, channels, N, C)
    if NORMED:
        mean, variance = _moments(parts + problem * T * 3 * C, channels, T, C, TILES)
        inside = channels < C
        factor = tl.rsqrt(variance + 1e-5) * tl.load(scale + channels, mask=inside, other=0.0)
        offset = tl.load(shift + channels, mask=inside, other=0.0)
        v = tl.maximum((v - mean[None, :]) * factor[None, :] + offset[None, :], 0.0)
    w = _load(weight, columns, channels, OUT, C)
    y = tl.dot(v, tl.trans(w), input_precision=PRECISION)
    y += tl.load(bias + columns, mask=columns < OUT, other=0.0)[None, :]
    inside = (rows < N)[:, None] & (columns < OUT)[None, :]
    where = problem * N * OUT + rows[:, None] * OUT + columns[None, :]
    if RESIDUAL:
        y += tl.load(residual + where, mask=inside, other=0.0)
    tl.store(out + where, y, mask=inside)
    if COUNTED:
        real = rows < N
        if MASKED:
            real = real & (tl.load(mask + problem * N + rows, mask=real, other=0) != 0)
        real = real.to(tl.float32)
        n = tl.sum(real)
        total = tl.sum(y * real[:, None], 0)
        away = (y - (total / tl.maximum(n, 1.0))[None, :]) * real[:, None]
        at = counted + (problem * T + tile) * 3 * OUT + columns
        tl.store(at, total, mask=columns < OUT)
        tl.store(at + OUT, tl.sum(away * away, 0), mask=columns < OUT)
        tl.store(at + 2 * OUT, tl.zeros([COLUMNS], dtype=tl.float32) + n, mask=columns < OUT)


def supports(*widths: int) -> bool:
    """Tell whether `normed_mlp` takes layers of these widths."""
    return max(widths) <= MAX_WIDTH


def normed_mlp(
    x: Tensor,
    mask: Tensor | None,
    linears: Iterable[Any],
    norms: Iterable[Any],
    residual: Tensor | None = None,
    *,
    rounding: bool = False,
) -> Tensor:
    """Put x (B, N, C) float32 through linear layers and add a residual.

    Between them are a normalisation over the rows of mask (B, N) and a ReLU. Layers have weight
    (out, in) and bias, normalisations scale and shift.
    """
    B, N, _ = x.shape
    T = triton.cdiv(N, NORMED_ROWS)
    x = x.contiguous()
    seen = x if mask is None else mask.contiguous().view(torch.uint8)
    parts, scale, shift = x, x, x  # none yet
    for step, (linear, norm) in enumerate(zip_longest(linears, norms)):
        last = norm is None
        width, C = linear.weight.shape
        out = x.new_empty(B, N, width)
        counted = out if last else x.new_empty(B, T, 3, width)
        added = residual.contiguous() if last and residual is not None else None
        _normed[(triton.cdiv(width, NORMED_COLUMNS), T, B)](
            x, parts, scale, shift, linear.weight, linear.bias,
            x if added is None else added, seen, out, counted,
            N, T, C=C, WIDTH=max(16, triton.next_power_of_2(C)), OUT=width, NORMED=step > 0,
            COUNTED=not last, RESIDUAL=added is not None, MASKED=mask is not None,
            ROWS=NORMED_ROWS, COLUMNS=NORMED_COLUMNS, TILES=TILES, num_warps=4,
            PRECISION="tf32" if rounding and step > 0 else "tf32x3",
        )  # fmt: skip
        x, parts = out, counted
        if not last:
            scale, shift = norm.scale, norm.shift
    return x
