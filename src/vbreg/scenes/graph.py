"""The pose graph: relative poses of pairs in, one pose a scan out, wrong pairs found on the way.

An edge says T_target_source of two scans, how probable it is, and how sure. Poses minimise

    sum over edges of  p^2 min(r' Omega r, c^2),    exp(r^) T_target_source = T_t^-1 T_s,

by graduated non-convexity with truncated least squares (Yang et al., RA-L 2020): from a cost that
no wrong edge spoils to this one, in steps. Every step is least squares by Levenberg and Marquardt
on a sparse matrix, with exact Jacobians. Scans move by T_world_scan exp(d^).
Loops of any length are checked by this cost and need no check of their own: where one does not
close within the errors of its edges, dropping one of them costs less than bending all.
Shapes: K scans, E edges.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import breadth_first_order, connected_components, minimum_spanning_tree
from scipy.sparse.linalg import splu

from vbreg.errors import VBRegError
from vbreg.motions import adjoint, exponential, inverse, left_jacobian_inverse, logarithm
from vbreg.types import Bool, Float64, Int64

MAX_ERROR = 4.7  # standard deviations of six numbers that one right edge in a thousand exceeds
GROWTH = 1.4  # of the convexity parameter in a step
STEPS_EACH = 1  # of least squares, between two changes of the weights
LAST_STEPS = 50  # of least squares, once the weights are decided
RECHECKS = 10  # of all edges under the poses that the kept ones give
SPECTRAL_ROUNDS = 10  # of reweighting in the first guess
TOLERANCE = 1e-9  # of a step, in radians and the unit of the scans
MIN_PROBABILITY = 1e-3  # so that no edge weighs nothing


@dataclass(frozen=True, eq=False)
class PoseEdges:
    """Measured relative poses between scans 0 to K - 1."""

    source: Int64  # (E,)
    target: Int64  # (E,)
    T_target_source: Float64  # (E, 4, 4)
    information: Float64  # (E, 6, 6) of a small motion (omega, v) to the left of the pose
    probability: Float64  # (E,) of being right

    @staticmethod
    def of(
        ends: Sequence[tuple[int, int]],  # source, target
        poses: Sequence[Float64],  # T_target_source (4, 4)
        covariances: Sequence[Float64] | None = None,  # (6, 6), as a `Registration` has it
        probabilities: Sequence[float] | None = None,
    ) -> PoseEdges:
        """Check edges and return them; without covariances all motions are equally sure."""
        E = len(ends)
        pairs = np.asarray(ends, dtype=np.int64).reshape(E, 2)
        T = np.asarray(poses, dtype=np.float64).reshape(E, 4, 4)
        C = np.tile(np.eye(6), (E, 1, 1))
        if covariances is not None:
            C = np.asarray(covariances, dtype=np.float64).reshape(E, 6, 6)
        p = np.ones(E) if probabilities is None else np.asarray(probabilities, dtype=np.float64)
        if p.shape != (E,) or not ((p >= 0) & (p <= 1)).all():
            raise VBRegError(f"probabilities of shape {p.shape}: expected {E} numbers in 0..1")
        if not (np.isfinite(T).all() and np.isfinite(C).all()):
            raise VBRegError("an edge with a pose or a covariance that is not finite: drop it")
        if (pairs[:, 0] == pairs[:, 1]).any() or (pairs < 0).any():
            raise VBRegError("an edge from a scan to itself, or to a scan below 0: drop it")
        return PoseEdges(pairs[:, 0], pairs[:, 1], T, information_of(C), p)

    def __len__(self) -> int:
        return len(self.source)

    def pairs(self) -> list[tuple[int, int]]:
        """Return the two scans of each edge, the lower number first."""
        ends = zip(self.source.tolist(), self.target.tolist(), strict=True)
        return [(min(s, t), max(s, t)) for s, t in ends]

    def take(self, rows: Bool | Int64) -> PoseEdges:
        """Return some of the edges."""
        return PoseEdges(
            self.source[rows],
            self.target[rows],
            self.T_target_source[rows],
            self.information[rows],
            self.probability[rows],
        )


class GraphSolution(NamedTuple):
    """Poses of the scans, and which edges agree with them."""

    T_world_scan: Float64  # (K, 4, 4), each component in a frame of its own
    component: Int64  # (K,) 0 is the largest; a scan without a kept edge is alone in its own
    kept: Bool  # (E,)
    error: Float64  # (E,) of each edge in standard deviations; infinite between components


def information_of(covariance: Float64) -> Float64:
    """Return the inverse (..., 6, 6) of covariances that may be singular.

    What has no variance at all gets a millionth of the largest, and a direction of a variance
    below zero, by rounding, too.
    """
    values, vectors = np.linalg.eigh((covariance + np.swapaxes(covariance, -1, -2)) / 2)
    largest = values.max(-1, keepdims=True)
    if not (largest > 0).all():
        raise VBRegError("a covariance without any variance: expected positive numbers")
    values = np.maximum(values, 1e-12 * largest)
    return (vectors / values[..., None, :]) @ np.swapaxes(vectors, -1, -2)


def solve_graph(
    scans: int,
    edges: PoseEdges,
    *,
    max_error: float = MAX_ERROR,
    start: Float64 | None = None,
) -> GraphSolution:
    """Return poses that most edges agree with, weighed by probability, and these edges.

    Edges that are further than `max_error` standard deviations from the poses are dropped, and
    scans that no kept edge joins lie in different components. It begins at `start` (K, 4, 4) or,
    left out, at two first guesses, of whose solutions the one with the lower cost is taken.
    """
    if len(edges) and max(edges.source.max(), edges.target.max()) >= scans:
        raise VBRegError(f"an edge to a scan beyond the last of {scans}")
    if len(edges) == 0:
        none = np.zeros(0)
        return GraphSolution(
            np.tile(np.eye(4), (scans, 1, 1)), np.arange(scans), none.astype(bool), none
        )
    guesses = [tree_poses(scans, edges), spectral_poses(scans, edges)] if start is None else [start]
    best: tuple[float, Float64, Bool] | None = None
    for guess in guesses:
        T, kept = _settled(*_graduated(guess, edges, max_error), edges, max_error)
        cost = robust_cost(T, edges, max_error)
        if best is None or cost < best[0] * (1 - 1e-6):
            best = cost, T, kept
    assert best is not None
    return _solution(scans, best[1], best[2], edges)


def residuals(T_world_scan: Float64, edges: PoseEdges) -> Float64:
    """Return r (E, 6) with exp(r^) T_target_source = T_t^-1 T_s."""
    predicted = inverse(T_world_scan[edges.target]) @ T_world_scan[edges.source]
    return logarithm(predicted @ inverse(edges.T_target_source))


def jacobians(T_world_scan: Float64, edges: PoseEdges, r: Float64) -> tuple[Float64, Float64]:
    """Return how r changes with motions of source and target: (E, 6, 6) each."""
    predicted = inverse(T_world_scan[edges.target]) @ T_world_scan[edges.source]
    J = left_jacobian_inverse(r)
    return J @ adjoint(predicted), -J


def squared_errors(r: Float64, edges: PoseEdges) -> Float64:
    """Return r' Omega r (E,)."""
    return np.einsum("ei,eij,ej->e", r, edges.information, r)


