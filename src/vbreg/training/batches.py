"""Batches of labelled matches, drawn and augmented on the device that trains.

Everything about a micro-batch follows from its own seed, so a run that was interrupted, or is
spread over more workers, sees the same batches.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vbreg.datasets.matches import MatchSet, read_shard
from vbreg.errors import VBRegError
from vbreg.geometry import random_rotation
from vbreg.training.config import DataConfig, MatchedBy
from vbreg.training.descriptors import CloudDescriptors, fpfh_sets


@dataclass(frozen=True, eq=False)
class Batch:
    """Match sets of one size, to train on at once."""

    source: Tensor  # (B, N, 3) in units of the inlier threshold
    target: Tensor
    labels: Tensor  # (B, N)
    descriptors: Tensor | None = None  # (B, N, 2 D), for a network that sees them

    def tensors(self) -> list[Tensor]:
        """List the tensors of the batch, in the order of its fields."""
        held = self.source, self.target, self.labels, self.descriptors
        return [tensor for tensor in held if tensor is not None]


def read_folder(folder: Path, matched_by: MatchedBy = "any") -> list[MatchSet]:
    """Read the match sets of the shards in a folder, all or those that FPFH alone matched."""
    files = sorted(folder.glob("*.npz"))
    if not files:
        raise VBRegError(f"no shards (*.npz) of match sets in {folder}: make them first")
    shards = map(read_shard, files)
    sets = [s for shard in shards for s in (shard if matched_by == "any" else fpfh_sets(shard))]
    if matched_by == "fpfh" and not sets:
        raise VBRegError(
            f"no match set in {folder} has a name that ends in ' fpfh': name those so that FPFH "
            "matched, or leave data.matched_by out"
        )
    return sets


class Sampler(ABC):
    """Draws batches of labelled matches, and moves them by chance."""

    descriptors: CloudDescriptors | None = None

    def __init__(self, config: DataConfig, device: torch.device) -> None:
        self.config, self.device = config, device

    @abstractmethod
    def __len__(self) -> int:
        """Return how many match sets or places were seen."""

    @abstractmethod
    def draw_pairs(self, B: int, N: int, generator: torch.Generator) -> Batch:
        """Draw N matches of each of B pairs."""

    def renew(self) -> None:  # noqa: B027 (most have nothing to take in)
        """Take in what has arrived since, if anything arrives."""

    def size_of(self, seed: int) -> int:
        """Return N of the micro-batch with this seed, without asking the device."""
        return int(np.random.default_rng(seed).choice(self.config.sizes))

    def draw(self, N: int, generator: torch.Generator) -> Batch:
        """Draw a micro-batch of N matches a pair: its sets, their rows and how they are moved."""
        return self.draw_pairs(self.config.correspondences // N, N, generator)

    def choose(self, labels: Tensor, valid: Tensor, N: int, generator: torch.Generator) -> Tensor:
        """Choose N columns (B, N) of matches (B, M), so that the share of inliers varies.

        By Gumbel noise: without replacement, inliers some times as readily as others.
        """
        low, high = map(math.log, self.config.inlier_boost)
        boost = low + (high - low) * self.uniform(len(labels), 1, generator=generator)
        uniform = self.uniform(*labels.shape, generator=generator).clamp(1e-9, 1 - 1e-7)
        key = boost * labels - (-uniform.log()).log()
        key = key.masked_fill(~valid, -torch.inf)
        return key.topk(min(N, labels.shape[1]), dim=-1).indices

    def move(self, points: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Turn either end of points (B, N, 2, 3) by any rotation and add a little jitter.

        A translation would change nothing, since the network centres what it sees.
        """
        B, N, _, _ = points.shape
        moved = []
        for end in points.unbind(2):
            R = random_rotation(B, generator=generator, device=self.device)
            noise = torch.randn(B, N, 3, generator=generator, device=self.device)
            scale = self.config.jitter * self.uniform(B, 1, 1, generator=generator)
            moved.append((end + scale * noise) @ R.transpose(-1, -2))
        return moved[0], moved[1]

    def uniform(self, *shape: int, generator: torch.Generator) -> Tensor:
        """Return numbers from 0 to 1, drawn on the device."""
        return torch.rand(*shape, generator=generator, device=self.device)


class MatchSampler(Sampler):
    """All match sets in one tensor on the device, and the descriptors of their ends if given."""

    def __init__(
        self,
        sources: Sequence[Sequence[MatchSet]],
        config: DataConfig,
        device: torch.device,
        descriptors: CloudDescriptors | None = None,
    ) -> None:
        super().__init__(config, device)
        self.descriptors = descriptors
        sets = [s for source in sources for s in source]
        if not sets:
            raise VBRegError("no match sets to train on: name folders of shards in data.shards")
        weights = config.weights or (1.0,) * len(sources)
        rows = [
            torch.cat([torch.as_tensor(s.source), torch.as_tensor(s.target)], 1)
            / s.inlier_threshold
            for s in sets
        ]
        sizes = torch.tensor([len(s) for s in sets])
        self.points = torch.cat(rows).to(device)  # (M, 6)
        self.labels = torch.cat([torch.as_tensor(s.labels) for s in sets]).to(device)
        self.sizes = sizes.to(device)
        self.largest = int(sizes.max())
        self.starts = (sizes.cumsum(0) - sizes).to(device)
        self.weights = torch.cat(
            [torch.full((len(s),), w / len(s)) for s, w in zip(sources, weights, strict=True)]
        ).to(device)
        if descriptors is not None:
            self.ends = torch.cat([descriptors.ends(s) for s in sets]).to(device)  # (M, 2)

    def __len__(self) -> int:
        return len(self.sizes)

    def draw_pairs(self, B: int, N: int, generator: torch.Generator) -> Batch:
        """Draw N matches of each of B pairs.

        Ends are swapped half of the time, with their descriptors, which no motion changes.
        """
        rows = self._choose_rows(B, N, generator)
        kept = self.uniform(B, 1, 1, generator=generator) < 0.5
        points = _in_order(self.points[rows].unflatten(-1, (2, 3)), kept.unsqueeze(-1))
        source, target = self.move(points, generator)
        described = None
        if self.descriptors is not None:
            ends = _in_order(self.ends[rows], kept)
            described = self.descriptors.table[ends].flatten(2).to(source.dtype)  # (B, N, 2 D)
        return Batch(source, target, self.labels[rows], described)

    def _choose_rows(self, B: int, N: int, generator: torch.Generator) -> Tensor:
        """Draw N rows of each of B sets (B, N), so that the share of inliers varies.

        Sets smaller than N are left out; where all are, they repeat rows of their own.
        """
        weights = self.weights * (self.sizes >= N) if self.largest >= N else self.weights
        pick = weights.multinomial(B, replacement=True, generator=generator)
        sizes = self.sizes[pick].unsqueeze(-1)
        offset = torch.arange(self.largest, device=self.device)
        rows = (self.starts[pick].unsqueeze(-1) + offset).clamp_max(len(self.labels) - 1)
        chosen = self.choose(self.labels[rows], offset < sizes, N, generator)
        return rows.gather(-1, chosen.repeat(1, -(-N // chosen.shape[1]))[:, :N] % sizes)


def _in_order(ends: Tensor, kept: Tensor) -> Tensor:
    """Return source and target (B, N, 2, ...) as they are where `kept`, else swapped."""
    return torch.where(kept, ends, ends.flip(2))
