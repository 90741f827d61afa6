"""`vbreg register` is tested as a person and as a script would use it.

Most tests put a known pose in place of the search; the last one runs everything, with weights that
nobody trained.
"""

from __future__ import annotations

import base64
import inspect
import json
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from PIL import Image

from tests.cli.helpers import Outcome, Run, Search, assert_one_line, known_pose
from tests.viewer.helpers import unpacked
from vbreg import io, model, pretrained, registration, scale, streaming
from vbreg.cli import clock, register
from vbreg.descriptors import MatchingName
from vbreg.errors import VBRegError
from vbreg.inputs import MIN_MATCHES
from vbreg.matching import MAX_CORRESPONDENCES
from vbreg.types import Alternative, Correspondences, FreeDirection, Registration, Uncertainty

JSON_KEYS = {
    "version": str,
    "source": str,
    "target": str,
    "T_target_source": list,
    "scale": float,
    "success_probability": float,
    "mirrored_probability": type(None),
    "verdict": str,
    "reasons": list,
    "overlap": float,
    "limits_reached": list,
    "alternatives": list,
    "rotation_deg": float,
    "translation": list,
    "inlier_count": int,
    "correspondences": int,
    "matches_found": int,
    "memory_limited": bool,
    "fitness": float,
    "inlier_rmse": float,
    "score": float,
    "determined": bool,
    "free_directions": list,
    "covariance": list,
    "voxel_size": float,
    "first_voxel_size": float,
    "voxel_size_estimated": bool,
    "inlier_threshold": float,
    "points_read": list,
    "points_dropped": list,
    "lone_shares": list,
    "volume_shares": list,
    "backend": str,
    "timings": dict,
    "warnings": list,
}


PTX = "1\n1\n0 0 0\n1 0 0\n0 1 0\n0 0 1\n1 0 0 0\n0 1 0 0\n0 0 1 0\n0 0 0 1\n1 2 3 0.5\n"


def test_the_skin_has_the_functions_names() -> None:
    function = inspect.signature(registration.register).parameters
    skin = inspect.signature(register.register).parameters
    assert set(function) - set(skin) == {"model", "on_stage", "ignore"}
    for name in set(function) & set(skin) - {"source", "target"}:
        assert skin[name].default == function[name].default, name
    assert skin["max_correspondences"].default == MAX_CORRESPONDENCES
    assert register.MIN_COUNT == MIN_MATCHES
    assert get_args(register.PresetName) == tuple(scale.VOXEL_SIZES)
    assert get_args(register.MatchingName) == get_args(MatchingName)
    assert get_args(register.RefineName) == get_args(model.RefineName)


def test_a_missing_file_is_one_line(run: Run, clouds: tuple[Path, Path], tmp_path: Path) -> None:
    missing = tmp_path / "a rather long name that would wrap on a narrow terminal" / "missing.ply"
    assert_one_line(run("register", missing, clouds[1]), "missing.ply", "no such file")


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
        ("--figure", "figure.jpg", ".svg"),
        ("--figure", "missing/figure.svg", "missing"),
        ("--report", "report.pdf", ".html"),
        ("--report", "missing/report.html", "missing"),
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
        "inliers 120 of 200 correspondences (60.0 %); RMSE 0.03, score 0.500",
        "uncertainty 0.99 deg and 0.035 (one standard deviation, at the inliers)",
        "voxel size 0.05, estimated",
        "dropped 1 points of source: not finite",
        "network 0.50",
    ):
        assert fact in said
    names = ("seconds", "read files")
    whole, reading = (float(re.findall(rf"{name} ([0-9.]+)", said)[0]) for name in names)
    assert whole == pytest.approx(reading + 0.75, abs=0.011)  # both are rounded to 0.01


def test_a_cloud_to_itself_is_warned_of(
    run: Run, clouds: tuple[Path, Path], search: Search
) -> None:
    search.result = judged(search.result, 0.97)
    said = "SOURCE and TARGET are the same file: is that meant?"
    assert said in run("register", clouds[0], clouds[0].parent / "." / "source.ply").err
    assert said in json.loads(run("register", clouds[1], clouds[1], "--json", "-").out)["warnings"]
    assert run("register", *clouds).err == ""


