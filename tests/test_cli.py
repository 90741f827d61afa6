"""The command line as a person and as a script would use it.

Most tests put a known pose in place of the search: what is tested here is the skin. The last one
runs everything, with weights that nobody trained.
"""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vbreg
from vbreg import cli, demo, io, pretrained, registration
from vbreg.errors import VBRegError
from vbreg.methods import METHODS
from vbreg.types import Correspondences, PointCloud, Registration

COMMANDS = ("register", "info", "demo", "formats", "methods", "benchmark", "experiment")

JSON_KEYS = {
    "version": str,
    "source": str,
    "target": str,
    "T_target_source": list,
    "rotation_deg": float,
    "translation": list,
    "inlier_count": int,
    "correspondences": int,
    "matches_found": int,
    "score": float,
    "determined": bool,
    "voxel_size": float,
    "voxel_size_estimated": bool,
    "inlier_threshold": float,
    "points_read": list,
    "points_dropped": list,
    "timings": dict,
}


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """`vbreg ARGUMENTS...` in this process."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)

    def invoke(*arguments: str | Path) -> Outcome:
        with pytest.raises(SystemExit) as stop:
            cli.main([str(argument) for argument in arguments])
        streams = capsys.readouterr()
        return Outcome(int(stop.value.code or 0), streams.out, streams.err)

    return invoke


def known_pose() -> np.ndarray:
    T = np.eye(4)
    T[:3, :3] = [[0, -1, 0], [1, 0, 0], [0, 0, 1]]  # a quarter turn about z
    T[:3, 3] = [10.0, 20.0, 30.0]
    return T


@dataclass
class Search:
    """Stands in for `registration.register`: a known pose, and a memory of how it was called."""

    result: Registration
    error: BaseException | None = None
    options: dict[str, Any] | None = None

    def __call__(self, source: PointCloud, target: PointCloud, **options: Any) -> Registration:
        self.options = options
        options["on_stage"]("read")
        if self.error:
            raise self.error
        return self.result


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> Search:
    n = 200
    matches = Correspondences(np.zeros((n, 3)), np.zeros((n, 3)))
    result = Registration(
        T_target_source=known_pose(),
        correspondences=matches,
        inliers=np.arange(n) < 120,
        confidence=np.zeros(n, dtype=np.float32),
        score=np.float64(0.5),
        determined=np.bool_(True),
        inlier_threshold=0.1,
        matches_found=n,
        voxel_size=0.05,
        voxel_size_estimated=True,
        points_read=(500, 600),
        points_dropped=(1, 0),
        timings={"read": 0.25, "network": 0.5},
    )
    stand_in = Search(result)
    monkeypatch.setattr(registration, "register", stand_in)
    return stand_in


@pytest.fixture
def clouds(tmp_path: Path) -> tuple[Path, Path]:
    """A source with normals, colour and one point that is not finite; a bare target."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "in"
    folder.mkdir()
    points = rng.random((500, 3))
    points[7] = np.nan
    normals = rng.normal(size=(500, 3)).astype(np.float32)
    attributes = {axis: normals[:, k] for k, axis in enumerate(("nx", "ny", "nz"))}
    attributes["red"] = rng.integers(0, 255, 500).astype(np.uint8)
    io.write(folder / "source.ply", PointCloud(points, attributes))
    io.write(folder / "target.ply", rng.random((600, 3)))
    return folder / "source.ply", folder / "target.ply"


# Help and version


