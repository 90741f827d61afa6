"""Laws of joining: strong edges join, weak ones must agree, rooms that look alike stay apart."""

from __future__ import annotations

import numpy as np
import pytest

from tests.scenes.test_graph import apart, planted
from vbreg.motions import exponential, inverse
from vbreg.scenes.graph import PoseEdges
from vbreg.scenes.joining import join_scans, triangle_support
from vbreg.types import Float64

SURE = 0.99


def joined(*parts: PoseEdges) -> PoseEdges:
    columns = zip(*(vars(part).values() for part in parts), strict=True)
    return PoseEdges(*(np.concatenate(column) for column in columns))


def two_rooms(
    between: list[tuple[int, int, float, bool]],  # source, target, probability, right
    seed: int = 0,
) -> tuple[Float64, PoseEdges]:
    """Scans 0 to 5 and 6 to 11 with sure edges inside, and these edges in between."""
    T, edges, _ = planted(12, 50)
    inner = edges.take((edges.source < 6) == (edges.target < 6))
    inner = PoseEdges(
        inner.source,
        inner.target,
        inner.T_target_source,
        inner.information,
        np.full(len(inner), SURE),
    )
    rng = np.random.default_rng(seed)
    poses = [
        inverse(T[t]) @ T[s] if right else exponential(rng.normal(size=6))
        for s, t, _, right in between
    ]
    ends = [(s, t) for s, t, _, _ in between]
    doors = PoseEdges.of(ends, poses, [1e-4 * np.eye(6)] * len(ends), [p for _, _, p, _ in between])
    return T, joined(inner, doors)


@pytest.mark.parametrize(
    ("between", "parts"),
    [
        ([(0, 6, 0.99, True)], 1),  # nearly certain
        ([(0, 6, 0.96, True)], 1),  # enough by itself
        ([(0, 6, 0.7, True)], 2),  # too little
        ([(0, 6, 0.8, True), (7, 3, 0.8, True)], 1),  # two that agree, said from either end
        ([(0, 6, 0.8, True), (3, 7, 0.8, False)], 2),  # two that do not
        ([(0, 6, 0.96, True), (3, 7, 0.9, False)], 2),  # contradicted
        ([(0, 6, 0.96, True), (3, 7, 0.3, False)], 1),  # hardly contradicted
        ([], 2),
    ],
)
def test_groups_are_joined_by_evidence(
    between: list[tuple[int, int, float, bool]], parts: int
) -> None:
    T, edges = two_rooms(between)
    found = join_scans(12, edges)
    assert found.solution.component.max() + 1 == parts
    for members in (range(6), range(6, 12)) if parts == 2 else (range(12),):
        some = list(members)
        assert apart(T[some], found.solution.T_world_scan[some]).max() < 1e-5


def test_rooms_that_look_alike_stay_apart() -> None:
    """Three edges agree on one wrong pose, two on another: nobody can tell."""
    T, edges = two_rooms([])
    wrong = exponential(np.array([[0, 0, 3.1, 1, 2, 0], [0, 0, 1.5, -2, 1, 0]]))
    ends = [(0, 6), (1, 7), (2, 8), (3, 9), (4, 10)]
    poses = [inverse(T[t]) @ wrong[k // 3] @ T[s] for k, (s, t) in enumerate(ends)]
    doors = PoseEdges.of(ends, poses, [1e-4 * np.eye(6)] * 5, [0.85, 0.8, 0.8, 0.85, 0.8])
    found = join_scans(12, joined(edges, doors))
    assert found.solution.component.max() == 1
    assert len(found.refused) == 1
    assert found.refused[0].evidence > 3.0
    assert not found.solution.kept[-5:].any()


def test_weak_edges_that_agree_with_the_poses_are_heard_at_the_end() -> None:
    _, edges = two_rooms([(0, 6, 0.99, True), (1, 7, 0.2, True), (2, 8, 0.2, False)])
    kept = join_scans(12, edges).solution.kept
    assert kept[:-3].all()
    assert kept[-3:].tolist() == [True, True, False]


def test_a_chain_of_scans_is_joined_step_by_step() -> None:
    """No edge is nearly certain, and each step is enough by itself."""
    T, edges, _ = planted(10, 9)
    chain = PoseEdges(
        edges.source, edges.target, edges.T_target_source, edges.information, np.full(9, 0.96)
    )
    found = join_scans(10, chain)
    assert (found.solution.component == 0).all()
    assert apart(T, found.solution.T_world_scan).max() < 1e-6


def test_triangles_close_where_edges_are_right() -> None:
    T, edges, right = planted(8, 22, wrong=0.2, seed=3)
    closed, fit = triangle_support(edges, right, len(T))
    assert (fit[right] == closed[right]).all()
    assert closed[right].sum() > 0
    assert fit[~right].sum() == 0
