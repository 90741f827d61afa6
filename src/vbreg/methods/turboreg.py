"""TurboReg (Yan et al., ICCV 2025): poses of tight 3-cliques that are found from pivots.

Three matches fix a pose, and one from three that agree closely is nearly as good as one from many.
So no large cliques are looked for. The edges of a tight compatibility graph that close the most
triangles are the pivots; each is joined by the two matches that make the heaviest triangles with
it. The work is the same for every pivot, so that all of them are done at once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vbreg.compatibility import distances, row_chunks
from vbreg.estimation import best_hypothesis
from vbreg.matching import MAX_CORRESPONDENCES, evenly
from vbreg.methods.common import Answer, LocalMethod, Task, is_inlier, undetermined
from vbreg.methods.interface import Method

PIVOTS = 2000  # K1 of the paper
CLIQUES_PER_PIVOT = 2  # K2
# In inlier thresholds. The authors' code has 12 mm and 15 cm where the threshold is 10 cm.
LENGTH_TOLERANCE = 0.12  # by which an edge may differ between the clouds
MIN_EDGE = 1.5  # sum of an edge's lengths in both clouds; shorter ones hardly fix a rotation
MAX_MATCHES = MAX_CORRESPONDENCES  # in the graph, whose memory is their square; more are thinned


def tight_graph(source: Tensor, target: Tensor) -> Tensor:
    """Return (n, n) ones where two matches (n, 3) are far apart and keep their distance."""
    n = len(source)
    graph = source.new_empty(n, n)
    for rows in row_chunks(n, n, maps=4):
        x, y = distances(source[rows], source), distances(target[rows], target)
        graph[rows] = ((x - y).abs() < LENGTH_TOLERANCE) & (x + y > MIN_EDGE)
    return graph


def pivot_cliques(weights: Tensor) -> Tensor:
    """Return (C, 3) different triangles of a graph (n, n), those of the heaviest edges.

    Vertices rise along a row: an edge is joined by later vertices alone, so that no triangle is
    found from two pivots.
    """
    ordered = weights.triu(1)
    edges = ordered.flatten().nonzero().squeeze(-1)
    heaviest = ordered.flatten()[edges].topk(min(PIVOTS, len(edges))).indices
    first, second = edges[heaviest] // len(weights), edges[heaviest] % len(weights)  # (P,)
    to_first, to_second = ordered[first], ordered[second]  # (P, n)
    triangle = to_first + to_second  # the pivot's own weight is the same in its row
    triangle.masked_fill_((to_first == 0) | (to_second == 0), 0.0)
    weight, third = triangle.topk(min(CLIQUES_PER_PIVOT, len(weights)), dim=-1)
    cliques = torch.stack([first, second], dim=-1).unsqueeze(1).expand(-1, third.shape[1], -1)
    return torch.cat([cliques, third.unsqueeze(-1)], dim=-1)[weight > 0]


def solve(task: Task) -> Answer:
    """Find the pose with the most inliers among those of all cliques."""
    rows = evenly(len(task), MAX_MATCHES).to(task.device)
    weights = task.backend.triangle_weights(tight_graph(task.source[0, rows], task.target[0, rows]))
    cliques = rows[pivot_cliques(weights)]  # (C, 3)
    if not len(cliques):
        return Answer(undetermined())
    T, sound = task.fitted(cliques)
    return Answer(task.refined(best_hypothesis(T, sound, task.scores(T, is_inlier))))


def open_(device: torch.device) -> Method:
    """Open TurboReg on a device."""
    return LocalMethod(solve, device)
