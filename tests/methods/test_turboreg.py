"""Cliques that pivots find, against all triangles of small graphs."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch

from tests.conftest import make_problem
from tests.methods.helpers import error, opened, posed
from vbreg.methods import turboreg
from vbreg.methods.turboreg import LENGTH_TOLERANCE, MIN_EDGE, pivot_cliques, tight_graph


def random_weights(n: int, density: float, seed: int) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    upper = np.triu((rng.random((n, n)) < density) * rng.random((n, n)), 1)
    return torch.from_numpy(upper + upper.T).float()


def triangles(weights: torch.Tensor) -> set[tuple[int, ...]]:
    return {
        clique
        for clique in combinations(range(len(weights)), 3)
        if all(weights[i, j] > 0 for i, j in combinations(clique, 2))
    }


@pytest.mark.parametrize("seed", range(4))
def test_enough_cliques_a_pivot_give_every_triangle_once(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turboreg, "CLIQUES_PER_PIVOT", 14)
    weights = random_weights(14, 0.4, seed)
    found = [tuple(row) for row in pivot_cliques(weights).tolist()]
    assert len(found) == len(set(found))
    assert set(found) == triangles(weights)


def test_the_heaviest_edges_are_joined_by_their_heaviest_triangles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turboreg, "PIVOTS", 5)
    weights = random_weights(20, 0.6, seed=1)
    edges = sorted(combinations(range(20), 2), key=lambda edge: -float(weights[edge]))[:5]
    expected = set()
    for i, j in edges:
        thirds = [k for k in range(j + 1, 20) if weights[i, k] > 0 and weights[j, k] > 0]
        thirds.sort(key=lambda k: -float(weights[i, k] + weights[j, k]))
        expected |= {(i, j, k) for k in thirds[:2]}
    assert {tuple(row) for row in pivot_cliques(weights).tolist()} == expected


def test_members_of_a_clique_keep_their_distances_and_lie_apart() -> None:
    problem = make_problem(150, inlier_ratio=0.3, noise=0.01)
    source, target = (torch.from_numpy(end).float() / 0.1 for end in problem[:2])
    graph = tight_graph(source, target)
    cliques = pivot_cliques(graph * (graph @ graph))
    assert len(cliques) > 100
    for i, j in combinations(range(3), 2):
        x = (source[cliques[:, i]] - source[cliques[:, j]]).norm(dim=-1)
        y = (target[cliques[:, i]] - target[cliques[:, j]]).norm(dim=-1)
        assert float((x - y).abs().max()) < LENGTH_TOLERANCE + 1e-4
        assert float((x + y).min()) > MIN_EDGE - 1e-4


def test_a_graph_without_triangles_has_no_clique() -> None:
    assert pivot_cliques(torch.zeros(5, 5)).shape == (0, 3)
    assert pivot_cliques(torch.eye(4).roll(1, 0) + torch.eye(4).roll(-1, 0)).shape == (0, 3)


def test_more_matches_than_the_graph_holds_are_thinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turboreg, "MAX_MATCHES", 200)
    problem = make_problem(600, inlier_ratio=0.3)
    result = opened("turboreg")(posed(problem.source, problem.target))
    assert error(result.T_target_source, problem.T)[1] < 0.02
    assert result.inliers[problem.inliers].all()  # all matches count in the end
