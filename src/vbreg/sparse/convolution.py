"""Convolutions on occupied cells of any dimension.

Neighbours are gathered into one product of matrices, forward and backward, without atomic
additions: the same input gives the same numbers every time.
Shapes: N cells, M of what is computed, K = k^D offsets of a kernel of size k.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from vbreg import backends
from vbreg.sparse.cells import Edges, Neighbours, offsets


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
        return _product(x, neighbours.index, kernel)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, kernel = ctx.saved_tensors
        neighbours: Neighbours = ctx.neighbours
        of_x = of_kernel = None
        if ctx.needs_input_grad[0]:
            of_x = _product(gradient, neighbours.turned.index, kernel.transpose(1, 2))
        if ctx.needs_input_grad[1]:
            of_kernel = _outer(x, neighbours.index, gradient)
        return of_x, of_kernel, None


def _product(x: Tensor, index: Tensor, kernel: Tensor) -> Tensor:
    """Return (M, D): the sum over k of row index[m, k] of x times kernel (K, C, D)."""
    return backends.run(lambda b: b.gathered_product(x, index, kernel), x.device)[0]


def _outer(x: Tensor, index: Tensor, y: Tensor) -> Tensor:
    """Return (K, C, D): the sum over m of the outer products of row index[m, k] of x and y."""
    return backends.run(lambda b: b.gathered_outer(x, index, y), x.device)[0]


class SparseConvolution(nn.Module):
    """A convolution on 3-D cells, strided or transposed by the neighbours that it is given.

    Its weights are named and laid out as those of MinkowskiEngine.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, *, bias: bool = False) -> None:
        super().__init__()
        K = kernel**3
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
