"""The training of a descriptor, as a task on places."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vbreg.backends.devices import lowered_precision
from vbreg.descriptors.learned import save_descriptor
from vbreg.descriptors.network import DescriptorNetwork
from vbreg.descriptors.prepared import Prepared, pack
from vbreg.geometry import apply
from vbreg.training.descriptor_loss import DRAWN, draw, pairs_loss
from vbreg.training.places_config import DescriptorTrainConfig
from vbreg.training.ready_places import CloudPair, MakeReady, ReadyPlace, prepared

MIN_TEMPERATURE = 0.01


@dataclass(frozen=True)
class DescriptorTask:
    """Lets a network learn to describe points so that the same place is the nearest."""

    config: DescriptorTrainConfig

    @property
    def make_ready(self) -> MakeReady[Prepared]:
        """What worker processes do with a cloud."""
        return prepared

    def new_network(self) -> DescriptorNetwork:
        """Return the network before its first step."""
        return DescriptorNetwork(self.config.network)

    def loss(
        self,
        network: DescriptorNetwork,
        drawn: Sequence[tuple[ReadyPlace[Prepared], CloudPair]],
        generator: torch.Generator,
    ) -> dict[str, Tensor]:
        """Return the loss of pairs, all clouds described at once."""
        moves = np.stack([pair.T_target_source for _, pair in drawn])
        T_target_source = torch.from_numpy(moves).to(generator.device, torch.float32)
        clouds, points = [], []
        rows: list[Tensor] = []
        for (place, pair), T in zip(drawn, T_target_source, strict=True):
            ends = [place.clouds[end] for end in (pair.source, pair.target)]
            x, y = apply(T, ends[0].points), ends[1].points
            found = draw(x, y, generator)
            clouds += ends
            rows += found
            points += [x[found[0]], y[found[1]]]
        descriptors = described_clouds(network, clouds, rows, self.config.precision)
        at = torch.stack(points)
        terms = pairs_loss(
            (descriptors[::2], descriptors[1::2]),
            (at[::2], at[1::2]),
            network.temperature.exp().clamp_min(MIN_TEMPERATURE),
            DRAWN,
        )
        return {**terms._asdict(), "total": terms.contrast}

    def save(self, path: Path, network: DescriptorNetwork, about: dict[str, Any]) -> None:
        """Write the weights."""
        save_descriptor(path, network, about)


def described_clouds(
    network: DescriptorNetwork,
    clouds: Sequence[Prepared],
    rows: Sequence[Tensor],  # as many of each cloud
    precision: str = "fp32",
) -> Tensor:
    """Return descriptors (C, n, d) of some rows of C clouds, at once."""
    packed = pack(clouds)
    sizes = [len(cloud.points) for cloud in clouds]
    chosen = torch.cat([row + sum(sizes[:k]) for k, row in enumerate(rows)])
    with lowered_precision(packed.points.device, enabled=precision == "bf16"):
        found: Tensor = network(packed, chosen)
    return found.unflatten(0, (len(clouds), -1))
