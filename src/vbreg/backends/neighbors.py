"""Nearest neighbours within a radius: a k-d tree on the CPU, a sorted voxel grid elsewhere.

In many clouds at once, the distances of all pairs stand in for the grid. All give the same answer.
The grid is plain torch, so it also runs on CPU tensors, where the tree checks it; there the tree is
several times quicker (`benchmarks/backends.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from scipy.spatial import cKDTree
from torch import Tensor

from vbreg.backends.devices import is_cpu
from vbreg.errors import VBRegError
from vbreg.inputs import check_points, positive_number

Neighbors = tuple[Tensor, Tensor, Tensor]  # index (M, k), distance2 (M, k), valid (M, k)

MAX_CANDIDATE_PAIRS = 2**22  # candidate pairs the grid holds at a time: some 300 MB
MAX_DISTANCES = 2**27  # held at a time by a GPU: half a GB, or one in float64
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
    positive_number(radius, "radius")
    if max_neighbors < 1:
        raise VBRegError(f"max_neighbors is {max_neighbors}: give at least 1")
    if queries.device != points.device:
        raise VBRegError(
            f"points are on {points.device}, queries on {queries.device}: move them to one device"
        )
    k = min(max_neighbors, len(points))
    if k == 0 or len(queries) == 0:
        return _no_neighbors(queries, k)
    search = tree_radius_knn if is_cpu(points.device) else grid_radius_knn
    return search(points, queries, radius, k)


def batched_radius_knn(
    points: Tensor,  # (B, N, 3)
    queries: Tensor,  # (B, Q, 3)
    radius: float,  # or infinity
    max_neighbors: int,
    real: Tensor,  # (B, N) which of the points count
) -> Neighbors:
    """Find neighbours as `radius_knn` in B clouds at once -> (B, Q, k) each.

    Fewer than k points of a cloud leave slots without a neighbour.
    """
    k = min(max_neighbors, points.shape[1])
    if not is_cpu(points.device):
        return all_radius_knn(points, queries, radius, k, real)
    found = []
    for cloud, query, kept in zip(points, queries, real, strict=True):
        rows = kept.nonzero().squeeze(-1)
        if len(rows) == 0 or len(query) == 0:
            found.append(_no_neighbors(query, k))
            continue
        index, distance2, valid = tree_radius_knn(cloud[rows], query, radius, k)
        found.append((rows[index], distance2, valid))
    index, distance2, valid = (torch.stack(parts) for parts in zip(*found, strict=True))
    return index, distance2, valid


def all_radius_knn(
    points: Tensor, queries: Tensor, radius: float, k: int, real: Tensor
) -> Neighbors:
    """Compute `batched_radius_knn` by the distances of all pairs, some queries at a time."""
    step = max(1, MAX_DISTANCES // max(1, real.numel()))
    parts = [_by_distances(points, some, radius, k, real) for some in queries.split(step, dim=1)]
    index, distance2, valid = (torch.cat(part, dim=1) for part in zip(*parts, strict=True))
    return index, distance2, valid


def _by_distances(
    points: Tensor, queries: Tensor, radius: float, k: int, real: Tensor
) -> Neighbors:
    apart = torch.cdist(queries, points, compute_mode="donot_use_mm_for_euclid_dist")
    apart.masked_fill_(~real.unsqueeze(1), torch.inf)
    if k == 1:
        distance, index = apart.min(-1, keepdim=True)
    else:
        distance, index = apart.topk(k, dim=-1, largest=False)
    valid = (distance <= radius) & distance.isfinite()
    distance2 = distance.square().masked_fill(~valid, torch.inf)
    return index.masked_fill(~valid, 0), distance2, valid


def tree_radius_knn(points: Tensor, queries: Tensor, radius: float, k: int) -> Neighbors:
    """Compute `radius_knn` for k <= N by scipy's k-d tree, of CPU tensors only."""
    tree = cKDTree(points.detach().numpy())
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
