"""Every Python block of the documents runs, and every command of theirs is a command."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer

import vbreg
from tests.conftest import make_problem
from tests.docs.blocks import GUIDES, OTHERS, ROOT, Block, blocks_of, commands_of, run_python_of
from vbreg import cli, demo, io
from vbreg.clouds import voxel_downsample
from vbreg.metrics import pose_error
from vbreg.simulator import drive_and_scan, make_place, make_street
from vbreg.simulator.sensors import LIDAR_16

# How many blocks a page says not to run: a new one is seen here.
NOT_RUN = {
    "README.md": 1,
    "docs/start.md": 2,
    "docs/guides/many_scans.md": 2,
    "docs/guides/objects.md": 2,
    "docs/guides/training.md": 4,
    "docs/constraints.md": 1,
    "docs/datasets.md": 1,
    "docs/onnx.md": 1,
    "docs/simulator.md": 1,
}
LANGUAGES = {"", "python", "sh", "bibtex", "toml", "json"}  # the rest is no code to run


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


# --- files and names that pages speak of


def street_scans() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    drive = drive_and_scan(make_street(generator, "residential"), generator, 2, LIDAR_16)
    return {f"scan{k}.pcd": points.numpy() for k, (points, _) in enumerate(drive, start=1)}


def object_scans() -> dict[str, np.ndarray]:
    scans = make_place("object_turntable", seed=0).scans[:2]
    return {f"part{k}.ply": scan.points for k, scan in enumerate(scans, start=1)}


def room_scans() -> dict[str, np.ndarray]:
    """The demo pair; and as a map with two scans, one of which is turned by a quarter."""
    source, target, _ = demo.load()
    turned = source.points[:, [1, 0, 2]] * [-1, 1, 1]
    return {
        "source.ply": source.points,
        "target.ply": target.points,
        "map.ply": target.points,
        "scan1.ply": source.points,
        "scan2.ply": turned,
        "a.ply": target.points,
        "b.ply": target.points,
        "scan.ply": source.points,
    }


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that gives a folder with the files whose names stand in a text."""
    made: dict[Callable[[], dict[str, np.ndarray]], dict[str, np.ndarray]] = {}

    def folder_for(text: str) -> Path:
        folder = tmp_path_factory.mktemp("page")
        for maker, some_name in (
            (room_scans, ("source.ply", "map.ply", "a.ply", "pairs.csv", "scans/")),
            (street_scans, ("scan1.pcd",)),
            (object_scans, ("part1.ply",)),
        ):
            if any(name in text for name in some_name):
                clouds = made.get(maker) or made.setdefault(maker, maker())
                for name, points in clouds.items():
                    io.write(folder / name, points)
        shutil.copy(ROOT / "src/vbreg/weights/judge.safetensors", folder)
        if "pairs.csv" in text:
            rows = "source,target\nsource.ply,target.ply\n"
            (folder / "pairs.csv").write_text(rows, encoding="utf-8")
        if "scans/" in text:
            (folder / "scans").mkdir()
            for name in ("source.ply", "target.ply"):
                shutil.copy(folder / name, folder / "scans")
        return folder

    return folder_for


def usual_names() -> dict[str, Any]:
    """What pages that are no guides take for granted: two clouds, matches, a network."""
    points = [torch.from_numpy(cloud.points) for cloud in demo.load()[:2]]
    source, target = (voxel_downsample(cloud, 0.15).numpy() for cloud in points)
    matches = make_problem(n=120)

    def my_network(points: torch.Tensor, radius: float) -> torch.Tensor:
        return points.norm(dim=-1, keepdim=True) / radius

    class pair:
        """A pair, as a data set gives it."""

        name, source = "kitchen 0-1", points[0].numpy()

    names: dict[str, Any] = {"vbreg": vbreg, "source": source, "target": target, "pair": pair}
    names |= {"T": demo.load()[2], "my_network": my_network}
    names |= {"T_map_a": np.eye(4), "T_map_b": np.eye(4)}
    names |= {"source_points": matches.source, "target_points": matches.target}
    names |= dict.fromkeys("ab", matches.source) | dict.fromkeys("cd", matches.target)
    for number in "12":
        names |= {f"{side}_{number}": getattr(matches, side) for side in ("source", "target")}
    return names


# --- Python


def is_right(result: vbreg.Registration) -> bool:
    """Tell whether a pose is that of the demo pair."""
    error = pose_error(torch.from_numpy(result.T_target_source), torch.from_numpy(demo.load()[2]))
    return bool(error.success(5.0, 0.15))


# What the names of a page must hold after its blocks ran.
AFTERWARDS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "docs/start.md": lambda names: is_right(names["result"]),
    "docs/guides/rooms.md": lambda names: (
        is_right(names["result"]) and names["constrained"].success_probability < 0.5
    ),
    "docs/guides/lidar.md": lambda names: (
        names["result"].success_probability > 0.9
        and np.allclose(names["result"].T_target_source, names["known"].T_target_source, atol=0.2)
    ),
    "docs/guides/objects.md": lambda names: names["result"].success_probability > 0.5,
    "docs/guides/loop_closure.md": lambda names: names["accepted"] and is_right(names["bounded"]),
    "docs/guides/many_scans.md": lambda names: (
        set(names["poses"]) == {"scan1.ply", "scan2.ply"} and len(names["T_world_scan"]) == 3
    ),
    "docs/guides/voxel_size.md": lambda names: is_right(names["result"]),
    "docs/maps.md": lambda names: is_right(names["result"]),
    "docs/scenes.md": lambda names: [sorted(c) for c in names["result"].components] == [[0, 1]],
    "docs/guides/verdict.md": lambda names: names["usable"](names["result"]),
}
PYTHON_PAGES = [  # onnx.md needs an exported file: tests/test_export.py runs it
    page
    for page in [*GUIDES, *OTHERS]
    if page.stem != "onnx"
    and any(block.language == "python" and not block.mark for block in blocks_of(page))
]


