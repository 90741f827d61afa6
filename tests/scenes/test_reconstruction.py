"""Laws of the recipe: scans find their places, others stay apart, a run goes on where it ended."""

from __future__ import annotations

import base64
import dataclasses
import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from tests.helpers import EAST, surface
from tests.scenes.villages import VOXEL_SIZE, Village, make_village
from vbreg import PointCloud, VBReg, VBRegError, io, reconstruct
from vbreg.descriptors import Descriptor
from vbreg.errors import VBRegWarning
from vbreg.motions import exponential, inverse, logarithm
from vbreg.scale import Scale
from vbreg.scenes import PairResult, PairStore, Reconstruction, scan_files
from vbreg.scenes.outputs import merged_component, scene_as_json, write_scene_poses
from vbreg.scenes.report import scene_report_html, write_scene_report
from vbreg.types import Float64
from vbreg.verification import Judge
from vbreg.verification.network import JudgeConfig, JudgeNetwork


class Done(NamedTuple):
    village: Village
    folder: Path
    work: Path
    model: VBReg
    found: Reconstruction
    told: list[tuple[str, int, int]]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    village = make_village()
    folder = tmp_path_factory.mktemp("scans")
    for k, points in enumerate(village.scans):
        io.write(folder / f"scan_{k}.ply", PointCloud(points))
    (folder / "notes.md").write_text("no scan", encoding="utf-8")
    work = tmp_path_factory.mktemp("work")
    model = VBReg.from_pretrained(device="cpu")
    told: list[tuple[str, int, int]] = []
    found = reconstruct(
        folder,
        voxel_size=VOXEL_SIZE,
        model=model,
        work=work,
        on_progress=lambda stage, done, total: told.append((stage, done, total)),
    )
    return Done(village, folder, work, model, found, told)


def test_scans_of_one_place_find_their_poses(done: Done) -> None:
    assert done.found.components[0] == [0, 1, 2, 3]
    ours, theirs = done.found.T_world_scan[:4], done.village.T_world_scan[:4]
    for a in range(4):
        for b in range(a):
            left = inverse(ours[a]) @ ours[b] @ inverse(inverse(theirs[a]) @ theirs[b])
            assert np.abs(logarithm(left)).max() < 0.03


def test_a_scan_of_another_place_stays_in_a_frame_of_its_own(done: Done) -> None:
    assert done.found.components == [[0, 1, 2, 3], [4]]
    assert not any(edge.kept and 4 in (edge.source, edge.target) for edge in done.found.edges)
    np.testing.assert_array_equal(done.found.T_world_scan[4], np.eye(4))


def test_what_is_kept_is_told_with_its_evidence(done: Done) -> None:
    kept = [edge for edge in done.found.edges if edge.kept]
    assert {(e.source, e.target) for e in kept} >= {(0, 1), (1, 2), (2, 3)}
    assert all(edge.triangles_fit == edge.triangles for edge in kept)
    assert all(edge.error < 4.7 for edge in kept)
    assert not done.found.doubtful
    assert all(edge.doubt for edge in done.found.edges if not edge.kept)
    assert "components of 4, 1" in repr(done.found)


def test_progress_is_told(done: Done) -> None:
    stages = list(dict.fromkeys(stage for stage, _, _ in done.told))
    assert stages == ["describe", "compare", "register pairs", "refine"]
    assert all(0 < part <= total for _, part, total in done.told)


def test_a_second_run_registers_nothing(done: Done, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: object, **options: object) -> None:
        raise AssertionError("a pair was registered anew")

    monkeypatch.setattr(VBReg, "solve_batch", never)
    again = reconstruct(done.folder, voxel_size=VOXEL_SIZE, model=done.model, work=done.work)
    np.testing.assert_array_equal(again.T_world_scan, done.found.T_world_scan)
    assert scene_as_json(again) == scene_as_json(done.found)