def robust_cost(T_world_scan: Float64, edges: PoseEdges, max_error: float = MAX_ERROR) -> float:
    """Return the truncated cost of poses, which a solution minimises."""
    errors = squared_errors(residuals(T_world_scan, edges), edges)
    return float((_trust(edges) * np.minimum(errors, max_error**2)).sum())


def components(scans: int, edges: PoseEdges) -> Int64:
    """Return the component (K,) of each scan, numbered from the largest to the smallest."""
    joined = sp.coo_matrix((np.ones(len(edges)), (edges.source, edges.target)), (scans, scans))
    _, label = connected_components(joined, directed=False)
    count = np.bincount(label)
    first = np.full(len(count), scans)
    np.minimum.at(first, label, np.arange(scans))
    rank = np.empty(len(count), dtype=np.int64)
    rank[np.lexsort((first, -count))] = np.arange(len(count))
    return rank[label]


def bridges(scans: int, edges: PoseEdges) -> Bool:
    """Tell (E,) which edges no loop confirms: without one of them its scans fall apart."""
    neighbours: list[list[tuple[int, int]]] = [[] for _ in range(scans)]
    for e, (s, t) in enumerate(zip(edges.source.tolist(), edges.target.tolist(), strict=True)):
        neighbours[s].append((t, e))
        neighbours[t].append((s, e))
    order, low = [-1] * scans, [0] * scans
    found = np.zeros(len(edges), dtype=bool)
    clock = 0
    for root in range(scans):
        if order[root] >= 0:
            continue
        order[root] = low[root] = clock
        clock += 1
        stack = [(root, -1, iter(neighbours[root]))]
        while stack:
            node, by, rest = stack[-1]
            for other, e in rest:
                if e == by:
                    continue
                if order[other] >= 0:
                    low[node] = min(low[node], order[other])
                    continue
                order[other] = low[other] = clock
                clock += 1
                stack.append((other, e, iter(neighbours[other])))
                break
            else:
                stack.pop()
                if stack:
                    above = stack[-1][0]
                    low[above] = min(low[above], low[node])
                    found[by] = low[node] > order[above]
    return found