def test_the_start_is_told_once_and_apart(
    run: Run, clouds: tuple[Path, Path], search: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "BEGAN", time.perf_counter() - 1234.0)
    out = run("register", clouds[0], clouds[0], clouds[1]).out
    assert len(re.findall(r"start +123\d\.\d\d ", out)) == 1
    assert all(float(each) < 100 for each in re.findall(r"seconds +([0-9.]+)", out))


def test_json_on_stdout_is_only_json(run: Run, clouds: tuple[Path, Path], search: Search) -> None:
    search.result = judged(search.result, 0.97)
    outcome = run("register", *clouds, "--json", "-")
    content = json.loads(outcome.out)
    assert {key: type(value) for key, value in content.items()} == JSON_KEYS
    np.testing.assert_array_equal(content["T_target_source"], known_pose())
    assert content["rotation_deg"] == pytest.approx(90)
    assert content["translation"] == [10, 20, 30]
    assert (content["source"], content["target"]) == tuple(map(str, clouds))
    assert list(content["timings"]) == ["read files", *search.result.timings]
    assert content["timings"]["read files"] > 0
    assert content["timings"]["prepare"] == search.result.timings["prepare"]
    assert content["fitness"] == 0.6  # 120 of 200
    assert content["inlier_rmse"] == 0.03
    assert content["backend"] == "cpu"
    assert content["memory_limited"] is False
    np.testing.assert_array_equal(content["covariance"], search.result.covariance)
    assert content["free_directions"] == []


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


def test_figure_and_report_are_written(
    run: Run, clouds: tuple[Path, Path], search: Search, tmp_path: Path
) -> None:
    names = {"--figure": "f.svg", "--report": "r.html"}
    options = [str(word) for option, name in names.items() for word in (option, tmp_path / name)]
    outcome = run("register", *clouds, *options)
    assert outcome.code == 0, outcome.err
    assert outcome.out.count("wrote") == 2
    assert (tmp_path / "f.svg").read_text().startswith("<svg")
    page = (tmp_path / "r.html").read_text()
    (packed,) = re.findall(r'id="scene">([^<]*)<', page)
    header = unpacked(base64.b64decode(packed))[0]
    assert header["result"]["T_target_source"] == known_pose().tolist()
    assert header["names"] == ["source.ply", "target.ply"]
    assert header["command"].startswith(f"vbreg register {clouds[0]} ")
    assert header["clouds"]["source"]["points"] == 500


def test_a_scaled_source_is_written_and_shown_in_its_new_size(
    run: Run, clouds: tuple[Path, Path], search: Search, tmp_path: Path
) -> None:
    search.result = replace(search.result, scale=2.0)
    names = {"-o": "a.ply", "--figure": "f.svg", "--report": "r.html", "--json": "r.json"}
    options = [str(word) for option, name in names.items() for word in (option, tmp_path / name)]
    outcome = run("register", *clouds, *options)
    assert outcome.code == 0, outcome.err
    assert "maps SOURCE points, multiplied by 2, into TARGET's frame" in outcome.out
    assert json.loads((tmp_path / "r.json").read_text())["scale"] == 2.0
    source = io.read(clouds[0]).points
    moved = (2 * source) @ known_pose()[:3, :3].T + known_pose()[:3, 3]
    np.testing.assert_allclose(io.read(tmp_path / "a.ply").points, moved, atol=1e-4)
    again = run("transform", clouds[0], tmp_path / "r.json", "-o", tmp_path / "b.ply")
    assert again.code == 0, again.err
    np.testing.assert_allclose(io.read(tmp_path / "b.ply").points, moved, atol=1e-4)


def test_a_second_look_is_told(run: Run, clouds: tuple[Path, Path], search: Search) -> None:
    search.result = replace(search.result, voxel_size=0.0353553, voxel_size_estimated=False)
    said = "voxel size   0.0354 (second attempt; the first used the {} 0.05)"
    assert said.format("given") in run("register", *clouds).out
    search.result = replace(search.result, voxel_size_estimated=True)
    assert said.format("estimated") in run("register", *clouds).out


