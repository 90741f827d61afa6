"""The occupied cells of a lattice of any dimension, and which of them lie about each other.

A cell has an int64 key, and cells lie in the order of their keys. The neighbours of all of them are
found at once, in an array of all keys or, where there are too many keys, by searching the sorted
ones: as a table where most offsets hold a cell, as a list where few do.
Shapes: N cells of dimension D, M of what is computed, K = k^D offsets of a kernel of size k.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from vbreg.backends.devices import chunk_size
from vbreg.backends.gathered import parts
from vbreg.errors import VBRegError

MARGIN = 3  # empty cells about the occupied ones, so that no neighbour is another cell's key
MAX_KERNEL = 2 * MARGIN + 1
MAX_KEYS = 2**62
MAX_SOUGHT, MAX_SOUGHT_GPU = 2**20, 2**27  # neighbours that are sought at a time
MAX_LISTED, MAX_LISTED_GPU = 2**26, 2**30  # keys that an array of all of them may have


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
class Edges:
    """Which inputs each output sees, one by one, each of some kind."""

    output: Tensor  # (E,) rows of M
    input: Tensor  # (E,) rows of N
    kind: Tensor  # (E,) the offset, or a class of offsets
    outputs: int  # M
    inputs: int  # N
    kinds: int

    @property
    def turned(self) -> Edges:
        """Which outputs each input is seen by: the edges of the transposed convolution."""
        return Edges(self.input, self.output, self.kind, self.inputs, self.outputs, self.kinds)

    def in_classes(self, class_of_offset: Tensor) -> Edges:
        """Return the same edges by the class (K,) of their offsets."""
        kinds = int(class_of_offset.max()) + 1
        return replace(self, kind=class_of_offset[self.kind], kinds=kinds)

    @cached_property
    def bags(self) -> tuple[Tensor, Tensor]:
        """The inputs (E,) in the order of output and kind, and where each of M x kinds begins."""
        slot = self.output * self.kinds + self.kind
        count = torch.bincount(slot, minlength=self.outputs * self.kinds)
        return self.input[torch.argsort(slot, stable=True)], count.cumsum(0) - count


@dataclass(frozen=True, eq=False)
class Cells:
    """The occupied cells of one cloud or of several, in the order of their keys.

    The number of the cloud is the first digit of a key, so clouds never see each other.
    """

    at: Tensor  # (N, 1 + D) int64: number of the cloud, then the cell
    keys: Tensor  # (N,) int64, ascending
    low: tuple[int, ...]  # 1 + D numbers, whose key is 0
    widths: tuple[int, ...]  # 1 + D numbers of values that the digits of a key have

    @cached_property
    def weights(self) -> Tensor:
        """The weights (1 + D,) of the digits of a key."""
        return _weights(self.widths, self.keys.device)

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def dimension(self) -> int:
        """The dimension of the lattice."""
        return self.at.shape[1] - 1

    def key_of(self, at: Tensor) -> Tensor:
        """Return the keys (...) of cells (..., 1 + D) within the margin."""
        return _keys(at, self.low, self.weights)

    def neighbours(self, kernel: int, at: Tensor | None = None) -> Neighbours:
        """Find the cells about cells (M, 1 + D), or about each other."""
        device = self.keys.device
        keys = self.keys if at is None else self.key_of(at)
        few = math.prod(self.widths) <= chunk_size(device, cpu=MAX_LISTED, gpu=MAX_LISTED_GPU)
        find = self._listed(kernel) if few else self._searched(kernel)
        index = torch.empty(len(keys), kernel**self.dimension, dtype=torch.int32, device=device)
        most = chunk_size(device, cpu=MAX_SOUGHT, gpu=MAX_SOUGHT_GPU)
        for part in parts(len(keys), index.shape[1], most):
            index[part] = find(keys[part])
        return Neighbours(index, len(self))

    def _listed(self, kernel: int) -> Callable[[Tensor], Tensor]:
        """Return what finds the rows (m, K) about keys (m,) in an array of the rows of all keys."""
        rows = torch.arange(len(self), dtype=torch.int32, device=self.keys.device)
        row_of = rows.new_full((math.prod(self.widths),), len(self))
        row_of[self.keys] = rows
        away = (offsets(kernel, self.dimension, rows.device) * self.weights[1:]).sum(-1)  # (K,)

        def find(keys: Tensor) -> Tensor:
            wanted = keys.unsqueeze(1) + away
            return row_of.index_select(0, wanted.flatten()).view_as(wanted)

        return find

    def _searched(self, kernel: int) -> Callable[[Tensor], Tensor]:
        """Return what finds the rows (m, K) about keys (m,) among the sorted keys."""
        across = offsets(kernel, self.dimension - 1, self.keys.device)  # all axes but the last
        lowest = (across * self.weights[1:-1]).sum(-1) - kernel // 2  # (J,)

        def find(keys: Tensor) -> Tensor:
            runs = self._runs(keys.unsqueeze(1) + lowest, kernel)  # (m, J, k)
            return runs.transpose(1, 2).flatten(1)

        return find

    def _runs(self, lowest: Tensor, length: int) -> Tensor:
        """Return the rows (m, J, k) of keys that follow each of lowest (m, J), N where none does.

        Keys that follow each other are sought once: they stand next to each other.
        """
        ending = self.keys.new_full((length,), 2 * MAX_KEYS - 1)
        keys = torch.cat([self.keys, ending])
        first = torch.searchsorted(self.keys, lowest, out_int32=True)
        runs = first.new_full((*first.shape, length + 1), len(self))  # the last is for what is not
        for step in range(length):
            row = first + step
            gap = keys.index_select(0, row.flatten()).view_as(lowest) - lowest
            runs.scatter_(-1, gap.clamp_max(length).unsqueeze(-1), row.unsqueeze(-1))
        return runs[..., :length]

    def edges(self, kernel: int, at: Tensor | None = None) -> Edges:
        """List the cells about cells (M, 1 + D), or about each other, by offset.

        Axis after axis, only beginnings of keys that occur are followed, so that the cost depends
        on the neighbours that there are and hardly on how many there might be.
        """
        at = self.at if at is None else at
        steps = torch.arange(kernel, device=at.device)
        row = torch.arange(len(at), device=at.device)
        begun, offset = at[:, 0] - self.low[0], torch.zeros_like(row)
        place = row
        for axis in range(1, self.at.shape[1]):
            width = self.widths[axis]
            digit = at[row, axis] - self.low[axis] - kernel // 2
            tried = (begun * width + digit).unsqueeze(1) + steps  # (E, k)
            known = torch.unique_consecutive(self.keys // self.weights[axis])
            place = torch.searchsorted(known, tried).clamp_max(len(known) - 1)
            found = known[place] == tried
            offset = (offset.unsqueeze(1) + steps * kernel ** (axis - 1))[found]
            row = row.unsqueeze(1).expand_as(tried)[found]
            begun, place = tried[found], place[found]
        return Edges(row, place, offset, len(at), len(self), kernel**self.dimension)

    def coarser(self) -> tuple[Cells, Tensor]:
        """Return cells of twice the size, and the corners (M, 1 + D) of these among ours.

        What a convolution of stride 2 sees lies about the corners.
        """
        at = self.at.clone()
        at[:, 1:] = at[:, 1:].div(2, rounding_mode="floor")
        inner = [(low + MARGIN, low + width - 1 - MARGIN) for low, width in self._digits[1:]]
        bounds = [self._digits[0], *(_with_margin(low // 2, high // 2) for low, high in inner)]
        coarse, _ = _in_order(at, bounds)
        corner = coarse.at.clone()
        corner[:, 1:] *= 2
        return coarse, corner

    @property
    def _digits(self) -> list[tuple[int, int]]:
        """The lowest value of every digit of a key, and how many values there are."""
        return list(zip(self.low, self.widths, strict=True))


def occupied(cells: Tensor, cloud: Tensor | None = None) -> tuple[Cells, Tensor]:
    """Return the cells that occur among cells (P, D) of clouds (P,), and the row of each (P,)."""
    if cloud is None:
        cloud = cells.new_zeros(len(cells))
    at = torch.cat([cloud.unsqueeze(1), cells], dim=1).long()
    if len(at) == 0:
        raise VBRegError("no cells: a convolution needs at least one")
    low, high = torch.stack(torch.aminmax(at, dim=0)).tolist()
    digits = [
        (low[0], high[0] - low[0] + 1),
        *(_with_margin(a, b) for a, b in zip(low[1:], high[1:], strict=True)),
    ]
    widths = [width for _, width in digits]
    if math.prod(widths) > MAX_KEYS:
        raise VBRegError(
            f"the cells span {' x '.join(map(str, widths[1:]))} of {widths[0]} clouds: too wide "
            "for one table; use larger cells or drop far outliers"
        )
    return _in_order(at, digits)


def _with_margin(low: int, high: int) -> tuple[int, int]:
    """Return the lowest value of a digit, and how many there are, with empty ones about."""
    return low - MARGIN, high - low + 1 + 2 * MARGIN


def _in_order(at: Tensor, digits: Sequence[tuple[int, int]]) -> tuple[Cells, Tensor]:
    """Return the cells that occur among cells (P, 1 + D), and the row of each (P,)."""
    low, widths = (tuple(values) for values in zip(*digits, strict=True))
    keys, row = torch.unique(_keys(at, low, _weights(widths, at.device)), return_inverse=True)
    first = at.new_empty(len(keys), at.shape[1]).index_copy_(0, row, at)
    return Cells(first, keys, low, widths), row


def _weights(widths: Sequence[int], device: torch.device) -> Tensor:
    """Return the weights (1 + D,) of the digits of a key."""
    return torch.tensor([math.prod(widths[k + 1 :]) for k in range(len(widths))], device=device)


def _keys(at: Tensor, low: Sequence[int], weights: Tensor) -> Tensor:
    """Return the keys (...) of cells (..., 1 + D)."""
    return ((at - torch.tensor(low, device=at.device)) * weights).sum(-1)
