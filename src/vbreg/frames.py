"""From the user's frames and units to the ones computed in, and back.

Points may lie millions of metres from their origin and come as files, arrays or tensors. Here they
are moved to an origin of their own, where float32 holds them, and poses go back to the user's
frames.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from vbreg import io
from vbreg.errors import VBRegError
from vbreg.solver import Matches
from vbreg.types import Bool, Float64

Points: TypeAlias = "ArrayLike | Tensor"
Descriptors: TypeAlias = "tuple[ArrayLike | Tensor, ArrayLike | Tensor]"  # of source and target
WIDEST = 1e7  # inlier thresholds; beyond, float32 cannot tell an inlier from its neighbour

Cloud: TypeAlias = Any  # a path, points (N, 3), a PointCloud or anything with `.points`


@dataclass(frozen=True, eq=False)
class LocalCloud:
    """A cloud's finite points about an origin of its own, so that float32 holds them."""

    points: Tensor  # (N, 3) float32, CPU
    origin: Float64  # (3,)
    count: int  # of points read
    dropped: int  # of them, not finite

    @staticmethod
    def of(cloud: Cloud, role: str) -> LocalCloud:
        points = load_points(cloud, role)
        finite = np.isfinite(points).all(axis=1)
        kept = points[finite]
        if len(kept) < 3:
            raise VBRegError(
                f"{role} has {len(kept)} finite points of {len(points)}: at least 3 are needed, "
                "and a real scan has thousands; check that the file is the one you meant"
            )
        origin = kept.mean(axis=0)
        local = torch.from_numpy((kept - origin).astype(np.float32))
        return LocalCloud(local, origin, len(points), len(points) - len(kept))


def load_points(cloud: Cloud, role: str) -> Float64:
    """(N, 3) float64 from a path, an array, a tensor, a PointCloud or an object with `.points`."""
    if isinstance(cloud, str | os.PathLike):
        return io.read(cloud).points
    points = as_points(cloud.points if hasattr(cloud, "points") else cloud, role)
    if points.ndim != 2:
        raise VBRegError(f"{role} has shape {points.shape}: expected (N, 3)")
    return points


@dataclass(frozen=True, eq=False)
class MatchProblem:
    """Matches in a local frame and in units of the inlier threshold, and the way back."""

    local: Matches  # on the CPU
    origins: tuple[Float64, Float64]  # (B, 3) each
    unit: float

    @staticmethod
    def of(
        source: Float64,
        target: Float64,
        valid: Bool,
        unit: float,
        descriptors: Float64 | None = None,
    ) -> MatchProblem:
        valid = np.atleast_2d(valid)
        local, origins = [], []
        gaps = np.flatnonzero(~valid.reshape(-1))
        for points in (source, target):
            points = np.array(points if points.ndim == 3 else points[None], order="C")
            points.reshape(-1, 3)[gaps] = 0.0
            origin = points.sum(1) / valid.sum(1)[:, None]
            origins.append(origin)
            points -= origin[:, None]
            points /= unit
            points.reshape(-1, 3)[gaps] = 0.0
            widest = max(points.max(), -points.min())
            if not widest <= WIDEST:
                raise VBRegError(
                    f"matches lie up to {widest * unit:.3g} from their middle, with an "
                    f"inlier threshold of {unit:.3g}: check that both are in the same unit"
                )
            local.append(torch.from_numpy(points))
        described = None if descriptors is None else _batched(descriptors)
        matches = Matches(local[0], local[1], torch.from_numpy(valid), described)
        return MatchProblem(matches, (origins[0], origins[1]), unit)

    def __len__(self) -> int:
        return self.local.mask.shape[1]

    def parts(self, problems: int) -> Iterator[MatchProblem]:
        """Some problems at a time."""
        for start in range(0, len(self.local.mask), problems):
            some = slice(start, start + problems)
            origins = self.origins[0][some], self.origins[1][some]
            yield MatchProblem(self.local.map(lambda part: part[some]), origins, self.unit)  # noqa: B023

    def on(self, device: torch.device) -> Matches:
        return self.local.map(lambda part: part.to(device))

    def to_global(self, T_local: Tensor) -> Float64:
        """(B, 4, 4) in the unit and the frames of the user's points."""
        T = T_local.double().cpu().numpy().copy()
        source_origin, target_origin = self.origins
        moved = np.einsum("bij,bj->bi", T[:, :3, :3], source_origin)
        T[:, :3, 3] = T[:, :3, 3] * self.unit + target_origin - moved
        return T


