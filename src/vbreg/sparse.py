"""Convolution on the occupied cells of a lattice of any dimension, in plain torch on any device.

A cell has an int64 key, and cells lie in the order of their keys, so that the neighbours of all
of them are found at once. A convolution gathers them into one product of matrices, forward and
backward, without atomic additions: the same input gives the same numbers every time.
Shapes: N cells of dimension D, M of what is computed, K = k^D offsets of a kernel of size k.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from vbreg.backends.devices import chunk_size
from vbreg.errors import VBRegError

MARGIN = 3  # empty cells about the occupied ones, so that no neighbour is another cell's key
MAX_KERNEL = 2 * MARGIN + 1
MAX_KEYS = 2**62
MAX_LISTED = 2**26  # keys, up to which the row of every key is listed: 256 MB; else they are sought
MAX_SOUGHT = 2**24  # neighbours that are sought at a time
MAX_GATHERED, MAX_GATHERED_GPU = 2**20, 2**30  # numbers gathered at a time: near a CPU's cache


def offsets(kernel: int, dimension: int, device: torch.device | None = None) -> Tensor:
    """Return the offsets (K, D) of a kernel about its middle, the first axis running fastest.

    That is MinkowskiEngine's order: number ix + iy k + iz k^2.
    """
    if kernel < 1 or kernel % 2 == 0 or kernel > MAX_KERNEL:
        raise VBRegError(f"kernel size {kernel}: expected an odd number from 1 to {MAX_KERNEL}")
    reach = torch.arange(kernel, device=device) - kernel // 2
    return torch.cartesian_prod(*[reach] * dimension).view(-1, dimension).flip(-1)


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Which inputs each output sees: `index[m, k]` lies at offset k, or is `inputs` for none."""

    index: Tensor  # (M, K) int32
    inputs: int  # N

    @cached_property
    def turned(self) -> Neighbours:
        """Which outputs each input is seen by: the table of the transposed convolution."""
        count, K = self.index.shape
        index = self.index.new_full((self.inputs + 1, K), count)
        rows = torch.arange(count, dtype=index.dtype, device=index.device)
        index.scatter_(0, self.index.long(), rows.unsqueeze(1).expand(-1, K))
        return Neighbours(index[:-1], count)


@dataclass(frozen=True, eq=False)
class Cells:
    """The occupied cells of one cloud or of several, in the order of their keys.

    The number of the cloud is the first digit of a key, so clouds never see each other.
    """

    at: Tensor  # (N, 1 + D) int64: number of the cloud, then the cell
    keys: Tensor  # (N,) int64, ascending
    low: Tensor  # (1 + D,) whose key is 0
    weights: Tensor  # (1 + D,) of the digits of a key
    possible: int  # keys

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def dimension(self) -> int:
        """The dimension of the lattice."""
        return self.at.shape[1] - 1

    def key_of(self, at: Tensor) -> Tensor:
        """Return the keys (...) of cells (..., 1 + D) within the margin."""
        return ((at - self.low) * self.weights).sum(-1)

    def rows(self, keys: Tensor) -> Tensor:
        """Return the rows (...) int32 of keys (...); N where a cell is empty."""
        if self._row_of_key is not None:
            return self._row_of_key.index_select(0, keys.reshape(-1)).view(keys.shape)
        row = torch.searchsorted(self.keys, keys, out_int32=True)
        found = self.keys[row.clamp_max(len(self) - 1).long()] == keys
        return torch.where(found, row, len(self))

    @cached_property
    def _row_of_key(self) -> Tensor | None:
        if self.possible > MAX_LISTED:
            return None
        row = torch.arange(len(self), dtype=torch.int32, device=self.keys.device)
        listed = torch.full((self.possible,), len(self), dtype=torch.int32, device=self.keys.device)
        return listed.scatter_(0, self.keys, row)

    def seen_from(self, keys: Tensor, kernel: int) -> Neighbours:
        """Find the cells about keys (M,)."""
        step = offsets(kernel, self.dimension, keys.device) @ self.weights[1:].unsqueeze(-1)
        step = step.squeeze(-1)  # (K,)
        index = torch.empty(len(keys), len(step), dtype=torch.int32, device=keys.device)
        for part in _parts(len(keys), len(step), MAX_SOUGHT):
            index[part] = self.rows(keys[part].unsqueeze(1) + step)
        return Neighbours(index, len(self))

    def neighbours(self, kernel: int) -> Neighbours:
        """Find what a convolution sees that gives a value to each of the same cells."""
        return self.seen_from(self.keys, kernel)

    def coarser(self, kernel: int = 3) -> tuple[Cells, Neighbours]:
        """Return cells of twice the size, and which of these a convolution of stride 2 sees."""
        at = self.at.clone()
        at[:, 1:] = at[:, 1:].div(2, rounding_mode="floor")
        coarse, _ = occupied(at[:, 1:], at[:, 0])
        corner = coarse.at.clone()
        corner[:, 1:] *= 2
        return coarse, self.seen_from(self.key_of(corner), kernel)


