"""Poses in numpy: put together, and undone even where a file has rounded them."""

import numpy as np
from scipy.spatial.transform import Rotation

from vbreg.datasets.poses import inverse_pose, pose_matrix


def test_a_pose_is_put_together_from_any_shape() -> None:
    R, t = Rotation.random(random_state=0).as_matrix(), np.array([1.0, 2, 3])
    T = pose_matrix(R.ravel(), t[:, None])
    np.testing.assert_array_equal(T[:3, :3], R)
    np.testing.assert_array_equal(T[:3, 3], t)
    np.testing.assert_array_equal(T[3], [0, 0, 0, 1])


def test_a_rounded_rotation_is_undone() -> None:
    T = pose_matrix(Rotation.random(random_state=1).as_matrix().round(2), [4.0, 5, 6])
    np.testing.assert_allclose(inverse_pose(T) @ T, np.eye(4), atol=1e-12)
