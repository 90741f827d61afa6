"""benchmarks/scenes.py: right poses are counted as right, and other solvers see the same graph."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from tests.scenes.test_graph import apart, planted
from tests.scripts.helpers import load
from vbreg.motions import exponential, inverse


@pytest.fixture(scope="module")
def scenes() -> ModuleType:
    return load("benchmarks/scenes.py")


def test_true_poses_are_all_right_in_any_frame(scenes: ModuleType) -> None:
    T, edges, _ = planted()
    pairs = [(i, j, inverse(T[i]) @ T[j]) for i in range(20) for j in range(i + 1, 20)]
    truth = scenes.chained(pairs)
    moved = exponential(np.arange(6.0)) @ T
    together = np.zeros(20, dtype=np.int64)
    scene = scenes.Scene("a", [None] * 20, {"all": pairs}, truth)
    ends = edges.source.tolist(), edges.target.tolist(), edges.T_target_source
    kept = list(zip(*ends, strict=True))
    row = scenes.row_of(scene, "x", moved, together, kept, 80, 1.0)
    assert row.recall == 1.0
    assert row.position_max < 1e-9
    assert row.wrong_kept == 0
    assert np.isnan(row.recall_low)


def test_pairs_of_two_components_are_failures(scenes: ModuleType) -> None:
    T, _, _ = planted()
    pairs = [(0, j, inverse(T[0]) @ T[j]) for j in range(1, 20)]
    apart_ = np.array([0] * 10 + [1] * 10)
    assert scenes.recall(T, apart_, pairs, (15.0, 0.3)) == pytest.approx(9 / 19)
    off = T.copy()
    off[5] = off[5] @ exponential(np.array([0, 0, 0, 0.31, 0, 0]))
    assert scenes.recall(off, np.zeros(20, int), pairs, (15.0, 0.3)) == pytest.approx(18 / 19)


def test_gtsam_solves_the_same_edges(scenes: ModuleType) -> None:
    pytest.importorskip("gtsam", reason="gtsam is compared with, not depended on")
    T, edges, _ = planted(noise=0.01, wrong=0.2, told=True)
    found, component = scenes.gtsam_solution(20, edges)
    ours, label = scenes.plain_gnc(20, edges)
    assert (component == 0).all()
    assert (label == 0).all()
    assert apart(found, ours).max() < 0.1
    assert apart(T, ours).max() < 0.2
