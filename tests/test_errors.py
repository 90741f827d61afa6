"""Warnings name the line of the user that they are about."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.conftest import make_problem
from vbreg import PointCloud, Scale, VBReg, io, register
from vbreg.errors import VBRegWarning
from vbreg.matching import describe
from vbreg.network import VariationalNonLocalNetwork


def with_strays() -> np.ndarray:
    points = np.random.default_rng(0).random((1000, 3))
    points[:2] = 1e6
    return points


def assert_said_here(caught: pytest.WarningsRecorder, count: int = 1) -> None:
    said = [each.filename for each in caught if issubclass(each.category, VBRegWarning)]
    assert said == count * [__file__]


def test_a_warning_of_strays_names_the_call() -> None:
    points = with_strays()
    with pytest.warns(VBRegWarning, match="left out") as caught:
        describe(points, Scale(0.1), descriptor="fpfh")
    assert_said_here(caught)
    with pytest.warns(VBRegWarning, match="left out") as caught:
        register(points, points, voxel_size=0.1, device="cpu", retry=False)
    assert_said_here(caught, 2)  # of source and target


def test_a_warning_of_what_a_file_cannot_hold_names_the_call(tmp_path: Path) -> None:
    cloud = PointCloud(np.eye(3), {"red": np.zeros(3)})
    with pytest.warns(VBRegWarning, match="cannot hold") as caught:
        io.write(tmp_path / "scan.bin", cloud)
    assert_said_here(caught)


def test_a_warning_of_memory_names_the_call(
    small_network: VariationalNonLocalNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(VBReg, "_max_matches", lambda model: 20)
    problem, model = make_problem(50, 0.5), VBReg(small_network)
    with pytest.warns(VBRegWarning, match="memory") as caught:
        model.estimate(problem.source, problem.target, inlier_threshold=0.1)
    assert_said_here(caught)
    with pytest.warns(VBRegWarning, match="memory") as caught:
        model.estimate_batch([problem.source], [problem.target], inlier_threshold=0.1)
    assert_said_here(caught)
