"""The configuration: read from a file, checked, and those that ship with the project."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.training.helpers import ROOT, as_toml
from vbreg.descriptors.fcgf import FcgfConfig
from vbreg.errors import VBRegError
from vbreg.methods.dgr import DgrConfig
from vbreg.network import NetworkConfig
from vbreg.training import TrainConfig, train
from vbreg.training.config import from_dict, read_config, to_dict
from vbreg.training.descriptor_config import (
    is_descriptor_config,
    is_fcgf_config,
    read_descriptor_config,
    read_fcgf_config,
)
from vbreg.training.dgr_loop import is_dgr_config, read_dgr_config
from vbreg.training.judge_loop import is_judge_config, read_judge_config


def test_configuration_survives_the_file(config: TrainConfig, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(as_toml(config))
    assert read_config(tmp_path / "config.toml") == config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("step = 3", r"unknown 'step'; expected some of steps"),
        ("steps = '3'", r"steps = '3': expected int"),
        ("steps = 0", r"steps = 0: expected at least 1"),
        ("precision = 'fp16'", r"precision = 'fp16': expected Literal"),
        ("[network]\nwidth = 1.5", r"network: width = 1.5: expected int"),
        ("[network]\nwidth = 0", r"width 0: expected at least 1"),
        ("[data]\nsizes = [2]", r"sizes = \(2,\): expected numbers of matches"),
        ("[data]\ninlier_boost = [1, 2, 3]", r"inlier_boost = \[1, 2, 3\]: expected tuple"),
        ("[data]\ninlier_boost = [2, 1]", r"inlier_boost = \(2.0, 1.0\): expected two positive"),
        ("[data]\nweights = [1.0]", r"weights = \(1.0,\): expected one for each of shards"),
        ("[data]\ncorrespondences = 100", r"correspondences = 100: expected at least max\(sizes\)"),
        ("[optimizer]\nema = 1.0", r"ema = 1.0: expected a number in \[0, 1\)"),
        ("[optimizer]\nfinal = 0.0", r"final = 0.0: expected a number in \(0, 1\]"),
        ("[optimizer]\nlearning_rate = 0", r"learning_rate = 0.0: expected a positive number"),
        ("steps = ", r"is not TOML"),
        ("compile = 1", r"compile = 1: expected bool"),
        ("minutes = 0", r"minutes = 0.0: expected a positive number"),
        ("[data]\nmatched_by = 'orb'", r"matched_by = 'orb': expected Literal"),
        (
            "[network]\ninput = 'feat'\ndescriptor_width = 33",
            r"matched_by = 'any': expected 'fpfh' with network.input = 'feat'",
        ),
        (
            "[data]\nmatched_by = 'fpfh'\n[network]\ninput = 'feat'\ndescriptor_width = 32",
            r"descriptor_width = 32: expected 33",
        ),
    ],
)
def test_configuration_says_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(VBRegError, match=message):
        read_config(tmp_path / "config.toml")


def test_folders_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(
        "start_from = 'a.safetensors'\n[data]\nshards = ['x', '/y']\nvalidation = '../z'\n"
    )
    found = read_config(tmp_path / "plan.toml")
    assert found.data.shards == (tmp_path / "x", Path("/y"))
    assert found.data.validation == tmp_path / "../z"
    assert found.start_from == tmp_path / "a.safetensors"


def test_plain_values_leave_out_what_is_none(config: TrainConfig) -> None:
    plain = to_dict(config)
    assert "minutes" not in plain
    assert plain["data"]["shards"] == [shard.as_posix() for shard in config.data.shards]
    assert from_dict(TrainConfig, plain, "here") == config


def test_missing_configuration_and_shards(config: TrainConfig, tmp_path: Path) -> None:
    with pytest.raises(VBRegError, match="no training configuration at"):
        read_config(tmp_path / "none.toml")
    (tmp_path / "empty").mkdir()
    bad = replace(config, data=replace(config.data, shards=(tmp_path / "empty",)))
    with pytest.raises(VBRegError, match="no shards"):
        train(bad, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_configurations_that_we_ship_are_read() -> None:
    files = sorted((ROOT / "configs").rglob("*.toml"))
    kinds = (is_descriptor_config, is_dgr_config, is_fcgf_config, is_judge_config)
    ours = [file for file in files if not any(kind(file) for kind in kinds)]
    others = [file.name for file in files if file not in ours]
    assert others == ["descriptor.toml", "dgr.toml", "fcgf.toml", "judge.toml"]
    assert read_dgr_config(ROOT / "configs" / "dgr.toml").dgr == DgrConfig()
    assert read_fcgf_config(ROOT / "configs" / "fcgf.toml").fcgf == FcgfConfig()
    assert read_judge_config(ROOT / "configs" / "judge.toml").minutes > 1
    assert read_descriptor_config(ROOT / "configs" / "descriptor.toml").minutes > 1
    for file in ours:
        config = read_config(file)
        assert config.steps > 1000
        places = config.data.places
        folders = config.data.shards if places is None else (places.meshes, places.fragments)
        assert {folder and folder.resolve().parent for folder in folders} == {ROOT / "data"}


def test_the_networks_of_table_3_are_trained_alike() -> None:
    found = {f.stem: read_config(f) for f in (ROOT / "configs" / "ablation").glob("*.toml")}
    assert len(found) == 9
    like = found["vb_xyz"]
    assert like.minutes is None  # by steps: each sees the same batches
    assert like.network == NetworkConfig()
    assert [name for name, c in found.items() if c.objective.per_layer] == ["sc_cls"]
    for config in found.values():
        assert replace(config, network=like.network, objective=like.objective) == like
