"""How good a pose is. Plain tensors in, plain tensors out."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from scipy.spatial.transform import Rotation
from torch import Tensor

from vbreg.geometry import degrees, inverse, rotation_angle


class PoseError(NamedTuple):
    rotation: Tensor  # (...) degrees
    translation: Tensor  # (...) in the unit of the poses

    def success(self, rotation: float, translation: float) -> Tensor:
        """(...) bool: both errors strictly below their bounds."""
        return (self.rotation < rotation) & (self.translation < translation)


def pose_error(T_estimate: Tensor, T_truth: Tensor) -> PoseError:
    """RE = angle of R_truth^T R_estimate, TE = |t_estimate - t_truth| (not squared)."""
    R = T_truth[..., :3, :3].transpose(-1, -2) @ T_estimate[..., :3, :3]
    t = T_estimate[..., :3, 3] - T_truth[..., :3, 3]
    return PoseError(degrees(rotation_angle(R)), t.square().sum(-1).sqrt())


class Classification(NamedTuple):
    precision: Tensor
    recall: Tensor
    f1: Tensor


def classification(predicted: Tensor, actual: Tensor) -> Classification:
    """Inlier precision, recall and F1 over the last dimension, (..., N) bool -> (...) each."""
    hits = (predicted & actual).sum(-1).double()
    precision = hits / predicted.sum(-1).clamp_min(1)
    recall = hits / actual.sum(-1).clamp_min(1)
    f1 = 2 * precision * recall / (precision + recall).clamp_min(1e-12)
    return Classification(precision, recall, f1)


def registration_rmse(T_estimate: Tensor, T_truth: Tensor, information: Tensor) -> Tensor:
    """(...) root mean square distance, over the points that both fragments share, of where the
    estimate and the truth put them: the protocol of 3DMatch's evaluation and Predator.

    `information` (..., 6, 6) is that of gt.info, which goes with the pose from target to source;
    to first order it holds the distances of the shared points, summed. Their number is its first
    entry. A pair succeeds at 0.2 m or less.
    """
    error = T_truth @ inverse(T_estimate)  # (..., 4, 4): the identity for a perfect estimate
    motion = torch.cat([error[..., :3, 3], _quaternion_vector(error[..., :3, :3])], -1)
    squared = torch.einsum("...i,...ij,...j->...", motion, information, motion)
    return (squared / information[..., 0, 0]).clamp_min(0.0).sqrt()


def _quaternion_vector(R: Tensor) -> Tensor:
    """(..., 3): the vector part of the unit quaternion of R (..., 3, 3), with a real part >= 0."""
    flat = Rotation.from_matrix(R.detach().reshape(-1, 3, 3).cpu().numpy()).as_quat()  # x y z w
    facing = np.where(flat[:, 3:] < 0, -flat[:, :3], flat[:, :3])
    return torch.from_numpy(facing).to(R).reshape(*R.shape[:-2], 3)