def marks_of(page: Path) -> list[pytest.MarkDecorator]:
    """Pages for those in a hurry are tried in every run; the rest take a minute or two."""
    if page.stem == "open3d":
        return [pytest.mark.baselines]
    return [] if page.stem in ("README", "start", "python") else [pytest.mark.slow]


@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=marks_of(p)) for p in PYTHON_PAGES],
    ids=name_of,
)
def test_the_python_of_a_page_runs(
    page: Path, files: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = [b for b in blocks_of(page) if b.language == "python" and not b.mark]
    if page.stem == "open3d":
        pytest.importorskip("open3d", reason="the page is for Open3D: see `make test-baselines`")
    monkeypatch.chdir(files("".join(block.text for block in blocks)))
    names = run_python_of(page, {} if page in GUIDES else usual_names())
    check = AFTERWARDS.get(name_of(page))
    assert check is None or check(names)


def test_pages_that_are_checked_afterwards_exist() -> None:
    assert set(AFTERWARDS) <= set(map(name_of, PYTHON_PAGES))


# --- commands


def parse(words: list[str]) -> None:
    """Parse a command of vbreg without running it; what is wrong with it is raised."""
    group = typer.main.get_command(cli.app)
    with group.make_context("vbreg", [], obj=[], resilient_parsing=True) as context:
        verb = group.get_command(context, words[1])  # type: ignore[attr-defined]
        assert verb is not None, f"no verb {words[1]!r}"
        verb.make_context(words[1], words[2:], parent=context)


def check_command(block: Block, words: list[str]) -> None:
    """Raise if a command cannot be one: unknown verb or option, or a script that is not there."""
    while "=" in words[0]:  # VARIABLE=value before the command
        words = words[1:]
    if words[0] == "vbreg":
        recorded = block.page not in GUIDES and "-o" not in words  # as a table has it
        parse([*words, "-o", "out"] if recorded and words[1] == "benchmark" else words)
    elif words[0] in ("python", ".venv-baselines/bin/python") and words[1] != "-m":
        assert (ROOT / words[1]).is_file(), f"{block.where}: no script {words[1]}"
    elif words[0] == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        assert f"\n{words[1]}:" in makefile, f"{block.where}: no target {words[1]}"


SHELL_PAGES = [
    page for page in [*GUIDES, *OTHERS] if any(b.language == "sh" for b in blocks_of(page))
]


@pytest.mark.parametrize("page", SHELL_PAGES, ids=name_of)
def test_the_commands_of_a_page_are_commands(page: Path) -> None:
    for block in blocks_of(page):
        if block.language == "sh" and block.mark != "not run":
            for words in commands_of(block):
                check_command(block, words)


@pytest.mark.parametrize("page", [p for p in SHELL_PAGES if p in GUIDES], ids=name_of)
def test_the_commands_of_a_guide_run(
    page: Path, files: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = [b for b in blocks_of(page) if b.language == "sh" and not b.mark]
    monkeypatch.chdir(files("".join(block.text for block in blocks)))
    for block in blocks:
        for words in commands_of(block):
            assert words[0] == "vbreg", f"{block.where}: mark what is not to be run"
            with pytest.raises(SystemExit) as stop:
                cli.main(words[1:])
            assert not stop.value.code, f"{block.where}: {words}"
            if "-o" in words:
                assert Path(words[words.index("-o") + 1]).is_file(), block.where


# --- nothing is left out in silence


def test_blocks_that_are_not_run_are_counted() -> None:
    marked = {name_of(p): sum(bool(b.mark) for b in blocks_of(p)) for p in [*GUIDES, *OTHERS]}
    assert {page: count for page, count in marked.items() if count} == NOT_RUN


def test_every_language_is_known() -> None:
    """A block with a misspelt language would be run by nobody."""
    for page in [*GUIDES, *OTHERS]:
        for block in blocks_of(page):
            assert block.language in LANGUAGES, block.where
            assert block.language or "vbreg." not in block.text, f"{block.where} is Python?"


def test_marks_are_seen(tmp_path: Path) -> None:
    page = ROOT / "docs" / "none.md"
    text = "# A\n\n```python\na = 1\n```\n\n<!-- not run: why -->\n\n"
    text += "```sh\nvbreg x \\\n  -o y # z\n```\n"
    path = tmp_path / page.name
    path.write_text(text, encoding="utf-8")
    first, second = blocks_of(path)
    assert (first.language, first.mark, first.line) == ("python", "", 4)
    assert (second.mark, second.reason) == ("not run", "why")
    assert commands_of(second) == [["vbreg", "x", "-o", "y"]]


@pytest.mark.parametrize("words", [["register", "a", "b", "--no-such-option"], ["no-such-verb"]])
def test_a_wrong_command_is_seen(words: list[str]) -> None:
    with pytest.raises(Exception, match="such"):
        parse(["vbreg", *words])
