"""Which points may belong together, which of them do, and how much two clouds share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vbreg.errors import VBRegError
from vbreg.geometry import apply
from vbreg.neighbors import check_positive, radius_knn

_SCORES_PER_CHUNK = 2**22  # similarities held at a time: 16 MB, near a CPU's cache


def match(
    source_features: Tensor, target_features: Tensor, *, mutual: bool = False
) -> tuple[Tensor, Tensor]:
    """Nearest target descriptor of each source descriptor, both compared at length 1.

    source_features (N, D), target_features (M, D) -> source_index, target_index (K,) int64,
    ascending in the source; K is N, or with `mutual` the matches that are nearest in both
    directions. Of several nearest the lowest index wins.
    """
    _check_features(source_features, target_features)
    source = F.normalize(source_features.detach().float(), dim=-1)
    target = F.normalize(target_features.detach().float(), dim=-1)
    index = torch.arange(len(source), device=source.device)
    if len(source) == 0 or len(target) == 0:
        return index[:0], index[:0]
    nearest, nearest_back = _nearest(source, target, mutual)
    if nearest_back is None:
        return index, nearest
    kept = nearest_back[nearest] == index
    return index[kept], nearest[kept]


def label(source: Tensor, target: Tensor, T_target_source: Tensor, threshold: float) -> Tensor:
    """Which matches are true: source, target (..., N, 3), pose (..., 4, 4) -> bool (..., N)."""
    check_positive("threshold", threshold)
    if source.shape != target.shape or source.shape[-1:] != (3,):
        raise VBRegError(
            f"source has shape {tuple(source.shape)} and target {tuple(target.shape)}: "
            "expected both (..., N, 3), one row per match"
        )
    _check_pose(T_target_source)
    distance = torch.linalg.vector_norm(
        apply(T_target_source.to(source.dtype), source) - target, dim=-1
    )
    return distance < threshold


def overlap(
    source_cloud: Tensor, target_cloud: Tensor, T_target_source: Tensor, radius: float
) -> float:
    """Fraction of source points (N, 3) with a target point (M, 3) within `radius`."""
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


def _nearest(source: Tensor, target: Tensor, both_ways: bool) -> tuple[Tensor, Tensor | None]:
    """Most similar row of the other set: (N,) into target and, if asked, (M,) into source."""
    rows = min(len(source), max(1, _SCORES_PER_CHUNK // len(target)))
    # One buffer for all chunks: a fresh one each would scatter the heap until it holds N x M.
    buffer = source.new_empty(rows, len(target))
    forward = torch.zeros(len(source), dtype=torch.int64, device=source.device)
    backward = torch.zeros(len(target), dtype=torch.int64, device=target.device)
    best = target.new_full((len(target),), -torch.inf)  # (M,)
    for start in range(0, len(source), rows):
        chunk = source[start : start + rows]
        similarity = torch.mm(chunk, target.T, out=buffer[: len(chunk)])  # (rows, M)
        forward[start : start + rows] = similarity.max(1).indices
        if both_ways:
            highest, row = similarity.max(0)
            better = highest > best  # strictly, so that the lowest index stays
            best = torch.where(better, highest, best)
            backward = torch.where(better, row + start, backward)
    return forward, backward if both_ways else None


def _check_features(source: Tensor, target: Tensor) -> None:
    for name, features in (("source_features", source), ("target_features", target)):
        if features.ndim != 2:
            raise VBRegError(f"{name} has shape {tuple(features.shape)}: expected (N, D)")
        if not bool(torch.isfinite(features).all()):
            raise VBRegError(f"{name} holds NaN or infinity: drop these points first")
    if source.shape[1] != target.shape[1]:
        raise VBRegError(
            f"source_features have {source.shape[1]} columns and target_features "
            f"{target.shape[1]}: describe both clouds with the same descriptor"
        )


def _check_pose(T: Tensor) -> None:
    if T.shape[-2:] != (4, 4):
        raise VBRegError(f"T_target_source has shape {tuple(T.shape)}: expected (..., 4, 4)")
