import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from vbreg.descriptors.choice import SHIPPED, SHIPPED_FCGF
from vbreg.errors import FileFormatError
from vbreg.methods import dgr
from vbreg.model import VBReg
from vbreg.network import NetworkConfig, VariationalNonLocalNetwork
from vbreg.pretrained import (
    WEIGHTS,
    WEIGHTS_FOLDER,
    fingerprint,
    load_network,
    load_voting,
    read_header,
    save_network,
    weights_path,
)
from vbreg.verification import judge
from vbreg.voting import VotingConfig

CONFIG = NetworkConfig(iterations=2, width=16, latent_width=8, hidden_width=8, label_width=4)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_network(tmp_path / "w.safetensors", VariationalNonLocalNetwork(CONFIG), {"steps": 3})
    return tmp_path / "w.safetensors"


def rewrite(path: Path, tensors: dict[str, torch.Tensor], header: dict[str, object]) -> None:
    save_file(tensors, str(path), metadata={"vbreg": json.dumps(header)})


def contents(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, object]]:
    with safe_open(str(path), framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return tensors, json.loads(file.metadata()["vbreg"])


@pytest.mark.parametrize(
    "config", [CONFIG, dataclasses.replace(CONFIG, input="feat", descriptor_width=33)]
)
def test_round_trip(saved: Path, config: NetworkConfig) -> None:
    torch.manual_seed(0)
    network = VariationalNonLocalNetwork(config)
    save_network(saved, network, {"steps": 3})
    loaded = load_network(saved)
    assert loaded.config == config
    assert not loaded.training
    assert read_header(saved)["about"] == {"steps": 3}
    for name, value in network.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value)


def test_weights_say_how_to_search(saved: Path) -> None:
    network = VariationalNonLocalNetwork(CONFIG)
    assert VBReg.from_pretrained(saved, device="cpu").voting == VotingConfig()
    save_network(saved, network, voting=VotingConfig(min_seeds=70))
    assert VBReg.from_pretrained(saved, device="cpu").voting == VotingConfig(min_seeds=70)
    tensors, header = contents(saved)
    del header["voting"]  # as files were written before
    rewrite(saved, tensors, header)
    assert load_voting(saved) == VotingConfig()


def test_a_search_has_a_fingerprint_of_its_own(saved: Path) -> None:
    network = VariationalNonLocalNetwork(CONFIG)
    usual = save_network(saved, network)
    assert fingerprint(saved) == usual
    assert save_network(saved, network, voting=VotingConfig(min_seeds=70)) == usual
    assert usual in fingerprint(saved) != usual


@pytest.mark.parametrize(
    "wrong",
    [
        {"seeds": 3},
        {"min_seeds": 0},
        {"min_seeds": 2.5},
        {"set_size": "many"},
        {"nms_radius": -1},
        {"z_score": None},
    ],
)
def test_a_search_that_is_not_understood_is_refused(saved: Path, wrong: dict[str, object]) -> None:
    tensors, header = contents(saved)
    rewrite(saved, tensors, {**header, "voting": wrong})
    with pytest.raises(FileFormatError, match="settings of the search"):
        load_voting(saved)


def test_a_changed_weight_is_noticed(saved: Path) -> None:
    tensors, header = contents(saved)
    tensors["classify.4.bias"] = tensors["classify.4.bias"] + 1e-6
    rewrite(saved, tensors, header)
    with pytest.raises(FileFormatError, match="checksum"):
        load_network(saved)


@pytest.mark.parametrize("change", ["missing", "extra", "config"])
def test_loading_is_strict(saved: Path, change: str) -> None:
    tensors, header = contents(saved)
    if change == "missing":
        del tensors["sigma"]
    elif change == "extra":
        tensors["surplus"] = torch.zeros(1)
    else:
        header["network"] = dataclasses.asdict(dataclasses.replace(CONFIG, width=32))
    rewrite(saved, tensors, header)
    with pytest.raises(FileFormatError, match="do not fit"):
        load_network(saved)


@pytest.mark.parametrize("keep", [0, 5, 200, -100])
def test_damaged_files_are_refused(saved: Path, keep: int) -> None:
    saved.write_bytes(saved.read_bytes()[:keep])
    with pytest.raises(FileFormatError, match="not a weights file"):
        load_network(saved)


def test_pickles_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    torch.save({"a": torch.zeros(1)}, path)
    with pytest.raises(FileFormatError, match="not a weights file"):
        load_network(path)


def test_other_format_versions_are_refused(saved: Path) -> None:
    tensors, header = contents(saved)
    rewrite(saved, tensors, header | {"format": 99})
    with pytest.raises(FileFormatError, match="format"):
        load_network(saved)


def test_missing_file_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="universal, fast, plain or the path"):
        load_network(tmp_path / "none.safetensors")


def test_names_are_of_files_that_are_shipped_and_no_other(saved: Path) -> None:
    files = {*WEIGHTS.values(), SHIPPED.name, SHIPPED_FCGF.name, dgr.SHIPPED.name, judge.SHIPPED}
    assert {WEIGHTS_FOLDER / file for file in files} == set(WEIGHTS_FOLDER.glob("*.safetensors"))
    assert weights_path("fast") == WEIGHTS_FOLDER / "fast.safetensors"
    assert weights_path(saved) == weights_path(str(saved)) == saved
    for old in ("indoor", "outdoor"):  # presets are voxel sizes now, and no weights
        with pytest.raises(FileFormatError, match=f"no weights at {old}"):
            VBReg.from_pretrained(old)


@pytest.mark.parametrize("name", sorted(WEIGHTS))
def test_shipped_weights_load_and_are_small(name: str) -> None:
    path = WEIGHTS_FOLDER / WEIGHTS[name]
    assert path.stat().st_size <= 16e6
    network = load_network(path)
    assert all(torch.isfinite(p).all() for p in network.parameters())
    assert read_header(path)["about"]["steps"] > 0
