from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.cli.helpers import Run, assert_one_line
from vbreg import io


def test_info(run: Run, clouds: tuple[Path, Path]) -> None:
    content = json.loads(run("info", *clouds, "--json").out)
    first, second = content
    assert (first["points"], first["finite"], second["points"]) == (500, 499, 600)
    assert first["attributes"]["red"] == "uint8"
    points = io.read(clouds[1]).points
    np.testing.assert_array_equal(second["low"], points.min(axis=0))
    np.testing.assert_allclose(second["extents"], np.ptp(points, axis=0))
    distance = np.linalg.norm(points[:, None] - points, axis=2) + 9 * np.eye(len(points))
    assert second["median_spacing"] == pytest.approx(np.median(distance.min(axis=1)))
    assert second["suggested_voxel_size"] > 0
    said = run("info", *clouds).out
    assert "500, 1 not finite" in said
    assert "red uint8" in said


def test_info_of_a_cloud_without_finite_points(run: Run, tmp_path: Path) -> None:
    io.write(tmp_path / "empty.npy", np.full((5, 3), np.nan))
    assert "5, 5 not finite" in run("info", tmp_path / "empty.npy").out


def test_a_missing_file_is_one_line(run: Run, tmp_path: Path) -> None:
    assert_one_line(run("info", tmp_path / "missing.ply"), "missing.ply", "no such file")


def test_a_bad_file_between_good_ones(run: Run, clouds: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "bad.ply").write_bytes(b"no cloud")
    files = clouds[0], tmp_path / "bad.ply", clouds[1]
    outcome = run("info", *files)
    assert outcome.code == 2
    assert "500, 1 not finite" in outcome.out
    assert "points       600" in outcome.out
    assert outcome.err.startswith(f"vbreg: error: {tmp_path / 'bad.ply'}: a file that starts with")
    held = json.loads(run("info", *files, "--json").out)
    assert [item.get("points") for item in held] == [500, None, 600]
    assert "expected the line 'ply'" in held[1]["error"]
