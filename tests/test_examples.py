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
    text = Path(__file__).read_text(encoding="utf-8")
    for path in FOLDER.glob("*.py"):
        assert f'output_of("{path.name}", capsys)' in text, path


def test_every_example_is_shown_on_the_site() -> None:
    page = (FOLDER.parent / "docs" / "examples.md").read_text(encoding="utf-8")
    for path in FOLDER.glob("*.py"):
        assert f"literalinclude}} ../examples/{path.name}\n" in page, path


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


def test_lidar(capsys: pytest.CaptureFixture[str]) -> None:
    text = output_of("04_lidar.py", capsys)
    assert text.startswith("aligned, ")
    assert float(re.findall(r"are (\S+) m apart", text)[0]) > 4.0
    assert float(re.findall(r"off by (\S+) cm", text)[0]) < 20.0


def test_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    text = output_of("05_verdict.py", capsys)
    assert "the same room: use it (aligned, " in text
    assert "noise: leave it (do not trust this pose, " in text
    assert re.search(r"noise.*\n  \w+", text), "a reason stands below"


def test_constraints(capsys: pytest.CaptureFixture[str]) -> None:
    text = output_of("06_constraints.py", capsys)
    found = re.findall(r"(\d+) of (\d+) matches agree, off by (\S+) cm", text)
    (inliers, matches, off), (held_inliers, held_matches, held_off) = (map(float, f) for f in found)
    assert held_matches < matches, "matches that contradict the guess are dropped"
    assert held_inliers / held_matches > inliers / matches
    assert max(off, held_off) < 15.0


def test_loop_closure(capsys: pytest.CaptureFixture[str]) -> None:
    text = output_of("07_loop_closure.py", capsys)
    assert text.startswith("aligned, ")
    found = re.findall(r"last pose is off by (\S+) cm, the worst by (\S+) cm", text)
    (drifted, drifted_worst), (closed, closed_worst) = (map(float, f) for f in found)
    assert closed < 8.0 < drifted
    assert closed_worst < drifted_worst, "the false loop is taken out"


def test_own_features(capsys: pytest.CaptureFixture[str]) -> None:
    text = output_of("08_own_features.py", capsys)
    (T,) = poses_in(text)
    assert_is_the_demo(T)
    inliers, matches = map(int, re.findall(r"(\d+) of (\d+) matches agree", text)[0])
    assert 30 < inliers < matches