def test_options_arrive(run: Run, clouds: tuple[Path, Path], search: Search) -> None:
    run(
        *("register", *clouds, "--voxel-size", "0.1", "--preset", "outdoor", "--device", "cpu"),
        *("--matching", "mutual", "--keypoints", "900", "--max-correspondences", "500"),
        *("--seed", "3", "--viewpoint", "0,0,1.7", "--gravity", "z"),
        *("--max-translation", "2.5", "--max-rotation", "30", "--no-retry"),
    )
    assert search.options is not None
    given = {k: v for k, v in search.options.items() if k != "on_stage"}
    assert given == {
        "voxel_size": 0.1,
        "preset": "outdoor",
        "weights": None,
        "descriptor": "learned",
        "device": "cpu",
        "keypoints": 900,
        "matching": "mutual",
        "viewpoint": (0.0, 0.0, 1.7),
        "max_correspondences": 500,
        "gravity": "z",
        "guess": None,
        "max_translation": 2.5,
        "max_rotation": 30.0,
        "max_scale": None,
        "verify": True,
        "refine": None,
        "retry": False,
        "seed": 3,
    }


def test_a_voxel_size_that_goes_before_a_preset_is_told(
    run: Run, clouds: tuple[Path, Path], search: Search
) -> None:
    search.result = judged(search.result, 0.97)
    outcome = run("register", *clouds, "--voxel-size", "0.1", "--preset", "indoor")
    assert outcome.code == 0
    said = "--voxel-size 0.1 with --preset indoor: the given voxel size counts, not that of the"
    assert outcome.err.startswith(f"vbreg: warning: {said} preset")
    assert run("register", *clouds, "--preset", "indoor").err == ""


def test_keypoints_are_a_number_or_all(run: Run, clouds: tuple[Path, Path], search: Search) -> None:
    run("register", *clouds, "--keypoints", "all")
    assert search.options is not None
    assert search.options["keypoints"] == "all"
    for text in ("many", "2", "-1"):
        said = run("register", *clouds, f"--keypoints={text}").err
        assert f"--keypoints {text}: expected a whole number from 3 up or all" in said


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--voxel-size", "0", "a positive number in the unit of the points"),
        ("--voxel-size", "nan", "a positive number in the unit of the points"),
        ("--max-translation", "-1", "a positive number in the unit of the points"),
        ("--max-translation", "inf", "a positive number in the unit of the points"),
        ("--max-rotation", "181", "degrees, above 0 and at most 180"),
        ("--max-scale", "1", "a number above 1"),
    ],
)
def test_a_number_that_cannot_be_is_one_line(
    run: Run, clouds: tuple[Path, Path], search: Search, option: str, value: str, expected: str
) -> None:
    outcome = run("register", *clouds, f"{option}={value}")
    assert_one_line(outcome, f"{option} {value}: expected {expected}")
    assert search.options is None


