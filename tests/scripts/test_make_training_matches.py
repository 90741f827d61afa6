"""scripts/make_training_matches.py: places, pairs of their scans, and the shards made of them."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.scripts.helpers import load
from vbreg import io
from vbreg.datasets.matches import read_shard
from vbreg.simulator import ROOM_KINDS


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script for places of two scans, of which one pair is matched."""
    module = load("scripts/make_training_matches.py")
    for name in ("GROUP", "STREET_SCANS"):
        monkeypatch.setattr(module, name, 2)
    for name in ("MAX_PAIRS", "HELD_OUT_PAIRS"):
        monkeypatch.setattr(module, name, 1)
    return module


@pytest.mark.parametrize(
    ("kind", "threshold"),
    [("bathroom", 0.10), pytest.param("street", 0.60, marks=pytest.mark.slow)],
)
def test_a_place_is_the_same_in_every_call(
    script: ModuleType, tmp_path: Path, kind: str, threshold: float
) -> None:
    """A pair is matched by FPFH and with a place code, labelled by the pose that is kept."""
    files = []
    for name in ("once", "again"):
        (tmp_path / name / "indoor").mkdir(parents=True)
        files.append(script.make_place(script.Place(kind, 0, "indoor"), tmp_path / name))
    assert files[0].name == f"{kind}-0.npz"
    first, second = (np.load(file) for file in files)
    assert set(first.files) == set(second.files)
    for key in first.files:
        np.testing.assert_array_equal(first[key], second[key])
    sets = list(read_shard(files[0]))
    assert [s.matched_by_fpfh for s in sets] == [True, False]
    for s in sets:
        assert s.inlier_threshold == pytest.approx(threshold)
        assert 0.1 <= s.overlap <= 1.0
        R, t = s.T_target_source[:3, :3], s.T_target_source[:3, 3]
        error = np.linalg.norm(s.source @ R.T + t - s.target, axis=-1) / threshold
        assert error[s.labels].max() < 1.05  # points are kept in hundredths
        assert error[~s.labels].min() > 0.95
        assert s.labels.any()


def write_fragments(folder: Path) -> None:
    """Two scans of one bumpy floor, with their poses."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    waves = generator.normal(size=(2, 9)) * 4
    for k in range(2):
        flat = generator.uniform(0, 1.5, (4000, 2))
        height = np.sin(flat @ waves).sum(axis=1) / 12
        io.write(folder / f"cloud_{k}.ply", np.c_[flat, height] - [k, 0, 0])
    poses = np.tile(np.eye(4), (2, 1, 1))
    poses[1, 0, 3] = 1.0
    np.savetxt(folder / "poses.txt", poses.reshape(2, 16))


def test_a_second_call_makes_only_what_is_missing(
    script: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Here with the jobs done by this process, one after the other."""
    made: list[str] = []

    class Pool:
        """Does at once what it is asked for."""

        def __init__(self, *_: object, **__: object) -> None:
            pass

        def __enter__(self) -> Pool:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def submit(self, job: object, *arguments: object) -> object:
            made.append(str(arguments[0]))
            value = job(*arguments)  # type: ignore[operator]
            return type("Done", (), {"result": lambda self: value})()

    monkeypatch.setattr(script, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(script, "as_completed", iter)
    (tmp_path / "meshes").mkdir()
    write_fragments(tmp_path / "rgbd" / "desk")
    options = {"meshes": tmp_path / "meshes", "rgbd": tmp_path / "rgbd", "output": tmp_path / "out"}
    counts = {"rooms": 1, "streets": 0, "validation": 0, "workers": 1}
    command = [f"--{name}={value}" for name, value in (options | counts).items()]
    monkeypatch.setattr(sys, "argv", ["make_training_matches.py", *command])
    script.main()
    shards = sorted((tmp_path / "out").glob("*/*.npz"))
    assert [str(s.relative_to(tmp_path / "out")) for s in shards] == [
        "indoor/living_room-0.npz",
        "real/desk.npz",
    ]
    assert len(made) == 2
    assert "indoor, fpfh" in capsys.readouterr().out
    before = {path: path.stat().st_mtime_ns for path in shards}
    script.main()
    assert len(made) == 2
    shards[1].unlink()
    script.main()
    assert len(made) == 3
    assert shards[0].stat().st_mtime_ns == before[shards[0]]


def test_kinds_of_rooms_take_turns_and_seeds_are_kept_apart(
    script: ModuleType, tmp_path: Path
) -> None:
    np.savez(tmp_path / "flat.npz", vertices=np.zeros((3, 3)), faces=np.zeros((1, 3), int))
    found = script.places(tmp_path, rooms=14, streets=3, validation=4)
    by_folder = {
        name: [p for p in found if p.folder == name] for name in ("indoor", "streets", "validation")
    }
    assert [p.kind for p in by_folder["indoor"][:3]] == ["mesh-flat", *list(ROOM_KINDS)[:2]]
    assert by_folder["indoor"][0].mesh == tmp_path / "flat.npz"
    assert {p.kind for p in by_folder["indoor"]} == {"mesh-flat", *ROOM_KINDS}
    assert [len(by_folder[name]) for name in by_folder] == [14, 3, 4 + 2]
    assert all((p.seed >= script.HELD_OUT) == (p.folder == "validation") for p in found)
    assert len({p.shard for p in found}) == len(found)
    assert {p.voxel_size for p in found if p.kind == "street"} == {0.30}
    assert {p.voxel_size for p in found if p.kind != "street"} == {0.05}


def test_half_of_the_pairs_overlap_little_where_there_are_enough(script: ModuleType) -> None:
    """Scans of a strip, each a step further on: neighbours share much, others little or nothing."""
    generator = np.random.default_rng(0)
    clouds = []
    for k in range(6):
        x = generator.uniform(0.3 * k, 0.3 * k + 1, 4000)
        points = np.c_[x, generator.uniform(0, 0.3, 4000), np.zeros(4000)]
        clouds.append((points, np.eye(4)))
    chosen = script.chosen_pairs(clouds, 0.05, 4, np.random.default_rng(0))
    assert len(chosen) == 4
    assert sum(shared < script.LOW_OVERLAP for _, _, shared in chosen) == 2
    assert all(i < j and shared >= 0.1 for i, j, shared in chosen)
    everything = script.chosen_pairs(clouds, 0.05, 100, np.random.default_rng(0))
    assert {(i, j) for i, j, _ in everything} == {
        (i, j) for j in range(6) for i in range(j) if 1 - 0.3 * (j - i) >= 0.1
    }


def test_statistics_are_of_the_sets_in_each_range_of_overlap(script: ModuleType) -> None:
    from tests.training.helpers import match_sets

    table = script.statistics(match_sets(3), "sets")  # all overlap by a half
    assert table.row_count == 1
    assert [list(column.cells) for column in table.columns][:2] == [["50-70 %"], ["3"]]
