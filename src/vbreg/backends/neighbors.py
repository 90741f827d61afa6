"""Nearest neighbours within a radius: a k-d tree on the CPU; elsewhere all distances, or a grid.

All distances are compared where points and queries are few, and always in clouds that are asked
again and again; a sorted voxel grid serves larger ones. All give the same answer. The backend of
the device compares the distances: `nearest_by_distances` is the readable form, in torch, and a GPU
has kernels. Grid and readable form also run on CPU tensors, where the tree checks them; there the
tree is several times quicker (`benchmarks/backends.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from scipy.spatial import cKDTree
from torch import Tensor

from vbreg import backends
from vbreg.backends.devices import current, is_cpu
from vbreg.errors import VBRegError
from vbreg.inputs import check_points, positive_number

Neighbors = tuple[Tensor, Tensor, Tensor]  # index (M, k), distance2 (M, k), valid (M, k)

MAX_CANDIDATE_PAIRS = 2**22  # candidate pairs the grid holds at a time: some 300 MB
MAX_DISTANCES = 2**25  # held at a time: an eighth of a GB, and their keys twice as much
MAX_COMPARED = 2**27  # pairs of points and queries, up to which all distances beat the grid
MAX_CELLS = 2**20  # per axis, so that three axes fit an int64 key


def radius_knn(
    points: Tensor, queries: Tensor | None, radius: float, max_neighbors: int
) -> Neighbors:
    """Find the `max_neighbors` nearest of `points` (N, 3) within `radius` of each query.

    queries (M, 3), or None for the points themselves (each then finds itself at distance 0).
    Nearest first -> index (M, k) int64, distance2 (M, k), valid (M, k) bool, where
    k = min(max_neighbors, N).
    A slot without a neighbour holds index 0, distance2 inf and valid False.
    """
    check_points("points", points)
    if queries is None:
        queries = points
    else:
        check_points("queries", queries)
    radius = positive_number(radius, "radius")
    if max_neighbors < 1:
        raise VBRegError(f"max_neighbors is {max_neighbors}: give at least 1")
    if queries.device != points.device:
        raise VBRegError(
            f"points are on {points.device}, queries on {queries.device}: move them to one device"
        )
    return neighbors_within(points, queries, radius, max_neighbors)


def neighbors_within(
    points: Tensor,
    queries: Tensor,
    radius: float,
    max_neighbors: int,
    real: Tensor | None = None,  # (N,) which of the points count; left out, all do
) -> Neighbors:
    """Find what `radius_knn` finds, of input that is known to be sound.

    Nothing is checked, so that nobody waits for a GPU, and where all distances are compared the
    search can be recorded as part of a CUDA graph. They always are where only some points count.
    """
    k = min(max_neighbors, len(points))
    if k == 0 or len(queries) == 0:
        return _no_neighbors(queries, k)
    many = len(points) * len(queries) > MAX_COMPARED or points.dtype != torch.float32
    if real is None and is_cpu(points.device):
        return tree_radius_knn(points, queries, radius, k)
    if real is None and many:
        return grid_radius_knn(points, queries, radius, k)
    every = points.new_ones(len(points), dtype=torch.bool) if real is None else real
    found = Searchable(points.unsqueeze(0), every.unsqueeze(0)).nearest(
        queries.unsqueeze(0), radius, k
    )
    index, distance2, valid = (part.squeeze(0) for part in found)
    return index, distance2, valid


@dataclass(frozen=True, eq=False)
class Searchable:
    """Points of B clouds that neighbours are looked for among, any number of times."""

    points: Tensor  # (B, N, 3)
    real: Tensor  # (B, N) which of the points count

    def nearest(self, queries: Tensor, radius: float, max_neighbors: int) -> Neighbors:
        """Find neighbours of queries (B, Q, 3) as `radius_knn` does -> (B, Q, k) each.

        The radius may be infinite. Fewer than k points of a cloud leave slots without a neighbour.
        """
        k = min(max_neighbors, self.points.shape[1])
        if is_cpu(self.points.device):
            found = [
                _asked(tree, rows, query, radius, k)
                for (tree, rows), query in zip(self._trees, queries, strict=True)
            ]
            index, distance2, valid = (torch.stack(parts) for parts in zip(*found, strict=True))
            return index, distance2, valid
        return _by_backend(self.points, queries, self.real, radius, k)

    @cached_property
    def _trees(self) -> list[tuple[cKDTree | None, Tensor]]:
        """The tree of each cloud, None for an empty one, and the rows of its points."""
        rows = [kept.nonzero().squeeze(-1) for kept in self.real]
        clouds = [cloud[row] for cloud, row in zip(self.points, rows, strict=True)]
        trees = [cKDTree(cloud.detach().numpy()) if len(cloud) else None for cloud in clouds]
        return list(zip(trees, rows, strict=True))


def _asked(tree: cKDTree | None, rows: Tensor, queries: Tensor, radius: float, k: int) -> Neighbors:
    """Return the neighbours in a tree by the rows that its points have."""
    if tree is None or len(queries) == 0:
        return _no_neighbors(queries, k)
    index, distance2, valid = _ask(tree, queries, radius, k)
    return rows[index], distance2, valid


def _by_backend(points: Tensor, queries: Tensor, real: Tensor, radius: float, k: int) -> Neighbors:
    """Return the neighbours (B, Q, k) among real points (B, N, 3) that the backend finds."""
    with current(points):
        (index, distance2), _ = backends.run(
            lambda backend: backend.nearest(points, queries, real, k, radius), points.device
        )
    return index, distance2, distance2 < math.inf


def nearest_by_distances(
    points: Tensor, queries: Tensor, real: Tensor, k: int, radius: float = math.inf
) -> tuple[Tensor, Tensor]:
    """Find the k nearest real points (B, N, 3) of queries by the distances of all pairs.

    -> index (B, Q, k), distance2 (B, Q, k), nearest first, of equally near ones the lowest index;
    0 and infinite where fewer are within the radius. Some queries at a time.
    """
    parts = []
    limit = min(radius * radius, torch.finfo(queries.dtype).max)
    for some in queries.split(max(1, MAX_DISTANCES // max(1, real.numel())), dim=1):
        distance2 = torch.zeros_like(some[..., :1])
        for x, y in zip(some.split(1, dim=-1), points.unsqueeze(1).unbind(-1), strict=True):
            distance2 = distance2 + (x - y).square_()  # (B, q, N)
        near = (distance2 <= limit).logical_and_(real.unsqueeze(1))
        parts.append(_smallest(distance2.masked_fill_(~near, math.inf), k))
    index, distance2 = (torch.cat(part, dim=1) for part in zip(*parts, strict=True))
    return index.masked_fill(distance2 == math.inf, 0), distance2


def _smallest(distance2: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return index and value (..., k) of the smallest, of equal ones the lowest index first."""
    if k == 1:
        least = distance2.min(-1, keepdim=True)
        return least.indices, least.values
    if distance2.dtype != torch.float32:
        value, index = distance2.sort(stable=True)
        return index[..., :k], value[..., :k]
    # A positive float is ordered as its bits are, so that one number holds distance and index.
    number = torch.arange(distance2.shape[-1], device=distance2.device)
    key = (distance2.view(torch.int32).long() << 32) | number
    least_keys = key.topk(k, largest=False).values
    return least_keys & (2**32 - 1), (least_keys >> 32).int().view(torch.float32)


