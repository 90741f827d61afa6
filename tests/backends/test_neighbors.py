"""The search for neighbours: a tree, a grid, and the naive search that both have to equal."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vbreg.backends import neighbors
from vbreg.backends.neighbors import (
    Neighbors,
    Searchable,
    grid_radius_knn,
    nearest_by_distances,
    neighbors_within,
    radius_knn,
    tree_radius_knn,
)
from vbreg.errors import VBRegError

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


def distances_radius_knn(points: Tensor, queries: Tensor, radius: float, k: int) -> Neighbors:
    """Compare all distances of one cloud, by the readable form."""
    real = torch.ones(1, len(points), dtype=torch.bool)
    found = nearest_by_distances(points[None], queries[None], real, k, radius)
    index, distance2 = (part[0] for part in found)
    return index, distance2, distance2.isfinite()


SEARCHES = [radius_knn, tree_radius_knn, grid_radius_knn, distances_radius_knn]


def cloud(count: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.rand(count, 3, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def naive(points: Tensor, queries: Tensor, radius: float, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """All distances, sorted: slow and plain."""
    d2 = (queries[:, None] - points[None]).square().sum(-1)
    d2, index = d2.sort(dim=1, stable=True)
    d2, index = d2[:, :k], index[:, :k]
    valid = d2 <= radius * radius
    return index.masked_fill(~valid, 0), d2.masked_fill(~valid, math.inf), valid


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@settings(max_examples=20, deadline=None)
@given(
    n=st.integers(1, 80),
    m=st.integers(1, 40),
    k=st.integers(1, 20),
    radius=st.floats(0.01, 3.0),
    seed=st.integers(0, 1000),
)
def test_equals_the_naive_search(search, dtype, n, m, k, radius, seed):
    points, queries = cloud(n, seed, dtype), cloud(m, seed + 1, dtype) * 3 - 1  # some far outside
    k = min(k, n)
    index, d2, valid = search(points, queries, radius, k)
    expected_index, expected_d2, expected_valid = naive(points, queries, radius, k)
    assert index.dtype == torch.int64
    assert d2.dtype == dtype
    assert torch.equal(valid, expected_valid)
    torch.testing.assert_close(d2, expected_d2)
    if dtype == torch.float64:  # in float32 rounding may put one before the other
        assert torch.equal(index, expected_index)
    away = (queries[:, None] - points[index]).square().sum(-1)
    torch.testing.assert_close(away[valid], d2[valid])


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 80),
    m=st.integers(1, 40),
    k=st.integers(1, 20),
    radius=st.floats(0.01, 3.0),
    seed=st.integers(0, 1000),
)
def test_all_distances_equal_the_grid(n, m, k, radius, seed):
    generator = torch.Generator().manual_seed(seed)
    # Sixteenths, of which nothing is rounded: many at the same distance, the first comes first.
    points, queries = (
        torch.randint(-8, 24, (count, 3), generator=generator) / 16 for count in (n, m)
    )
    k = min(k, n)
    found = distances_radius_knn(points, queries, radius, k)
    for got, expected in zip(found, grid_radius_knn(points, queries, radius, k), strict=True):
        assert torch.equal(got, expected)


def test_all_distances_in_small_chunks_give_the_same(monkeypatch):
    points = cloud(300, dtype=torch.float32)
    whole = distances_radius_knn(points, points, 0.3, 12)
    monkeypatch.setattr(neighbors, "MAX_DISTANCES", 700)
    for got, expected in zip(distances_radius_knn(points, points, 0.3, 12), whole, strict=True):
        assert torch.equal(got, expected)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("n", "k"), [(300, 1), (300, 30), (300, 40), (300, 128), (90, 128)])
def test_what_a_gpu_finds_is_what_the_tree_finds(device, n, k, monkeypatch):
    points, queries = cloud(n, seed=k, dtype=torch.float32), cloud(50, dtype=torch.float32) * 2
    expected = tree_radius_knn(points, queries, 0.4, min(k, n))
    monkeypatch.setattr(neighbors, "is_cpu", lambda device: False)
    monkeypatch.setattr(neighbors, "tree_radius_knn", None)
    for few in (neighbors.MAX_COMPARED, 0):  # all distances, then the grid
        monkeypatch.setattr(neighbors, "MAX_COMPARED", few)
        for search in (radius_knn, neighbors_within):
            found = search(points.to(device), queries.to(device), 0.4, k)
            for got, wanted in zip(found, expected, strict=True):
                torch.testing.assert_close(got.cpu(), wanted)


@pytest.mark.skipif("cuda" not in DEVICES, reason="needs a GPU")
@pytest.mark.parametrize("k", [1, 30])
def test_a_search_can_be_recorded_and_replayed_on_other_points(k):
    points, others = (cloud(2000, seed, torch.float32).cuda() for seed in (0, 1))
    expected = neighbors_within(others, others, 0.2, k)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = neighbors_within(points, points, 0.2, k)
    points.copy_(others)
    graph.replay()
    for got, wanted in zip(found, expected, strict=True):
        assert torch.equal(got, wanted)


@pytest.mark.parametrize("device", DEVICES)
def test_grid_in_small_chunks_gives_the_same(device, monkeypatch):
    points = cloud(400).to(device)
    whole = grid_radius_knn(points, points, 0.2, 15)
    monkeypatch.setattr(neighbors, "MAX_CANDIDATE_PAIRS", 500)
    for got, expected in zip(grid_radius_knn(points, points, 0.2, 15), whole, strict=True):
        assert torch.equal(got, expected)
    for got, expected in zip(
        tree_radius_knn(points.cpu(), points.cpu(), 0.2, 15), whole, strict=True
    ):
        torch.testing.assert_close(got, expected.cpu())


@pytest.mark.parametrize("search", SEARCHES)
def test_the_radius_itself_counts(search):
    points = torch.tensor([[0.0, 0, 0], [1.0, 0, 0], [2.0, 0, 0]], dtype=torch.float64)
    _, d2, valid = search(points, points[:1], 1.0, 3)
    assert valid.tolist() == [[True, True, False]]
    assert d2[0, :2].tolist() == [0.0, 1.0]


def test_each_point_finds_itself_first():
    points = cloud(100)
    index, d2, valid = radius_knn(points, None, 0.3, 5)
    assert torch.equal(index[:, 0], torch.arange(100))
    assert (d2[:, 0] == 0).all()
    assert valid[:, 0].all()


def test_grid_gives_ties_to_the_lowest_index():
    points = torch.zeros(7, 3)
    index, _, _ = grid_radius_knn(points, points[:1], 1.0, 4)
    assert index.tolist() == [[0, 1, 2, 3]]


def test_grid_survives_a_far_outlier():
    points = torch.cat([cloud(50), torch.full((1, 3), 1e9, dtype=torch.float64)])
    got, expected = grid_radius_knn(points, points, 0.2, 9), tree_radius_knn(points, points, 0.2, 9)
    assert torch.equal(got[0], expected[0])
    assert torch.equal(got[2], expected[2])


@pytest.mark.parametrize(("n", "m"), [(0, 4), (4, 0), (0, 0)])
def test_empty(n, m):
    index, d2, valid = radius_knn(torch.zeros(n, 3), torch.zeros(m, 3), 1.0, 5)
    assert index.shape == d2.shape == valid.shape == (m, min(n, 5))


@pytest.mark.parametrize(
    ("points", "radius", "k", "words"),
    [
        (torch.zeros(4, 2), 1.0, 3, "(4, 2)"),
        (torch.zeros(4, 3, dtype=torch.int64), 1.0, 3, "int64"),
        (torch.full((4, 3), math.nan), 1.0, 3, "4 points"),
        (torch.zeros(4, 3), 0.0, 3, "radius 0.0"),
        (torch.zeros(4, 3), math.nan, 3, "radius nan"),
        (torch.zeros(4, 3), 1.0, 0, "max_neighbors is 0"),
    ],
)
def test_errors_name_the_value(points, radius, k, words):
    with pytest.raises(VBRegError) as error:
        radius_knn(points, None, radius, k)
    assert words in str(error.value)


@pytest.mark.parametrize("by", ["tree", "distances", "distances in pieces"])
def test_many_clouds_at_once_give_what_each_gives_alone(
    by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    points, queries = (torch.rand(3, n, 3, generator=generator) for n in (80, 40))
    real = torch.rand(3, 80, generator=generator) < 0.8
    if by == "distances in pieces":
        monkeypatch.setattr(neighbors, "MAX_DISTANCES", 3 * 80 * 7)
    for k in (1, 4):
        if by == "tree":
            index, distance2, valid = Searchable(points, real).nearest(queries, 0.2, k)
        else:
            index, distance2 = nearest_by_distances(points, queries, real, k, 0.2)
            valid = distance2.isfinite()
        for b in range(3):
            rows = real[b].nonzero().squeeze(-1)
            expected = radius_knn(points[b, rows], queries[b], 0.2, k)
            assert torch.equal(valid[b], expected[2])
            assert torch.equal(index[b][valid[b]], rows[expected[0]][valid[b]])
            torch.testing.assert_close(distance2[b][valid[b]], expected[1][valid[b]])
            assert not index[b][~valid[b]].any()


def test_fewer_points_than_neighbors_leave_slots_empty() -> None:
    points = torch.rand(1, 3, 3, generator=torch.Generator().manual_seed(1))
    real = torch.tensor([[True, False, True]])
    for index, distance2 in (
        Searchable(points, real).nearest(points, torch.inf, 3)[:2],
        nearest_by_distances(points, points, real, 3),
    ):
        there = distance2.isfinite()
        assert there.sum(-1).tolist() == [[2, 2, 2]]
        assert not (index[there] == 1).any()
        assert not index[~there].any()


def test_a_cloud_without_points_has_no_neighbors() -> None:
    points, none = torch.zeros(1, 5, 3), torch.zeros(1, 5).bool()
    index, distance2, valid = Searchable(points, none).nearest(points, torch.inf, 2)
    assert not valid.any()
    assert not index.any()
    assert distance2.isinf().all()
