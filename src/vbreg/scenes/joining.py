"""From edges that may be wrong to groups of scans, each in one frame: rather apart than wrong.

Edges that are nearly certain come first; what they join are groups. Two groups are then joined if
enough of the weaker edges between them agree on one pose, and if few contradict it: two rooms that
look alike give wrong edges of which some agree, and others do not. Last, every edge that agrees
with the poses has its say. Shapes: K scans, E edges.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from vbreg.motions import adjoint, inverse
from vbreg.scenes.graph import (
    MAX_ERROR,
    GraphSolution,
    PoseEdges,
    residuals,
    solve_graph,
    squared_errors,
)
from vbreg.types import LIKELY, Bool, Float64, Int64

SURE_EDGE = 0.97  # probability from which on an edge is believed by itself
MIN_EVIDENCE = 3.0  # of a join: that of one edge of 95.1 %, or of two of 78 % that agree
MAX_RIVAL = 0.5  # of the evidence, that edges which contradict it may have together
MAX_PROBABILITY = 0.999  # that an edge counts with: nobody knows better
MAX_ROUNDS = 50  # of joining; each joins at least two groups
MAX_HYPOTHESES = 60  # edges between two groups that are tried as their pose


class Join(NamedTuple):
    """What speaks for one pose between two groups of scans, and what against it."""

    groups: tuple[int, int]  # the larger first
    edges: Int64  # rows of the edges that agree
    T_first_second: Float64  # (4, 4) between the frames of the groups
    evidence: float
    rival: float  # the evidence of all edges that contradict it

    @property
    def accepted(self) -> bool:
        """Whether the groups may be put into one frame."""
        return self.evidence >= MIN_EVIDENCE and self.rival <= MAX_RIVAL * self.evidence


class JoinedScans(NamedTuple):
    """Poses of scans in their groups, and the joins that were left out as doubtful."""

    solution: GraphSolution  # `kept` and `error` of all edges
    refused: tuple[Join, ...]  # groups are components of the solution


def evidence_of(probability: Float64) -> Float64:
    """Return what edges speak for their pose: the logarithm of how improbable an error is."""
    return -np.log1p(-np.minimum(probability, MAX_PROBABILITY))


def join_scans(scans: int, edges: PoseEdges) -> JoinedScans:
    """Return poses of all scans, in components that only well-supported edges hold together."""
    used = edges.probability >= SURE_EDGE
    solution = solve_graph(scans, edges.take(used))
    T, component = solution.T_world_scan, solution.component
    refused: list[Join] = []
    for _ in range(MAX_ROUNDS):
        joins = possible_joins(T, component, edges)
        chosen = _disjoint([join for join in joins if join.accepted])
        refused = [join for join in joins if not join.accepted and join.evidence >= MIN_EVIDENCE]
        if not chosen:
            break
        for join in chosen:
            T[component == join.groups[1]] = join.T_first_second @ T[component == join.groups[1]]
            used[join.edges] = True
        solution = solve_graph(scans, edges.take(used), start=T)
        if solution.component.max() == component.max():
            break
        T, component = solution.T_world_scan, solution.component
    return JoinedScans(confirmed(T, component, edges), tuple(refused))


def confirmed(T_world_scan: Float64, component: Int64, edges: PoseEdges) -> GraphSolution:
    """Return poses by all edges within components that agree with poses (K, 4, 4)."""
    scans = len(component)
    errors = squared_errors(residuals(T_world_scan, edges), edges)
    within = component[edges.source] == component[edges.target]
    used = within & (errors <= MAX_ERROR**2)
    found = solve_graph(scans, edges.take(used), start=T_world_scan)
    kept = np.zeros(len(edges), dtype=bool)
    kept[used] = found.kept
    errors = np.sqrt(squared_errors(residuals(found.T_world_scan, edges), edges))
    errors[found.component[edges.source] != found.component[edges.target]] = np.inf
    return GraphSolution(found.T_world_scan, found.component, kept, errors)


def possible_joins(T_world_scan: Float64, component: Int64, edges: PoseEdges) -> list[Join]:
    """Return the best join of any two groups that edges lie between, the strongest first."""
    ends = np.stack([component[edges.source], component[edges.target]], axis=1)
    low, high = ends.min(1), ends.max(1)
    between: dict[tuple[int, int], list[int]] = {}
    for e in np.flatnonzero(low != high).tolist():
        between.setdefault((int(low[e]), int(high[e])), []).append(e)
    joins = [
        _best_join(groups, np.array(rows), T_world_scan, component, edges)
        for groups, rows in between.items()
    ]
    return sorted(joins, key=lambda join: -join.evidence)


def _best_join(
    groups: tuple[int, int], rows: Int64, T: Float64, component: Int64, edges: PoseEdges
) -> Join:
    """Return the pose between two groups that most edges speak for."""
    some = _towards(edges.take(rows), component, groups[0])  # target in the first group
    order = np.argsort(-some.probability, kind="stable")[:MAX_HYPOTHESES]
    agree = np.stack([_agreeing(T, some, int(e)) for e in order])  # (H, E)
    pairs = [(int(s), int(t)) for s, t in zip(some.source, some.target, strict=True)]
    scores = [_evidence(some, mask, pairs) for mask in agree]
    best = int(np.argmax(scores))
    said = {pairs[e] for e in np.flatnonzero(agree[best]).tolist()}
    against = ~agree[best] & np.array([pair not in said for pair in pairs])
    against &= some.probability >= LIKELY  # what is less probable than not contradicts nobody
    e = int(order[best])
    T_first_second = T[some.target[e]] @ some.T_target_source[e] @ inverse(T[some.source[e]])
    return Join(
        groups, rows[agree[best]], T_first_second, scores[best], _evidence(some, against, pairs)
    )


def _towards(edges: PoseEdges, component: Int64, group: int) -> PoseEdges:
    """Return the edges with their targets in a group."""
    turn = component[edges.target] != group
    A = adjoint(edges.T_target_source)
    turned = np.swapaxes(A, -1, -2) @ edges.information @ A
    flip = turn[:, None, None]
    return PoseEdges(
        np.where(turn, edges.target, edges.source),
        np.where(turn, edges.source, edges.target),
        np.where(flip, inverse(edges.T_target_source), edges.T_target_source),
        np.where(flip, turned, edges.information),
        edges.probability,
    )


def _agreeing(T: Float64, edges: PoseEdges, e: int) -> Bool:
    """Tell (E,) which edges between two groups agree with edge e on their pose."""
    T_first_second = T[edges.target[e]] @ edges.T_target_source[e] @ inverse(T[edges.source[e]])
    moved = T.copy()
    moved[edges.source] = T_first_second @ T[edges.source]
    r = residuals(moved, edges)
    # What edge e errs moves the second group, as it is seen from the target of each edge.
    A = adjoint(inverse(T[edges.target]) @ T[edges.target[e]])
    own, other = np.linalg.inv(edges.information), np.linalg.inv(edges.information[e])
    C = own + A @ other @ np.swapaxes(A, -1, -2)
    left = np.einsum("ei,ei->e", r, np.linalg.solve(C, r[..., None])[..., 0])
    agree = left <= MAX_ERROR**2
    agree[e] = True
    return agree


def _evidence(edges: PoseEdges, mask: Bool, pairs: list[tuple[int, int]]) -> float:
    """Return the evidence of some edges together; two poses of one pair count once."""
    best: dict[tuple[int, int], float] = {}
    for e in np.flatnonzero(mask).tolist():
        value = float(evidence_of(edges.probability[e]))
        best[pairs[e]] = max(best.get(pairs[e], 0.0), value)
    return sum(best.values())


def _disjoint(joins: list[Join]) -> list[Join]:
    """Return the strongest joins of which no two share a group."""
    taken: set[int] = set()
    chosen = []
    for join in joins:
        if not taken & set(join.groups):
            taken |= set(join.groups)
            chosen.append(join)
    return chosen


def triangle_support(edges: PoseEdges, kept: Bool, scans: int) -> tuple[Int64, Int64]:
    """Return for each edge (E,) how many triangles of kept edges it closes, how many fit.

    A triangle fits if its three poses lead back to the start within their errors. That is evidence
    to show; edges were dropped by the cost of the graph, which sees loops of any length.
    """
    pairs = edges.pairs()
    by_pair = {pairs[e]: e for e in np.flatnonzero(kept).tolist()}
    neighbours: list[set[int]] = [set() for _ in range(scans)]
    for s, t in by_pair:
        neighbours[s].add(t)
        neighbours[t].add(s)
    closed, fits = np.zeros(len(edges), dtype=np.int64), np.zeros(len(edges), dtype=np.int64)
    for e in range(len(edges)):
        s, t = int(edges.source[e]), int(edges.target[e])
        for k in sorted(neighbours[s] & neighbours[t]):
            others = [by_pair[min(s, k), max(s, k)], by_pair[min(k, t), max(k, t)]]
            closed[e] += 1
            fits[e] += _closes(edges, [e, *others], (s, k, t))
    return closed, fits


def _closes(edges: PoseEdges, rows: list[int], corners: tuple[int, int, int]) -> bool:
    """Tell whether three edges lead back to the start within their errors."""
    s, k, t = corners
    three = edges.take(np.array(rows))
    T = np.tile(np.eye(4), (3, 1, 1))  # of t, k, s in the frame of t
    T_k_s = _pose(three, 1, s, k)
    T_t_k = _pose(three, 2, k, t)
    T[1], T[2] = T_t_k, T_t_k @ T_k_s
    number = {t: 0, k: 1, s: 2}
    local = PoseEdges(
        np.array([number[int(x)] for x in three.source]),
        np.array([number[int(x)] for x in three.target]),
        three.T_target_source,
        three.information,
        three.probability,
    )
    # The whole gap is told by the first edge; three errors may add up to it.
    gap = squared_errors(residuals(T, local), local)[0]
    return bool(gap <= 3 * MAX_ERROR**2)


def _pose(edges: PoseEdges, row: int, source: int, target: int) -> Float64:
    """Return T_target_source of an edge, whichever way it is stored."""
    T = edges.T_target_source[row]
    return T if int(edges.source[row]) == source else inverse(T)
