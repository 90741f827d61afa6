"""The network of the learned descriptor: the patch round a point in, numbers out.

All that it sees is the same in every frame but for where the azimuth of a patch begins, and it
convolves round the circle and pools over it. Shapes: N points, n of them described, A azimuths.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vbreg.descriptors.patches import cells, column_size, relief
from vbreg.descriptors.prepared import MIDDLE, NEAR, DescriptorConfig, Prepared, patches_of

MAX_PATCH_POINTS = 2**16  # held at a time when nothing is learned: near a CPU's cache
RELIEF_WIDTH = 32


class DescriptorNetwork(nn.Module):
    """Tells how salient each point of a cloud is, and describes those that are asked for."""

    def __init__(self, config: DescriptorConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or DescriptorConfig()
        width = config.width
        self.relief = nn.Sequential(
            nn.Linear(2, RELIEF_WIDTH), nn.ReLU(), nn.Linear(RELIEF_WIDTH, RELIEF_WIDTH)
        )
        self.saliency = nn.Sequential(nn.Linear(2 * RELIEF_WIDTH, 64), nn.ReLU(), nn.Linear(64, 1))
        self.enter = nn.Linear(column_size(config), width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(config.depth))
        self.layers = nn.ModuleList(nn.Linear(3 * width, width) for _ in range(config.depth))
        self.pooled = nn.Linear(2 * width, width)
        self.hidden = nn.Sequential(nn.Linear(width, 2 * config.output), nn.ReLU())
        self.descriptor = nn.Linear(2 * config.output + width, config.output)
        self.temperature = nn.Parameter(torch.tensor(0.07).log())  # of the loss

    def forward(self, cloud: Prepared, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return descriptors (n, output) of the points `rows`, and the saliency (N,) of all."""
        return self.describe(cloud, rows), self.judge(cloud)

    def judge(self, cloud: Prepared) -> Tensor:
        """Return (N,): the logit that the nearest descriptor in another scan is the right one."""
        parts = []
        for rows in _slices(len(cloud.points), NEAR.most):
            seen = self.relief(relief(cloud, rows))  # (n, P, RELIEF_WIDTH)
            seen = torch.cat([seen.mean(1), seen.amax(1)], dim=-1)
            parts.append(self.saliency(seen).float().squeeze(-1))
        return torch.cat(parts) if parts else cloud.points.new_empty(0)

    def describe(self, cloud: Prepared, rows: Tensor) -> Tensor:
        """Return descriptors (n, output) of length 1 of the points `rows` (n,)."""
        patches = patches_of(cloud, rows, self.config)
        parts = []
        for some in _slices(len(rows), MIDDLE.most):
            table = cells(cloud, rows[some], [table[some] for table in patches], self.config)
            parts.append(self.from_cells(table))
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


def _slices(count: int, points: int) -> list[slice]:
    """Cut rows of so many points each into parts; into one where all is kept for a gradient."""
    step = count if torch.is_grad_enabled() else MAX_PATCH_POINTS // points
    return [slice(k, k + step) for k in range(0, count, max(1, step))]