def near_edges(scans: int, edges: PoseEdges, distance: Float64, limit: float) -> Bool:
    """Tell (E,) which edges are within a limit, and which further ones hold scans together.

    Of those further away than the limit, the nearest come first, and each stays only if nothing
    nearer joins its two scans: what all edges connect stays connected.
    """
    kept = distance <= limit
    label = components(scans, edges.take(kept))
    for e in np.argsort(distance, kind="stable").tolist():
        s, t = label[edges.source[e]], label[edges.target[e]]
        if s != t:
            kept[e] = True
            label[label == t] = s
    return kept


# --- first guesses


def tree_poses(scans: int, edges: PoseEdges) -> Float64:
    """Return poses (K, 4, 4) along the tree of the most probable edges of each component."""
    lost = -np.log(np.clip(edges.probability, 1e-9, 1 - 1e-9)) + 1e-9  # above zero: scipy's zero
    best: dict[tuple[int, int], int] = {}  # is no edge, and of doubled edges the best counts
    pairs = edges.pairs()
    for e in np.argsort(lost, kind="stable").tolist():
        best.setdefault(pairs[e], e)
    rows, columns = np.array(list(best), dtype=np.int64).T
    cost = sp.coo_matrix((lost[list(best.values())], (rows, columns)), (scans, scans))
    tree = minimum_spanning_tree(cost.tocsr())
    T = np.tile(np.eye(4), (scans, 1, 1))
    component = components(scans, edges)
    for c in range(component.max() + 1):
        root = int(np.flatnonzero(component == c)[0])
        order, parents = breadth_first_order(tree, root, directed=False)
        for node in order[1:].tolist():
            parent = int(parents[node])
            e = best[min(node, parent), max(node, parent)]
            T_parent_node = edges.T_target_source[e]
            if int(edges.source[e]) == parent:
                T_parent_node = inverse(T_parent_node)
            T[node] = T[parent] @ T_parent_node
    return T


def spectral_poses(scans: int, edges: PoseEdges) -> Float64:
    """Return poses (K, 4, 4) by the eigenvectors of all rotations, reweighted some rounds.

    Wrong edges that contradict each other cancel, while right ones add up along all paths.
    """
    T = np.tile(np.eye(4), (scans, 1, 1))
    component = components(scans, edges)
    for c in range(component.max() + 1):
        members = np.flatnonzero(component == c)
        if len(members) < 2:
            continue
        number = np.zeros(scans, dtype=np.int64)
        number[members] = np.arange(len(members))
        own = edges.take(component[edges.source] == c)
        own = replace(own, source=number[own.source], target=number[own.target])
        T[members, :3, :3], weights = _rotations(len(members), own)
        T[members, :3, 3] = _translations(T[members, :3, :3], own, weights)
    return T


def _rotations(scans: int, edges: PoseEdges) -> tuple[Float64, Float64]:
    """Return rotations (K, 3, 3), and how far each edge is believed (E,)."""
    weights = _trust(edges)
    R = np.tile(np.eye(3), (scans, 1, 1))
    for _ in range(SPECTRAL_ROUNDS):
        R = _eigen_rotations(scans, edges, weights)
        predicted = np.swapaxes(R[edges.target], -1, -2) @ R[edges.source]
        cosine = (np.einsum("eij,eij->e", predicted, edges.T_target_source[:, :3, :3]) - 1) / 2
        angle = np.arccos(np.clip(cosine, -1, 1))
        scale = max(0.1, 1.5 * float(np.median(angle)))  # radians
        weights = _trust(edges) / (1 + (angle / scale) ** 2) ** 2
    return R, weights


