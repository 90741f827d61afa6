"""The network of the learned descriptor: the patch round a point in, numbers out.

All that it sees is the same in every frame but for where the azimuth of a patch begins, and it
convolves round the circle and pools over it. Shapes: n points described, A azimuths.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vbreg.backends.devices import chunk_size
from vbreg.descriptors.patches import cells, column_size
from vbreg.descriptors.prepared import DescriptorConfig, Prepared, patches_of

# Patches held at a time when nothing is learned: near a CPU's cache, and some 0.3 GB of a GPU.
MAX_PATCHES, MAX_PATCHES_GPU = 256, 4096


class DescriptorNetwork(nn.Module):
    """Describes the points of a cloud that are asked for."""

    def __init__(self, config: DescriptorConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or DescriptorConfig()
        width = config.width
        self.enter = nn.Linear(column_size(config), width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(config.depth))
        self.layers = nn.ModuleList(nn.Linear(3 * width, width) for _ in range(config.depth))
        self.pooled = nn.Linear(2 * width, width)
        self.hidden = nn.Sequential(nn.Linear(width, 2 * config.output), nn.ReLU())
        self.descriptor = nn.Linear(2 * config.output + width, config.output)
        self.temperature = nn.Parameter(torch.tensor(0.07).log())  # of the loss

    def forward(self, cloud: Prepared, rows: Tensor) -> Tensor:
        """Return descriptors (n, output) of length 1 of the points `rows` (n,).

        A point that stands alone, with no other in the middle patch, gets zeros.
        """
        patches = patches_of(cloud, rows)
        most = chunk_size(rows.device, cpu=MAX_PATCHES, gpu=MAX_PATCHES_GPU)
        step = max(1, len(rows) if torch.is_grad_enabled() else most)
        parts = []
        for k in range(0, len(rows), step):
            some = slice(k, k + step)
            table = cells(cloud, rows[some], [table[some] for table in patches], self.config)
            in_company = (patches[1][some] != patches[1][some, :1]).any(1, keepdim=True)
            parts.append(self.from_cells(table) * in_company)
        return torch.cat(parts) if parts else cloud.points.new_empty(0, self.config.output)

    def from_cells(self, table: Tensor) -> Tensor:
        """Return descriptors (n, output) of what patches hold (n, A, .)."""
        x = F.relu(self.enter(table))  # (n, A, width)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            y = norm(x)
            x = x + F.relu(layer(torch.cat([y.roll(1, 1), y, y.roll(-1, 1)], dim=-1)))
        x = self.pooled(torch.cat([x.mean(1), x.amax(1)], dim=-1))
        found = self.descriptor(torch.cat([self.hidden(x), x], dim=-1))
        return F.normalize(found.float(), dim=-1)