def as_points(points: Points, name: str) -> Float64:
    """(..., N, 3) float64; the caller's array is never written to."""
    array = _as_numbers(
        points, name, "points (N, 3) as an array, a tensor, a path, or an object with .points"
    )
    if array.ndim not in (2, 3) or array.shape[-1] != 3:
        raise VBRegError(f"{name} has shape {array.shape}: expected (N, 3), or (B, N, 3) matches")
    return array


def as_descriptors(descriptors: Descriptors | None, valid: Bool, width: int) -> Float64 | None:
    """(..., N, 2 * width): source then target, each of length 1, zero where a row is not valid.

    `width` is what the network takes for each cloud: 0 is none.
    """
    if width == 0 and descriptors is not None:
        raise VBRegError(
            "descriptors given, but this network sees points alone: leave them out, or use weights "
            "that were trained with input = 'feat'"
        )
    if width == 0:
        return None
    try:
        source, target = descriptors  # type: ignore[misc]  # what is not a pair is named below
    except (TypeError, ValueError) as error:
        raise VBRegError(
            f"this network sees descriptors of {width} columns: give descriptors=(source, target), "
            "row by row with the matches"
        ) from error
    ends = (("source descriptors", source), ("target descriptors", target))
    return np.concatenate([_unit_rows(rows, name, valid, width) for name, rows in ends], axis=-1)


def _unit_rows(rows: Points, name: str, valid: Bool, width: int) -> Float64:
    array = _as_numbers(rows, name, "numbers (N, D) as an array or a tensor")
    if array.shape[:-1] != valid.shape:
        expected = (*valid.shape, width)
        raise VBRegError(f"{name} have shape {array.shape}: expected {expected}, one row per match")
    if array.shape[-1] != width:
        raise VBRegError(f"{name} have {array.shape[-1]} columns: this network takes {width}")
    array = np.where(valid[..., None], array, 0.0)
    if not np.isfinite(array).all():
        raise VBRegError(f"{name} hold NaN or infinity: drop these matches, or mask them")
    return array / np.linalg.norm(array, axis=-1, keepdims=True).clip(1e-12)


def _as_numbers(values: Points, name: str, expected: str) -> Float64:
    """float64 of any shape, never the caller's own array."""
    if isinstance(values, Tensor):
        values = values.detach().to("cpu", torch.float64).numpy()
    try:
        array = np.asarray(values)
        if array.dtype.kind not in "biuf":
            raise TypeError(f"its values are {array.dtype}")
    except (TypeError, ValueError) as error:
        raise VBRegError(
            f"{name} is a {type(values).__name__}: expected {expected} ({error})"
        ) from error
    return array.astype(np.float64)


def _batched(rows: Float64) -> Tensor:
    """(B, N, ...) of one problem's rows (N, ...) or of several problems' (B, N, ...)."""
    return torch.from_numpy(rows if rows.ndim == 3 else rows[None])


def as_mask(mask: ArrayLike | Tensor) -> Bool:
    """(..., N) bool."""
    if isinstance(mask, Tensor):
        mask = mask.detach().cpu().numpy()
    try:
        return np.asarray(mask, dtype=bool)
    except (TypeError, ValueError) as error:
        raise VBRegError(f"mask: expected True or False for each row ({error})") from error


def usable_rows(source: Float64, target: Float64, mask: Bool | None) -> Bool:
    """Rows that are real and finite in both clouds, with the shapes checked."""
    if source.shape != target.shape:
        raise VBRegError(
            f"source_points {source.shape} and target_points {target.shape} differ in shape: row n "
            "of one is matched to row n of the other"
        )
    if mask is not None and mask.shape != source.shape[:-1]:
        raise VBRegError(f"mask has shape {mask.shape}: expected {source.shape[:-1]}")
    finite = np.isfinite(source) & np.isfinite(target)
    valid: Bool = np.all(finite, axis=-1) & (True if mask is None else mask)
    fewest = int(valid.sum(-1).min()) if valid.size else 0
    if fewest < 3:
        raise VBRegError(f"{fewest} usable correspondences: at least 3 are needed to fix a pose")
    return valid
