"""Laws of the pose graph: planted poses are found, wrong edges dropped, frames do not matter."""

from __future__ import annotations

import numpy as np
import pytest

from vbreg.errors import VBRegError
from vbreg.motions import adjoint, exponential, inverse, logarithm
from vbreg.scenes import graph
from vbreg.scenes.graph import PoseEdges, bridges, components, information_of, solve_graph
from vbreg.types import Bool, Float64


def planted(
    scans: int = 20,
    edges: int = 80,
    wrong: float = 0.0,
    noise: float = 0.0,
    seed: int = 0,
    told: bool = False,
    reach: int | None = None,
) -> tuple[Float64, PoseEdges, Bool]:
    """Return poses (K, 4, 4), edges between them and which of these are right.

    With `told`, probabilities tell right from wrong edges, though not always; edges reach no
    further than `reach` scans, but for one in twenty.
    """
    rng = np.random.default_rng(seed)
    T = exponential(
        np.concatenate([rng.normal(size=(scans, 3)), rng.uniform(-5, 5, (scans, 3))], 1)
    )
    ends = {(k, k + 1) for k in range(scans - 1)}
    while len(ends) < edges:
        s, t = rng.integers(scans, size=2).tolist()
        if s < t and (reach is None or t - s <= reach or rng.random() < 0.0005):
            ends.add((s, t))
    listed = [(s, t) if rng.random() < 0.5 else (t, s) for s, t in sorted(ends)]
    right = rng.permutation(edges) >= round(wrong * edges)
    s, t = np.array(listed).T
    poses = exponential(noise * rng.normal(size=(edges, 6))) @ inverse(T[t]) @ T[s]
    anything = exponential(
        np.concatenate([2 * rng.normal(size=(edges, 3)), rng.uniform(-5, 5, (edges, 3))], 1)
    )
    poses = np.where(right[:, None, None], poses, anything)
    p = np.where(right, rng.beta(5, 2, edges), rng.beta(2, 5, edges))
    C = np.tile(max(noise, 0.01) ** 2 * np.eye(6), (edges, 1, 1))
    return T, PoseEdges.of(listed, poses, C, p if told else np.ones(edges)), right


def apart(T: Float64, S: Float64) -> Float64:
    """Return the largest difference (6,) of relative poses of both."""
    ours, theirs = (inverse(X)[:, None] @ X[None] for X in (T, S))
    return np.abs(logarithm(ours @ inverse(theirs))).max((0, 1))


def test_the_jacobians_are_derivatives() -> None:
    T, edges, _ = planted(noise=0.3)
    r = graph.residuals(T, edges)
    J_s, J_t = graph.jacobians(T, edges, r)
    h = 1e-6
    for e in range(0, len(edges), 9):
        for scan, J in ((edges.source[e], J_s[e]), (edges.target[e], J_t[e])):
            for k in range(6):
                ends = []
                for sign in (1, -1):
                    moved = T.copy()
                    moved[scan] = moved[scan] @ exponential(sign * h * np.eye(6)[k])
                    ends.append(graph.residuals(moved, edges)[e])
                np.testing.assert_allclose(J[:, k], (ends[0] - ends[1]) / (2 * h), atol=1e-6)


@pytest.mark.parametrize("wrong", [0.0, 0.2, 0.4])
def test_exact_edges_are_met_exactly_and_wrong_ones_are_dropped(wrong: float) -> None:
    T, edges, right = planted(wrong=wrong)
    found = solve_graph(len(T), edges)
    assert (found.kept == right).all()
    assert (found.component == 0).all()
    assert apart(T, found.T_world_scan).max() < 1e-7
    np.testing.assert_allclose(found.error[right], 0, atol=1e-5)


@pytest.mark.parametrize(("wrong", "least"), [(0.3, 0.99), (0.5, 0.95), (0.7, 0.7)])
def test_probabilities_help_to_find_the_wrong_ones(wrong: float, least: float) -> None:
    T, edges, right = planted(60, 300, wrong=wrong, noise=0.01, seed=1, told=True)
    found = solve_graph(len(T), edges)
    assert (found.kept == right).mean() >= least


@pytest.mark.parametrize("scans", [3, 6, 30, 100])
@pytest.mark.parametrize("off", [2.0, 10.0, 100.0])
def test_a_loop_of_any_length_closes_within_its_errors_or_loses_an_edge(
    scans: int, off: float
) -> None:
    """Though spread over all of its edges, the gap would be small for each of them."""
    angle = 2 * np.pi * np.arange(scans) / scans
    T = exponential(angle[:, None] * np.array([0, 0, 1.0, 0, 0, 0]))
    T[:, :3, 3] = scans / 12 * np.stack([np.cos(angle), np.sin(angle), 0 * angle], axis=1)
    ends = [(k, (k + 1) % scans) for k in range(scans)]
    poses = np.stack([inverse(T[t]) @ T[s] for s, t in ends])
    C = np.tile(np.diag([1e-6] * 3 + [1e-4] * 3), (scans, 1, 1))
    # The errors of all edges, as they add up around the loop.
    A = adjoint(inverse(T[0]) @ T[np.array(ends)[:, 1]])
    together = (A @ C @ np.swapaxes(A, -1, -2)).sum(0)
    up = np.array([0, 0, 0, 0, 0, 1.0])
    gap = off / np.sqrt(up @ np.linalg.solve(together, up))
    poses[-1] = exponential(gap * up) @ poses[-1]
    found = solve_graph(scans, PoseEdges.of(ends, poses, C))
    assert found.kept.sum() == (scans if off < graph.MAX_ERROR else scans - 1)
    assert (found.component == 0).all()


