"""benchmarks/scenes.py: right poses are counted as right, and other solvers see the same graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest

from tests.scenes.test_graph import apart, planted
from tests.scripts.helpers import ROOT, load
from vbreg.motions import exponential, inverse
from vbreg.scale import Scale
from vbreg.types import Float64


@pytest.fixture(scope="module")
def beside() -> Iterator[None]:
    """Let a benchmark import those beside it, as where it is started."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        yield


@pytest.fixture(scope="module")
def scenes(beside: None) -> ModuleType:
    return load("benchmarks/scenes.py")


@pytest.fixture(scope="module")
def truth(beside: None) -> ModuleType:
    return load("benchmarks/scene_truth.py")


@pytest.fixture(scope="module")
def solvers(beside: None) -> ModuleType:
    return load("benchmarks/scene_solvers.py")


def true_pairs(T: Float64) -> list[tuple[int, int, Float64]]:
    """Return source, target and T_target_source of all pairs of scans."""
    K = len(T)
    return [(s, t, inverse(T[t]) @ T[s]) for s in range(K) for t in range(s + 1, K)]


def test_true_poses_are_all_right_in_any_frame(scenes: ModuleType, truth: ModuleType) -> None:
    T, edges, _ = planted()
    world = np.random.default_rng(0).uniform(-1, 1, (300, 3))
    clouds = [(world - pose[:3, 3]) @ pose[:3, :3] for pose in T]  # all see the same points
    pairs = true_pairs(T)
    scene = truth.Scene("a", clouds, {"all": pairs}, truth.chained(pairs))
    moved = exponential(np.arange(6.0)) @ T
    together = np.zeros(20, dtype=np.int64)
    ends = edges.source.tolist(), edges.target.tolist(), edges.T_target_source
    kept = list(zip(*ends, strict=True))
    clock = scenes.Clock()
    clock.stop()
    row = scenes.row_of(scene, "x", moved, together, kept, 80, clock)
    assert row.recall == 1.0
    assert row.position_max < 1e-9
    assert row.wrong_kept == 0
    assert np.isnan(row.recall_low)
    assert row.surface_distance < 1e-9
    lines = [scenes.table([each]).splitlines() for each in (row, replace(row, resumed=True))]
    assert [line[2].count("|") for line in lines] == [19, 19]
    assert [line[2].endswith("| - |") for line in lines] == [False, True]  # pairs a second
    moved[3] = moved[3] @ exponential(np.array([0, 0, 0, 0.02, 0, 0]))
    off = scenes.row_of(scene, "x", moved, together, kept, 80, clock)
    assert off.position_max > 0.01
    assert off.surface_distance > 1e-3


def test_an_edge_that_is_turned_or_shifted_is_wrong(scenes: ModuleType, truth: ModuleType) -> None:
    T, _, _ = planted()
    pairs = true_pairs(T)
    scene = truth.Scene("a", [np.zeros((1, 3))] * 20, {"all": pairs}, truth.chained(pairs))
    motions = ([0, 0, 0.3, 0, 0, 0], [0, 0, 0, 0, 0.31, 0], [0, 0, 0.2, 0, 0.29, 0])
    kept = [
        (s, t, pose @ exponential(np.array(motion)))
        for motion, (s, t, pose) in zip(motions, pairs, strict=False)
    ]
    together = np.zeros(20, dtype=np.int64)
    row = scenes.row_of(scene, "x", T, together, kept, 80, scenes.Clock())
    assert (row.edges_kept, row.known_kept, row.wrong_kept) == (3, 3, 2)


def test_edges_are_judged_where_known_pairs_lead(scenes: ModuleType, truth: ModuleType) -> None:
    """Pairs of scans 0 to 4, and of 5 to 11: nothing is known between the two."""
    T, _, _ = planted()
    pairs = [p for p in true_pairs(T[:12]) if (p[0] < 5) == (p[1] < 5)]
    poses = truth.chained(pairs)
    assert [sorted(each) for each in poses] == [list(range(5, 12)), list(range(5))]
    scene = truth.Scene("a", [np.zeros((1, 3))] * 20, {"all": pairs}, poses)
    wrong = exponential(np.array([0, 0, 1.0, 0, 0, 0]))
    kept = [(s, t, inverse(T[t]) @ T[s] @ wrong) for s, t in ((0, 1), (4, 5), (6, 7), (15, 16))]
    together = np.zeros(20, dtype=np.int64)
    row = scenes.row_of(scene, "x", T, together, kept, 80, scenes.Clock())
    assert (row.edges_kept, row.known_kept, row.wrong_kept) == (4, 2, 2)


def test_pairs_of_two_components_are_failures(scenes: ModuleType) -> None:
    T, _, _ = planted()
    pairs = [(j, 0, inverse(T[0]) @ T[j]) for j in range(1, 20)]
    apart_ = np.array([0] * 10 + [1] * 10)
    assert scenes.recall(T, apart_, pairs, (15.0, 0.3)) == pytest.approx(9 / 19)
    off = T.copy()
    off[5] = off[5] @ exponential(np.array([0, 0, 0, 0.31, 0, 0]))
    assert scenes.recall(off, np.zeros(20, int), pairs, (15.0, 0.3)) == pytest.approx(18 / 19)


def test_gtsam_solves_the_same_edges(solvers: ModuleType) -> None:
    pytest.importorskip("gtsam", reason="gtsam is compared with, not depended on")
    T, edges, _ = planted(noise=0.01, wrong=0.2, told=True)
    found, component = solvers.gtsam_solution(20, edges)
    ours, label = solvers.plain_gnc(20, edges)
    assert (component == 0).all()
    assert (label == 0).all()
    assert apart(found, ours).max() < 0.1
    assert apart(T, ours).max() < 0.2


def test_open3d_stays_at_true_poses(
    scenes: ModuleType, truth: ModuleType, solvers: ModuleType
) -> None:
    pytest.importorskip("open3d", reason="Open3D is compared with, not depended on")
    rng = np.random.default_rng(0)
    world = rng.uniform(-1, 1, (9000, 3))
    world[np.arange(9000), np.arange(9000) % 3] = np.sign(rng.uniform(-1, 1, 9000))  # a cube
    T = planted()[0][:4]
    clouds = [(world - pose[:3, 3]) @ pose[:3, :3] for pose in T]
    scene = truth.Scene("a", clouds, {"all": true_pairs(T)}, truth.chained(true_pairs(T)))
    pairs = [(0, 1), (1, 2), (2, 3), (0, 3)]
    found = solvers.open3d_refined(clouds, T, pairs, Scale.of_preset("indoor"))
    assert scenes.position_errors(found, scene.truth[0], range(4)).max() < 0.01
