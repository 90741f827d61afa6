"""Laws of small motions: exponential and logarithm undo each other, Jacobians are derivatives."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg

from vbreg.motions import (
    adjoint,
    cross_matrix,
    exponential,
    inverse,
    is_rigid,
    left_jacobian_inverse,
    logarithm,
)
from vbreg.types import Float64

SIZES = (0.0, 1e-9, 1e-5, 9e-5, 2e-4, 0.03, 0.049, 0.051, 0.3, 1.0, 3.0)


def motions(size: float, count: int = 20) -> Float64:
    """Return motions (count, 6) that turn by `size`."""
    xi = np.random.default_rng(0).normal(size=(count, 6))
    xi[:, :3] *= size / np.linalg.norm(xi[:, :3], axis=1, keepdims=True)
    return xi


def hat(xi: Float64) -> Float64:
    X = np.zeros((4, 4))
    X[:3, :3], X[:3, 3] = cross_matrix(xi[:3]), xi[3:]
    return X


@pytest.mark.parametrize("size", SIZES)
def test_the_exponential_is_that_of_the_matrix(size: float) -> None:
    xi = motions(size)
    expected = np.stack([scipy.linalg.expm(hat(x)) for x in xi])
    np.testing.assert_allclose(exponential(xi), expected, atol=1e-12)


@pytest.mark.parametrize("size", SIZES)
def test_the_logarithm_undoes_the_exponential(size: float) -> None:
    xi = motions(size)
    np.testing.assert_allclose(logarithm(exponential(xi)), xi, atol=1e-11)


@pytest.mark.parametrize("size", SIZES)
def test_the_jacobian_is_the_derivative_of_the_logarithm(size: float) -> None:
    xi, h = motions(size), 1e-6
    found = left_jacobian_inverse(xi)
    for k in range(6):
        d = np.zeros(6)
        d[k] = h
        after, before = (logarithm(exponential(s * d) @ exponential(xi)) for s in (1, -1))
        np.testing.assert_allclose(found[..., k], (after - before) / (2 * h), atol=2e-8)


def test_batches_of_any_shape_are_rows() -> None:
    xi = motions(0.7, 6).reshape(2, 3, 6)
    T = exponential(xi)
    assert T.shape == (2, 3, 4, 4)
    for function, given in ((exponential, xi), (logarithm, T), (adjoint, T), (inverse, T)):
        whole = function(given)
        np.testing.assert_allclose(whole[1, 2], function(given[1, 2]), atol=1e-14)
    np.testing.assert_allclose(T @ inverse(T), np.broadcast_to(np.eye(4), T.shape), atol=1e-14)


def test_a_pose_is_a_rotation_and_a_translation() -> None:
    right = exponential(motions(1.0, 3))
    assert is_rigid(right).all()
    assert is_rigid(right.astype(np.float32).astype(np.float64)).all()  # rounded
    wrong = np.stack([np.eye(4)] * 6)
    wrong[0, 2, 2] = -1.0  # a mirror
    wrong[1, :3, :3] *= 1.01  # a scale
    wrong[2, 3, 3] = 2.0
    wrong[3, 3, :3] = 1.0  # a translation below
    wrong[4, 0, 3] = np.nan
    wrong[5, 0, 0] = np.inf
    assert not is_rigid(wrong).any()
    assert is_rigid(wrong[1], max_skew=0.03)
    assert is_rigid(np.concatenate([right, wrong]).reshape(3, 3, 4, 4)).tolist() == [
        [True] * 3,
        [False] * 3,
        [False] * 3,
    ]
