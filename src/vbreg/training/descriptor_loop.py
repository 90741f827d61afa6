"""The training of a descriptor: pairs are drawn, and points that meet are to be alike."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vbreg.backends.devices import lowered_precision
from vbreg.descriptors.learned import load_descriptor, save_descriptor
from vbreg.descriptors.network import DescriptorNetwork
from vbreg.descriptors.prepared import Prepared, pack
from vbreg.training.checkpoint import check_same_network
from vbreg.training.descriptor_config import ContrastPlan, DescriptorTrainConfig
from vbreg.training.descriptor_loss import (
    DescriptorLoss,
    Padded,
    contrast_named,
    draw,
    pairs_loss,
    starts,
)
from vbreg.training.places_run import N, PlacesRun, train_on_places
from vbreg.training.ready_places import C, CloudPair, ReadyPlace, prepared

TERMS = (*DescriptorLoss._fields, "total")


def train_descriptor(
    plan: DescriptorTrainConfig,
    output: Path,
    *,
    device: torch.device | str = "cpu",
    minutes: float | None = None,
    until: int | None = None,
    quiet: bool = False,
) -> Path:
    """Train a descriptor as `train_on_places` says."""
    run = DescriptorRun(plan, torch.device(device))
    return train_on_places(run, output, minutes=minutes, until=until, quiet=quiet)


class ContrastRun(PlacesRun[C, N]):
    """A training run of any descriptor: what describes the points is for a subclass to say."""

    plan: ContrastPlan

    def __init__(
        self, plan: ContrastPlan, make_network: Callable[[], N], device: torch.device
    ) -> None:
        super().__init__(plan, make_network, device)
        self.look_at = plan.look_at or plan.places

    @abstractmethod
    def described(self, network: N, clouds: Sequence[C], rows: Tensor) -> Tensor:
        """Return descriptors (2 B, n, d) of rows (2 B, n) of the clouds of B pairs, at once.

        Each source comes before its target.
        """

    @abstractmethod
    def log_temperature(self, network: N) -> Tensor:
        """Return the logarithm of the temperature that the network has learnt."""

    def terms(self, network: N) -> tuple[dict[str, Tensor], int]:
        """Return the terms of a step, means over the pairs that overlap."""
        drawn = self.places.draw(self.plan.pairs, self.choice)
        terms = self.loss(network, drawn)
        return dict(zip(TERMS, [*terms, terms.contrast], strict=True)), len(drawn)

    def loss(self, network: N, drawn: Sequence[tuple[ReadyPlace[C], CloudPair]]) -> DescriptorLoss:
        """Return the loss of pairs, all clouds described at once."""
        moves = np.stack([pair.T_target_source for _, pair in drawn])
        T_target_source = torch.from_numpy(moves).to(self.device, torch.float32)
        clouds = [place.clouds[end] for place, pair in drawn for end in (pair.source, pair.target)]
        x = Padded.of([cloud.points for cloud in clouds[::2]]).moved(T_target_source)
        y = Padded.of([cloud.points for cloud in clouds[1::2]])
        source, target = draw(x, y, self.generator)
        rows = torch.stack([source, target], dim=1).flatten(0, 1)  # (2 B, D)
        descriptors = self.described(network, clouds, rows)
        return pairs_loss(
            (descriptors[::2], descriptors[1::2]),
            (x.at(source), y.at(target)),
            contrast_named(self.plan.loss, self.log_temperature(network)),
        )

    @torch.no_grad()
    def validate(self, held_out: list[ReadyPlace[C]]) -> dict[str, float]:
        """Return how good the averaged weights are on places that are not trained on."""
        drawn = [(place, pair) for place in held_out for pair in place.pairs[::4]]
        found = [
            self.loss(self.state.averaged, drawn[start : start + self.plan.pairs])
            for start in range(0, len(drawn), self.plan.pairs)
        ]
        pairs = sum(float(loss.pairs) for loss in found)
        return {
            name: sum(float(getattr(loss, name) * loss.pairs) for loss in found) / max(pairs, 1.0)
            for name in DescriptorLoss._fields[:-1]
        }


class DescriptorRun(ContrastRun[Prepared, DescriptorNetwork]):
    """A training run of the learned descriptor."""

    make_ready = staticmethod(prepared)

    def __init__(self, plan: DescriptorTrainConfig, device: torch.device) -> None:
        super().__init__(plan, lambda: _first_network(plan), device)

    def described(
        self, network: DescriptorNetwork, clouds: Sequence[Prepared], rows: Tensor
    ) -> Tensor:
        """Return descriptors (2 B, n, d) of rows (2 B, n) of the clouds of B pairs, at once."""
        packed = pack(clouds)
        chosen = (rows + starts([len(cloud.points) for cloud in clouds], rows)).flatten()
        with lowered_precision(packed.points.device, enabled=self.plan.precision == "bf16"):
            found: Tensor = network(packed, chosen)
        return found.unflatten(0, (len(clouds), -1))

    def log_temperature(self, network: DescriptorNetwork) -> Tensor:
        """Return the logarithm of the temperature that the network has learnt."""
        return network.temperature

    def write_weights(self, path: Path, about: Mapping[str, Any]) -> object:
        """Write the averaged weights."""
        return save_descriptor(path, self.state.averaged, about)


def _first_network(plan: DescriptorTrainConfig) -> DescriptorNetwork:
    """Return the network before the first step: drawn by chance, or that of a weights file."""
    if plan.start_from is None:
        return DescriptorNetwork(plan.network)
    network = load_descriptor(plan.start_from).network.train()
    check_same_network(plan.start_from, network.config, plan.network)
    return network