def occupied(cells: Tensor, cloud: Tensor | None = None) -> tuple[Cells, Tensor]:
    """Return the cells that occur among cells (P, D) of clouds (P,), and the row of each (P,)."""
    if cloud is None:
        cloud = cells.new_zeros(len(cells))
    at = torch.cat([cloud.unsqueeze(1), cells], dim=1).long()
    if len(at) == 0:
        raise VBRegError("no cells: a convolution needs at least one")
    low, high = at.amin(0), at.amax(0)
    low[1:] -= MARGIN
    high[1:] += MARGIN
    widths = (high - low + 1).tolist()
    possible = math.prod(widths)
    if possible > MAX_KEYS:
        raise VBRegError(
            f"the cells span {' x '.join(map(str, widths[1:]))} of {widths[0]} clouds: too wide "
            "for one table; use larger cells or drop far outliers"
        )
    weights = torch.tensor(
        [math.prod(widths[k + 1 :]) for k in range(len(widths))], device=at.device
    )
    keys, row = torch.unique(((at - low) * weights).sum(-1), return_inverse=True)
    first = at.new_empty(len(keys), at.shape[1]).index_copy_(0, row, at)
    return Cells(first, keys, low, weights, possible), row


def convolve(x: Tensor, kernel: Tensor, neighbours: Neighbours) -> Tensor:
    """Return (M, Cout) of features x (N, Cin) and a kernel (K, Cin, Cout).

    Give `neighbours.turned` for the transposed convolution. Products have the precision of x.
    """
    found: Tensor = _Convolution.apply(x, kernel.to(x.dtype), neighbours)
    return found


class _Convolution(torch.autograd.Function):
    """Gathers anew in the backward pass, which needs a tenth of the memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor, neighbours: Neighbours) -> Tensor:
        ctx.save_for_backward(x, kernel)
        ctx.neighbours = neighbours
        flat = kernel.flatten(0, 1)  # (K Cin, Cout)
        return _joined([part @ flat for _, part in _gathered(x, neighbours.index)], flat)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, kernel = ctx.saved_tensors
        neighbours: Neighbours = ctx.neighbours
        of_x = of_kernel = None
        if ctx.needs_input_grad[0]:
            flat = kernel.transpose(1, 2).flatten(0, 1)  # (K Cout, Cin)
            back = _gathered(gradient, neighbours.turned.index)
            of_x = _joined([part @ flat for _, part in back], flat)
        if ctx.needs_input_grad[1]:
            parts = _gathered(x, neighbours.index)
            of_kernel = sum(
                (part.T @ gradient[rows] for rows, part in parts), torch.zeros_like(kernel[0, :1])
            )
            of_kernel = of_kernel.view_as(kernel)
        return of_x, of_kernel, None


def _joined(parts: list[Tensor], like: Tensor) -> Tensor:
    return torch.cat(parts) if parts else like.new_empty(0, like.shape[1])


def _gathered(x: Tensor, index: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield rows of the table, and what stands there side by side (rows, K C); nothing is 0."""
    K = index.shape[1]
    padded = torch.cat([x, x.new_zeros(1, x.shape[1])])
    most = chunk_size(x.device, cpu=MAX_GATHERED, gpu=MAX_GATHERED_GPU)
    for rows in _parts(len(index), K * x.shape[1], most):
        yield rows, padded.index_select(0, index[rows].reshape(-1)).view(-1, K * x.shape[1])


def _parts(count: int, each: int, most: int) -> Iterator[slice]:
    """Yield slices of so many rows that no more than `most` numbers are held."""
    step = max(1, most // max(1, each))
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


class SparseConvolution(nn.Module):
    """A convolution, strided or transposed by the neighbours that it is given.

    Its weights are named and laid out as those of MinkowskiEngine.
    """

    def __init__(
        self, inputs: int, outputs: int, kernel: int, *, dimension: int = 3, bias: bool = False
    ) -> None:
        super().__init__()
        K = kernel**dimension
        shape = (inputs, outputs) if K == 1 else (K, inputs, outputs)
        bound = 1 / math.sqrt(K * inputs)
        self.kernel = nn.Parameter(torch.empty(shape).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(1, outputs).uniform_(-bound, bound)) if bias else None

    def forward(self, x: Tensor, neighbours: Neighbours | None = None) -> Tensor:
        """Return features (M, outputs) of features (N, inputs); a kernel of 1 needs no table."""
        if neighbours is None:
            x = x @ self.kernel.to(x.dtype)
        else:
            x = convolve(x, self.kernel, neighbours)
        return x if self.bias is None else x + self.bias.to(x.dtype)
