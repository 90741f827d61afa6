"""`vbreg map`: a folder becomes a map, and scans are found in it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.cli.helpers import Run, Search, assert_one_line
from tests.test_maps import corner, moved, pose
from vbreg import io
from vbreg.cli.map import PlacedClouds
from vbreg.errors import VBRegError
from vbreg.maps import Map
from vbreg.types import Registration


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
    assert re.search(r"clouds +2\n", done.out)
    assert "warning" not in done.err
    io.write(tmp_path / "scan.ply", corner(1, 11))
    locate = "map", "locate", path, tmp_path / "scan.ply", "--device", "cpu"
    said, placed = tmp_path / "r.json", tmp_path / "placed.ply"
    done = run(*locate, "--json", said, "-o", placed)
    assert done.code == 0, done.err
    assert "T_target_source maps SCAN points into MAP's frame" in done.out
    assert "verdict" in done.out
    found = json.loads(said.read_text())
    there = moved(corner(1, 11), np.array(found["T_target_source"]))
    np.testing.assert_allclose(there, moved(corner(1, 11), pose(1)), atol=0.1)
    np.testing.assert_allclose(io.read(placed).points, there, atol=1e-9)


@pytest.fixture
def located(monkeypatch: pytest.MonkeyPatch, search: Search) -> Search:
    """Put a known pose in the place of the map."""

    def locate(scan: Path, **options: Any) -> Registration:
        if isinstance(scan, Path) and scan.name == "bad.ply":
            raise VBRegError(f"{scan}: damaged")
        return search.result

    monkeypatch.setattr(Map, "load", lambda path, **options: SimpleNamespace(locate=locate))
    return search


def test_an_improbable_place_has_the_exit_code_of_register(
    run: Run, clouds: tuple[Path, Path], located: Search, tmp_path: Path
) -> None:
    located.result = replace(located.result, success_probability=0.04, overlap=0.3)
    placed = tmp_path / "placed.ply"
    locate = "map", "locate", "m.safetensors", clouds[0], "-o", placed
    done = run(*locate, "--min-probability", "0.9")
    assert done.code == 3
    assert "the pose is probably wrong: its probability is 0.04, and" in done.err
    assert f"asks for 0.9; {placed} is not written" in done.err
    assert "do not trust this pose, 4 %" in done.err
    assert not placed.exists()
    assert run(*locate).code == 0
    np.testing.assert_array_equal(
        io.read(placed).points, located.result.apply_to(io.read(clouds[0])).points
    )


def test_the_descriptor_of_a_map_can_be_named(
    run: Run, clouds: tuple[Path, Path], search: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    def load(path: Path, **options: Any) -> SimpleNamespace:
        given.update(options)
        return SimpleNamespace(locate=lambda scan, **more: search.result)

    monkeypatch.setattr(Map, "load", load)
    run("map", "locate", "m.safetensors", clouds[0], "--descriptor", "mine.safetensors")
    assert given == {"device": "auto", "descriptor": "mine.safetensors"}


def test_json_is_that_of_register(
    run: Run, clouds: tuple[Path, Path], located: Search, tmp_path: Path
) -> None:
    bad = clouds[0].with_name("bad.ply")
    bad.write_bytes(b"no cloud")
    locate = "map", "locate", "m.safetensors"
    one = json.loads(run(*locate, clouds[0], "--json", "-").out)
    assert set(one) == set(json.loads(run("register", *clouds, "--json", "-").out))
    done = run(*locate, clouds[0], bad, clouds[1], "--json", "-")
    assert done.code == 2  # one of them is bad, and the others are there
    assert "damaged" in done.err
    assert [each["source"] for each in json.loads(done.out)] == list(map(str, clouds))
    assert_one_line(run(*locate, clouds[1], "--json", clouds[0]), "expected one of .json")
    missing = clouds[0].with_name("none.ply")
    assert_one_line(run(*locate, clouds[0], missing), "none.ply", "no such file")


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
    assert re.search(r"clouds +2 of 3; elsewhere.ply does not connect\n", done.out)
    assert "largest component" in done.out
    assert "warning" not in done.err
    place = Map.load(path, device="cpu")
    for k, fragment in enumerate(place.fragments):
        middle = moved(corner(k, k).mean(0), pose(k))  # of points; the fragment's is of voxels
        np.testing.assert_allclose(fragment.origin, middle, atol=0.1)
    done = run(*built, "-q")  # a warning is never hidden
    assert "warning: " in done.err
    assert "all clouds are taken to be in one frame" in done.err
    assert f"run `vbreg reconstruct {folder} --poses poses.json` first" in done.err
    (folder / "cloud_1.ply").unlink()
    done = run(*built, "--poses", poses)
    assert done.code == 2
    assert "cloud_1.ply" in done.err
    poses.write_text("{}", encoding="utf-8")
    done = run(*built, "--poses", poses)
    assert done.code == 2
    assert "no poses of `vbreg reconstruct" in done.err


@pytest.mark.parametrize(
    ("apart", "said"),
    [
        ("", "1"),
        ("a", "1 of 2; a does not connect"),
        ("ab", "1 of 3; a and b do not connect"),
        ("abcdefg", "1 of 8; a, b, c, d, e and 2 more do not connect"),
    ],
)
def test_scans_that_do_not_connect_are_named(apart: str, said: str) -> None:
    assert PlacedClouds([Path("scan.ply")], None, "", apart=list(apart)).counted == said


def test_one_cloud_in_a_folder_needs_no_pose(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "scans"
    folder.mkdir()
    io.write(folder / "cloud.ply", corner(0, 0))
    built = "map", "build", folder, "-o", tmp_path / "map.safetensors", "--voxel-size", "0.1"
    done = run(*built, "--device", "cpu")
    assert done.code == 0, done.err
    assert "one cloud, in its own frame" in done.out
    assert "warning" not in done.err


def test_both_verbs_show_examples(run: Run) -> None:
    for verb in ("build", "locate"):
        done = run("map", verb, "-h")
        assert done.code == 0
        assert f"vbreg map {verb} " in done.out.partition("EXAMPLES\n")[2]


def test_mistakes_are_told(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    io.write(tmp_path / "scan.ply", np.eye(3))
    for arguments, message in (
        (("build", tmp_path / "empty", "-o", tmp_path / "m.safetensors"), "no clouds"),
        (("build", tmp_path / "none.ply", "-o", tmp_path / "m.safetensors"), "no such file"),
        (("build", tmp_path / "empty", "-o", tmp_path / "m.npz"), ""),
        (("locate", tmp_path / "none.safetensors", tmp_path / "a.ply"), "no such file"),
        (("locate", tmp_path / "scan.ply", tmp_path / "scan.ply"), "not a map"),
        (("locate", tmp_path / "scan.ply", tmp_path / "scan.ply"), "`vbreg map build "),
    ):
        done = run("map", *arguments)
        assert done.code == 2
        assert message in done.err
