"""Poses of many scans are read by others as they were meant."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from vbreg.io import MeasuredPose, write_g2o, write_tum
from vbreg.motions import adjoint, exponential

POSES = exponential(np.random.default_rng(0).normal(size=(4, 6)) * 2)


def test_tum_has_a_line_a_scan(tmp_path: Path) -> None:
    write_tum(tmp_path / "poses.tum", list(enumerate(POSES)), ["a name\nwith a line feed"])
    first, *lines = (tmp_path / "poses.tum").read_text(encoding="utf-8").splitlines()
    assert first == "# a name with a line feed"
    for k, line in enumerate(lines):
        number, *values = map(float, line.split())
        assert number == k
        np.testing.assert_allclose(values[:3], POSES[k, :3, 3], atol=1e-9)
        np.testing.assert_allclose(
            Rotation.from_quat(values[3:]).as_matrix(), POSES[k, :3, :3], atol=1e-9
        )


def test_gtsam_reads_the_graph(tmp_path: Path) -> None:
    gtsam = pytest.importorskip("gtsam", reason="gtsam is an oracle, not a dependency")
    factor = np.random.default_rng(1).normal(size=(6, 6))
    information = factor @ factor.T
    edge = MeasuredPose(2, 1, POSES[3], information)
    write_g2o(tmp_path / "graph.g2o", list(enumerate(POSES)), [edge])
    factors, values = gtsam.readG2o(str(tmp_path / "graph.g2o"), True)
    for k, T in enumerate(POSES):
        np.testing.assert_allclose(values.atPose3(k).matrix(), T, atol=1e-9)
    read = factors.at(0)
    assert list(read.keys()) == [1, 2]  # target, source
    np.testing.assert_allclose(read.measured().matrix(), POSES[3], atol=1e-9)
    A = adjoint(POSES[3])
    np.testing.assert_allclose(
        read.noiseModel().information(), A.T @ information @ A, rtol=1e-6, atol=1e-6
    )
