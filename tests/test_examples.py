"""Every example runs, and what it prints is right."""

import re
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

from vbreg.demo import load
from vbreg.metrics import pose_error

FOLDER = Path(__file__).parents[1] / "examples"


def output_of(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What the example prints, run as a program is but in this process, which has torch loaded."""
    runpy.run_path(str(FOLDER / name), run_name="__main__")
    return capsys.readouterr().out


def poses_in(text: str) -> list[np.ndarray]:
    """The 4 x 4 matrices that numpy printed."""
    printed = re.findall(r"\[\[.*?\]\]", text, flags=re.DOTALL)
    return [np.array(re.sub(r"[\[\]]", " ", p).split(), float).reshape(4, 4) for p in printed]


def assert_is_the_demo(T: np.ndarray) -> None:
    error = pose_error(torch.from_numpy(T), torch.from_numpy(load()[2]))
    assert error.success(5.0, 0.15), error


def test_every_example_is_tested_here() -> None:
    tested = {"01_register.py", "02_stage_by_stage.py", "03_batch_of_matches.py"}
    assert {path.name for path in FOLDER.glob("*.py")} == tested


def test_register(capsys: pytest.CaptureFixture[str]) -> None:
    text = output_of("01_register.py", capsys)
    (T,) = poses_in(text)
    assert_is_the_demo(T)
    inliers, matches = map(int, re.findall(r"(\d+) of (\d+) matches agree", text)[0])
    assert 30 < inliers < matches
    assert "'network'" in text or "'solve'" in text  # seconds of the stages; a GPU has one
    assert f"PointCloud({len(load()[0])} points" in text  # the whole source, moved


def test_stage_by_stage(capsys: pytest.CaptureFixture[str]) -> None:
    text = output_of("02_stage_by_stage.py", capsys)
    (T,) = poses_in(text)
    assert_is_the_demo(T)
    found = re.findall(r"Registration\(rotation (\S+) deg, translation (\S+),", text)
    (rotation, translation) = map(float, found[0])  # by a descriptor of its own
    truth = load()[2]
    angle = np.degrees(np.arccos((np.trace(truth[:3, :3]) - 1) / 2))
    assert rotation == pytest.approx(angle, abs=5)
    assert translation == pytest.approx(np.linalg.norm(truth[:3, 3]), abs=0.15)
    assert "determined True" in text


def test_batch_of_matches(capsys: pytest.CaptureFixture[str]) -> None:
    text = output_of("03_batch_of_matches.py", capsys)
    poses = poses_in(text)
    assert len(poses) == 2
    for T in poses:
        np.testing.assert_allclose(T[:3, :3], np.eye(3), atol=2e-3)
        np.testing.assert_allclose(T[:3, 3], [1, 2, 3], atol=5e-3)
    counts = re.findall(r"(\d+) of (\d+) matches agree", text)
    assert [int(n) for _, n in counts] == [300, 120]
    assert all(0.2 < int(k) / int(n) < 0.4 for k, n in counts)  # 3 of 10 are right
