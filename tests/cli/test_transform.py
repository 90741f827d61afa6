from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.cli.helpers import Run, assert_one_line, known_pose
from vbreg import io
from vbreg.errors import VBRegWarning
from vbreg.types import PointCloud


@pytest.fixture
def pose(tmp_path: Path) -> Path:
    path = tmp_path / "pose.json"
    path.write_text(json.dumps({"T_target_source": known_pose().tolist()}))
    return path


def test_there_and_back(run: Run, clouds: tuple[Path, Path], pose: Path, tmp_path: Path) -> None:
    outcome = run("transform", clouds[0], pose, "-o", tmp_path / "moved.ply")
    assert outcome.out.strip() == f"wrote        {tmp_path / 'moved.ply'}, 500 points"
    source, moved = io.read(clouds[0]), io.read(tmp_path / "moved.ply")
    T = known_pose()
    np.testing.assert_allclose(moved.points, source.points @ T[:3, :3].T + T[:3, 3], atol=1e-12)
    np.testing.assert_allclose(moved.attributes["ny"], source.attributes["nx"], atol=1e-6)
    run("transform", tmp_path / "moved.ply", pose, "--inverse", "-o", tmp_path / "back.ply", "-q")
    np.testing.assert_allclose(io.read(tmp_path / "back.ply").points, source.points, atol=1e-9)


def test_a_scan_chooses_its_pose(run: Run, clouds: tuple[Path, Path], tmp_path: Path) -> None:
    poses = tmp_path / "poses.json"
    names = {"target.ply": np.eye(4), "source.ply": known_pose()}
    scans = [{"name": name, "T_world_scan": T.tolist()} for name, T in names.items()]
    poses.write_text(json.dumps({"scans": scans}))
    move = "transform", clouds[0], poses, "-o", tmp_path / "moved.ply"
    assert_one_line(run(*move), "it holds 2 poses", "--scan", "0 target.ply, 1 source.ply")
    outcome = run(*move, "--scan", "source.ply")
    assert (outcome.code, outcome.err) == (0, "")
    expected = io.read(clouds[0]).transformed(known_pose()).points
    np.testing.assert_allclose(io.read(tmp_path / "moved.ply").points, expected, atol=1e-12)
    convert = "transform", clouds[0], "-o", tmp_path / "b.ply", "--scan", "0"
    assert_one_line(run(*convert), "--scan 0 without POSE")


def test_a_scan_that_does_not_connect_is_warned_of(
    run: Run, clouds: tuple[Path, Path], tmp_path: Path
) -> None:
    poses = tmp_path / "poses.json"
    scans = [
        {"name": name, "component": component, "T_world_scan": np.eye(4).tolist()}
        for component, name in enumerate(("target.ply", "source.ply"))
    ]
    poses.write_text(json.dumps({"scans": scans}))
    move = "transform", clouds[0], poses, "-q", "-o", tmp_path / "moved.ply", "--scan"
    assert run(*move, "target.ply").err == ""
    outcome = run(*move, "source.ply")
    assert outcome.code == 0
    assert "warning: " in outcome.err
    assert "source.ply does not connect" in outcome.err
    assert "its pose is in the frame of component 1\n" in outcome.err
    with pytest.warns(VBRegWarning, match="in the frame of component 1"):
        io.read_pose(poses, "1")


def test_without_a_pose_it_converts(run: Run, tmp_path: Path) -> None:
    cloud = PointCloud(np.eye(3), faces=np.array([[0, 1, 2]]))
    io.write(tmp_path / "a.ply", cloud)
    outcome = run("transform", tmp_path / "a.ply", "-o", tmp_path / "b.pcd")
    assert outcome.code == 0
    assert "vbreg: warning: " in outcome.err
    assert "cannot hold the faces" in outcome.err
    np.testing.assert_array_equal(io.read(tmp_path / "b.pcd").points, np.eye(3))


def test_another_frame_has_no_reference_system(run: Run, pose: Path, tmp_path: Path) -> None:
    pytest.importorskip("laspy", reason="vbreg[io] is not installed")
    io.write(tmp_path / "a.las", PointCloud(np.eye(3), crs={2112: b"utm"}))
    outcome = run("transform", tmp_path / "a.las", pose, "-o", tmp_path / "b.las")
    assert "the coordinate reference system is left out" in outcome.err
    assert not io.read(tmp_path / "b.las").crs
    assert run("transform", tmp_path / "a.las", "-o", tmp_path / "c.laz").err == ""
    assert io.read(tmp_path / "c.laz").crs == {2112: b"utm"}


def test_mistakes_are_one_line(run: Run, clouds: tuple[Path, Path], tmp_path: Path) -> None:
    out = ["-o", tmp_path / "a.ply"]
    missing = tmp_path / "none.json"
    assert_one_line(
        run("transform", clouds[0], missing, *out),
        "none.json",
        "no such file; expected an existing file with a pose",
    )
    missing.write_text("{}")
    assert_one_line(run("transform", clouds[0], missing, *out), "T_target_source")
    assert_one_line(run("transform", clouds[0], "-o", clouds[0]), "is an input")
    assert not (tmp_path / "a.ply").exists()
