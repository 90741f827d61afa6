"""The training of what lets two clouds look at each other, as a task on places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vbreg.backends.devices import lowered_precision
from vbreg.context import ContextNetwork, InContext, Keypoints, save_context
from vbreg.geometry import apply
from vbreg.training.descriptor_loss import RIGHT, pairs_loss
from vbreg.training.places_config import ContextTrainConfig
from vbreg.training.ready_places import CloudPair, DescribedScan, MakeReady, ReadyPlace, described

SAME_PLACE = 1.5  # voxels: keypoints are drawn by chance, so that the next one is not so near
UNRELATED = 8  # of so many pairs one is made of two places
FAR_AWAY = 1e4  # voxels between such two
MIN_TEMPERATURE = 0.01
BEST = 0.25  # share of the matches whose probability is highest, to look at


@dataclass(frozen=True)
class ContextTask:
    """Lets keypoints of two clouds learn which of them are the same, and which have no partner."""

    config: ContextTrainConfig

    @property
    def make_ready(self) -> MakeReady[DescribedScan]:
        """What worker processes do with a cloud."""
        return described

    def new_network(self) -> ContextNetwork:
        """Return the network before its first step."""
        return ContextNetwork(self.config.network)

    def loss(
        self,
        network: ContextNetwork,
        drawn: Sequence[tuple[ReadyPlace[DescribedScan], CloudPair]],
        generator: torch.Generator,
    ) -> dict[str, Tensor]:
        """Return the loss of pairs; it is the mean of finding, of knowing who, and of which."""
        sources, targets, moves = self._ends(drawn, generator)
        x, y = apply(moves, sources.points), targets.points
        with lowered_precision(x.device, enabled=self.config.precision == "bf16"):
            ends = network(sources, targets)
        temperature = network.temperature.exp().clamp_min(MIN_TEMPERATURE)
        found = pairs_loss(
            (ends[0].descriptors, ends[1].descriptors),
            (x, y),
            temperature,
            x.shape[1],
            SAME_PLACE,
        )
        distance = torch.cdist(x, y)
        shared = [
            F.binary_cross_entropy_with_logits(end.shared, (distance.amin(way) < RIGHT).float())
            for end, way in zip(ends, (2, 1), strict=True)
        ]
        right, good = right_loss(network, ends, distance)
        overlap = (shared[0] + shared[1]) / 2
        return {
            **found._asdict(),
            "overlap": overlap,
            "right": right,
            "right_of_best": good,
            "total": found.contrast + overlap + right,
        }

    def _ends(
        self,
        drawn: Sequence[tuple[ReadyPlace[DescribedScan], CloudPair]],
        generator: torch.Generator,
    ) -> tuple[Keypoints, Keypoints, Tensor]:
        """Return keypoints of all sources, of all targets, and the poses between (B, 4, 4)."""
        sources = [place.clouds[pair.source] for place, pair in drawn]
        targets = [place.clouds[pair.target] for place, pair in drawn]
        moves = np.stack([pair.T_target_source for _, pair in drawn])
        for k in range(UNRELATED - 1, len(drawn), UNRELATED):
            if drawn[k][0] is not drawn[k - 1][0]:
                targets[k] = targets[k - 1]
                moves[k, :3, 3] += FAR_AWAY
        T = torch.from_numpy(moves).to(generator.device, torch.float32)
        first, second = (
            stacked([self._keypoints(cloud, generator) for cloud in clouds])
            for clouds in (sources, targets)
        )
        return first, second, T

    def _keypoints(self, cloud: DescribedScan, generator: torch.Generator) -> Keypoints:
        """Return some of the keypoints, drawn by chance."""
        count, n = len(cloud.learned), self.config.keypoints
        if count < n:
            rows = torch.randint(count, (n,), generator=generator, device=generator.device)
        else:
            rows = torch.randperm(count, generator=generator, device=generator.device)[:n]
        return Keypoints(cloud.points[rows], cloud.normals[rows], cloud.learned[rows])

    def save(self, path: Path, network: ContextNetwork, about: dict[str, Any]) -> None:
        """Write the weights."""
        save_context(path, network, about)


def stacked(clouds: Sequence[Keypoints]) -> Keypoints:
    """Return clouds of as many keypoints as one."""
    return Keypoints(*(torch.stack(parts) for parts in zip(*clouds, strict=True)))


def right_loss(
    network: ContextNetwork, ends: tuple[InContext, InContext], distance: Tensor
) -> tuple[Tensor, Tensor]:
    """Return how wrong the probabilities of the matches are, and the share right of the best."""
    there, back = network.log_probabilities(*ends)
    n, m = there.shape[1:]
    every = torch.arange(max(n, m), device=there.device).expand(len(there), -1)
    i = torch.cat([every[:, :n], back.detach().argmax(1)], dim=1)  # (B, n + m)
    j = torch.cat([there.detach().argmax(2), every[:, :m]], dim=1)
    logits = network.right_logits(*ends, (there, back), i, j)
    batch = torch.arange(len(i), device=i.device).unsqueeze(1)
    right = (distance[batch, i, j] < RIGHT).float()
    best = logits.detach().topk(int(BEST * logits.shape[1]), dim=1).indices
    return F.binary_cross_entropy_with_logits(logits, right), right.gather(1, best).mean()
