"""Products of gathered rows: what a convolution on occupied cells is made of, forward and backward.

Shapes: x (N, C), a table (M, K) of its rows or N for none, M rows of what is computed, D channels.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from vbreg.backends.devices import chunk_size

MAX_GATHERED, MAX_GATHERED_GPU = 2**20, 2**30  # numbers gathered at a time: near a CPU's cache


def gathered_product(x: Tensor, index: Tensor, kernel: Tensor) -> Tensor:
    """Return (M, D): the sum over k of row index[m, k] of x times kernel (K, C, D)."""
    flat = kernel.flatten(0, 1)  # (K C, D)
    found = [part @ flat for _, part in _gathered(x, index)]
    return torch.cat(found) if found else flat.new_empty(0, flat.shape[1])


def gathered_outer(x: Tensor, index: Tensor, y: Tensor) -> Tensor:
    """Return (K, C, D): the sum over m of the outer products of row index[m, k] of x and y (M, D).

    It is the gradient of `gathered_product` by its kernel where y is that of its result.
    """
    K, C, D = index.shape[1], x.shape[1], y.shape[1]
    total = y.new_zeros(K * C, D)
    for rows, part in _gathered(x, index):
        total += part.T @ y[rows]
    return total.view(K, C, D)


def parts(count: int, each: int, most: int) -> Iterator[slice]:
    """Yield slices of so many rows that no more than `most` numbers are held."""
    step = max(1, most // max(1, each))
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


def _gathered(x: Tensor, index: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield rows of the table, and what stands there side by side (rows, K C); nothing is 0."""
    K = index.shape[1]
    padded = torch.cat([x, x.new_zeros(1, x.shape[1])])
    most = chunk_size(x.device, cpu=MAX_GATHERED, gpu=MAX_GATHERED_GPU)
    for rows in parts(len(index), K * x.shape[1], most):
        yield rows, padded.index_select(0, index[rows].reshape(-1)).view(-1, K * x.shape[1])