def tree_radius_knn(points: Tensor, queries: Tensor, radius: float, k: int) -> Neighbors:
    """Compute `radius_knn` for k <= N by scipy's k-d tree, of CPU tensors only."""
    return _ask(cKDTree(points.detach().numpy()), queries, radius, k)


def _ask(tree: cKDTree, queries: Tensor, radius: float, k: int) -> Neighbors:
    distance, index = tree.query(
        queries.detach().numpy(),
        k=list(range(1, k + 1)),  # a list keeps the axis of k where k is 1
        distance_upper_bound=math.nextafter(radius, math.inf),  # scipy's bound is exclusive
        workers=torch.get_num_threads(),
    )
    distance2 = torch.from_numpy(distance).square_().to(queries.dtype)  # (M, k)
    valid = torch.isfinite(distance2)
    return torch.from_numpy(index).long().masked_fill_(~valid, 0), distance2, valid


def grid_radius_knn(points: Tensor, queries: Tensor, radius: float, k: int) -> Neighbors:
    """Compute `radius_knn` for k <= N by a voxel grid in torch; ties go to the lowest index."""
    first, last, order = _candidate_runs(points, queries, radius)
    index, distance2, valid = _no_neighbors(queries, k)
    for chunk in _chunks((last - first).sum(1)):
        query, candidate = _expand_runs(first[chunk], last[chunk])
        candidate = order[candidate]
        d2 = (points[candidate] - queries[chunk][query]).square().sum(-1)  # (pairs,)
        near = d2 <= radius * radius
        query, candidate, d2 = query[near], candidate[near], d2[near]
        rank = torch.argsort(candidate)
        rank = rank[torch.argsort(d2[rank], stable=True)]
        rank = rank[torch.argsort(query[rank], stable=True)]  # by query, distance, index
        query, candidate, d2 = query[rank], candidate[rank], d2[rank]
        column = torch.arange(len(query), device=query.device) - torch.searchsorted(query, query)
        kept = column < k
        row, column = query[kept] + chunk.start, column[kept]
        index[row, column] = candidate[kept]
        distance2[row, column] = d2[kept]
        valid[row, column] = True
    return index, distance2, valid


