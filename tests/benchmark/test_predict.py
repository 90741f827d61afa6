"""The whole benchmark on a folder of small clouds: resumed, repeated, reported."""

import csv
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from vbreg import cli
from vbreg.benchmark.masks import pack, unpack
from vbreg.benchmark.predict import predict, table_path
from vbreg.benchmark.problems import Settings, open_sequence, problem_source
from vbreg.benchmark.report import write_report
from vbreg.benchmark.score import score
from vbreg.descriptors.learned import save_descriptor
from vbreg.descriptors.network import DescriptorNetwork
from vbreg.descriptors.prepared import DescriptorConfig
from vbreg.errors import VBRegError
from vbreg.io.tables import read_table
from vbreg.methods import METHODS as ALL_METHODS
from vbreg.methods import Problem, open_method
from vbreg.types import Registration

METHODS = ["sm", "sc2pcr"]
VOXEL = 0.12


@pytest.fixture(scope="module")
def scans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four scans of a bumpy field, each turned and cut differently."""
    folder = tmp_path_factory.mktemp("scans")
    generator = np.random.default_rng(0)
    xy = generator.uniform(0, 4, (5000, 2))
    height = sum(
        a * np.sin(xy @ k + p)
        for a, k, p in zip(
            generator.uniform(0.1, 0.3, 12),
            generator.normal(size=(12, 2)) * 2.5,
            generator.uniform(0, 6, 12),
            strict=True,
        )
    )
    world = np.column_stack([xy, height])
    poses = []
    for k in range(4):
        angle = 0.7 * k
        T_world_cloud = np.eye(4)
        T_world_cloud[:2, :2] = [
            [np.cos(angle), -np.sin(angle)],
            [np.sin(angle), np.cos(angle)],
        ]
        T_world_cloud[:3, 3] = generator.normal(size=3)
        part = world[np.abs(world[:, 0] - 1.6 - 0.25 * k) < 1.4]
        local = (part - T_world_cloud[:3, 3]) @ T_world_cloud[:3, :3]
        np.savez(folder / f"cloud_{k}.npz", pcd=local.astype(np.float32))
        poses.append(T_world_cloud.ravel())
    np.savetxt(folder / "poses.txt", poses)
    return folder


def settings(scans: Path) -> Settings:
    return Settings.of(str(scans), voxel_size=VOXEL)


def test_methods_find_the_poses_and_the_report_says_so(scans: Path, tmp_path: Path) -> None:
    pairs = predict(settings(scans), METHODS, tmp_path, quiet=True)
    assert len(pairs) == 6
    rows = score(tmp_path, METHODS, pairs)
    assert sum(row.success for row in rows if row.method == "sc2pcr") >= 5
    page = write_report(tmp_path, rows, settings(scans), "vbreg benchmark x")
    text = page.read_text()
    assert "| SC2-PCR |" in text
    assert "`vbreg benchmark x`" in text
    assert "<table>" in (tmp_path / "report.html").read_text()
    header = (tmp_path / "poses.csv").read_text().splitlines()[0]
    assert header.startswith("pair,scene,method,success,rotation_error,translation_error")
    assert "seconds" not in header
    assert {row.backend for row in rows} == {"cpu"}
    predictions = read_table(table_path(tmp_path, "sm"))[1]
    assert {row["backend"] for row in predictions} == {"cpu"}
    with (tmp_path / "summary.csv").open(newline="") as file:
        assert {line["backend"] for line in csv.DictReader(file)} == {"cpu"}
    costs = (tmp_path / "costs.csv").read_text().splitlines()[0]
    assert costs == "pair,method,device,backend,seconds,megabytes"


def test_the_command_runs_and_goes_on(
    scans: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["benchmark", str(scans), "--methods", "sm", "--voxel-size", str(VOXEL)]
    for _ in range(2):
        with pytest.raises(SystemExit) as stop:
            cli.main([*command, "--limit", "2", "-o", str(tmp_path)])
        assert not stop.value.code
        assert "SM" in capsys.readouterr().out
    assert f"vbreg benchmark {scans} --methods sm" in (tmp_path / "report.md").read_text()


def poses_csv(output: Path, scans: Path, pairs: list[str]) -> bytes:
    rows = score(output, METHODS, pairs)
    write_report(output, rows, settings(scans), "x")
    return (output / "poses.csv").read_bytes()


def test_a_killed_run_goes_on_and_gives_the_same_table(
    scans: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tmp_path / "whole"
    pairs = predict(settings(scans), METHODS, whole, limit=3, quiet=True)
    calls = 0

    def dying(name: str, device: object = "auto") -> Callable[[Problem], Registration]:
        method = open_method(name, "cpu")

        def solve(problem: Problem) -> Registration:
            nonlocal calls
            calls += 1
            if calls == 7:
                raise KeyboardInterrupt
            return method(problem)

        return solve

    killed = tmp_path / "killed"
    with monkeypatch.context() as patch:
        patch.setattr("vbreg.benchmark.predict.open_method", dying)
        with pytest.raises(KeyboardInterrupt):
            predict(settings(scans), METHODS, killed, limit=3, quiet=True)
    half = table_path(killed, "sm").read_text()
    assert len(half.splitlines()) == 3  # a header and two pairs
    table_path(killed, "sm").write_text(half + '{"pair": "torn')  # as a power cut leaves it
    calls = 1000
    assert predict(settings(scans), METHODS, killed, limit=3, quiet=True) == pairs
    assert poses_csv(killed, scans, pairs) == poses_csv(whole, scans, pairs)


def test_what_is_there_is_not_computed_again(
    scans: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predict(settings(scans), ["sm"], tmp_path, quiet=True)

    def never(problem: Problem) -> Registration:
        raise AssertionError("called")

    monkeypatch.setattr("vbreg.benchmark.predict.open_method", lambda name, device: never)
    predict(settings(scans), ["sm"], tmp_path, limit=3, quiet=True)


@pytest.mark.slow
def test_several_processes_find_the_same(scans: Path, tmp_path: Path) -> None:
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    pairs = predict(settings(scans), METHODS, alone, limit=3, device="cpu", quiet=True)
    for limit, workers in ((1, 1), (3, 2)):  # the second run finds the first one's pair done
        predict(
            settings(scans), METHODS, shared, limit=limit, device="cpu", workers=workers, quiet=True
        )
    assert poses_csv(shared, scans, pairs) == poses_csv(alone, scans, pairs)
    seconds = [row.seconds for row in score(shared, METHODS, pairs) if row.pair != pairs[0]]
    assert len(seconds) == 4
    assert not np.isfinite(seconds).any()  # who shares the cores tells no times
    other = Settings.of(str(scans), voxel_size=0.15)
    with pytest.raises(VBRegError, match="choose another --output"):
        predict(other, ["sm"], shared, limit=1, device="cpu", workers=2, quiet=True)


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")
@pytest.mark.slow
def test_workers_end_with_a_killed_parent(scans: Path, tmp_path: Path) -> None:
    arguments = ["benchmark", str(scans), "--methods", "sm", "--voxel-size", str(VOXEL)]
    arguments += ["--workers", "2", "-o", str(tmp_path), "--device", "cpu", "-q"]
    parent = subprocess.Popen([sys.executable, "-m", "vbreg", *arguments])
    deadline = time.monotonic() + 60
    while not table_path(tmp_path, "sm").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    workers = children(parent.pid)
    assert len(workers) >= 2
    parent.kill()
    parent.wait()
    while any(alive(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(alive(pid) for pid in workers)


def children(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        found += [int(stat.parent.name)] * (int(fields[1]) == pid)
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_finished_table_may_come_from_another_machine(scans: Path, tmp_path: Path) -> None:
    pairs = predict(settings(scans), ["sm"], tmp_path, limit=2, device="cpu", quiet=True)
    path = table_path(tmp_path, "sm")
    path.write_text(path.read_text().replace('"device": "cpu"', '"device": "fast"'))
    predict(settings(scans), METHODS, tmp_path, limit=2, device="cpu", quiet=True)
    rows = score(tmp_path, METHODS, pairs)
    assert {row.method: row.device for row in rows} == {"sm": "fast", "sc2pcr": "cpu"}
    assert "fast and " in write_report(tmp_path, rows, settings(scans), "x").read_text()
    with pytest.raises(VBRegError, match="holds results for device 'fast'"):
        predict(settings(scans), METHODS, tmp_path, limit=3, device="cpu", quiet=True)


def test_inliers_are_judged_by_the_matches_that_a_method_had(scans: Path, tmp_path: Path) -> None:
    """Rounding of another machine may change a match; a row then holds its own labels."""
    pairs = predict(settings(scans), ["sm"], tmp_path, limit=1, device="cpu", quiet=True)
    before = score(tmp_path, ["sm"], pairs)[0]
    problems = tmp_path / "problems.jsonl"
    header, row = problems.read_text().splitlines()
    changed = json.loads(row)
    changed["labels"] = pack(~unpack(changed["labels"], changed["matches"]))
    problems.write_text(f"{header}\n{json.dumps(changed)}\n")
    assert score(tmp_path, ["sm"], pairs)[0].inlier_f1 != before.inlier_f1
    table_path(tmp_path, "sm").unlink()
    predict(settings(scans), ["sm"], tmp_path, limit=1, device="cpu", quiet=True)
    assert score(tmp_path, ["sm"], pairs)[0].inlier_f1 == before.inlier_f1


def test_a_method_that_refuses_a_problem_fails_it(
    scans: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(problem: Problem) -> Registration:
        raise VBRegError("not today")

    monkeypatch.setattr("vbreg.benchmark.predict.open_method", lambda name, device: refuses)
    pairs = predict(settings(scans), ["sm"], tmp_path, limit=2, quiet=True)
    rows = score(tmp_path, ["sm"], pairs)
    assert [row.error for row in rows] == ["not today"] * 2
    assert not any(row.success for row in rows)


def test_other_settings_need_another_folder(scans: Path, tmp_path: Path) -> None:
    predict(settings(scans), ["sm"], tmp_path, limit=1, quiet=True)
    with pytest.raises(VBRegError, match="choose another --output"):
        predict(Settings.of(str(scans), voxel_size=0.15), ["sm"], tmp_path, limit=1, quiet=True)


def test_a_descriptor_that_was_trained_on_needs_another_folder(scans: Path, tmp_path: Path) -> None:
    weights = tmp_path / "mine.safetensors"
    given = Settings.of(str(scans), descriptor=str(weights), voxel_size=settings(scans).voxel_size)
    small = DescriptorConfig(width=8, depth=1, output=8)
    for seed in (0, 1):
        torch.manual_seed(seed)
        save_descriptor(weights, DescriptorNetwork(small))
        if seed == 0:
            predict(given, ["sm"], tmp_path / "out", limit=1, quiet=True)
    with pytest.raises(VBRegError, match="descriptor_weights"):
        predict(given, ["sm"], tmp_path / "out", limit=1, quiet=True)


def test_sampled_points_do_not_depend_on_the_other_pairs(scans: Path, tmp_path: Path) -> None:
    few = Settings.of(str(scans), voxel_size=VOXEL, points=100)
    predict(few, ["sm"], tmp_path / "all", quiet=True)
    predict(few, ["sm"], tmp_path / "some", every=2, quiet=True)
    rows = score(tmp_path / "some", ["sm"])
    known = {row.pair: row for row in score(tmp_path / "all", ["sm"])}
    assert all(row.matches == 100 for row in rows)
    assert all(known[row.pair].rotation_error == row.rotation_error for row in rows)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"descriptor": "shot"}, "descriptor 'shot': expected learned, fpfh, .*'matches:NAME'"),
        ({"descriptor": "matches:"}, "descriptor 'matches:': expected learned, fpfh"),
        ({"descriptor": "matches:learned"}, "'matches:learned' goes with 3dmatch and 3dlomatch"),
    ],
)
def test_bad_settings_are_explained(
    scans: Path, tmp_path: Path, change: dict[str, str], message: str
) -> None:
    with pytest.raises(VBRegError, match=message):
        predict(Settings.of(str(scans), **change), ["sm"], tmp_path, quiet=True)
    with pytest.raises(VBRegError, match="unknown method 'ransack'"):
        predict(settings(scans), ["ransack"], tmp_path, quiet=True)
    assert not list(tmp_path.iterdir())


def test_a_problem_holds_the_scans_as_they_were_measured(scans: Path) -> None:
    chosen = settings(scans)
    pair = open_sequence(chosen, None)[0]
    problem = problem_source(chosen, None, torch.device("cpu"))(pair)
    assert problem.scans is not None
    assert problem.matched is not None
    assert problem.scans[0] is pair.source
    assert len(problem.matched.source) < len(pair.source)


def test_every_method_has_a_file_of_its_own(tmp_path: Path) -> None:
    """Also those whose names hold what a file's name may not."""
    names = [*ALL_METHODS, "vbreg:fast"]
    assert len({table_path(tmp_path, name) for name in names}) == len(names)


def test_an_unknown_method_is_told_before_the_pairs_are_opened(tmp_path: Path) -> None:
    with pytest.raises(VBRegError, match="unknown method 'sc2'"):
        predict(Settings.of(str(tmp_path / "nowhere")), ["sc2"], tmp_path / "out")