def test_a_frame_more_or_less_changes_nothing() -> None:
    T, edges, _ = planted(noise=0.05, wrong=0.2)
    before = solve_graph(len(T), edges)
    rng = np.random.default_rng(3)
    # Scans in other frames of their own: T_target_source becomes B_t T B_s^-1.
    B = exponential(rng.normal(size=(len(T), 6)))
    A = adjoint(inverse(B[edges.target]))
    moved = PoseEdges(
        edges.source,
        edges.target,
        B[edges.target] @ edges.T_target_source @ inverse(B[edges.source]),
        np.swapaxes(A, -1, -2) @ edges.information @ A,
        edges.probability,
    )
    after = solve_graph(len(T), moved)
    assert (after.kept == before.kept).all()
    np.testing.assert_allclose(after.error, before.error, rtol=1e-3, atol=1e-3)
    assert apart(before.T_world_scan, after.T_world_scan @ B).max() < 1e-3


def test_an_edge_may_be_said_from_either_end() -> None:
    T, edges, _ = planted(noise=0.05, wrong=0.2)
    # exp(r^) T = T' becomes T^-1 exp(-r^) = T'^-1: the motion moves to the other frame.
    A = adjoint(edges.T_target_source)
    turned = PoseEdges(
        edges.target,
        edges.source,
        inverse(edges.T_target_source),
        np.swapaxes(A, -1, -2) @ edges.information @ A,
        edges.probability,
    )
    before, after = solve_graph(len(T), edges), solve_graph(len(T), turned)
    assert (after.kept == before.kept).all()
    assert apart(before.T_world_scan, after.T_world_scan).max() < 1e-3


def test_what_does_not_connect_stays_apart() -> None:
    T, edges, _ = planted(20, 60)
    left = (edges.source < 12) & (edges.target < 12)
    right = (edges.source >= 12) & (edges.target >= 12) & (edges.source < 18) & (edges.target < 18)
    found = solve_graph(20, edges.take(left | right))
    assert found.component.tolist() == [0] * 12 + [1] * 6 + [2, 3]
    assert apart(T[:12], found.T_world_scan[:12]).max() < 1e-7
    assert apart(T[12:18], found.T_world_scan[12:18]).max() < 1e-7


def test_two_rooms_that_only_a_wrong_pair_of_doors_joins_fall_apart() -> None:
    """Of two edges between two rooms that contradict each other, at most one is kept."""
    _, edges, _ = planted(12, 50)
    inner = (edges.source < 6) == (edges.target < 6)
    rooms = edges.take(inner)
    rng = np.random.default_rng(0)
    doors = PoseEdges.of(
        [(0, 6), (3, 9)], exponential(rng.normal(size=(2, 6))), [1e-4 * np.eye(6)] * 2, [0.9, 0.6]
    )
    joined = PoseEdges(
        *(
            np.concatenate([a, b])
            for a, b in zip(vars(rooms).values(), vars(doors).values(), strict=True)
        )
    )
    found = solve_graph(12, joined)
    assert found.kept[:-2].all()
    assert found.kept[-2:].sum() == 1
    assert found.kept[-2]


def test_no_scans_and_no_edges() -> None:
    nothing = PoseEdges.of([], [])
    assert solve_graph(0, nothing).T_world_scan.shape == (0, 4, 4)
    assert solve_graph(3, nothing).component.tolist() == [0, 1, 2]


def test_a_direction_that_one_pair_leaves_free_is_fixed_by_another() -> None:
    """Scan 1 slides along x against scan 0 and along y against scan 2."""
    T = exponential(np.array([[0.0] * 6, [0, 0, 0, 1.0, 2, 0], [0, 0, 0, 3.0, 0, 0]]))

    def pose(s: int, t: int, shift: list[float]) -> Float64:
        return exponential(np.array([0, 0, 0, *shift])) @ inverse(T[t]) @ T[s]

    slides = [
        np.diag([1e-6] * 3 + [4.0 if k == axis else 1e-6 for k in range(3)]) for axis in (0, 1)
    ]
    edges = PoseEdges.of(
        [(1, 0), (1, 2), (2, 0)],
        [pose(1, 0, [0.8, 0, 0]), pose(1, 2, [0, -0.7, 0]), pose(2, 0, [0, 0, 0])],
        [slides[0], slides[1], 1e-6 * np.eye(6)],
    )  # fmt: skip
    found = solve_graph(3, edges)
    assert found.kept.all()
    assert apart(T, found.T_world_scan).max() < 1e-4