@pytest.mark.parametrize("command", [None, *COMMANDS])
@pytest.mark.parametrize("columns", ["60", "80"])
def test_help_ends_with_examples(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: str | None, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    outcome = run(*([command] if command else []), "--help")
    assert outcome.code == 0
    _, _, examples = outcome.out.partition("EXAMPLES\n")
    lines = examples.rstrip().splitlines()
    assert lines
    assert all(line.split()[0] == "vbreg" for line in lines)  # one a line, none rewrapped


def test_no_command_prints_help(run: Run) -> None:
    assert run() == run("--help")


def test_version(run: Run) -> None:
    assert run("--version") == Outcome(0, f"vbreg {vbreg.__version__}\n", "")


def test_the_skin_has_the_functions_names() -> None:
    function = inspect.signature(registration.register).parameters
    skin = inspect.signature(cli.register).parameters
    assert set(function) - set(skin) == {"model", "on_stage"}
    assert skin["max_correspondences"].default == function["max_correspondences"].default
    assert [choice.value for choice in cli.Preset] == list(pretrained.PRESETS)


def test_importing_the_command_line_does_not_load_torch() -> None:
    code = (
        "import sys, vbreg; before = 'torch' in sys.modules; import vbreg.cli; "
        "assert ('torch' in sys.modules) == before"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# Errors


def assert_one_line(outcome: Outcome, *words: str) -> None:
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.startswith("vbreg: error: ")
    assert outcome.err.count("\n") == 1
    for word in words:
        assert word in outcome.err


def test_a_missing_file_is_one_line(run: Run, clouds: tuple[Path, Path], tmp_path: Path) -> None:
    missing = tmp_path / "a rather long name that would wrap on a narrow terminal" / "missing.ply"
    assert_one_line(run("register", missing, clouds[1]), "missing.ply", "no such file")
    assert_one_line(run("info", missing), "missing.ply")


def test_a_broken_file_is_one_line(run: Run, clouds: tuple[Path, Path], search: Search) -> None:
    clouds[0].write_bytes(b"not a cloud")
    assert_one_line(run("register", *clouds), "source.ply")


@pytest.mark.parametrize(
    ("option", "name", "word"),
    [
        ("-o", "aligned.foo", ".foo"),
        ("-o", "aligned", "ending"),
        ("-o", "missing/aligned.ply", "missing"),
        ("-o", "in/source.ply", "input"),
        ("--picture", "picture.ply", ".png"),
        ("--picture", "missing/picture.png", "missing"),
        ("--json", "result.ply", ".json"),
        ("--json", "missing/result.json", "missing"),
    ],
)
def test_a_typo_in_an_output_fails_before_the_work(
    run: Run,
    clouds: tuple[Path, Path],
    search: Search,
    tmp_path: Path,
    option: str,
    name: str,
    word: str,
) -> None:
    assert_one_line(run("register", *clouds, option, tmp_path / name), word)
    assert search.options is None


def test_nothing_is_written_on_failure(
    run: Run, clouds: tuple[Path, Path], search: Search, tmp_path: Path
) -> None:
    search.error = VBRegError("only 2 matches\nbetween the clouds")
    before = sorted(tmp_path.rglob("*"))
    outputs = ["-o", "a.ply", "--json", "r.json", "--picture", "p.png"]
    outputs = [str(tmp_path / word) if "." in word else word for word in outputs]
    assert_one_line(run("register", *clouds, *outputs), "only 2 matches between")
    assert sorted(tmp_path.rglob("*")) == before


def test_ctrl_c_is_quiet(run: Run, clouds: tuple[Path, Path], search: Search) -> None:
    search.error = KeyboardInterrupt()
    assert run("register", *clouds) == Outcome(130, "", "")


def test_our_own_faults_keep_their_traceback(clouds: tuple[Path, Path], search: Search) -> None:
    search.error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        cli.main(["register", *map(str, clouds)])


@pytest.mark.parametrize("arguments", [["regster"], ["register"], ["register", "--nonsense"]])
def test_wrong_usage_is_exit_code_2(run: Run, arguments: list[str]) -> None:
    outcome = run(*arguments)
    assert outcome.code == 2
    assert "Usage" in outcome.err
    assert "Traceback" not in outcome.err


# Results


def test_people_read_the_pose_and_the_evidence(
    run: Run, clouds: tuple[Path, Path], search: Search
) -> None:
    outcome = run("register", *clouds)
    assert outcome.code == 0
    assert outcome.err == ""
    assert "\x1b" not in outcome.out
    assert outcome.out.isascii()
    assert "T_target_source maps SOURCE points into TARGET's frame" in outcome.out
    numbers = [line.split() for line in outcome.out.splitlines()[1:5]]
    np.testing.assert_allclose(np.array(numbers, dtype=float), known_pose(), atol=1e-6)
    said = re.sub(r" +", " ", outcome.out)
    for fact in (
        "rotation 90.00 deg",
        "translation 37.42",
        "inliers 120 of 200 correspondences (60.0 %)",
        "score 0.500",
        "voxel size 0.05, estimated",
        "dropped 1 non-finite points of source",
        "network 0.50",
    ):
        assert fact in said


def test_json_on_stdout_is_only_json(run: Run, clouds: tuple[Path, Path], search: Search) -> None:
    outcome = run("register", *clouds, "--json", "-")
    content = json.loads(outcome.out)
    assert {key: type(value) for key, value in content.items()} == JSON_KEYS
    np.testing.assert_array_equal(content["T_target_source"], known_pose())
    assert content["rotation_deg"] == pytest.approx(90)
    assert content["translation"] == [10, 20, 30]
    assert (content["source"], content["target"]) == tuple(map(str, clouds))
    assert content["timings"]["read"] > 0.25  # reading the files is in it


def test_json_in_a_file_is_the_same(
    run: Run, clouds: tuple[Path, Path], search: Search, tmp_path: Path
) -> None:
    outcome = run("register", *clouds, "--json", tmp_path / "result.json")
    content = json.loads((tmp_path / "result.json").read_text())
    assert set(content) == set(JSON_KEYS)
    assert str(tmp_path / "result.json") in outcome.out


def test_the_whole_source_is_moved_exactly(
    run: Run, clouds: tuple[Path, Path], search: Search, tmp_path: Path
) -> None:
    run("register", *clouds, "-o", tmp_path / "aligned.ply")
    source, aligned = io.read(clouds[0]), io.read(tmp_path / "aligned.ply")
    T = known_pose()
    expected = source.points @ T[:3, :3].T + T[:3, 3]
    np.testing.assert_allclose(aligned.points, expected, rtol=0, atol=1e-12)
    assert np.isnan(aligned.points[7]).all()
    np.testing.assert_array_equal(aligned.attributes["red"], source.attributes["red"])
    # A quarter turn about z: x becomes y, y becomes -x.
    np.testing.assert_allclose(aligned.attributes["nx"], -source.attributes["ny"], atol=1e-6)
    np.testing.assert_allclose(aligned.attributes["ny"], source.attributes["nx"], atol=1e-6)
    np.testing.assert_allclose(aligned.attributes["nz"], source.attributes["nz"], atol=1e-6)
    assert aligned.attributes["nx"].dtype == np.float32


def test_the_picture_is_a_picture(
    run: Run, clouds: tuple[Path, Path], search: Search, tmp_path: Path
) -> None:
    run("register", *clouds, "--picture", tmp_path / "picture.png")
    with Image.open(tmp_path / "picture.png") as image:
        assert image.format == "PNG"


def test_options_arrive(run: Run, clouds: tuple[Path, Path], search: Search) -> None:
    run(
        *("register", *clouds, "--voxel-size", "0.1", "--preset", "outdoor", "--device", "cpu"),
        *("--mutual", "--max-correspondences", "500", "--seed", "3"),
    )
    assert search.options is not None
    given = {k: v for k, v in search.options.items() if k != "on_stage"}
    assert given == {
        "voxel_size": 0.1,
        "preset": "outdoor",
        "model": None,
        "device": "cpu",
        "mutual": True,
        "max_correspondences": 500,
        "seed": 3,
    }


def test_quiet_says_nothing_but_warnings(
    run: Run, clouds: tuple[Path, Path], search: Search
) -> None:
    assert run("register", *clouds, "-q") == Outcome(0, "", "")
    few = replace(search.result, inliers=np.arange(200) < 5)
    search.result = few
    outcome = run("register", *clouds, "-q")
    assert outcome.out == ""
    assert outcome.err.startswith("vbreg: warning: only 5 of 200 matches")
    many = Correspondences(np.zeros((9000, 3)), np.zeros((9000, 3)))
    search.result = replace(few, correspondences=many, inliers=np.arange(9000) < 90)
    assert "only 90 of 9000" in run("register", *clouds, "-q").err  # 1 %: a share, not a number
    search.result = replace(few, determined=np.bool_(False))
    assert "degrees of freedom" in run("register", *clouds, "-q").err


# The other commands


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


def test_formats_lists_the_table(run: Run) -> None:
    lines = run("formats").out.splitlines()
    assert [line.split()[0] for line in lines] == [row.ending for row in io.FORMATS]


def test_demo_compares_with_the_truth(
    run: Run, search: Search, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    source, target = PointCloud(rng.random((90, 3))), PointCloud(rng.random((90, 3)))
    truth = known_pose()
    monkeypatch.setattr(demo, "load", lambda: (source, target, truth))
    truth[0, 3] += 0.02
    outcome = run("demo", "--picture", tmp_path / "demo.png")
    assert outcome.code == 0
    assert "off by 0.00 deg and 2.0 cm" in outcome.out
    assert Image.open(tmp_path / "demo.png").format == "PNG"
    truth[0, 3] += 5
    assert run("demo", "--picture", tmp_path / "demo.png").code == 1


# Everything, once


def test_end_to_end_in_a_process_of_its_own(tmp_path: Path) -> None:
    """The pose of untrained weights means nothing; the file must still be moved by it exactly."""
    from vbreg.network import NetworkConfig, VariationalNonLocalNetwork

    small = NetworkConfig(iterations=2, width=32, latent_width=32, hidden_width=32, label_width=8)
    pretrained.save_network(tmp_path / "w.safetensors", VariationalNonLocalNetwork(small))
    rng = np.random.default_rng(0)
    surface = rng.random((3000, 3)) * [2.0, 1.5, 1.0]
    for axis, rows in enumerate(np.array_split(np.arange(3000), 3)):
        surface[rows, axis] = 0.1 * np.sin(5 * surface[rows].sum(axis=1))
    io.write(tmp_path / "source.ply", surface[:2500])
    io.write(tmp_path / "target.npy", surface[500:] + 1.0)
    command = "register source.ply target.npy --voxel-size 0.12 --weights w.safetensors"
    outcome = subprocess.run(
        [sys.executable, "-m", "vbreg", *command.split(), *("-o", "a.npy", "--json", "-")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    T = np.array(json.loads(outcome.stdout)["T_target_source"])
    moved = surface[:2500] @ T[:3, :3].T + T[:3, 3]
    np.testing.assert_allclose(io.read(tmp_path / "a.npy").points, moved, atol=1e-9)
    assert {path.name for path in tmp_path.iterdir()} == {
        *("source.ply", "target.npy", "w.safetensors", "a.npy")
    }


# Methods, benchmarks, experiments


def test_methods_are_listed_with_what_they_need(run: Run) -> None:
    out = run("methods").out
    names = [line.split()[0] for line in out.splitlines() if not line.startswith(" ")]
    assert names == list(METHODS)
    assert "Needs matches" in out


def test_a_benchmark_needs_a_data_set_that_exists(run: Run, tmp_path: Path) -> None:
    outcome = run("benchmark", "3dmatsch", "-o", tmp_path / "out")
    assert outcome.code == 2
    assert "choose from 3dmatch, 3dlomatch" in outcome.err
    outcome = run("benchmark", "3dmatch", "--root", tmp_path / "none", "-o", tmp_path / "out")
    assert outcome.code == 2
    assert str(tmp_path / "none") in outcome.err
    assert not (tmp_path / "out").exists()


def test_an_experiment_says_where_it_looked(run: Run, tmp_path: Path) -> None:
    outcome = run("experiment", "table1", "--root", tmp_path, "-o", tmp_path / "out")
    assert outcome.code == 2
    assert f"3DMatch not found below {tmp_path}" in outcome.err
    outcome = run("experiment", "table9", "--root", tmp_path, "-o", tmp_path / "out")
    assert outcome.code == 2
    assert "table1" in outcome.err


def test_folders_of_a_training_have_a_name(run: Run, tmp_path: Path) -> None:
    (tmp_path / "3dmatch" / "fragments").mkdir(parents=True)
    options = ("--root", tmp_path, "-o", tmp_path / "out", "--training", "runs")
    outcome = run("experiment", "figures", *options)
    assert outcome.code == 2
    assert "--training 'runs': expected NAME=DIR" in outcome.err
