"""Small match sets to train on, and a plan for them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conftest import make_problem
from vbreg.datasets import matches
from vbreg.datasets.matches import INDOOR, MatchSet
from vbreg.matching import DescribedCloud
from vbreg.network import NetworkConfig
from vbreg.training import TrainConfig
from vbreg.training.batches import MatchSampler, read_folder
from vbreg.training.config import to_dict
from vbreg.training.descriptors import CloudDescriptors, clouds_of
from vbreg.training.loop import NetworkRun
from vbreg.training.workers import Workers

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]
NETWORK = NetworkConfig(iterations=2, width=16, latent_width=8, hidden_width=8, label_width=4)
KINDS = {
    "variational": NETWORK,
    "plain": replace(NETWORK, variational=False),
    "feat": replace(NETWORK, input="feat", descriptor_width=33),
}


def match_sets(count: int, threshold: float = 0.1, first: int = 0) -> list[MatchSet]:
    """Sets of 100 matches and more, three of ten right."""
    found = []
    for k in range(first, first + count):
        p = make_problem(100 + 20 * k, 0.3, seed=k)
        scale = threshold / 0.1
        source, target = (x.astype(np.float32) * scale for x in p[:2])
        T = p.T.copy()
        T[:3, 3] *= scale
        found.append(
            MatchSet(str(k), source, target, np.arange(len(source)), p.inliers, T, 0.5, threshold)
        )
    return found


def bumpy(seed: int) -> DescribedCloud:
    """A patch of 70 cm, described."""
    rng = np.random.default_rng(seed)
    x, y = rng.uniform(0, 0.7, (2, 600))
    waves = rng.normal(0, 8, (2, 3))
    z = 0.05 * np.sin(np.stack([x, y], -1) @ waves + rng.uniform(0, 6, 3)).sum(-1)
    return matches.described(np.stack([x, y, z], -1), INDOOR)


def described_sets(place: str, first: int, count: int = 2) -> list[MatchSet]:
    """Patches matched by FPFH alone and, in the other direction, by something better."""
    found = []
    for k in range(first, first + count):
        T = make_problem(3, seed=k).T
        cloud = bumpy(k)
        moved = matches.described(cloud.in_user_frame() @ T[:3, :3].T + T[:3, 3], INDOOR)
        for kind, ends, pose in (
            ("fpfh", (cloud, moved), T),
            ("code 0.30", (moved, cloud), np.linalg.inv(T)),
        ):
            found.append(matches.match_set(f"{place}/{k}-0 {kind}", *ends, pose, 1.0, INDOOR))
    return found


def with_network(request: pytest.FixtureRequest, kind: str) -> TrainConfig:
    """The plan for a network of one of KINDS, on shards that suit it."""
    config = request.getfixturevalue("described" if kind == "feat" else "config")
    return replace(config, network=KINDS[kind])


def sampler_of(config: TrainConfig, device: torch.device = CPU) -> MatchSampler:
    """What draws the batches of a plan."""
    sets = [read_folder(folder, config.data.matched_by) for folder in config.data.shards]
    described = None
    if config.network.input == "feat":
        described = CloudDescriptors(clouds_of(s for source in sets for s in source), device)
    return MatchSampler(sets, config.data, device, described)


def alone(config: TrainConfig, clock: Callable[[], float] = time.monotonic) -> NetworkRun:
    """The run of a single process."""
    return NetworkRun(config, Workers(0, 1, CPU), sampler_of(config), clock=clock)


def tensors(network: torch.nn.Module) -> list[torch.Tensor]:
    """All that a network has learnt."""
    return list(network.state_dict().values())


def as_toml(config: TrainConfig) -> str:
    """The file that `read_config` would read the plan from."""
    plain = to_dict(config)
    tables = {k: v for k, v in plain.items() if isinstance(v, dict)}
    lines = [f"{k} = {json.dumps(v)}" for k, v in plain.items() if k not in tables]
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{k} = {json.dumps(v)}" for k, v in table.items())]
    return "\n".join(lines)


class Pretender(Workers):
    """One of several workers that never hears of the others."""

    def add_up(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor
