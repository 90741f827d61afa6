"""Convolutions on occupied cells, in plain torch on any device.

Neighbours are gathered into one product of matrices, forward and backward, without atomic
additions: the same input gives the same numbers every time.
Shapes: N cells, M of what is computed, K = k^D offsets of a kernel of size k.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from vbreg.backends.devices import chunk_size
from vbreg.sparse.cells import Edges, Neighbours, offsets, parts

MAX_GATHERED, MAX_GATHERED_GPU = 2**20, 2**30  # numbers gathered at a time: near a CPU's cache


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
            of_kernel = sum(
                (part.T @ gradient[rows] for rows, part in _gathered(x, neighbours.index)),
                torch.zeros_like(kernel[0, :1]),
            )
            of_kernel = of_kernel.view_as(kernel)
        return of_x, of_kernel, None


def _joined(found: list[Tensor], like: Tensor) -> Tensor:
    return torch.cat(found) if found else like.new_empty(0, like.shape[1])


def _gathered(x: Tensor, index: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Yield rows of the table, and what stands there side by side (rows, K C); nothing is 0."""
    K = index.shape[1]
    padded = torch.cat([x, x.new_zeros(1, x.shape[1])])
    most = chunk_size(x.device, cpu=MAX_GATHERED, gpu=MAX_GATHERED_GPU)
    for rows in parts(len(index), K * x.shape[1], most):
        yield rows, padded.index_select(0, index[rows].reshape(-1)).view(-1, K * x.shape[1])


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


def tied_classes(device: torch.device | None = None) -> Tensor:
    """Return the class (729,) of each offset of a 3^6 kernel on pairs of 3-D cells.

    An offset belongs to the numbers of axes along which either end moves, each 0 to 3. Turning
    a cloud by a right angle, or mirroring it, changes no class.
    """
    moved = offsets(3, 6, device) != 0
    return 4 * moved[:, :3].sum(1) + moved[:, 3:].sum(1)


class TiedConvolution(nn.Module):
    """A 3^6 convolution on pairs of 3-D cells whose offsets of one class share a matrix."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        kinds = int(tied_classes().max()) + 1
        bound = 1 / math.sqrt(kinds * inputs)
        self.kernel = nn.Parameter(torch.empty(kinds, inputs, outputs).uniform_(-bound, bound))

    def forward(self, x: Tensor, edges: Edges) -> Tensor:
        """Return features (M, outputs) of features (N, inputs)."""
        index, first = edges.bags
        # Bags rather than a scatter, whose atomic additions would make sums depend on luck.
        held = F.embedding_bag(index, x, first, mode="sum")  # (M kinds, inputs)
        return held.view(edges.outputs, -1) @ self.kernel.flatten(0, 1)
