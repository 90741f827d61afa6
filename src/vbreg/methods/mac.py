"""MAC (Zhang et al., CVPR 2023): maximal cliques of compatible matches are hypotheses.

The largest clique is not always the right one. So the maximal cliques of a strict second-order
compatibility graph are looked at, all of them or as many as a bounded search finds, one for each
match at least; each match keeps the heaviest one it is in, each of these gives a pose, and the
matches vote on the poses.
"""

from __future__ import annotations

from itertools import chain

import numpy as np
import torch
from torch import Tensor

from vbreg.compatibility import row_chunks
from vbreg.estimation import best_hypothesis, take_members
from vbreg.geometry import procrustes
from vbreg.methods.cliques import maximal_cliques
from vbreg.methods.common import Answer, LocalMethod, Task, undetermined
from vbreg.methods.interface import Method
from vbreg.types import Float32, Int64

# Edges join matches with beta at least this. The authors' code has values for numbers of matches
# and kinds of descriptor, from 0.9 for 250 to 0.999 for 5000; FPFH on whole clouds has 0.99.
STRICTNESS = ((250, 0.9), (500, 0.95))
STRICTEST = 0.99


def strictness(n: int) -> float:
    """Return the least beta of an edge, for n matches."""
    return next((bar for most, bar in STRICTNESS if n <= most), STRICTEST)


def second_order_graph(task: Task) -> Float32:
    """Return (n, n) weights: beta of the two, times the sum over third matches of beta with either.

    An edge stays only where it closes a triangle.
    """
    source, target, n = task.source[0], task.target[0], len(task)
    first = source.new_empty(n, n)
    for rows in row_chunks(n, n, maps=3):
        first[rows] = task.backend.compatibility(source[rows], target[rows], source, target)
    first.masked_fill_(first < strictness(n), 0.0).fill_diagonal_(0.0)
    return np.asarray(task.backend.triangle_weights(first).cpu().numpy(), dtype=np.float32)


def clique_weights(cliques: list[tuple[int, ...]], graph: Float32) -> Float32:
    """Return the sum of the edges of each clique."""
    weights = np.empty(len(cliques), dtype=np.float32)
    sizes = np.array([len(clique) for clique in cliques])
    for size in np.unique(sizes):
        same = np.flatnonzero(sizes == size)
        for some in np.array_split(same, 1 + len(same) * int(size) ** 2 // 2**22):
            nodes = np.array([cliques[k] for k in some]).reshape(len(some), size)
            weights[some] = graph[nodes[:, :, None], nodes[:, None, :]].sum((1, 2)) / 2
    return weights


def heaviest_of_each(cliques: list[tuple[int, ...]], weights: Float32, n: int) -> Int64:
    """Choose the cliques that are the heaviest of some match (node-guided selection), ascending.

    Of equally heavy ones the first counts.
    """
    order = np.argsort(-weights, kind="stable")[::-1]  # so that the best is written last
    nodes = np.fromiter(chain.from_iterable(cliques[k] for k in order), dtype=np.int64)
    sizes = np.array([len(cliques[k]) for k in order])
    chosen = np.full(n, -1)
    chosen[nodes] = np.repeat(order, sizes)
    return np.unique(chosen[chosen >= 0])


def fit(task: Task, cliques: list[tuple[int, ...]]) -> tuple[Tensor, Tensor]:
    """Fit a pose to each clique, all members alike -> T (1, K, 4, 4), sound (1, K)."""
    size = max(len(clique) for clique in cliques)
    index = np.zeros((len(cliques), size), dtype=np.int64)
    weight = np.zeros((len(cliques), size), dtype=np.float32)
    for k, clique in enumerate(cliques):
        index[k, : len(clique)], weight[k, : len(clique)] = clique, 1.0
    poses = []
    for rows in row_chunks(len(cliques), size, maps=12):
        members = torch.from_numpy(index[rows]).unsqueeze(0).to(task.source.device)
        w = torch.from_numpy(weight[rows]).unsqueeze(0).to(task.source.device)
        x, y = take_members(task.source, members), take_members(task.target, members)
        poses.append(procrustes(x, y, w))
    T, sound = zip(*poses, strict=True)
    return torch.cat(T, dim=1), torch.cat(sound, dim=1)


def closeness(d2: Tensor) -> Tensor:
    """Return the gain of the paper's mean-average-error metric: 1 - d / tau for inliers."""
    return (1.0 - d2.sqrt()).clamp_min(0.0)


def solve(task: Task) -> Answer:
    """Find the pose that the matches prefer among those of all chosen cliques."""
    graph = second_order_graph(task)
    cliques = list(maximal_cliques(graph > 0))
    if not cliques:
        return Answer(undetermined())
    chosen = heaviest_of_each(cliques, clique_weights(cliques, graph), len(task))
    T, sound = fit(task, [cliques[k] for k in chosen])
    best = best_hypothesis(T, sound, task.scores(T, closeness))
    return Answer(task.refined(best))


def open_(device: torch.device) -> Method:
    """Open MAC on a device."""
    return LocalMethod(solve, device)
