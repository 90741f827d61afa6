"""Clouds, motions and a comparison that tests of several rooms share."""

import numpy as np
import torch

from tests.conftest import make_problem
from vbreg.metrics import pose_error

EAST = np.array([512_345.678, 5_412_345.678, 432.1])  # like UTM: millions of metres


def surface(count: int = 2000, seed: int = 0) -> np.ndarray:
    """Three bumpy walls of a corner, of 1.6 m."""
    points = np.random.default_rng(seed).random((count, 3)) * [1.6, 1.2, 0.8]
    for axis, rows in enumerate(np.array_split(np.arange(count), 3)):
        points[rows, axis] = 0.1 * np.sin(5 * points[rows].sum(axis=1))
    return points


def motion(seed: int, shift: float = 3.0) -> np.ndarray:
    T = make_problem(3, seed=seed).T.copy()
    T[:3, 3] *= shift
    return T


def move(T: np.ndarray, points: np.ndarray) -> np.ndarray:
    return points @ T[:3, :3].T + T[:3, 3]


def assert_pose_close(a: np.ndarray, b: np.ndarray, degrees: float, length: float) -> None:
    error = pose_error(torch.from_numpy(a), torch.from_numpy(b))
    assert float(error.rotation) < degrees
    assert float(error.translation) < length
