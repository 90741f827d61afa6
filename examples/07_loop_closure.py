"""Loop closure: a registration with its covariance as an edge of a small pose graph.

A walk of eight poses ends where the target was scanned. Odometry drifts; the registration of the
last scan with the first closes the loop. A second loop is false, and a robust loss takes it out.
Right-hand motions as gtsam has them: the true pose of an edge is T @ exp(xi), xi = (turn, shift).
"""

from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares
from scipy.spatial.transform import Rotation

import vbreg
from vbreg.demo import load
from vbreg.uncertainty import adjoint

POSES = 8
ROBUST = 3.0  # standard deviations beyond which an edge is doubted


def jacobian(turn: np.ndarray) -> np.ndarray:
    """Return the (3, 3) that takes the shift of a motion to the translation of its pose."""
    angle = max(np.linalg.norm(turn), 1e-6)
    x, y, z = turn
    W = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    a, b = (1 - np.cos(angle)) / angle**2, (angle - np.sin(angle)) / angle**3
    return np.eye(3) + a * W + b * W @ W


def exp(xi: np.ndarray) -> np.ndarray:
    """Return the pose (4, 4) of a motion (6,): a turn in radians, then a shift."""
    T = np.eye(4)
    T[:3, :3] = Rotation.from_rotvec(xi[:3]).as_matrix()
    T[:3, 3] = jacobian(xi[:3]) @ xi[3:]
    return T


def log(T: np.ndarray) -> np.ndarray:
    """Return the motion (6,) of a pose (4, 4)."""
    turn = Rotation.from_matrix(T[:3, :3]).as_rotvec()
    return np.concatenate([turn, np.linalg.solve(jacobian(turn), T[:3, 3])])


class Edge(NamedTuple):
    """Pose `i` to pose `j`, measured: T_i_j, and the covariance (6, 6) of motions to its right."""

    i: int
    j: int
    T: np.ndarray
    covariance: np.ndarray
    robust: bool = False


def edge_of(i: int, j: int, result: vbreg.Registration) -> Edge:
    """Make an edge of a registration of scan j (source) to scan i (target)."""
    A = adjoint(np.linalg.inv(result.T_target_source))  # from motions to the left to the right
    return Edge(i, j, result.T_target_source, A @ result.covariance @ A.T, robust=True)


def solve(start: list[np.ndarray], edges: list[Edge]) -> list[np.ndarray]:
    """Return the poses that agree best with all edges; the first stays where it is."""
    factors = [np.linalg.cholesky(np.linalg.inv(edge.covariance)).T for edge in edges]

    def poses(x: np.ndarray) -> list[np.ndarray]:
        moved = [T @ exp(xi) for T, xi in zip(start[1:], x.reshape(-1, 6), strict=True)]
        return [start[0], *moved]

    def residuals(x: np.ndarray) -> np.ndarray:
        T, found = poses(x), []
        for edge, factor in zip(edges, factors, strict=True):
            r = factor @ log(np.linalg.inv(edge.T) @ np.linalg.inv(T[edge.i]) @ T[edge.j])
            if edge.robust:  # Cauchy's loss of the whole edge
                s = max(r @ r, 1e-12) / ROBUST**2
                r = r * np.sqrt(np.log1p(s) / s)
            found.append(r)
        return np.concatenate(found)

    return poses(least_squares(residuals, np.zeros(6 * (len(start) - 1))).x)


# The truth: from the target (pose 0) in equal steps to the source.
source, target, T_true = load()
step = exp(log(T_true) / (POSES - 1))
truth = [np.linalg.matrix_power(step, k) for k in range(POSES)]

# Odometry: every step with an error of its own.
rng = np.random.default_rng(1)
deviation = np.array([0.02] * 3 + [0.05] * 3)  # radians, metres
edges = [
    Edge(k, k + 1, step @ exp(rng.normal(0, deviation)), np.diag(deviation**2))
    for k in range(POSES - 1)
]
drifted = [np.eye(4)]
for edge in edges:
    drifted.append(drifted[-1] @ edge.T)

# The loop that is found, if it is trusted, and one that is false.
result = vbreg.register(source, target, voxel_size=0.05)
print(result.verdict)
if result.success_probability >= 0.9 and result.determined:
    edges.append(edge_of(0, POSES - 1, result))
false = truth[5] @ exp(np.array([0.5, 0, 0, 1.5, 0, 0]))
edges.append(Edge(0, 5, false, np.diag(deviation**2) / 25, robust=True))

closed = solve(drifted, edges)
for name, poses in (("odometry", drifted), ("closed", closed)):
    off = [np.linalg.norm(T[:3, 3] - t[:3, 3]) for T, t in zip(poses, truth, strict=True)]
    last, worst = 100 * off[-1], 100 * max(off)
    print(f"{name}: the last pose is off by {last:.1f} cm, the worst by {worst:.1f} cm")