def test_a_singular_covariance_is_taken_as_sure() -> None:
    information = information_of(np.diag([0.0, 1, 1, 1, 1, 1]))
    assert np.isfinite(information).all()
    assert information[0, 0] > 1e9
    with pytest.raises(VBRegError, match="without any variance"):
        information_of(np.zeros((6, 6)))


@pytest.mark.parametrize(
    ("ends", "pose", "p", "words"),
    [
        ((0, 0), np.eye(4), 0.5, "itself"),
        ((0, -1), np.eye(4), 0.5, "below 0"),
        ((0, 1), np.full((4, 4), np.nan), 0.5, "not finite"),
        ((0, 1), np.eye(4), 1.5, r"0\.\.1"),
    ],
)
def test_edges_that_make_no_sense_are_named(
    ends: tuple[int, int], pose: Float64, p: float, words: str
) -> None:
    with pytest.raises(VBRegError, match=words):
        PoseEdges.of([ends], [pose], None, [p])


def test_a_scan_beyond_the_last_is_named() -> None:
    with pytest.raises(VBRegError, match="beyond the last of 2"):
        solve_graph(2, PoseEdges.of([(0, 5)], [np.eye(4)]))


def test_bridges_are_the_edges_whose_loss_divides() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        scans = int(rng.integers(2, 12))
        ends = [tuple(rng.choice(scans, 2, replace=False).tolist()) for _ in range(scans + 2)]
        edges = PoseEdges.of(ends, [np.eye(4)] * len(ends))
        count = components(scans, edges).max()
        for e, said in enumerate(bridges(scans, edges)):
            without = np.arange(len(edges)) != e
            assert said == (components(scans, edges.take(without)).max() > count)


@pytest.mark.parametrize("limit", [0.0, 0.2, 0.5, 1.0])
def test_a_far_edge_stays_only_where_nothing_nearer_joins_its_scans(limit: float) -> None:
    T, edges, _ = planted(20, 60)
    distance = np.random.default_rng(0).permutation(len(edges)) / len(edges)
    kept = graph.near_edges(len(T), edges, distance, limit)
    assert kept[distance <= limit].all()
    assert (components(len(T), edges.take(kept)) == components(len(T), edges)).all()
    for e in range(len(edges)):
        nearer = components(len(T), edges.take((distance < distance[e]) | (distance <= limit)))
        joined = nearer[edges.source[e]] == nearer[edges.target[e]]
        assert kept[e] == (distance[e] <= limit or not joined)


def test_one_far_edge_that_is_needed_saves_no_other() -> None:
    """Scans 0, 1, 2 in a triangle with a far side, and 3 on a far edge of its own."""
    edges = PoseEdges.of([(0, 1), (1, 2), (0, 2), (2, 3)], [np.eye(4)] * 4)
    kept = graph.near_edges(4, edges, np.array([0.1, 0.1, 5.0, 3.0]), 1.0)
    assert kept.tolist() == [True, True, False, True]


def test_components_are_numbered_by_their_size() -> None:
    edges = PoseEdges.of([(4, 5), (5, 6), (1, 2)], [np.eye(4)] * 3)
    assert components(8, edges).tolist() == [2, 1, 1, 3, 0, 0, 0, 4]


def test_hundreds_of_scans_are_solved() -> None:
    """A long walk in which a scan sees the next few, and sometimes one from long ago."""
    _, edges, right = planted(200, 600, wrong=0.2, noise=0.01, told=True, reach=4)
    found = solve_graph(200, edges)
    assert (found.kept == right).mean() > 0.99


@pytest.mark.slow
def test_gtsam_finds_the_same() -> None:
    gtsam = pytest.importorskip("gtsam", reason="gtsam is an oracle, not a dependency")
    T, edges, right = planted(noise=0.02, wrong=0.2)
    right_ones = edges.take(right)
    ours = solve_graph(len(T), right_ones)
    factors, values = gtsam.NonlinearFactorGraph(), gtsam.Values()
    for k, pose in enumerate(graph.tree_poses(len(T), right_ones)):
        values.insert(k, gtsam.Pose3(pose))
    factors.add(
        gtsam.PriorFactorPose3(0, gtsam.Pose3(np.eye(4)), gtsam.noiseModel.Isotropic.Sigma(6, 1e-6))
    )
    # Their error stands to the right of the pose.
    A = adjoint(right_ones.T_target_source)
    information = np.swapaxes(A, -1, -2) @ right_ones.information @ A
    for e, (s, t) in enumerate(zip(right_ones.source, right_ones.target, strict=True)):
        noise = gtsam.noiseModel.Gaussian.Information(information[e])
        measured = gtsam.Pose3(right_ones.T_target_source[e])
        factors.add(gtsam.BetweenFactorPose3(int(t), int(s), measured, noise))
    solved = gtsam.LevenbergMarquardtOptimizer(factors, values).optimize()
    theirs = np.stack([solved.atPose3(k).matrix() for k in range(len(T))])
    assert apart(ours.T_world_scan, theirs).max() < 1e-4
