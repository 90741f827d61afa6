"""Small motions of rigid bodies: exponential, logarithm, adjoint and the Jacobian between them.

A motion xi = (omega, v), turn before shift, belongs to the pose exp(xi^). Everything is float64
numpy and batched over leading dimensions; `vbreg.geometry` moves tensors.
"""

from __future__ import annotations

import numpy as np
from scipy.spatial.transform import Rotation

from vbreg.types import Bool, Float64

NEARLY_ZERO = 1e-4  # radians, below which series take the place of quotients
MAX_SKEW = 1e-3  # of R R^T from the identity: three digits are few, but a rotation still
MAX_OFF_BELOW = 1e-6  # of the last row from 0 0 0 1


def is_rigid(T: Float64, max_skew: float = MAX_SKEW) -> Bool:
    """Tell (...) which matrices (..., 4, 4) are a rotation and a translation, up to rounding."""
    finite = np.asarray(np.isfinite(T).all((-2, -1)))
    T = np.where(finite[..., None, None], T, 0.0)
    R = T[..., :3, :3]
    skew = np.abs(R @ np.swapaxes(R, -1, -2) - np.eye(3)).max((-2, -1))
    below = np.abs(T[..., 3, :] - [0.0, 0.0, 0.0, 1.0]).max(-1)
    proper = (np.linalg.det(R) > 0) & (skew <= max_skew)
    return np.asarray(finite & proper & (below <= MAX_OFF_BELOW))


def inverse(T_a_b: Float64) -> Float64:
    """Return T_b_a (..., 4, 4), using that the rotation's inverse is its transpose."""
    T = np.zeros_like(T_a_b)
    R = np.swapaxes(T_a_b[..., :3, :3], -1, -2)
    T[..., :3, :3] = R
    T[..., :3, 3] = -(R @ T_a_b[..., :3, 3:])[..., 0]
    T[..., 3, 3] = 1.0
    return T


def cross_matrix(v: Float64) -> Float64:
    """Return the matrix (..., 3, 3) of the cross product with v (..., 3)."""
    K = np.zeros((*v.shape, 3))
    K[..., 2, 1], K[..., 0, 2], K[..., 1, 0] = v[..., 0], v[..., 1], v[..., 2]
    return K - np.swapaxes(K, -1, -2)


def adjoint(T_a_b: Float64) -> Float64:
    """Return the (..., 6, 6) that takes small motions (omega, v) of frame b into frame a."""
    R = T_a_b[..., :3, :3]
    A = np.zeros((*T_a_b.shape[:-2], 6, 6))
    A[..., :3, :3] = A[..., 3:, 3:] = R
    A[..., 3:, :3] = cross_matrix(T_a_b[..., :3, 3]) @ R
    return A


def exponential(xi: Float64) -> Float64:
    """Return the pose (..., 4, 4) of a motion (..., 6)."""
    omega, v = xi[..., :3], xi[..., 3:]
    T = np.zeros((*xi.shape[:-1], 4, 4))
    turns = Rotation.from_rotvec(omega.reshape(-1, 3)).as_matrix()
    T[..., :3, :3] = turns.reshape(*omega.shape, 3)
    T[..., :3, 3] = (_turn_jacobian(omega) @ v[..., None])[..., 0]
    T[..., 3, 3] = 1.0
    return T


def logarithm(T: Float64) -> Float64:
    """Return the motion (..., 6) of a pose (..., 4, 4), with a turn of at most pi."""
    R = T[..., :3, :3]
    omega = Rotation.from_matrix(R.reshape(-1, 3, 3)).as_rotvec().reshape(R.shape[:-1])
    v = (_turn_jacobian_inverse(omega) @ T[..., :3, 3:])[..., 0]
    return np.concatenate([omega, v], axis=-1)


def small_motion(T_truth: Float64, T_estimate: Float64) -> Float64:
    """Return the (omega, v) with exp((omega, v)^) T_estimate = T_truth: the error of a pose."""
    return logarithm(T_truth @ np.linalg.inv(T_estimate))


def left_jacobian_inverse(xi: Float64) -> Float64:
    """Return J (..., 6, 6) with log(exp(d^) exp(xi^)) = xi + J d for small d."""
    omega = xi[..., :3]
    K = _turn_jacobian_inverse(omega)
    J = np.zeros((*xi.shape, 6))
    J[..., :3, :3] = J[..., 3:, 3:] = K
    J[..., 3:, :3] = -K @ _coupling(omega, xi[..., 3:]) @ K
    return J


def _angle(omega: Float64) -> tuple[Float64, Float64]:
    """Return the angle (..., 1, 1), and the same without zeros to divide by."""
    angle = np.linalg.norm(omega, axis=-1)[..., None, None]
    return angle, np.where(angle < NEARLY_ZERO, 1.0, angle)


def _turn_jacobian(omega: Float64) -> Float64:
    """Return the left Jacobian (..., 3, 3) of a turn."""
    W = cross_matrix(omega)
    angle, safe = _angle(omega)
    tiny = angle < NEARLY_ZERO
    a = np.where(tiny, 0.5 - angle**2 / 24, 2 * np.sin(safe / 2) ** 2 / safe**2)
    b = np.where(tiny, 1 / 6 - angle**2 / 120, (safe - np.sin(safe)) / safe**3)
    return np.eye(3) + a * W + b * W @ W


def _turn_jacobian_inverse(omega: Float64) -> Float64:
    """Return the inverse (..., 3, 3) of the left Jacobian of a turn."""
    W = cross_matrix(omega)
    angle, safe = _angle(omega)
    half = np.sinc(angle / (2 * np.pi))  # 1 at 0
    b = np.where(angle < NEARLY_ZERO, 1 / 12, (1 - np.cos(safe / 2) / half) / safe**2)
    return np.eye(3) - W / 2 + b * W @ W


def _coupling(omega: Float64, v: Float64) -> Float64:
    """Return the lower left (..., 3, 3) of the left Jacobian: what a turn does to a shift."""
    W, V = cross_matrix(omega), cross_matrix(v)
    angle, safe = _angle(omega)
    # The quotients lose digits to cancellation well before the angle is tiny.
    small = angle < 0.05
    safe = np.where(small, 1.0, safe)
    sine, cosine = np.sin(safe), np.cos(safe)
    a = np.where(small, 1 / 6 - angle**2 / 120, (safe - sine) / safe**3)
    b = np.where(small, 1 / 24 - angle**2 / 720, (safe**2 / 2 + cosine - 1) / safe**4)
    rest = (safe - sine - safe**3 / 6) / safe**5
    c = np.where(small, 1 / 120 - angle**2 / 2520, (b + 3 * rest) / 2)
    WV, VW = W @ V, V @ W
    WVW = W @ VW
    return V / 2 + a * (WV + VW + WVW) + b * (W @ WV + VW @ W - 3 * WVW) + c * (WVW @ W + W @ WVW)
