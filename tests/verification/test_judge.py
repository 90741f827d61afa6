"""The judge that ships knows a right pose from a wrong one, and files from other files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from vbreg import demo, register
from vbreg.errors import FileFormatError
from vbreg.types import Registration
from vbreg.verification.judge import load_judge, save_judge, shipped_judge
from vbreg.verification.network import JudgeConfig, JudgeNetwork
from vbreg.weights_file import WEIGHTS_FOLDER


@pytest.fixture(scope="module")
def found() -> Registration:
    source, target, _ = demo.load()
    return register(source, target, preset="indoor", device="cpu")


def test_the_demo_pair_is_trusted(found: Registration) -> None:
    assert found.success_probability is not None
    assert found.success_probability > 0.9
    assert found.verdict.startswith("aligned, ")
    assert found.overlap is not None
    assert 0.1 < found.overlap < 0.9
    assert not found.reasons
    assert not found.alternatives  # beside a pose that is as good as sure


def test_the_same_call_gives_the_same_verdict(found: Registration) -> None:
    source, target, _ = demo.load()
    again = register(source, target, preset="indoor", device="cpu")
    assert again.success_probability == found.success_probability
    np.testing.assert_array_equal(again.T_target_source, found.T_target_source)


@pytest.mark.parametrize("trouble", ["mirrored", "noise", "voxel size"])
def test_what_cannot_be_right_is_not_trusted(trouble: str) -> None:
    source, target, _ = demo.load()
    points, size = source.points, 0.05
    if trouble == "mirrored":
        points = points * [-1, 1, 1]
    elif trouble == "noise":
        rng = np.random.default_rng(0)
        points = rng.uniform(points.min(0), points.max(0), points.shape)
    else:
        size = 1.0
    found = register(points, target, voxel_size=size, device="cpu")
    assert found.success_probability is not None
    assert found.success_probability < 0.5
    assert found.verdict.startswith("do not trust this pose, ")


def test_without_verification_nothing_is_said() -> None:
    source, target, _ = demo.load()
    found = register(source, target, preset="indoor", device="cpu", verify=False)
    assert found.success_probability is None
    assert found.overlap is None
    assert found.alternatives == ()
    assert found.verdict == "not judged"


def test_weights_come_back(tmp_path: Path) -> None:
    network = JudgeNetwork(JudgeConfig(pair_width=8, width=16, pose_width=16))
    network.calibration.copy_(torch.tensor([1.5, -0.5]))
    path = tmp_path / "judge.safetensors"
    digest = save_judge(path, network, {"steps": 3})
    back = load_judge(path)
    assert back.fingerprint == digest
    assert back.network.config == network.config
    for name, value in network.state_dict().items():
        assert torch.equal(back.network.state_dict()[name], value)


@pytest.mark.parametrize("name", ["fast", "descriptor"])
def test_other_weights_are_refused(name: str) -> None:
    with pytest.raises(FileFormatError, match="do not fit together"):
        load_judge(WEIGHTS_FOLDER / f"{name}.safetensors")


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="no weights at"):
        load_judge(tmp_path / "none.safetensors")


def test_the_judge_ships() -> None:
    assert shipped_judge().fingerprint
    assert (WEIGHTS_FOLDER / "judge.safetensors").stat().st_size < 2**21
