"""The training of FCGF, on the same places and by the same losses as the learned descriptor.

Clouds lie on the device as points. Each step turns them anew, since the network is not free of the
frame, and makes their cells and the tables of neighbours there, all clouds packed into one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vbreg.backends.neighbors import radius_knn
from vbreg.descriptors.fcgf import (
    DetailedCloud,
    FcgfNetwork,
    detailed,
    fine_cells,
    load_fcgf,
    save_fcgf,
)
from vbreg.descriptors.prepared import ThinnedCloud
from vbreg.geometry import random_rotation
from vbreg.training.checkpoint import check_same_network
from vbreg.training.descriptor_config import FcgfTrainConfig
from vbreg.training.descriptor_loop import ContrastRun
from vbreg.training.descriptor_loss import starts

TEMPERATURE = 0.07  # before the first step
PRECISIONS = {"bf16": torch.bfloat16, "fp32": torch.float32}


class FcgfLearner(nn.Module):
    """The network, and the temperature that its loss learns beside it."""

    def __init__(self, network: FcgfNetwork) -> None:
        super().__init__()
        self.network = network
        self.temperature = nn.Parameter(torch.tensor(TEMPERATURE).log())


def detailed_crop(cloud: ThinnedCloud, generator: torch.Generator) -> DetailedCloud:
    """Return what the network sees of a cloud, whose finer points may reach beyond its others."""
    near = radius_knn(cloud.points, cloud.detail, cloud.scale.normal_radius, 1)[2].squeeze(1)
    return detailed(cloud._replace(detail=cloud.detail[near]))


class FcgfRun(ContrastRun[DetailedCloud, FcgfLearner]):
    """A training run of FCGF."""

    make_ready = staticmethod(detailed_crop)

    def __init__(self, plan: FcgfTrainConfig, device: torch.device) -> None:
        super().__init__(plan, lambda: FcgfLearner(_first_network(plan)), device)

    def described(
        self, network: FcgfLearner, clouds: Sequence[DetailedCloud], rows: Tensor
    ) -> Tensor:
        """Return descriptors (2 B, n, d) of rows (2 B, n) of the clouds of B pairs, at once."""
        turns = self.turns(len(clouds))
        if not network.training:  # as users have them
            turns = torch.eye(3, device=self.device).expand_as(turns)
        detail = torch.cat([cloud.detail for cloud in clouds])
        sizes = [len(cloud.detail) for cloud in clouds]
        number = torch.arange(len(clouds), device=self.device).repeat_interleave(
            torch.tensor(sizes, device=self.device), output_size=len(detail)
        )
        turned = (turns[number] @ detail.unsqueeze(2)).squeeze(2)
        cells, cell_of = fine_cells(turned, number)
        found = network.network(cells, PRECISIONS[self.plan.precision])
        nearest = torch.cat([cloud.nearest for cloud in clouds])
        fine = nearest[rows + starts([len(cloud.points) for cloud in clouds], rows)]
        chosen = cell_of[fine + starts(sizes, rows)]  # (2 B, n)
        described: Tensor = found.index_select(0, chosen.flatten())
        return described.unflatten(0, (len(clouds), -1))

    def turns(self, count: int) -> Tensor:
        """Draw how clouds are turned (count, 3, 3): each by any rotation."""
        return random_rotation(count, generator=self.generator, device=self.device)

    def log_temperature(self, network: FcgfLearner) -> Tensor:
        """Return the logarithm of the temperature that the network has learnt."""
        return network.temperature

    def write_weights(self, path: Path, about: Mapping[str, Any]) -> object:
        """Write the averaged weights."""
        return save_fcgf(path, self.state.averaged.network, about)


def _first_network(plan: FcgfTrainConfig) -> FcgfNetwork:
    """Return the network before the first step: drawn by chance, or that of a weights file."""
    if plan.start_from is None:
        return FcgfNetwork(plan.fcgf)
    network = load_fcgf(plan.start_from).network.train()
    check_same_network(plan.start_from, network.config, plan.fcgf)
    return network
