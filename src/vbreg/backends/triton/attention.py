"""The attention of Eq. 1 without an N x N map: beta comes from coordinates, tile by tile.

softmax_j(beta_ij Q_i.K_j / sqrt(d)) V_j with the running maximum and sum of each row, and its
gradient from what the rows' sums were. Computes what `compatibility.spatial_attention` does.
Shapes: B problems, N correspondences, d channels, a power of two from 16 on.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeAlias

import torch
import triton
import triton.language as tl
from torch import Tensor

from vbreg.backends.triton.beta import beta_of

LOG2_E = math.log2(math.e)


class Tile(NamedTuple):
    """What a program looks at in one step, and how many steps ahead it reads."""

    rows: int
    columns: int
    stages: int


FORWARD, BACKWARD, WARPS = Tile(64, 32, 3), Tile(64, 64, 2), 4
MAX_PARTS = 8  # that the columns of a row are looked at in
JOINED = 8  # rows that a program puts together
MAX_WIDTH = 128  # channels whose tiles fit into the memory of a multiprocessor


@triton.jit
def _square(a, b):
    return (a[:, None] - b[None, :]) * (a[:, None] - b[None, :])


@triton.jit
def _compatibility(points, rows, columns, N):
    """beta (rows, columns) of points (6, N): source x, y, z, then target x, y, z."""
    a, b = rows < N, columns < N
    source = tl.zeros([rows.shape[0], columns.shape[0]], dtype=tl.float32)
    target = tl.zeros([rows.shape[0], columns.shape[0]], dtype=tl.float32)
    for axis in tl.static_range(3):
        x = points + axis * N
        source += _square(
            tl.load(x + rows, mask=a, other=0.0), tl.load(x + columns, mask=b, other=0.0)
        )
        y = points + (axis + 3) * N
        target += _square(
            tl.load(y + rows, mask=a, other=0.0), tl.load(y + columns, mask=b, other=0.0)
        )
    return beta_of(source, target)


@triton.jit
def _tile(base, rows, N, D: tl.constexpr):
    """Rows (rows, D) of a matrix (N, D), zero beyond its end."""
    d = tl.arange(0, D)
    return tl.load(base + rows[:, None] * D + d[None, :], mask=(rows < N)[:, None], other=0.0)


@triton.jit
def _real(mask, columns, N, MASKED: tl.constexpr):
    real = columns < N
    if MASKED:
        real = real & (tl.load(mask + columns, mask=real, other=0) != 0)
    return real


@triton.jit
def _forward(
    query, key, value, points, mask, out, log_sum, N, scale, span,
    D: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    problem = tl.program_id(0).to(tl.int64)
    part = tl.program_id(2)
    query += problem * N * D
    key += problem * N * D
    value += problem * N * D
    shift = part.to(tl.int64) * tl.num_programs(0) + problem
    out += shift * N * D
    points += problem * N * 6
    mask += problem * N
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    q = _tile(query, rows, N, D)
    highest = tl.full([ROWS], -1.0e30, dtype=tl.float32)
    total = tl.zeros([ROWS], dtype=tl.float32)
    sums = tl.zeros([ROWS, D], dtype=tl.float32)
    for start in range(part * span, tl.minimum(N, (part + 1) * span), COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        k = _tile(key, columns, N, D)
        v = _tile(value, columns, N, D)
        logits = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        logits *= _compatibility(points, rows, columns, N)
        logits = tl.where(_real(mask, columns, N, MASKED)[None, :], logits, -float("inf"))
        higher = tl.maximum(highest, tl.max(logits, 1))
        p = tl.exp2(logits - higher[:, None])
        shrink = tl.exp2(highest - higher)
        total = total * shrink + tl.sum(p, 1)
        sums = sums * shrink[:, None]
        sums += tl.dot(p.to(v.dtype), v, input_precision=PRECISION)
        highest = higher
    d = tl.arange(0, D)
    inside = rows < N
    where = out + rows[:, None] * D + d[None, :]
    mean = sums / tl.where(total > 0.0, total, 1.0)[:, None]  # no column of a part may be real
    tl.store(where, mean.to(out.dtype.element_ty), mask=inside[:, None])
    tl.store(log_sum + shift * N + rows, highest + tl.log2(total), mask=inside)


@triton.jit
def _join(
    parts, logs, out, log_sum, rows_in_all, PARTS: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr
):
    """Rows over all columns from rows over parts of them."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = rows < rows_in_all
    highest = tl.full([ROWS], -float("inf"), dtype=tl.float32)
    for part in tl.static_range(PARTS):
        log = tl.load(logs + part * rows_in_all + rows, mask=inside, other=0.0)
        highest = tl.maximum(highest, log)
    total = tl.zeros([ROWS], dtype=tl.float32)
    sums = tl.zeros([ROWS, D], dtype=tl.float32)
    for part in tl.static_range(PARTS):
        w = tl.exp2(tl.load(logs + part * rows_in_all + rows, mask=inside, other=0.0) - highest)
        total += w
        sums += _tile(parts + part * rows_in_all * D, rows, rows_in_all, D) * w[:, None]
    d = tl.arange(0, D)
    where = out + rows[:, None] * D + d[None, :]
    tl.store(where, (sums / total[:, None]).to(out.dtype.element_ty), mask=inside[:, None])
    tl.store(log_sum + rows, highest + tl.log2(total), mask=inside)


