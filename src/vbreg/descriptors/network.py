"""The network of the learned descriptor: local shape of a point, then what lies round it.

Everything that the network sees is the same in every frame and in units of the voxel size, so one
set of weights serves rooms, streets and single objects. Shapes: N points, K that each looks at.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vbreg.descriptors.fpfh import WIDTH as FPFH_WIDTH
from vbreg.descriptors.patches import PatchNetwork
from vbreg.descriptors.prepared import FPFH_RADII, DescriptorConfig, Prepared, patches_of
from vbreg.descriptors.pyramid import (
    EDGE_NUMBERS,
    SPACINGS,
    Pyramid,
    edge_numbers,
    relief_numbers,
)


MAX_EDGES = 2**15  # looked along at a time when nothing is learned: near a CPU's cache


class Context(NamedTuple):
    """What the network knows of each point before it looks at patches."""

    features: Tensor  # (N, .)
    saliency: Tensor  # (N,) logit that the nearest descriptor in another scan is the right one


class EdgeLayer(nn.Module):
    """Gathers what a point sees along its edges: a weighted mean by heads, and the maximum."""

    def __init__(self, seen: int, own: int, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.seen, self.own = nn.Linear(seen, width), nn.Linear(own, width, bias=False)
        self.edge = nn.Sequential(nn.Linear(EDGE_NUMBERS, 16), nn.ReLU(), nn.Linear(16, width))
        self.logits = nn.Linear(width, heads)
        self.join = nn.Linear(2 * width, width)
        self.keep = nn.Identity() if own == width else nn.Linear(own, width)
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 2 * width),
            nn.ReLU(),
            nn.Linear(2 * width, width),
        )

    def forward(self, seen: Tensor, own: Tensor, index: Tensor, edges: Tensor) -> Tensor:
        """Return (N, width); seen (M, .), own (N, .), index (N, K), edges (N, K, 5)."""
        seen = self.seen(seen)
        step = len(own)
        if not torch.is_grad_enabled():
            step = max(1, MAX_EDGES // index.shape[1])
        parts = [
            self._gathered(seen, *(part[k : k + step] for part in (own, index, edges)))
            for k in range(0, len(own), step)
        ]
        return torch.cat(parts)

    def _gathered(self, seen: Tensor, own: Tensor, index: Tensor, edges: Tensor) -> Tensor:
        N, K = index.shape
        looked_at = seen.index_select(0, index.reshape(-1)).view(N, K, -1)
        message = F.relu(looked_at + self.own(own).unsqueeze(1) + self.edge(edges))
        weights = self.logits(message).softmax(1)  # (N, K, heads)
        split = message.unflatten(-1, (self.heads, -1))  # (N, K, heads, width / heads)
        mean = (weights.unsqueeze(-1) * split).sum(1).flatten(1)
        x = self.keep(own) + self.norm(self.join(torch.cat([mean, message.amax(1)], dim=-1)))
        found: Tensor = x + self.mlp(x)
        return found


class DescriptorNetwork(nn.Module):
    """Describes every point of a pyramid's finest level."""

    def __init__(self, config: DescriptorConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or DescriptorConfig()
        local = len(FPFH_RADII) * FPFH_WIDTH if "fpfh" in config.local else 0
        if "relief" in config.local:
            self.relief = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32))
            local += 64
        known = local
        if config.widths:
            self._build_graph(config, local)
            known += config.widths[0]
        if known:
            self.saliency = nn.Sequential(nn.Linear(known, 64), nn.ReLU(), nn.Linear(64, 1))
        if config.patch_width:
            self.patch = PatchNetwork(config.patch_width, config.patch_radius)
            known += config.patch_width
        self.hidden = nn.Sequential(nn.Linear(known, 2 * config.output), nn.ReLU())
        self.descriptor = nn.Linear(2 * config.output + known, config.output)
        self.temperature = nn.Parameter(torch.tensor(0.07).log())  # of the loss

    def _build_graph(self, config: DescriptorConfig, local: int) -> None:
        def layer(seen: int, own: int, width: int) -> EdgeLayer:
            return EdgeLayer(seen, own, width, config.heads)

        first, *_ = widths = config.widths
        self.enter = nn.Linear(local, first)
        self.within = nn.ModuleList(
            nn.ModuleList(layer(w, w, w) for _ in range(depth))
            for w, depth in zip(widths, config.depths, strict=True)
        )
        between = list(pairwise(widths))
        self.start = nn.ModuleList(nn.Linear(a, b) for a, b in between)
        self.down = nn.ModuleList(layer(a, b, b) for a, b in between)
        self.up = nn.ModuleList(layer(b, a, a) for a, b in between)
        self.last = nn.ModuleList(layer(first, first, first) for _ in range(config.depth_up))

    def forward(self, cloud: Prepared, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return descriptors (n, output) of the points `rows`, and the saliency (N,) of all."""
        context = self.context(cloud)
        return self.describe(cloud, context, rows), context.saliency

    def context(self, cloud: Prepared) -> Context:
        """Return what is known of every point by itself and by what lies round it."""
        points = cloud.pyramid.levels[0].points
        parts = self._local(cloud)
        if not parts:
            return Context(points.new_empty(len(points), 0), points.new_zeros(len(points)))
        if self.config.widths:
            parts.append(self._graph(cloud.pyramid, torch.cat(parts, dim=-1)))
        features = torch.cat(parts, dim=-1)
        return Context(features, self.saliency(features).float().squeeze(-1))

    def describe(self, cloud: Prepared, context: Context, rows: Tensor) -> Tensor:
        """Return descriptors (n, output) of length 1 of the points `rows` (n,)."""
        x = context.features.index_select(0, rows)
        if self.config.patch_width:
            seen = self.patch(cloud.pyramid, rows, patches_of(cloud, rows, self.config))
            x = torch.cat([x.to(seen.dtype), seen], dim=-1)
        found = self.descriptor(torch.cat([self.hidden(x), x], dim=-1))
        return F.normalize(found.float(), dim=-1)

    def _local(self, cloud: Prepared) -> list[Tensor]:
        parts = []
        if "relief" in self.config.local:
            seen = self.relief(relief_numbers(cloud.pyramid))
            parts += [seen.mean(1), seen.amax(1)]
        if cloud.fpfh is not None:
            parts.append(cloud.fpfh.to(parts[0].dtype) if parts else cloud.fpfh)
        return parts

    def _graph(self, pyramid: Pyramid, local: Tensor) -> Tensor:
        levels = pyramid.levels
        edges = [
            edge_numbers(level, level, index, spacing)
            for level, index, spacing in zip(levels, pyramid.within, SPACINGS, strict=True)
        ]
        x = F.relu(self.enter(local))
        passed: list[Tensor] = []
        for k, level_layers in enumerate(self.within):
            if k:
                index = pyramid.down[k - 1]
                seen_by = edge_numbers(levels[k], levels[k - 1], index, SPACINGS[k])
                own = self.start[k - 1](x).index_select(0, index[:, 0])
                x = self.down[k - 1](x, own, index, seen_by)
            for layer in cast(nn.ModuleList, level_layers):
                x = layer(x, x, pyramid.within[k], edges[k])
            passed.append(x)
        for k in reversed(range(len(self.up))):
            index = pyramid.up[k]
            seen_by = edge_numbers(levels[k], levels[k + 1], index, SPACINGS[k + 1])
            x = self.up[k](x, passed[k], index, seen_by)
        for layer in self.last:
            x = layer(x, x, pyramid.within[0], edges[0])
        return x