def _no_neighbors(queries: Tensor, k: int) -> Neighbors:
    shape = (len(queries), k)
    return (
        torch.zeros(shape, dtype=torch.int64, device=queries.device),
        queries.new_full(shape, math.inf),
        torch.zeros(shape, dtype=torch.bool, device=queries.device),
    )


def _candidate_runs(
    points: Tensor, queries: Tensor, radius: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Tell where each query's candidates lie in the points sorted by cell.

    -> first, last (M, 9): nine half-open runs of `order` (N,), the points' indices by cell.
    """
    low, high = points.amin(0), points.amax(0)  # (3,)
    # A little wider than the radius, so that rounding cannot put a neighbour two cells away.
    size = max(1.001 * radius, float((high - low).amax()) / MAX_CELLS)
    count = ((high - low) / size).floor() + 1  # (3,)
    width = count.long() + 4  # two empty cells on each side: the border of the clamped queries
    stride = torch.stack([width[1] * width[2], width[2], torch.ones_like(width[2])])

    def key_of(x: Tensor) -> Tensor:  # (n, 3) -> (n,)
        cell = torch.minimum(((x - low) / size).floor().clamp_min(-1), count)
        return ((cell.long() + 2) * stride).sum(-1)

    key, order = torch.sort(key_of(points), stable=True)
    # Cells that follow each other along z have consecutive keys: 27 cells are nine runs of three.
    step = torch.tensor([-1, 0, 1], device=points.device)
    middle = key_of(queries)[:, None] + (step[:, None] * stride[0] + step * stride[1]).reshape(-1)
    first = torch.searchsorted(key, middle - 1)
    last = torch.searchsorted(key, middle + 1, right=True)
    return first, last, order


def _expand_runs(first: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """List the pairs of runs (m, 9): the row of each, and its place within the sorted points."""
    length = (last - first).reshape(-1)
    end = length.cumsum(0)
    run = torch.repeat_interleave(length)  # (pairs,)
    within = torch.arange(len(run), device=run.device) - (end - length)[run]
    return run // first.shape[1], first.reshape(-1)[run] + within


def _chunks(pairs: Tensor) -> Iterator[slice]:
    """Cut the queries into slices whose candidate pairs (M,) sum to at most the limit."""
    end = pairs.cumsum(0)
    begin, done = 0, 0
    while begin < len(pairs):
        stop = int(torch.searchsorted(end, done + MAX_CANDIDATE_PAIRS, right=True))
        stop = max(stop, begin + 1)
        yield slice(begin, stop)
        begin, done = stop, int(end[stop - 1])