@triton.jit
def _probabilities(
    q, k, points, mask, rows, columns, log_sum, N, scale,
    MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """P and d logit / d (q . k) of a tile, each (rows, columns)."""
    slope = _compatibility(points, rows, columns, N) * scale
    logits = tl.dot(q, tl.trans(k), input_precision=PRECISION) * slope
    real = _real(mask, columns, N, MASKED)[None, :] & (rows < N)[:, None]
    return tl.where(real, tl.exp2(logits - log_sum[:, None]), 0.0), slope


@triton.jit
def _backward_columns(
    query, key, value, points, mask, log_sum, grad_out, inner, grad_key, grad_value, N, scale,
    D: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    problem = tl.program_id(0).to(tl.int64)
    shift = problem * N * D
    points += problem * N * 6
    mask += problem * N
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    k = _tile(key + shift, columns, N, D)
    v = _tile(value + shift, columns, N, D)
    dk = tl.zeros([COLUMNS, D], dtype=tl.float32)
    dv = tl.zeros([COLUMNS, D], dtype=tl.float32)
    for start in range(0, N, ROWS):
        rows = start + tl.arange(0, ROWS)
        inside = rows < N
        q = _tile(query + shift, rows, N, D)
        g = _tile(grad_out + shift, rows, N, D)
        ls = tl.load(log_sum + problem * N + rows, mask=inside, other=0.0)
        common = tl.load(inner + problem * N + rows, mask=inside, other=0.0)
        p, slope = _probabilities(
            q, k, points, mask, rows, columns, ls, N, scale, MASKED, PRECISION
        )
        dv += tl.dot(tl.trans(p).to(g.dtype), g, input_precision=PRECISION)
        ds = p * (tl.dot(g, tl.trans(v), input_precision=PRECISION) - common[:, None]) * slope
        dk += tl.dot(tl.trans(ds).to(q.dtype), q, input_precision=PRECISION)
    d = tl.arange(0, D)
    where = shift + columns[:, None] * D + d[None, :]
    inside = (columns < N)[:, None]
    tl.store(grad_key + where, (dk / 1.4426950408889634).to(grad_key.dtype.element_ty), mask=inside)
    tl.store(grad_value + where, dv.to(grad_value.dtype.element_ty), mask=inside)


@triton.jit
def _backward_rows(
    query, key, value, points, mask, log_sum, grad_out, inner, grad_query, N, scale,
    D: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, MASKED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    problem = tl.program_id(0).to(tl.int64)
    shift = problem * N * D
    points += problem * N * 6
    mask += problem * N
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    inside = rows < N
    q = _tile(query + shift, rows, N, D)
    g = _tile(grad_out + shift, rows, N, D)
    ls = tl.load(log_sum + problem * N + rows, mask=inside, other=0.0)
    common = tl.load(inner + problem * N + rows, mask=inside, other=0.0)
    dq = tl.zeros([ROWS, D], dtype=tl.float32)
    for start in range(0, N, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        k = _tile(key + shift, columns, N, D)
        v = _tile(value + shift, columns, N, D)
        p, slope = _probabilities(
            q, k, points, mask, rows, columns, ls, N, scale, MASKED, PRECISION
        )
        ds = p * (tl.dot(g, tl.trans(v), input_precision=PRECISION) - common[:, None]) * slope
        dq += tl.dot(ds.to(k.dtype), k, input_precision=PRECISION)
    d = tl.arange(0, D)
    where = grad_query + shift + rows[:, None] * D + d[None, :]
    tl.store(where, (dq / 1.4426950408889634).to(grad_query.dtype.element_ty), mask=inside[:, None])


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        points: Tensor,
        mask: Tensor | None,
        rounding: bool,
    ) -> Tensor:
        context.rounding = rounding
        kind = value.dtype
        if rounding and kind in (torch.float32, torch.float16):
            kind = torch.float32  # half has as many bits as TF32, at twice the pace
            query, key, value = (x.half() for x in (query, key, value))
        query, key, value = (x.contiguous() for x in (query, key, value))
        out, log_sum = _forward_in_parts(query, key, value, points, mask, kind, rounding)
        context.save_for_backward(query, key, value, points, mask, out, log_sum)
        return out

    @staticmethod
    def backward(context: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, points, mask, out, log_sum = context.saved_tensors
        grad_out = grads[0].to(value.dtype).contiguous()
        inner = (grad_out.float() * out.float()).sum(-1)  # (B, N)
        grad_query, grad_key, grad_value = (
            torch.empty_like(x, dtype=out.dtype) for x in (query, key, value)
        )
        given = (log_sum, grad_out, inner)
        columns = triton.cdiv(query.shape[1], BACKWARD.columns)
        rows = triton.cdiv(query.shape[1], BACKWARD.rows)
        inputs = query, key, value, points, mask
        both = (grad_key, grad_value)
        _launch(_backward_columns, BACKWARD, (columns,), inputs, (*given, *both), context.rounding)
        _launch(_backward_rows, BACKWARD, (rows,), inputs, (*given, grad_query), context.rounding)
        return grad_query, grad_key, grad_value, None, None, None


def _forward_in_parts(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    points: Tensor,
    mask: Tensor | None,
    kind: torch.dtype,
    rounding: bool,
) -> tuple[Tensor, Tensor]:
    """Return attention and the rows' sums; columns in as many parts as keep the GPU busy."""
    B, N, D = value.shape
    tiles, rows = triton.cdiv(N, FORWARD.columns), triton.cdiv(N, FORWARD.rows)
    span = triton.cdiv(tiles, parts_of(B * rows, tiles, value.device)) * FORWARD.columns
    P = triton.cdiv(N, span)
    outs = value.new_empty(P, B, N, D, dtype=kind if P == 1 else torch.float32)
    logs = value.new_empty(P, B, N, dtype=torch.float32)
    inputs = query, key, value, points, mask
    _launch(_forward, FORWARD, (rows, P), inputs, (outs, logs), rounding, (span,))
    if P == 1:
        return outs[0], logs[0]
    out, log_sum = outs.new_empty(B, N, D, dtype=kind), torch.empty_like(logs[0])
    _join[(triton.cdiv(B * N, JOINED),)](
        outs, logs, out, log_sum, B * N, PARTS=P, D=D, ROWS=JOINED, num_warps=WARPS
    )
    return out, log_sum


def parts_of(programs: int, tiles: int, device: torch.device) -> int:
    """Return in how many parts columns are looked at.

    There are then about two programs for every multiprocessor.
    """
    if device.type != "cuda":
        return min(2, tiles)  # as interpreted by tests
    wanted = 2 * torch.cuda.get_device_properties(device).multi_processor_count
    return max(1, min(MAX_PARTS, tiles, wanted // programs))


Inputs: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]


def _launch(
    kernel: Any,
    tile: Tile,
    programs: tuple[int, ...],  # of a problem
    inputs: Inputs,  # query, key, value, points, mask
    rest: tuple[Tensor, ...],
    rounding: bool,
    sizes: tuple[int, ...] = (),
) -> None:
    query, key, value, points, mask = inputs
    B, N, D = query.shape
    grid = (B, *programs)
    kernel[grid](
        query, key, value, points, points if mask is None else mask, *rest, N,
        LOG2_E / math.sqrt(D), *sizes, D=D, MASKED=mask is not None,
        ROWS=tile.rows, COLUMNS=tile.columns, num_stages=tile.stages, num_warps=WARPS,
        PRECISION="tf32" if rounding else "tf32x3",
    )  # fmt: skip


def supports(width: int) -> bool:
    """Tell whether tensor cores take features of that width: powers of two."""
    return 16 <= width <= MAX_WIDTH and width & (width - 1) == 0


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    points: Tensor,
    mask: Tensor | None,
    *,
    rounding: bool = False,
) -> Tensor:
    """Return the attention (B, N, d) of query, key, value (B, N, d).

    points (B, 6, N) of `beta.coordinates`, mask (B, N) bool. With `rounding`, factors of products
    are rounded to ten bits.
    """
    seen = None if mask is None else mask.contiguous().view(torch.uint8)
    out: Tensor = _Attention.apply(query, key, value, points, seen, rounding)
    return out