def test_a_run_that_was_killed_goes_on(
    done: Done, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some pairs are there, and half a line behind them; the others come from the first run."""
    [table] = done.work.glob("pairs-*.jsonl")
    lines = table.read_bytes().splitlines(keepends=True)
    held = [lines[0], *lines[4:8]]
    (tmp_path / table.name).write_bytes(b"".join(held) + lines[8][:100])
    known = {row["pair"]: row for row in map(json.loads, lines[1:])}
    asked = []

    def stand_in(store: PairStore, *question: Any) -> PairResult | None:
        held = usual(store, *question)
        if held is None:
            asked.append(question)
            held = PairResult.of_row(*question[:2], known[store.key(*question)])
            store.add(held, *question[2:])
        return held

    usual = PairStore.get
    monkeypatch.setattr(PairStore, "get", stand_in)
    again = reconstruct(done.folder, voxel_size=VOXEL_SIZE, model=done.model, work=tmp_path)
    assert len(asked) == len(lines) - 5
    np.testing.assert_array_equal(again.T_world_scan, done.found.T_world_scan)
    assert sorted((tmp_path / table.name).read_bytes().splitlines()) == sorted(
        line.rstrip(b"\n") for line in lines
    )


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The pairs that are registered, without doing so."""
    pairs: list[tuple[int, int]] = []

    def stand_in(scans: object, some: list[tuple[int, int]], *rest: object) -> list[PairResult]:
        pairs.extend(some)
        return [PairResult.failed(*pair) for pair in some]

    monkeypatch.setattr("vbreg.scenes.search.register_pairs", stand_in)
    return pairs


def test_kept_pairs_are_of_the_same_weights_and_the_same_function(
    asked: list[tuple[int, int]], fast: VBReg, tmp_path: Path
) -> None:
    """Names alone do not tell: a file is trained anew, a function is written anew."""

    def numbers(factor: float) -> Callable[..., torch.Tensor]:
        def mine(points: torch.Tensor, normals: torch.Tensor, scale: Scale) -> torch.Tensor:
            return torch.cat([factor * points, normals], dim=1)

        return mine

    def trained(fingerprint: str) -> Descriptor:
        return Descriptor("mine", lambda cloud, rows: cloud.points[rows], fingerprint=fingerprint)

    clouds = [surface(300, seed) for seed in range(3)]
    other = VBReg(fast.network, judge=Judge(JudgeNetwork(JudgeConfig())))
    slower = VBReg(fast.network, voting=dataclasses.replace(fast.voting, min_seeds=2000))
    seen = []
    for model, descriptor in [
        *((fast, numbers(1.0)), (fast, numbers(1.0)), (fast, numbers(2.0))),
        *((fast, trained("a")), (fast, trained("a")), (fast, trained("b"))),
        *((other, trained("a")), (slower, trained("a")), (fast, "fpfh"), (fast, "fpfh")),
    ]:
        before = len(asked)
        reconstruct(clouds, voxel_size=0.1, model=model, descriptor=descriptor, work=tmp_path)
        seen.append(len(asked) - before)
    assert seen == [3, 0, 3, 3, 0, 3, 3, 3, 3, 0]


def test_a_scan_that_is_added_does_not_change_the_estimated_voxel_size(
    asked: list[tuple[int, int]], fast: VBReg, tmp_path: Path
) -> None:
    """Or all pairs would be registered anew."""
    clouds: list[Any] = [surface(600, seed) for seed in range(2)]
    added = [*clouds, *(20 * surface(600, seed) for seed in range(2, 5))]
    first = reconstruct(clouds, model=fast, descriptor="fpfh", work=tmp_path)
    before = len(asked)
    again = reconstruct(added, model=fast, descriptor="fpfh", work=tmp_path)
    assert again.voxel_size == first.voxel_size
    assert (first.size_origin, again.size_origin) == ("estimated", "kept")
    assert all(max(pair) > 1 for pair in asked[before:])
    anew = reconstruct(added, model=fast, descriptor="fpfh")
    assert anew.voxel_size > 5 * first.voxel_size  # by most of them
    kept = tmp_path / "voxel_size.json"
    kept.write_text(json.dumps({"voxel_size": 0.1, "scans": ["of", "others"]}))
    other = reconstruct(clouds, model=fast, descriptor="fpfh", work=tmp_path)
    assert other.voxel_size == first.voxel_size
    kept.write_text("nonsense")
    with pytest.raises(VBRegError, match=r"voxel_size\.json: no voxel size in it"):
        reconstruct(clouds, model=fast, descriptor="fpfh", work=tmp_path)


@pytest.mark.parametrize("in_files", [False, True])
def test_a_kept_voxel_size_is_of_most_of_the_same_scans(
    asked: list[tuple[int, int]], fast: VBReg, tmp_path: Path, in_files: bool
) -> None:
    """Names alone do not tell: arrays are numbered, and files are written anew."""

    def found(scans: list[Any]) -> Reconstruction:
        given = scans
        if in_files:
            given = [tmp_path / f"{k}.ply" for k in range(len(scans))]
            for path, points in zip(given, scans, strict=True):
                io.write(path, points)
        return reconstruct(given, model=fast, descriptor="fpfh", work=tmp_path / "work")

    scans: list[Any] = [surface(600, seed) for seed in range(3)]
    first = found(scans)
    assert first.size_origin == "estimated"
    one_changed = found([surface(600, 3) * 20, *scans[1:]])
    assert (one_changed.voxel_size, one_changed.size_origin) == (first.voxel_size, "kept")
    other = found([surface(600, seed) * 20 for seed in range(2)] + scans[2:])
    assert other.voxel_size > 5 * first.voxel_size
    assert other.size_origin == "estimated"
    assert found([surface(600, seed) * 20 for seed in range(2)] + scans[2:]).size_origin == "kept"


def test_an_error_says_that_the_voxel_size_was_kept(fast: VBReg, tmp_path: Path) -> None:
    """It may be the reason, and then nothing in the command is wrong."""
    clouds = [surface(300, seed) for seed in range(3)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vbreg.scenes.sizes.estimate_voxel_size", lambda *clouds: 1e3)
        for said in ("none of 3 pairs", "1000 is one that an earlier run estimated: delete .*json"):
            with pytest.raises(VBRegError, match=said):
                reconstruct(clouds, descriptor="fpfh", model=fast, work=tmp_path)


def test_known_poses_beside_the_scans_are_no_scan(tmp_path: Path) -> None:
    for name in ("scan_10.ply", "scan_2.ply", "poses.txt"):
        (tmp_path / name).touch()
    assert [p.name for p in scan_files(tmp_path)] == ["scan_2.ply", "scan_10.ply"]


def test_large_files_are_thinned_while_they_are_read(
    asked: list[tuple[int, int]], fast: VBReg, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the voxel size, to be described and to be shown; and nothing of it needs the whole."""
    files = [tmp_path / f"{k}.ply" for k in range(3)]
    for k, path in enumerate(files):
        io.write(path, surface(2000, k) + EAST)
    whole = reconstruct(files, model=fast)

    def never(*given: object) -> None:
        raise AssertionError("a file was read as a whole")

    monkeypatch.setattr(io, "read", never)
    monkeypatch.setattr("vbreg.streaming.MIN_STREAMED_BYTES", 1)
    found = reconstruct(files, model=fast)
    assert found.voxel_size == whole.voxel_size
    np.testing.assert_allclose(found.similarity, whole.similarity, atol=1e-3)
    assert b"3 scans" in scene_report_html(found, files)


@pytest.mark.parametrize(
    ("scans", "options", "words"),
    [
        ("no such folder", {}, "no such folder"),
        ([np.zeros((5, 3))], {}, "at least two"),
        ([np.zeros((5, 3))] * 2, {"pair_share": 0.0}, "pair_share"),
        ([np.zeros((5, 3))] * 2, {"pair_share": 1.5}, "pair_share"),
        ([np.full((5, 3), np.nan)] * 2, {"voxel_size": 0.1}, "scan 0 has 0 finite points"),
        ([np.zeros((5, 3))] * 2, {"voxel_size": -1.0}, "voxel_size"),
        ([np.zeros((5, 3))] * 2, {"descriptor": "nonsense"}, "nonsense"),
    ],
)
def test_mistakes_are_named(scans: object, options: dict[str, object], words: str) -> None:
    with pytest.raises(VBRegError, match=words):
        reconstruct(scans, device="cpu", **options)  # type: ignore[arg-type]


def test_an_empty_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(VBRegError, match="0 files of clouds"):
        reconstruct(tmp_path)


def test_scans_without_any_match_stay_apart() -> None:
    """Nothing to register is no error: every scan is a component."""
    line = np.linspace(0, 1, 50)[:, None] * [1.0, 0.0, 0.0]
    found = reconstruct([line, line + 5.0, line * 2], voxel_size=0.3, device="cpu")
    assert all(len(members) >= 1 for members in found.components)
    assert sum(map(len, found.components)) == 3


def test_where_no_pair_can_be_registered_the_first_error_is_raised(
    fast: VBReg, tmp_path: Path
) -> None:
    """Also by a second run, which takes what the first one kept."""
    clouds = [surface(300, seed) for seed in range(3)]
    for _ in range(2):
        with pytest.raises(VBRegError, match=r"none of 3 pairs .* the first: 0 matches between"):
            reconstruct(clouds, voxel_size=1e3, descriptor="fpfh", model=fast, work=tmp_path)


# --- what comes out


def test_the_merged_cloud_lies_in_one_frame(done: Done) -> None:
    files = scan_files(done.folder)
    cloud = merged_component(files, done.found)
    assert len(cloud) == sum(len(points) for points in done.village.scans[:4])
    T = done.village.T_world_scan
    expected = np.concatenate(
        [
            s @ X[:3, :3].T + X[:3, 3]
            for s, X in zip(done.village.scans[:4], inverse(T[:1]) @ T[:4], strict=True)
        ]
    )
    assert np.abs(cloud.points - expected).max() < 0.1
    assert np.bincount(cloud.attributes["scan"]).tolist() == [
        len(s) for s in done.village.scans[:4]
    ]
    thinned = merged_component(files, done.found, thin=0.2)
    assert 0 < len(thinned) < len(cloud) / 5
    assert len(merged_component(files, done.found, 1)) == len(done.village.scans[4])


def test_a_merged_cloud_has_what_every_scan_has_and_one_file_in_memory(
    done: Done, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = []
    for k, points in enumerate(done.village.scans[:4]):
        more = {"intensity": np.full(len(points), float(k)), "time": np.zeros(len(points))}
        if k == 2:
            del more["time"]
        files.append(tmp_path / f"{k}.ply")
        io.write(files[-1], PointCloud(points, more))
    held: list[weakref.ref[PointCloud]] = []
    usual = io.read

    def noted(path: Path) -> PointCloud:
        assert not [cloud for cloud in held if cloud() is not None]
        cloud = usual(path)
        held.append(weakref.ref(cloud))
        return cloud

    monkeypatch.setattr(io, "read", noted)
    with pytest.warns(VBRegWarning, match="without time, which not all scans have"):
        cloud = merged_component(files, done.found, thin=0.2)
    assert len(held) == 4
    assert set(cloud.attributes) == {"intensity", "scan"}
    np.testing.assert_array_equal(cloud.attributes["intensity"], cloud.attributes["scan"])
    with pytest.raises(VBRegError, match="thin 0"):
        merged_component(files, done.found, thin=0)


def test_poses_are_written_by_their_ending(done: Done, tmp_path: Path) -> None:
    for name in ("poses.json", "poses.tum", "graph.g2o"):
        write_scene_poses(tmp_path / name, done.found)
    said = json.loads((tmp_path / "poses.json").read_text(encoding="utf-8"))
    np.testing.assert_array_equal(said["scans"][2]["T_world_scan"], done.found.T_world_scan[2])
    assert said["components"] == [[0, 1, 2, 3], [4]]
    tum = (tmp_path / "poses.tum").read_text(encoding="utf-8").splitlines()
    assert [line.split()[0] for line in tum if line[0] != "#"] == ["0", "1", "2", "3"]
    assert "# not connected to these: 1 scan" in tum
    g2o = (tmp_path / "graph.g2o").read_text(encoding="utf-8")
    assert g2o.count("VERTEX_SE3:QUAT") == 5
    assert g2o.count("EDGE_SE3:QUAT") == sum(edge.kept for edge in done.found.edges)
    with pytest.raises(VBRegError, match=r"unknown ending '\.xyz'"):
        write_scene_poses(tmp_path / "poses.xyz", done.found)


TURNS = pytest.mark.parametrize("turn", [[0.0, 0.0, 0.0], [1.5, 0.0, 0.0], [0.4, -1.1, 2.0]])


def reported(T: Float64, cloud: PointCloud) -> tuple[dict[str, Any], Float64]:
    """What the page tells of one cloud at several poses (K, 4, 4), and the points that it draws."""
    K = len(T)
    names, one, none = tuple(map(str, range(K))), np.zeros(K, dtype=np.int64), np.zeros((K, K))
    found = Reconstruction(names, T, one, (), none, (), (), 0, 0.1, False)
    page = scene_report_html(found, [cloud] * K).decode()
    data, points = (
        page.split(f'id="{name}">')[1].split("</script>")[0] for name in ("data", "points")
    )
    said = json.loads(data)
    numbers = np.frombuffer(base64.b64decode(points), dtype="<u2").reshape(-1, 3)
    box = said["boxes"][0]
    return said, numbers * np.array(box["step"]) + np.array(box["low"])


def turned(turn: list[float]) -> Float64:
    return np.asarray(exponential(np.array([*turn, 0.0, 0.0, 0.0])))[:3, :3]


@TURNS
def test_the_graph_is_seen_along_the_direction_in_which_scans_spread_least(
    turn: list[float],
) -> None:
    """Whichever way is up in the frame of the first scan, the picture has their distances."""
    middles = np.array([[0.0, 0, 0], [4, 0, 0], [4, 3, 0], [0, 3, 0.01]])
    T = np.tile(np.eye(4), (len(middles), 1, 1))
    T[:, :3, 3] = middles @ turned(turn).T
    said, _ = reported(T, PointCloud(np.random.default_rng(0).uniform(-1, 1, (200, 3))))
    places = np.array([scan["place"] for scan in said["scans"]])
    distances, true = (np.linalg.norm(X[:, None] - X, axis=-1) for X in (places, middles))
    np.testing.assert_allclose(distances, true, atol=0.01)


@TURNS
@pytest.mark.parametrize("handed", [1, -1])
def test_the_scene_is_shown_from_the_side_of_the_sensors(turn: list[float], handed: int) -> None:
    """A floor below the sensor, with one peak: it points up on the page, and is no mirror image."""
    x, y = np.random.default_rng(0).uniform(-1, 1, (2, 3000)) * [[4.0], [2.0]]
    peak = np.array([3.0 * handed, 1.5, 1.0])
    ground = np.stack([x, y, np.zeros_like(x)], axis=1)
    points = np.concatenate([ground, peak[None]]) - [0.0, 0.0, 1.6]
    _, drawn = reported(np.tile(np.eye(4), (2, 1, 1)), PointCloud(points @ turned(turn).T))
    top = drawn[:, 2].argmax()
    assert drawn[top, 2] - np.median(drawn[:, 2]) == pytest.approx(1.0, abs=0.05)
    assert drawn[top, 0] * drawn[top, 1] == pytest.approx(4.5 * handed, abs=0.7)


def test_the_report_shows_names_as_text(done: Done, tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script>"
    found = dataclasses.replace(done.found, names=(evil, *done.found.names[1:]))
    clouds = [PointCloud(points) for points in done.village.scans]
    page = scene_report_html(found, clouds, command=f"vbreg reconstruct {evil}", max_points=5000)
    assert b"alert(1)</script>" not in page
    assert page.count(b"<script") == page.count(b"</script>") == 3
    assert b"default-src 'none'" in page
    write_scene_report(tmp_path / "scene.html", done.found, clouds)
    assert b"5 scans in 2 components" in (tmp_path / "scene.html").read_bytes()
