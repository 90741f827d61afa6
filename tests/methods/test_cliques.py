"""Against all subsets of small graphs, and on graphs that are too large for it."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from vbreg.methods.cliques import bitsets, core_numbers, maximal_cliques, maximum_clique
from vbreg.types import Bool


def random_graph(n: int, density: float, seed: int) -> Bool:
    upper = np.triu(np.random.default_rng(seed).random((n, n)) < density, 1)
    return np.asarray(upper | upper.T)


def is_clique(adjacency: Bool, members: tuple[int, ...]) -> bool:
    return all(adjacency[i, j] for i, j in combinations(members, 2))


def all_cliques(adjacency: Bool) -> set[tuple[int, ...]]:
    n = len(adjacency)
    return {
        members
        for size in range(1, n + 1)
        for members in combinations(range(n), size)
        if is_clique(adjacency, members)
    }


GRAPHS = [(n, density, seed) for n in (1, 5, 11) for density in (0.2, 0.5, 0.8) for seed in (0, 1)]


@pytest.mark.parametrize(("n", "density", "seed"), GRAPHS)
def test_the_maximum_clique_is_the_largest_subset(n: int, density: float, seed: int) -> None:
    adjacency = random_graph(n, density, seed)
    found = maximum_clique(adjacency)
    assert is_clique(adjacency, tuple(found.members))
    assert len(found.members) == max(len(c) for c in all_cliques(adjacency))
    assert found.exact


@pytest.mark.parametrize(("n", "density", "seed"), GRAPHS)
def test_maximal_cliques_are_those_in_no_other(n: int, density: float, seed: int) -> None:
    adjacency = random_graph(n, density, seed)
    every = all_cliques(adjacency)
    expected = {c for c in every if not any(set(c) < set(d) for d in every)}
    assert sorted(maximal_cliques(adjacency, smallest=1)) == sorted(expected)
    assert sorted(maximal_cliques(adjacency)) == sorted(c for c in expected if len(c) >= 3)


def test_core_numbers_are_those_of_peeling_one_by_one() -> None:
    adjacency = random_graph(40, 0.2, seed=5)
    core, order = core_numbers(adjacency)
    for k in range(int(core.max()) + 2):
        kept = set(range(40))
        while loose := [v for v in kept if adjacency[v, sorted(kept)].sum() < k]:
            kept -= {loose[0]}
        assert kept == set(np.flatnonzero(core >= k)), k
    for position, v in enumerate(order):
        assert adjacency[v, order[position:]].sum() <= core[v]


def test_bits_are_columns() -> None:
    adjacency = random_graph(70, 0.3, seed=0)
    for row, bits in zip(adjacency, bitsets(adjacency), strict=True):
        assert [bool(bits >> j & 1) for j in range(70)] == row.tolist()


def test_a_planted_clique_is_found_among_thousands() -> None:
    adjacency = random_graph(2000, 0.1, seed=3)
    planted = np.random.default_rng(0).choice(2000, 25, replace=False)
    adjacency[np.ix_(planted, planted)] = True
    np.fill_diagonal(adjacency, False)
    assert set(planted) <= set(maximum_clique(adjacency).members.tolist())


@pytest.mark.parametrize("steps", [0, 10, 1000])
def test_a_search_cut_short_gives_cliques_all_the_same(steps: int) -> None:
    adjacency = random_graph(120, 0.7, seed=1)
    found = maximum_clique(adjacency, steps)
    assert not found.exact
    assert len(found.members) > 3
    assert is_clique(adjacency, tuple(found.members))
    some = list(maximal_cliques(adjacency, steps=steps))
    assert set().union(*some) == set(range(120))  # each vertex has one
    assert len(set(some)) == len(some) <= 120 + steps
    for clique in some:
        assert is_clique(adjacency, clique)
        assert not adjacency[list(clique)].all(0).any()  # nothing can be added
    assert some == list(maximal_cliques(adjacency, steps=steps))


def test_a_graph_without_edges_has_no_larger_clique() -> None:
    adjacency = np.zeros((5, 5), dtype=bool)
    assert len(maximum_clique(adjacency).members) == 1
    assert list(maximal_cliques(adjacency)) == []
    assert len(maximum_clique(np.zeros((0, 0), dtype=bool)).members) == 0


def test_cliques_may_be_deeper_than_python_recurses() -> None:
    """Clean matches are all compatible."""
    adjacency = ~np.eye(1500, dtype=bool)
    adjacency[0, 1] = adjacency[1, 0] = False
    found = maximum_clique(adjacency)
    assert (len(found.members), found.exact) == (1499, True)
    assert [len(c) for c in maximal_cliques(adjacency)] == [1499, 1499]
