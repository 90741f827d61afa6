"""How good a pose is. Plain tensors in, plain tensors out."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from vbreg.geometry import degrees, rotation_angle


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