def _eigen_rotations(scans: int, edges: PoseEdges, weights: Float64) -> Float64:
    """Return the rotations (K, 3, 3) nearest to the three leading eigenvectors."""
    degree = np.full(scans, 1e-12)
    np.add.at(degree, edges.source, weights)
    np.add.at(degree, edges.target, weights)
    scaled = weights / np.sqrt(degree[edges.source] * degree[edges.target])
    blocks = scaled[:, None, None] * edges.T_target_source[:, :3, :3]
    rows, columns = (3 * index[:, None, None] for index in (edges.target, edges.source))
    i, j = np.arange(3)[:, None], np.arange(3)[None, :]
    shape = blocks.shape
    at = np.broadcast_to(rows + i, shape).ravel(), np.broadcast_to(columns + j, shape).ravel()
    half = sp.coo_matrix((blocks.ravel(), at), (3 * scans, 3 * scans)).tocsr()
    M = half + half.T + sp.identity(3 * scans)  # its eigenvalues are from 0 to 2
    V = _leading_three(M)
    V = V.reshape(scans, 3, 3) / np.sqrt(degree)[:, None, None]
    # V is R_scan_world up to one matrix for all, of either handedness: that of the larger part.
    if np.linalg.det(V).sum() < 0:
        V = V * np.array([1.0, 1.0, -1.0])
    U, _, Vh = np.linalg.svd(V)
    U[..., 2] *= np.linalg.det(U @ Vh)[:, None]
    return np.swapaxes(U @ Vh, -1, -2)


def _leading_three(M: sp.csr_matrix) -> Float64:
    """Return the eigenvectors (3 K, 3) of the three largest eigenvalues."""
    size = M.shape[0]
    if size <= 600:
        return np.linalg.eigh(M.toarray())[1][:, -3:]
    V = np.linalg.qr(np.random.default_rng(0).normal(size=(size, 6)))[0]
    for _ in range(500):  # subspace iteration: the same on every machine, unlike ARPACK's start
        before, V = V, np.linalg.qr(M @ V)[0]
        if np.linalg.norm(V[:, :3] - before[:, :3] @ (before[:, :3].T @ V[:, :3])) < 1e-8:
            break
    return V[:, np.argsort(-np.einsum("ik,ik->k", V, M @ V), kind="stable")[:3]]


def _translations(R: Float64, edges: PoseEdges, weights: Float64) -> Float64:
    """Return positions (K, 3) from t_s - t_t = R_t t_target_source, by reweighted least squares."""
    scans, E = len(R), len(edges)
    shift = (R[edges.target] @ edges.T_target_source[:, :3, 3:])[..., 0]
    rows = np.repeat(np.arange(E), 2)
    columns = np.stack([edges.source, edges.target], axis=1).ravel()
    A = sp.coo_matrix((np.tile([1.0, -1.0], E), (rows, columns)), (E, scans)).tocsr()[:, 1:]
    t, believed = np.zeros((scans, 3)), weights
    for _ in range(SPECTRAL_ROUNDS):
        W = sp.diags(believed)
        H = (A.T @ W @ A + 1e-12 * sp.identity(scans - 1)).tocsc()
        t[1:] = splu(H).solve(A.T @ (believed[:, None] * shift))
        left = np.linalg.norm(A @ t[1:] - shift, axis=1)
        scale = max(1e-9, 1.5 * float(np.median(left)))
        believed = weights / (1 + (left / scale) ** 2) ** 2
    return t


# --- robust least squares


def _trust(edges: PoseEdges) -> Float64:
    """Return how much an edge counts (E,): a calibrated probability squared."""
    return np.maximum(edges.probability, MIN_PROBABILITY) ** 2


def _graduated(T: Float64, edges: PoseEdges, max_error: float) -> tuple[Float64, Bool]:
    """Return poses and kept edges after graduated non-convexity from poses (K, 4, 4)."""
    limit = max_error**2
    errors = squared_errors(residuals(T, edges), edges)
    largest = float(errors.max())
    if largest <= limit:
        return T, np.ones(len(edges), dtype=bool)
    mu = limit / (2 * largest - limit)
    weights = _tls_weights(errors, limit, mu)
    while True:
        T = _least_squares(T, edges, weights, STEPS_EACH)
        errors = squared_errors(residuals(T, edges), edges)
        mu *= GROWTH
        weights = _tls_weights(errors, limit, mu)
        if mu > 1e6 or not ((weights > 0) & (weights < 1)).any():
            return T, errors <= limit


def _tls_weights(errors: Float64, limit: float, mu: float) -> Float64:
    """Return the weights (E,) of truncated least squares at a convexity (equation 14)."""
    low, high = mu / (mu + 1) * limit, (mu + 1) / mu * limit
    between = np.sqrt(limit * mu * (mu + 1) / np.maximum(errors, 1e-300)) - mu
    return np.where(errors <= low, 1.0, np.where(errors >= high, 0.0, between))