def test_numbers_are_refused_before_torch_is_loaded(clouds: tuple[Path, Path]) -> None:
    options = (
        ["--voxel-size", "0"],
        ["--max-correspondences", "2"],
        ["--keypoints", "0"],
        ["--max-rotation", "0"],
    )
    code = f"""
import sys
from vbreg import cli
for options in {options!r}:
    try:
        cli.main(["register", *{list(map(str, clouds))!r}, *options])
    except SystemExit as stop:
        print(stop.code, "torch" in sys.modules)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.splitlines() == ["2 False"] * len(options)


def test_a_viewpoint_is_a_word_or_three_numbers(
    run: Run, clouds: tuple[Path, Path], search: Search
) -> None:
    run("register", *clouds, "--viewpoint", "origin")
    assert search.options is not None
    assert search.options["viewpoint"] == "origin"
    assert "three numbers" in run("register", *clouds, "--viewpoint", "1,2").err


@pytest.mark.parametrize("weights", ["fast", "universal", "runs/mine.safetensors"])
def test_weights_arrive(run: Run, clouds: tuple[Path, Path], search: Search, weights: str) -> None:
    run("register", *clouds, "--weights", weights, "--descriptor", "fpfh")
    assert search.options is not None
    assert search.options["weights"] == weights


def test_weights_that_are_not_there_are_one_line(run: Run, clouds: tuple[Path, Path]) -> None:
    outcome = run("register", *clouds, "--voxel-size", "0.2", "--weights", "indoor")
    assert_one_line(outcome, "no weights at indoor", "universal, fast")


def test_a_preset_that_is_not_there_is_wrong_usage(
    run: Run, clouds: tuple[Path, Path], search: Search
) -> None:
    outcome = run("register", *clouds, "--preset", "indoors")
    assert outcome.code == 2
    assert "indoors" in outcome.err
    assert search.options is None


@pytest.mark.parametrize("name", ["fpfhh", "nowhere.safetensors"])
def test_a_descriptor_that_is_not_there_is_one_line(
    run: Run, clouds: tuple[Path, Path], name: str
) -> None:
    assert_one_line(run("register", *clouds, "--descriptor", name), name, ".safetensors")


def test_quiet_says_nothing_but_warnings(
    run: Run, clouds: tuple[Path, Path], search: Search
) -> None:
    assert run("register", *clouds, "-q") == Outcome(0, "", "")
    few = replace(search.result, inliers=np.arange(200) < 12)
    search.result = few
    outcome = run("register", *clouds, "-q")
    assert outcome.out == ""
    assert outcome.err.startswith("vbreg: warning: only 12 of 200 matches")
    many = Correspondences(np.zeros((9000, 3)), np.zeros((9000, 3)))
    search.result = replace(few, correspondences=many, inliers=np.arange(9000) < 90)
    assert "only 90 of 9000" in run("register", *clouds, "-q").err  # 1 %: a share, not a number
    search.result = replace(few, fixed=False)
    assert "degrees of freedom" in run("register", *clouds, "-q").err


def test_the_pose_survives_files_that_cannot_be_written(
    run: Run, clouds: tuple[Path, Path], search: Search, tmp_path: Path
) -> None:
    """LAS has no place for the point that is not finite; the picture and the pose are there."""
    pytest.importorskip("laspy", reason="vbreg[io] is not installed")
    names = {"-o": "a.las", "--json": "r.json", "--picture": "p.png", "--merge": "m.ply"}
    outcome = run("register", *clouds, *(w for k, v in names.items() for w in (k, tmp_path / v)))
    assert outcome.code == 2
    assert outcome.err.count("vbreg: error:") == 1
    assert "a.las: LAS has no way to store a non-finite point" in outcome.err
    assert "T_target_source" in outcome.out
    assert "a.las" not in outcome.out
    for name in ("r.json", "p.png", "m.ply"):
        assert f"{tmp_path / name}" in outcome.out
        assert (tmp_path / name).is_file()


def test_a_full_disk_costs_the_file_and_not_the_pose(
    run: Run, clouds: tuple[Path, Path], search: Search, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def full(path: Path, cloud: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(io, "write", full)
    outcome = run("register", *clouds, "-o", tmp_path / "a.ply", "--json", tmp_path / "r.json")
    assert outcome.code == 2
    assert "No space left on device" in outcome.err
    assert "rotation     90.00 deg" in outcome.out
    assert json.loads((tmp_path / "r.json").read_text())["rotation_deg"] == pytest.approx(90)


def test_the_printed_pose_is_good_enough_for_utm(
    run: Run, clouds: tuple[Path, Path], search: Search
) -> None:
    angle = 0.3
    T = known_pose()
    T[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    T[:3, 3] = [-123456.7891234, 5403210.12345678, 0.1]
    search.result = replace(search.result, T_target_source=T)
    lines = run("register", *clouds).out.splitlines()[1:5]
    printed = np.array([line.split() for line in lines], dtype=float)
    point = np.array([512345.678, 5403210.987, 312.345, 1])
    np.testing.assert_allclose(printed @ point, T @ point, rtol=0, atol=1e-4)


def test_warnings_are_inside_the_json(run: Run, clouds: tuple[Path, Path], search: Search) -> None:
    search.result = replace(search.result, inliers=np.arange(200) < 12)
    search.warning = "free memory is low"
    outcome = run("register", *clouds, "--json", "-")
    said = json.loads(outcome.out)["warnings"]
    assert said[0] == "free memory is low"
    assert said[1].startswith("only 12 of 200 matches")
    assert outcome.err.count("vbreg: warning: ") == 2


def test_several_sources_to_one_target(
    run: Run, clouds: tuple[Path, Path], search: Search, tmp_path: Path
) -> None:
    source, target = clouds
    other, bad = source.with_name("other.ply"), source.with_name("bad.ply")
    other.write_bytes(source.read_bytes())
    bad.write_bytes(b"no cloud")
    (tmp_path / "out").mkdir()
    command = ["register", source, bad, other, target]
    outputs = ["-o", tmp_path / "out", "--merge", tmp_path / "m.ply", "--json", tmp_path / "r.json"]
    outcome = run(*command, *outputs)
    assert outcome.code == 2  # one of them is bad, and the others are there
    assert "bad.ply: a file that starts with" in outcome.err
    assert outcome.out.count("T_target_source") == 2
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"source.ply", "other.ply"}
    held = json.loads((tmp_path / "r.json").read_text())
    assert [item["source"] for item in held] == [str(source), str(other)]
    assert len(io.read(tmp_path / "m.ply")) == 500 + 500 + 600
    (tmp_path / "scan.ptx").write_text(PTX)
    run("register", source, tmp_path / "scan.ptx", target, "-o", tmp_path / "out")
    assert len(io.read(tmp_path / "out" / "scan.ptx.ply")) == 1  # a format that is only read
    assert "expected a folder" in run(*command, "-o", tmp_path / "out.ply").err
    assert "expected a folder" in run(*command, "-o", source).err
    for option, name in (("--picture", "p.png"), ("--figure", "f.svg"), ("--report", "r.html")):
        assert "it shows one source" in run(*command, option, tmp_path / name).err


def test_a_folder_takes_the_moved_clouds_under_their_names(
    run: Run, clouds: tuple[Path, Path], search: Search, tmp_path: Path
) -> None:
    source, target = clouds
    new = tmp_path / "new"
    outcome = run("register", source, target, "-o", f"{new}/")
    assert_one_line(outcome, "no ending and no folder", f"{new}.ply")
    assert not new.exists()
    new.mkdir()
    assert run("register", source, target, "-o", new).code == 0
    np.testing.assert_array_equal(
        io.read(new / source.name).points, search.result.apply_to(io.read(source)).points
    )
    assert_one_line(run("register", source, target, "-o", source.parent), "is an input")
    other = source.with_name("other.ply")
    other.write_bytes(source.read_bytes())
    newer = tmp_path / "newer"
    command = ["register", source, other, target, "-o", newer]
    assert_one_line(run(*command, "--json", "r.foo"), ".json")
    assert not newer.exists()  # made only if nothing else is wrong
    assert run(*command).code == 0
    assert {path.name for path in newer.iterdir()} == {"source.ply", "other.ply"}
    assert_one_line(run(*command[:-1], newer / "no" / "such"), "does not exist; create it")


def test_a_missing_file_of_several_is_told_before_the_work(
    run: Run, clouds: tuple[Path, Path], search: Search
) -> None:
    missing = clouds[0].with_name("missing.ply")
    assert_one_line(run("register", clouds[0], missing, clouds[1]), "missing.ply", "no such file")
    assert search.options is None


def test_merged_clouds_keep_what_all_have(
    run: Run, clouds: tuple[Path, Path], search: Search, tmp_path: Path
) -> None:
    target = io.read(clouds[1])
    io.write(
        clouds[1], replace(target, attributes={"red": np.arange(600) % 200, "t": np.ones(600)})
    )
    outcome = run("register", *clouds, "--merge", tmp_path / "m.ply")
    assert "the merged cloud is without nx, ny, nz, t, which not all clouds have" in outcome.err
    merged = io.read(tmp_path / "m.ply")
    assert list(merged.attributes) == ["red"]
    np.testing.assert_array_equal(merged.points[:600], target.points)
    moved = search.result.apply_to(io.read(clouds[0])).points
    np.testing.assert_allclose(merged.points[600:], moved)


def test_the_aligned_cloud_has_the_reference_system_of_the_target(
    run: Run, clouds: tuple[Path, Path], search: Search, tmp_path: Path
) -> None:
    pytest.importorskip("laspy", reason="vbreg[io] is not installed")
    finite = io.read(clouds[0])
    finite = finite.selected(np.isfinite(finite.points).all(axis=1))
    paths = tmp_path / "s.las", tmp_path / "t.las"
    for path, text in zip(paths, (b"source", b"target"), strict=True):
        io.write(path, replace(finite, crs={2112: text}))
    run("register", *paths, "-o", tmp_path / "a.las")
    assert io.read(tmp_path / "a.las").crs == {2112: b"target"}


def test_a_crop_is_registered_and_the_whole_is_written(
    run: Run, clouds: tuple[Path, Path], search: Search, tmp_path: Path
) -> None:
    crop = ["--crop", "1.2", "--crop", "target:0,0,0,0.5,1,1", "-o", tmp_path / "a.ply"]
    assert run("register", *clouds, *crop).code == 0
    source, target = search.clouds
    assert 0 < len(source) < 500
    assert np.linalg.norm(source.points, axis=1).max() <= 1.2
    assert 0 < len(target) < 600
    assert target.points[:, 0].max() <= 0.5
    assert len(io.read(tmp_path / "a.ply")) == 500
    run("register", *clouds, "--remove-outliers")
    assert len(search.clouds[0]) < 500  # one is not finite


def test_large_coordinates_in_a_pcd_are_a_choice(
    run: Run, clouds: tuple[Path, Path], search: Search, tmp_path: Path
) -> None:
    T = known_pose()
    T[:3, 3] = [512345.678, 5403210.987, 0]
    search.result = replace(search.result, T_target_source=T)
    command = ["register", *clouds, "-o", tmp_path / "a.pcd"]
    assert "float32 would move points by up to 0.25" in run(*command).err
    assert run(*command, "--coordinates", "shifted").code == 0
    moved = search.result.apply_to(io.read(clouds[0])).points
    np.testing.assert_allclose(io.read(tmp_path / "a.pcd").points, moved, rtol=0, atol=1e-3)


def test_what_is_free_is_said(run: Run, clouds: tuple[Path, Path], search: Search) -> None:
    free = (FreeDirection("slides", (1.0, 0.0, 0.0)), FreeDirection("slides", (0.0, 1.0, 0.0)))
    search.result = replace(search.result, uncertainty_given=Uncertainty(np.eye(6), free))
    outcome = run("register", *clouds)
    said = "slides along (1.00, 0.00, 0.00)"
    assert f"the source {said}, slides along (0.00, 1.00, 0.00)" in outcome.err
    assert re.search(rf"free +{re.escape(said)}", outcome.out)
    content = json.loads(run("register", *clouds, "--json", "-").out)
    assert content["free_directions"] == [str(each) for each in free]


def test_a_pose_of_which_nothing_is_fixed_has_one_row(
    run: Run, clouds: tuple[Path, Path], search: Search
) -> None:
    free = [
        FreeDirection(motion, tuple(axis))
        for motion in ("slides", "turns")
        for axis in np.eye(3).tolist()
    ]
    search.result = replace(search.result, uncertainty_given=Uncertainty(np.eye(6), tuple(free)))
    said = run("register", *clouds).out
    assert re.findall(r"free +(.*)", said) == ["nothing is fixed"]
    five = Uncertainty(np.eye(6), tuple(free[:5]))
    search.result = replace(search.result, uncertainty_given=five)
    assert len(re.findall(r"free +(.*)", run("register", *clouds).out)) == 5


def test_what_the_verdict_says_is_no_warning_as_well(
    run: Run, clouds: tuple[Path, Path], search: Search
) -> None:
    free = (FreeDirection("slides", (1.0, 0.0, 0.0)),)
    held = replace(judged(search.result, 0.97), limits_reached=("max_translation",))
    search.result = replace(held, uncertainty_given=Uncertainty(np.eye(6), free))
    slides, limit = search.result.reasons
    outcome = run("register", *clouds)
    assert slides in outcome.out
    assert outcome.err == f"vbreg: warning: {limit}\n"
    quiet = run("register", *clouds, "-q").err
    assert quiet == f"vbreg: warning: {slides}\nvbreg: warning: {limit}\n"


def judged(result: Registration, probability: float, **more: Any) -> Registration:
    return replace(result, success_probability=probability, overlap=0.4, **more)


def test_the_verdict_is_printed(run: Run, clouds: tuple[Path, Path], search: Search) -> None:
    plain = search.result
    search.result = judged(plain, 0.973)
    said = run("register", *clouds).out
    assert re.search("verdict +aligned, 97 %", said)
    assert re.search("overlap +40 % of both clouds", said)
    other = plain.T_target_source.copy()
    other[:3, :3] = np.diag([1.0, -1.0, -1.0]) @ other[:3, :3]
    search.result = judged(plain, 0.6, alternatives=(Alternative(other, 0.35),))
    outcome = run("register", *clouds)
    assert "60 %: another pose, 180 degrees away, is possible, too (35 %)" in outcome.out
    search.result = replace(judged(plain, 0.08), overlap=0.02)
    outcome = run("register", *clouds)
    whole = "do not trust this pose, 8 %: the scans may not overlap: 2 %"
    assert whole in outcome.out
    remedy = "look at --report, or try another --voxel-size"
    assert outcome.err == f"vbreg: warning: do not trust this pose, 8 %; {remedy}\n"
    for silent in (["-q"], ["--json", "-"]):
        assert whole in run("register", *clouds, *silent).err
    said = json.loads(run("register", *clouds, "--json", "-").out)
    assert said["success_probability"] == 0.08
    assert said["reasons"][0].startswith("the scans may not overlap")
    assert said["verdict"].startswith("do not trust")


def test_an_improbable_pose_has_an_exit_code_of_its_own(
    run: Run, clouds: tuple[Path, Path], search: Search, tmp_path: Path
) -> None:
    aligned, said = tmp_path / "a.ply", tmp_path / "r.json"
    search.result = judged(search.result, 0.7)
    command = ["register", *clouds, "-o", aligned, "--json", said, "--min-probability"]
    outcome = run(*command, "0.9")
    assert outcome.code == 3
    said_so = "is not probable enough: its probability is 0.7, and --min-probability asks for 0.9"
    assert f"source.ply: the pose {said_so}; {aligned} is not written\n" in outcome.err
    assert json.loads(said.read_text())["success_probability"] == 0.7
    assert not aligned.exists()
    assert run(*command, "0.5").code == 0
    assert aligned.exists()


def test_what_falls_just_short_is_not_told_as_enough(
    run: Run, clouds: tuple[Path, Path], search: Search
) -> None:
    search.result = judged(search.result, 0.8996)
    outcome = run("register", *clouds, "--min-probability", "0.9")
    assert outcome.code == 3
    assert "its probability is 0.899, and --min-probability asks for 0.9\n" in outcome.err


@pytest.mark.parametrize(("p", "told"), [(0.0063, "0.006"), (0.0004, "below 0.001")])
def test_a_pose_that_is_probably_wrong_is_told_so(
    run: Run, clouds: tuple[Path, Path], search: Search, tmp_path: Path, p: float, told: str
) -> None:
    search.result, merged = judged(search.result, p), tmp_path / "m.ply"
    outcome = run("register", *clouds, "--min-probability", "0.9", "--merge", merged)
    assert outcome.code == 3
    assert f"the pose is probably wrong: its probability is {told}, and" in outcome.err
    assert f"asks for 0.9; {merged} is not written\n" in outcome.err
    assert not merged.exists()
    outcome = run("register", clouds[0], *clouds, "--min-probability", "0.9", "--merge", merged)
    assert outcome.err.count(f"asks for 0.9; {merged} is without this source\n") == 2


def test_a_probability_needs_a_judge(run: Run, clouds: tuple[Path, Path], search: Search) -> None:
    outcome = run("register", *clouds, "--no-verify", "--min-probability", "0.5")
    assert_one_line(outcome, "--min-probability 0.5 with --no-verify")
    assert search.options is None
    run("register", *clouds, "--no-verify", "--refine", "icp")
    assert search.options is not None
    assert search.options["verify"] is False
    assert search.options["refine"] == "icp"


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


@pytest.mark.parametrize(
    ("options", "from_files"),
    [([], True), (["--crop", "40"], False), (["--remove-outliers"], False), (["-o"], False)],
)
def test_a_large_file_stays_in_its_file_unless_all_points_are_needed(
    run: Run,
    clouds: tuple[Path, Path],
    search: Search,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    from_files: bool,
) -> None:
    monkeypatch.setattr(streaming, "MIN_STREAMED_BYTES", 0)
    given = [*options, str(tmp_path / "aligned.ply")] if options == ["-o"] else options
    assert run("register", *clouds, *given).code == 0
    assert [isinstance(cloud, Path) for cloud in search.clouds] == [from_files] * 2
