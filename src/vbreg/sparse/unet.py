"""The residual U-Net of FCGF and of DGR: four levels, each of cells twice as wide.

Layers have their published names, so that published checkpoints fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vbreg.sparse.cells import Cells, Edges, Neighbours
from vbreg.sparse.convolution import SparseConvolution

NORM_MOMENTUM = 0.05
LEVELS = 4

Channels: TypeAlias = tuple[int, int, int, int]
Table: TypeAlias = Neighbours | Edges
MakeLayer: TypeAlias = Callable[[int, int], nn.Module]  # of inputs and outputs, kernel 3


class Levels(NamedTuple):
    """What the convolutions of a U-Net see, from fine to coarse."""

    first: Table  # the first convolution
    around: Sequence[Table]  # those that stay at each of the levels
    below: Sequence[Table]  # those from each level to the next


def levels_of(
    cells: Cells, see: Callable[[Cells, Tensor | None], Table], first: Table | None = None
) -> Levels:
    """Return what convolutions see of cells and of coarser ones; `first` if not as the others.

    `see` finds what lies about cells, or about the cells that it is given.
    """
    around, below = [see(cells, None)], []
    for _ in range(1, LEVELS):
        coarse, corners = cells.coarser()
        below.append(see(cells, corners))
        around.append(see(coarse, None))
        cells = coarse
    return Levels(around[0] if first is None else first, around, below)


class _Norm(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm1d(channels, momentum=NORM_MOMENTUM)

    def forward(self, x: Tensor) -> Tensor:
        normed: Tensor = self.bn(x)
        return normed


class _Block(nn.Module):
    """Two convolutions beside which the input passes by."""

    def __init__(self, channels: int, layer: MakeLayer) -> None:
        super().__init__()
        self.conv1, self.norm1 = layer(channels, channels), _Norm(channels)
        self.conv2, self.norm2 = layer(channels, channels), _Norm(channels)

    def forward(self, x: Tensor, around: Table) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x, around)))
        return F.relu(x + self.norm2(self.conv2(y, around)))


class ResUNet(nn.Module):
    """Down and up again; on the way up the features of the way down join."""

    def __init__(
        self,
        first: nn.Module,  # from the input to channels[0]
        channels: Channels,  # down, from fine to coarse
        up_channels: Channels,  # up, the last one first
        output: int,
        layer: MakeLayer,
    ) -> None:
        super().__init__()
        self.conv1 = first
        self.norm1, self.block1 = _Norm(channels[0]), _Block(channels[0], layer)
        for k in range(1, LEVELS):
            self._add(f"{k + 1}", channels[k - 1], channels[k], layer)
        inputs = channels[-1]
        for k in reversed(range(1, LEVELS)):
            self._add(f"{k + 1}_tr", inputs, up_channels[k], layer)
            inputs = up_channels[k] + channels[k - 1]
        self.conv1_tr = SparseConvolution(inputs, up_channels[0], 1)
        self.final = SparseConvolution(up_channels[0], output, 1, bias=True)

    def _add(self, name: str, inputs: int, outputs: int, layer: MakeLayer) -> None:
        self.add_module(f"conv{name}", layer(inputs, outputs))
        self.add_module(f"norm{name}", _Norm(outputs))
        self.add_module(f"block{name}", _Block(outputs, layer))

    def features(self, x: Tensor, levels: Levels) -> Tensor:
        """Return (N, output) of features x (N, .) of the finest cells."""
        x = self._part(x, "1", levels.first, levels.around[0])
        passed = []
        for k in range(1, LEVELS):
            passed.append(x)
            x = self._part(x, f"{k + 1}", levels.below[k - 1], levels.around[k])
        for k in reversed(range(1, LEVELS)):
            up = self._part(x, f"{k + 1}_tr", levels.below[k - 1].turned, levels.around[k - 1])
            x = torch.cat([up, passed.pop()], dim=1)
        found: Tensor = self.final(F.relu(self.conv1_tr(x)))
        return found

    def _part(self, x: Tensor, name: str, way: Table, around: Table) -> Tensor:
        """Return features a convolution and a block further."""
        conv, norm, block = (getattr(self, f"{part}{name}") for part in ("conv", "norm", "block"))
        found: Tensor = block(norm(conv(x, way)), around)
        return found