def _settled(T: Float64, kept: Bool, edges: PoseEdges, max_error: float) -> tuple[Float64, Bool]:
    """Return poses by the kept edges alone, after looking again which edges these are."""
    for _ in range(RECHECKS):
        T = _least_squares(T, edges, kept.astype(np.float64), LAST_STEPS)
        now = squared_errors(residuals(T, edges), edges) <= max_error**2
        # An edge between components has no say, and joins none.
        label = components(len(T), edges.take(kept))
        now &= label[edges.source] == label[edges.target]
        if (now == kept).all():
            break
        kept = now
    return T, kept


def _least_squares(T: Float64, edges: PoseEdges, weights: Float64, steps: int) -> Float64:
    """Return the poses (K, 4, 4) of the lowest weighted cost near these."""
    used = weights > 1e-6
    edges, weights = edges.take(used), (weights * _trust(edges))[used]
    if len(edges) == 0:
        return T
    system = _NormalEquations(len(T), edges)
    r = residuals(T, edges)
    cost, damping = float(weights @ squared_errors(r, edges)), 1e-6
    for _ in range(steps):
        H, g = system.at(T, r, weights)
        while damping < 1e8:
            motion = system.step(H, g, damping)
            moved = T @ exponential(motion)
            r_moved = residuals(moved, edges)
            new = float(weights @ squared_errors(r_moved, edges))
            if new <= cost * (1 + 1e-12):
                break
            damping *= 10
        else:
            return T
        gained = cost - new
        T, r, cost, damping = moved, r_moved, new, max(damping / 10, 1e-9)
        if np.abs(motion).max() < TOLERANCE or gained <= 1e-12 * cost:
            break
    return T


class _NormalEquations:
    """The sparse normal equations of edges; the first scan of each component stays."""

    def __init__(self, scans: int, edges: PoseEdges) -> None:
        self.edges, self.scans = edges, scans
        label = components(scans, edges)
        fixed = np.zeros(scans, dtype=bool)
        fixed[np.unique(label, return_index=True)[1]] = True
        self.free = np.repeat(~fixed, 6)
        s, t = edges.source, edges.target
        first, second = np.concatenate([s, s, t, t]), np.concatenate([s, t, s, t])
        i, j = np.arange(6)[:, None], np.arange(6)[None, :]
        shape = (4 * len(edges), 6, 6)
        self.rows = np.broadcast_to(6 * first[:, None, None] + i, shape).ravel()
        self.columns = np.broadcast_to(6 * second[:, None, None] + j, shape).ravel()

    def at(self, T: Float64, r: Float64, weights: Float64) -> tuple[sp.csc_matrix, Float64]:
        """Return H (6 K, 6 K) and g (6 K,) of the motions that are free."""
        edges = self.edges
        J_s, J_t = jacobians(T, edges, r)
        W = weights[:, None, None] * edges.information
        WJ_s, WJ_t = W @ J_s, W @ J_t
        Js_, Jt_ = np.swapaxes(J_s, -1, -2), np.swapaxes(J_t, -1, -2)
        blocks = np.concatenate([Js_ @ WJ_s, Js_ @ WJ_t, Jt_ @ WJ_s, Jt_ @ WJ_t])
        size = 6 * self.scans
        H = sp.coo_matrix((blocks.ravel(), (self.rows, self.columns)), (size, size)).tocsc()
        g = np.zeros((self.scans, 6))
        np.add.at(g, edges.source, np.einsum("eij,ei->ej", WJ_s, r))
        np.add.at(g, edges.target, np.einsum("eij,ei->ej", WJ_t, r))
        return H[self.free][:, self.free], g.ravel()[self.free]

    def step(self, H: sp.csc_matrix, g: Float64, damping: float) -> Float64:
        """Return the motions (K, 6) that lower the cost."""
        diagonal = H.diagonal()
        floor = 1e-12 * max(float(diagonal.max(initial=0.0)), 1e-300)
        damped = (H + sp.diags(damping * diagonal + floor)).tocsc()
        motion = np.zeros(6 * self.scans)
        motion[self.free] = splu(damped, permc_spec="MMD_AT_PLUS_A").solve(-g)
        return motion.reshape(self.scans, 6)


def _solution(scans: int, T: Float64, kept: Bool, edges: PoseEdges) -> GraphSolution:
    """Return the poses, each component in the frame of its first scan."""
    component = components(scans, edges.take(kept))
    first = np.unique(component, return_index=True)[1]
    T = inverse(T[first])[component] @ T
    errors = np.sqrt(squared_errors(residuals(T, edges), edges))
    errors[component[edges.source] != component[edges.target]] = math.inf
    return GraphSolution(T, component, kept, errors)
