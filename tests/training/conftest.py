"""A short plan on small shards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.training.helpers import NETWORK, described_sets, match_sets
from vbreg.datasets.matches import write_shard
from vbreg.training import TrainConfig
from vbreg.training.config import DataConfig, OptimizerConfig


@pytest.fixture
def config(tmp_path: Path) -> TrainConfig:
    """Six steps on two folders of shards, with a third to validate on."""
    for folder, sets in {
        "near": match_sets(4),
        "far": match_sets(3, 0.6, first=4),
        "held": match_sets(2, first=7),
    }.items():
        (tmp_path / folder).mkdir()
        write_shard(tmp_path / folder / "one.npz", sets)
    return TrainConfig(
        steps=6,
        precision="fp32",
        log_every=2,
        validate_every=3,
        checkpoint_every=2,
        data=DataConfig(
            shards=(tmp_path / "near", tmp_path / "far"),
            validation=tmp_path / "held",
            sizes=(40, 60),
            correspondences=240,
        ),
        network=NETWORK,
        optimizer=OptimizerConfig(learning_rate=1e-2, warmup_steps=2),
    )


@pytest.fixture
def described(config: TrainConfig) -> TrainConfig:
    """The same plan for shards whose clouds FPFH can describe."""
    for place, folder in enumerate((*config.data.shards, config.data.validation)):
        assert folder is not None
        write_shard(folder / "one.npz", described_sets(folder.name, 10 * place))
    return replace(config, data=replace(config.data, matched_by="fpfh"))
