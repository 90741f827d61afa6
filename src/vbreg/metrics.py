"""How good a pose is, which matches are right, what clouds share, how true a probability is."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from scipy.spatial.transform import Rotation
from torch import Tensor

from vbreg.backends.neighbors import radius_knn
from vbreg.errors import VBRegError
from vbreg.geometry import apply, degrees, inverse, rotation_angle
from vbreg.inputs import positive_number

BINS = 15  # of the calibration error


class PoseError(NamedTuple):
    """How far poses are from the true ones."""

    rotation: Tensor  # (...) degrees
    translation: Tensor  # (...) in the unit of the poses

    def success(self, rotation: float, translation: float) -> Tensor:
        """Tell (...) where both errors are strictly below their bounds."""
        return (self.rotation < rotation) & (self.translation < translation)


def pose_error(T_estimate: Tensor, T_truth: Tensor) -> PoseError:
    """Return RE, the angle of R_truth^T R_estimate, and TE, |t_estimate - t_truth|, no square."""
    R = T_truth[..., :3, :3].transpose(-1, -2) @ T_estimate[..., :3, :3]
    t = T_estimate[..., :3, 3] - T_truth[..., :3, 3]
    return PoseError(degrees(rotation_angle(R)), t.square().sum(-1).sqrt())


class Classification(NamedTuple):
    """How well predicted labels agree with the true ones."""

    precision: Tensor
    recall: Tensor
    f1: Tensor


def classification(predicted: Tensor, actual: Tensor) -> Classification:
    """Return inlier precision, recall and F1 over the last dimension, (..., N) bool -> (...)."""
    hits = (predicted & actual).sum(-1).double()
    precision = hits / predicted.sum(-1).clamp_min(1)
    recall = hits / actual.sum(-1).clamp_min(1)
    f1 = 2 * precision * recall / (precision + recall).clamp_min(1e-12)
    return Classification(precision, recall, f1)


def registration_rmse(T_estimate: Tensor, T_truth: Tensor, information: Tensor) -> Tensor:
    """Return (...) how far estimate and truth put the points apart that both fragments share.

    It is a root mean square: the protocol of 3DMatch's evaluation and Predator.

    `information` (..., 6, 6) is that of gt.info, which goes with the pose from target to source;
    to first order it holds the distances of the shared points, summed. Their number is its first
    entry. A pair succeeds at 0.2 m or less.
    """
    error = T_truth @ inverse(T_estimate)  # (..., 4, 4): the identity for a perfect estimate
    motion = torch.cat([error[..., :3, 3], _quaternion_vector(error[..., :3, :3])], -1)
    squared = torch.einsum("...i,...ij,...j->...", motion, information, motion)
    return (squared / information[..., 0, 0]).clamp_min(0.0).sqrt()


def _quaternion_vector(R: Tensor) -> Tensor:
    """Return the vector part (..., 3) of the unit quaternion of R (..., 3, 3), real part >= 0."""
    flat = Rotation.from_matrix(R.detach().reshape(-1, 3, 3).cpu().numpy()).as_quat()  # x y z w
    facing = np.where(flat[:, 3:] < 0, -flat[:, :3], flat[:, :3])
    return torch.from_numpy(facing).to(R).reshape(*R.shape[:-2], 3)


def right_matches(
    source: Tensor, target: Tensor, T_target_source: Tensor, threshold: float
) -> Tensor:
    """Tell (..., N) which matches, source and target (..., N, 3), are right under a true pose."""
    positive_number(threshold, "threshold")
    if source.shape != target.shape or source.shape[-1:] != (3,):
        raise VBRegError(
            f"source has shape {tuple(source.shape)} and target {tuple(target.shape)}: "
            "expected both (..., N, 3), one row per match"
        )
    _check_pose(T_target_source)
    moved = apply(T_target_source.to(source.dtype), source)
    return torch.linalg.vector_norm(moved - target, dim=-1) < threshold


def overlap(
    source_cloud: Tensor, target_cloud: Tensor, T_target_source: Tensor, radius: float
) -> float:
    """Return the share of source points (N, 3) with a target point (M, 3) within `radius`."""
    if T_target_source.ndim != 2:
        raise VBRegError(
            f"T_target_source has shape {tuple(T_target_source.shape)}: expected (4, 4)"
        )
    _check_pose(T_target_source)
    if len(source_cloud) == 0 or len(target_cloud) == 0:
        return 0.0
    moved = apply(T_target_source.to(source_cloud.dtype), source_cloud)
    _, _, valid = radius_knn(target_cloud, moved, radius, 1)
    return float(valid.double().mean())


def auroc(probability: Tensor, right: Tensor) -> float:
    """Return the probability of a right pose to be trusted more than a wrong one; ties halve."""
    p, right = probability.double().cpu(), right.cpu()
    _, rank, counts = torch.unique(p, return_inverse=True, return_counts=True)
    ends = counts.cumsum(0).double()
    ranks = (ends - (counts - 1) / 2)[rank]
    good, bad = int(right.sum()), int((~right).sum())
    if not good or not bad:
        return float("nan")
    return float((ranks[right].sum() - good * (good + 1) / 2) / (good * bad))


def calibration_error(probability: Tensor, right: Tensor) -> float:
    """Return the mean distance of told and true frequency over bins of equal width (ECE)."""
    p, y = probability.double().cpu(), right.double().cpu()
    index = (p * BINS).long().clamp(0, BINS - 1)
    total = torch.zeros(BINS, dtype=torch.float64)
    gap = total.clone().index_add_(0, index, p - y).abs()
    return float(gap.sum() / max(1, len(p)))


def _check_pose(T: Tensor) -> None:
    if T.shape[-2:] != (4, 4):
        raise VBRegError(f"T_target_source has shape {tuple(T.shape)}: expected (..., 4, 4)")
