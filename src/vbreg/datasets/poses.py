"""Poses (4, 4) in numpy are made and inverted here; `vbreg.geometry` does the same for tensors."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from vbreg.types import Float64


def pose_matrix(R: ArrayLike, t: ArrayLike) -> Float64:
    """Return T (4, 4) of a rotation of nine numbers and a translation of three, in any shape."""
    T = np.eye(4)
    T[:3, :3] = np.asarray(R, dtype=np.float64).reshape(3, 3)
    T[:3, 3] = np.asarray(t, dtype=np.float64).reshape(3)
    return T


def inverse_pose(T_a_b: Float64) -> Float64:
    """Return T_b_a of a pose (4, 4) whose rotation, as files have it, is orthonormal only roughly.

    The matrix is inverted as a whole: the transpose of a rounded rotation would not undo it.
    """
    return np.asarray(np.linalg.inv(T_a_b), dtype=np.float64)
