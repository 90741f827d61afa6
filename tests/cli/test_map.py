"""`vbreg map`: a folder becomes a map, and scans are found in it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.cli.helpers import Run
from tests.test_maps import corner, moved, pose
from vbreg import io
from vbreg.maps import Map


def folder_of_clouds(folder: Path) -> Path:
    folder.mkdir()
    rows = []
    for k in range(2):
        io.write(folder / f"cloud_{k}.ply", corner(k, k))
        rows.append(" ".join(map(repr, pose(k)[:3].ravel().tolist())))
    (folder / "poses.txt").write_text("\n".join(rows) + "\n")
    return folder


def test_a_folder_with_poses_is_built_and_asked(run: Run, tmp_path: Path) -> None:
    folder = folder_of_clouds(tmp_path / "scans")
    path = tmp_path / "map.safetensors"
    done = run("map", "build", folder, "-o", path, "--voxel-size", "0.1", "--device", "cpu")
    assert done.code == 0, done.err
    assert "2 of 2 clouds" in done.out
    io.write(tmp_path / "scan.ply", corner(1, 11))
    done = run("map", "locate", path, tmp_path / "scan.ply", tmp_path / "none.ply", "--json",
               "--device", "cpu")  # fmt: skip
    assert done.code == 2  # of the file that is not there
    assert "no such file" in done.err
    found, missing = json.loads(done.out)
    assert "error" in missing
    query = corner(1, 11)
    there = moved(query, np.array(found["T_target_source"]))
    np.testing.assert_allclose(there, moved(query, pose(1)), atol=0.1)
    done = run("map", "locate", path, tmp_path / "scan.ply", "--device", "cpu")
    assert done.code == 0
    assert "verdict" in done.out


def test_a_map_is_built_from_what_reconstruct_says(run: Run, tmp_path: Path) -> None:
    folder = folder_of_clouds(tmp_path / "scans")
    (folder / "poses.txt").unlink()
    io.write(folder / "elsewhere.ply", corner(2, 2))
    poses = tmp_path / "poses.json"
    scans = [
        {"name": f"cloud_{k}.ply", "component": 0, "T_world_scan": pose(k).tolist()}
        for k in range(2)
    ]
    apart = {"name": "elsewhere.ply", "component": 1, "T_world_scan": np.eye(4).tolist()}
    poses.write_text(json.dumps({"scans": [*scans, apart]}), encoding="utf-8")
    path = tmp_path / "map.safetensors"
    built = "map", "build", folder, "-o", path, "--voxel-size", "0.1", "--device", "cpu"
    done = run(*built, "--poses", poses)
    assert done.code == 0, done.err
    assert "2 of 2 clouds" in done.out
    assert "largest component" in done.out
    place = Map.load(path, device="cpu")
    for k, fragment in enumerate(place.fragments):
        middle = moved(corner(k, k).mean(0), pose(k))  # of points; the fragment's is of voxels
        np.testing.assert_allclose(fragment.origin, middle, atol=0.1)
    done = run(*built)
    assert "all clouds are taken to be in one frame" in done.out
    (folder / "cloud_1.ply").unlink()
    done = run(*built, "--poses", poses)
    assert done.code == 2
    assert "cloud_1.ply" in done.err
    poses.write_text("{}", encoding="utf-8")
    done = run(*built, "--poses", poses)
    assert done.code == 2
    assert "no poses of `vbreg reconstruct" in done.err


def test_both_verbs_show_examples(run: Run) -> None:
    for verb in ("build", "locate"):
        done = run("map", verb, "-h")
        assert done.code == 0
        assert f"vbreg map {verb} " in done.out.partition("EXAMPLES\n")[2]


def test_mistakes_are_told(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for arguments, message in (
        (("build", tmp_path / "empty", "-o", tmp_path / "m.safetensors"), "no clouds"),
        (("build", tmp_path / "none.ply", "-o", tmp_path / "m.safetensors"), "no such file"),
        (("build", tmp_path / "empty", "-o", tmp_path / "m.npz"), ""),
        (("locate", tmp_path / "none.safetensors", tmp_path / "a.ply"), "no such file"),
    ):
        done = run("map", *arguments)
        assert done.code == 2
        assert message in done.err
