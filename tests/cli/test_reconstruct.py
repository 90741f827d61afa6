"""`vbreg reconstruct`: what it writes and says, and how it fails."""

from __future__ import annotations

import dataclasses
import json
import tempfile
import time
import webbrowser
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import numpy as np
import pytest

from tests.cli.helpers import Run, assert_one_line
from vbreg import PointCloud, io, scenes
from vbreg.motions import exponential
from vbreg.scenes import Reconstruction, SceneEdge
from vbreg.scenes.joining import Join


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "scans"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for k in range(3):
        io.write(folder / f"{k}.ply", PointCloud(rng.random((50, 3))))
    return folder


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Put a known scene in the place of the search, and note the options."""
    T = exponential(np.array([[0.0] * 6, [0, 0, 0.5, 1, 2, 3], [0.0] * 6]))
    edges = [
        SceneEdge(1, 0, T[1], np.eye(6), 0.98, True, 0.1, 0.0, None, 0, 0, True, False),
        SceneEdge(2, 0, T[1], np.eye(6), 0.7, False, np.inf, np.inf, None, 0, 0, False, False),
    ]
    join = Join((0, 1), np.array([1]), np.eye(4), 4.0, 3.0)
    known = Reconstruction(
        ("0.ply", "1.ply", "2.ply"),
        T,
        np.array([0, 0, 1]),
        tuple(edges),
        np.zeros((3, 3)),
        (join,),
        ((0, 1), (0, 2)),
        3,
        0.05,
        True,
    )
    noted: dict[str, Any] = {"found": known}

    def stand_in(files: list[Path], **options: Any) -> Reconstruction:
        noted["files"], noted["options"] = files, options
        options["on_progress"]("describe", 1, 1)
        return noted["found"]

    monkeypatch.setattr(scenes, "reconstruct", stand_in)
    return noted


def test_a_folder_is_shown_in_the_browser(
    run: Run, folder: Path, search: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pages: list[str] = []

    def opened(url: str) -> bool:
        pages.append(Path(url2pathname(urlsplit(url).path)).read_text(encoding="utf-8"))
        return True

    def end(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(webbrowser, "open", opened)
    monkeypatch.setattr(time, "sleep", end)
    monkeypatch.setattr(tempfile, "tempdir", str(folder.parent))
    outcome = run("view", folder, "--voxel-size", "0.05")
    assert outcome.code == 0, outcome.err
    assert search["options"]["voxel_size"] == 0.05
    assert "3 scans in 2 components" in pages[0]
    assert "not connected" in outcome.err
    assert [path.name for path in folder.parent.iterdir()] == ["scans"]
    assert_one_line(run("view", folder, folder / "0.ply"), "is a folder", "alone")
    (folder / "1.ply").unlink()
    (folder / "2.ply").unlink()
    assert_one_line(run("view", folder), "1 file")


def test_everything_is_written_and_said(run: Run, folder: Path, search: dict[str, Any]) -> None:
    out = folder.parent
    outcome = run(
        "reconstruct", folder, "-o", out / "scene.ply", "--poses", out / "p.json", "--poses",
        out / "p.tum", "--poses", out / "p.g2o", "--report", out / "r.html", "--preset", "indoor",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    assert [path.name for path in search["files"]] == ["0.ply", "1.ply", "2.ply"]
    assert search["options"]["work"] == out / "scene_pairs"
    assert search["options"]["preset"] == "indoor"
    cloud = io.read(out / "scene.ply")
    assert len(cloud) == 100
    assert sorted(set(cloud.attributes["scan"].tolist())) == [0, 1]
    assert json.loads((out / "p.json").read_text(encoding="utf-8"))["components"] == [[0, 1], [2]]
    assert "0.ply" in (out / "p.tum").read_text(encoding="utf-8")
    assert "EDGE_SE3" in (out / "p.g2o").read_text(encoding="utf-8")
    assert "vbreg reconstruct" in (out / "r.html").read_text(encoding="utf-8")
    assert "2: 2 and 1 scans" in outcome.out
    assert "2 of 3 registered (67 %), 1 of them again" in outcome.out
    assert "no loop confirms it" in outcome.out
    assert "not connected to the largest component: 2.ply (1 of 3 scans); each" in outcome.err
    assert "components 1 and 2 were not joined: 1 pair for the best pose" in outcome.err


def test_what_not_all_scans_have_is_told(run: Run, folder: Path, search: dict[str, Any]) -> None:
    times = {"time": np.zeros(50)}
    io.write(folder / "1.ply", PointCloud(np.random.default_rng(1).random((50, 3)), times))
    outcome = run("reconstruct", folder, "-o", folder.parent / "scene.ply", "-q")
    assert outcome.code == 0
    assert "scene.ply: the merged cloud is without time, which not all scans have" in outcome.err


def test_other_components_go_to_files_of_their_own(
    run: Run, folder: Path, search: dict[str, Any]
) -> None:
    out = folder.parent / "scene.ply"
    outcome = run("reconstruct", folder, "-o", out, "--all-components", "-q")
    assert outcome.code == 0
    assert outcome.out == ""
    assert len(io.read(out)) == 100
    assert len(io.read(out.with_name("scene-2.ply"))) == 50


def test_scripts_can_ask_for_all_scans(run: Run, folder: Path, search: dict[str, Any]) -> None:
    arguments = "reconstruct", folder, "-o", folder.parent / "scene.ply", "--require-all"
    outcome = run(*arguments)
    assert outcome.code == 3
    for origin, words in (
        ("given", "0.05 "),
        ("estimated", "0.05 (estimated, and kept in"),
        ("kept", "0.05 (estimated by an earlier run, and kept in"),
    ):
        search["found"] = dataclasses.replace(search["found"], size_origin=origin)
        outcome = run(*arguments)
        assert words in " ".join(outcome.out.split())
        assert ("estimated" in outcome.out) == (origin != "given")
    search["found"] = dataclasses.replace(search["found"], component=np.zeros(3, dtype=np.int64))
    assert run(*arguments).code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-o", "scans/1.ply"), "1.ply is an input"),
        (("--poses", "scans/3.txt"), "3.txt is an input"),
        (("-o", "link.ply"), "link.ply is an input"),
        (("-o", "scans/scene.ply"), "among the scans"),
        (("--poses", "scans/new.txt"), "among the scans"),
        (("-o", "p.txt", "--poses", "p.txt"), "two results"),
    ],
)
def test_no_output_goes_over_a_scan_or_becomes_one(
    run: Run,
    folder: Path,
    search: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    words: str,
) -> None:
    """What lies in the folder with the ending of a cloud would be a scan of the next run."""
    monkeypatch.chdir(folder.parent)
    io.write(folder / "3.txt", np.random.default_rng(3).random((50, 3)))
    (folder.parent / "link.ply").hardlink_to(folder / "2.ply")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert_one_line(run("reconstruct", "scans", *arguments), words)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    assert "files" not in search


def test_what_is_no_cloud_may_lie_beside_the_scans(
    run: Run, folder: Path, search: dict[str, Any]
) -> None:
    for _ in range(2):
        outcome = run(
            "reconstruct", folder, "--poses", folder / "p.json", "--report", folder / "r.html"
        )
        assert outcome.code == 0
        assert len(search["files"]) == 3
        assert search["options"]["work"] is None  # without -o nothing is kept


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "nothing to write"),
        (("-o", "scene.nonsense"), "unknown ending"),
        (("--poses", "poses.csv"), "unknown ending '.csv'"),
        (("--poses", "nowhere/poses.json"), "does not exist"),
        (("--report", "report.pdf"), "unknown ending"),
        (("-o", "scene.ply", "--thin", "0"), "--thin 0.0: expected a positive number"),
        (("-o", "scene.ply", "--thin", "-1"), "--thin -1.0: expected a positive number"),
        (("-o", "scene.ply", "--work", __file__), "is a file"),
    ],
)
def test_mistakes_are_told_before_the_work(
    run: Run, folder: Path, search: dict[str, Any], arguments: tuple[str, ...], words: str
) -> None:
    assert_one_line(run("reconstruct", folder, *arguments), words)
    assert "files" not in search


@pytest.mark.parametrize("share", ["0.0", "1.5"])
def test_a_share_that_is_none_is_told_in_one_way(run: Run, folder: Path, share: str) -> None:
    outcome = run("reconstruct", folder, "--poses", folder / "p.json", "--pair-share", share)
    assert_one_line(outcome, f"pair_share {share}: expected", "above 0 and at most 1")


def test_a_folder_without_scans_is_named(run: Run, tmp_path: Path) -> None:
    outcome = run("reconstruct", tmp_path, "-o", tmp_path / "scene.ply")
    assert_one_line(outcome, "0 files of clouds")
    assert_one_line(run("reconstruct", tmp_path / "no", "-o", tmp_path / "s.ply"), "no such folder")


def test_the_help_has_examples(run: Run) -> None:
    outcome = run("reconstruct", "--help")
    assert outcome.code == 0
    assert "vbreg reconstruct scans/ -o scene.ply" in outcome.out
