"""The steps of single methods, against naive twins."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch

from tests.conftest import make_problem
from tests.methods.helpers import posed, random_pose
from vbreg import compatibility
from vbreg.backends import cpu
from vbreg.backends.cpu import CPUBackend
from vbreg.backends.plain import Backend
from vbreg.methods import common, mac, pointdsc, ransac, sc2pcr, teaser
from vbreg.methods.common import Task, compatible, is_inlier, leading_eigenvector

CPU = torch.device("cpu")
BACKENDS = pytest.mark.parametrize("backend", [Backend(), CPUBackend()], ids=["plain", "cpu"])


def make_task(
    n: int = 40, inlier_ratio: float = 0.5, seed: int = 0, backend: Backend | None = None
) -> Task:
    problem = make_problem(n, inlier_ratio, seed=seed)
    return Task.of(posed(problem.source, problem.target), CPU, backend or CPUBackend())


def gap(task: Task, i: int, j: int) -> float:
    """Naively: by how much the distance between two matches differs, in inlier thresholds."""
    x, y = task.source[0], task.target[0]
    return abs(float((x[i] - x[j]).norm()) - float((y[i] - y[j]).norm()))


@BACKENDS
@pytest.mark.parametrize("tolerance", [0.5, 1.0])
def test_second_order_compatibility_counts_shared_matches(
    tolerance: float, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sc2pcr, "SHARED_TOLERANCE", tolerance)
    monkeypatch.setattr(compatibility, "MAX_MAP_BYTES", 4 * 40 * 4 * 7)  # seven columns at a time
    task = make_task(backend=backend)
    seeds = torch.tensor([3, 0, 17, 39])
    measure = sc2pcr.second_order(task, seeds)
    for row, i in enumerate(seeds.tolist()):
        for j in range(40):
            shared = sum(
                gap(task, i, k) < tolerance and gap(task, k, j) < tolerance for k in range(40)
            )
            assert measure[row, j] == shared * (gap(task, i, j) < 1), (i, j)


def test_the_stages_keep_the_seed_and_its_company() -> None:
    task = make_task(200, inlier_ratio=0.3)
    true = torch.from_numpy(make_problem(200, 0.3).inliers)
    seeds = true.nonzero().squeeze(-1)[:5]
    first = sc2pcr.first_stage(task, seeds)
    second = sc2pcr.second_stage(task, first)
    assert first.indices.shape == (1, 5, 30)
    assert second.indices.shape == (1, 5, 20)
    for members in (first, second):
        np.testing.assert_array_equal(members.indices[0, :, 0], seeds)
    assert true[second.indices].double().mean() > true[first.indices].double().mean() - 0.05
    assert true[second.indices][second.valid].double().mean() > 0.95


@BACKENDS
@pytest.mark.parametrize("diagonal", [0.0, 1.0])
@pytest.mark.parametrize("held", [0, 2**29])
def test_the_eigenvector_is_that_of_the_whole_matrix(
    diagonal: float, held: int, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(common, "MAX_HELD_BYTES", held)
    monkeypatch.setattr(compatibility, "MAX_MAP_BYTES", 4 * 40 * 3 * 7)
    task = make_task(backend=backend)
    M = [[max(0.0, 1 - gap(task, i, j) ** 2) for j in range(40)] for i in range(40)]
    M = np.array(M)
    np.fill_diagonal(M, diagonal)
    leading = np.abs(np.linalg.eigh(M)[1][:, -1])
    found = leading_eigenvector(task, diagonal)
    np.testing.assert_allclose(found, leading / leading.max(), atol=1e-3)


@BACKENDS
def test_a_score_is_the_mean_gain(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compatibility, "MAX_MAP_BYTES", 4 * 8 * 40 * 2)  # two poses at a time
    task = make_task(backend=backend)
    T = torch.stack([torch.from_numpy(random_pose(s)).float() for s in range(5)])[None]
    T[0, 0] = torch.eye(4)
    for gain, naive in ((is_inlier, lambda d: d < 1), (mac.closeness, lambda d: max(0, 1 - d))):
        score = task.scores(T, gain)
        for k in range(5):
            y = task.source[0] @ T[0, k, :3, :3].T + T[0, k, :3, 3]
            d = (y - task.target[0]).norm(dim=-1)
            expected = np.mean([naive(float(v)) for v in d])
            assert float(score[0, k]) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("within", [0.5, 2.0])
def test_compatible_pairs(within: float) -> None:
    task = make_task()
    pairs = compatible(task.source[0], task.target[0], within)
    for i in range(40):
        for j in range(40):
            assert pairs[i, j] == (i != j and gap(task, i, j) <= within)


def test_triplets_are_different_and_equally_likely() -> None:
    drawn = ransac.draw_triplets(5, 60_000, torch.Generator().manual_seed(0))
    code = (drawn * torch.tensor([25, 5, 1])).sum(-1)
    expected = {25 * a + 5 * b + c for a, b, c in permutations(range(5), 3)}
    found, count = code.unique(return_counts=True)
    assert set(found.tolist()) == expected
    assert float((count - 1000).abs().max()) < 5 * 1000**0.5


def test_no_triplet_of_inliers_is_pruned() -> None:
    """Both ends of an edge may be off by one threshold, in opposite directions."""
    generator = torch.Generator().manual_seed(0)
    x = 20 * torch.rand(500, 3, 3, generator=generator)
    off = torch.nn.functional.normalize(torch.randn(500, 3, 3, generator=generator), dim=-1)
    assert ransac.same_edges(x, x + 0.999 * off).all()
    assert ransac.same_edges(x, 3 * x).double().mean() < 0.1


def test_a_robust_mean_is_the_least_truncated_cost() -> None:
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        values = torch.cat(
            [torch.randn(8, generator=generator) / 4, 8 * torch.randn(20, generator=generator)]
        ).double()
        found = teaser.robust_mean(values, 0.5)
        grid = torch.linspace(-30, 30, 60_001).double()
        costs = ((values - torch.cat([grid, found[None]])[:, None]) / 0.5).square().clamp_max(1.0)
        assert costs.sum(1)[-1] <= costs.sum(1)[:-1].min() + 1e-9
    assert float(teaser.robust_mean(torch.tensor([2.5]).double(), 0.5)) == 2.5


def test_a_robust_rotation_stands_half_of_the_tims_wrong() -> None:
    generator = torch.Generator().manual_seed(0)
    a = 10 * torch.randn(200, 3, generator=generator).double()
    R = torch.from_numpy(random_pose(0))[:3, :3]
    b = a @ R.T + 0.1 * torch.randn(200, 3, generator=generator).double()
    b[:100] = 10 * torch.randn(100, 3, generator=generator).double()
    found, sound = teaser.robust_rotation(a, b, 1.0)
    assert sound
    assert float((found - R).abs().max()) < 0.01


@BACKENDS
def test_the_second_order_graph_is_the_sum_over_triangles(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = make_task(60, inlier_ratio=0.4, backend=backend)
    bar = mac.strictness(60)
    first = np.array([[1 - gap(task, i, j) ** 2 for j in range(60)] for i in range(60)])
    first = np.where(first >= bar, first, 0)
    np.fill_diagonal(first, 0)
    expected = first * (first @ first)
    for share in (0.0, 1.0):  # the dense and the sparse product
        monkeypatch.setattr(cpu, "MAX_SPARSE_EDGES", share)
        graph = mac.second_order_graph(task)
        np.testing.assert_allclose(graph, expected, rtol=1e-3, atol=1e-3)


def test_every_match_keeps_its_heaviest_clique() -> None:
    graph = np.triu(np.random.default_rng(0).random((8, 8)), 1).astype(np.float32)
    graph = graph + graph.T
    cliques = [(0, 1, 2), (0, 1, 3, 4), (2, 3, 5), (4, 5, 6), (0, 2, 5)]  # none has match 7
    weights = mac.clique_weights(cliques, graph)
    for clique, weight in zip(cliques, weights, strict=True):
        edges = [graph[i, j] for i in clique for j in clique if i < j]
        assert weight == pytest.approx(sum(edges), rel=1e-5)
    expected = {
        max((w, k) for k, w in enumerate(weights) if node in cliques[k])[1] for node in range(7)
    }
    assert set(mac.heaviest_of_each(cliques, weights, 8).tolist()) == expected


def test_neighbours_in_features_leave_the_seed_out_where_they_can() -> None:
    features = torch.randn(100, 8, generator=torch.Generator().manual_seed(0))
    seeds = torch.tensor([4, 50])
    members = pointdsc.nearest_in_features(features, seeds)
    assert members.indices.shape == (1, 2, 40)
    unit = torch.nn.functional.normalize(features, dim=-1)
    for row, seed in zip(members.indices[0], seeds.tolist(), strict=True):
        others = [j for j in range(100) if j != seed]
        best = sorted(others, key=lambda j: -float(unit[j] @ unit[seed]))[:40]
        assert set(row.tolist()) == set(best)
    few = pointdsc.nearest_in_features(features[:10], torch.tensor([4]))
    assert sorted(few.indices[0, 0].tolist()) == list(range(10))
