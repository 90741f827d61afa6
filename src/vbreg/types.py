"""What goes in and what comes out. Frozen, numpy at the boundary, no logic beyond derived views."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]
Float32 = NDArray[np.float32]
Bool = NDArray[np.bool_]
Int64 = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class PointCloud:
    """Points, and whatever else the file holds per point (colours, intensity, normals)."""

    points: Float64  # (N, 3)
    attributes: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # name -> (N,) or (N, k)

    def __len__(self) -> int:
        return len(self.points)


@dataclass(frozen=True, eq=False)
class Correspondences:
    """N putative matches: row n says that `source[n]` and `target[n]` may be one physical point.

    The indices point into the clouds that were matched (after voxel downsampling), where known.
    """

    source: Float64  # (..., N, 3)
    target: Float64  # (..., N, 3)
    source_index: Int64 | None = None  # (N,)
    target_index: Int64 | None = None  # (N,)

    def __len__(self) -> int:
        return int(self.source.shape[-2])


@dataclass(frozen=True, eq=False)
class Registration:
    """A pose and the evidence for it.

    A batch of B problems gives the same type with a leading B on every array.
    """

    T_target_source: Float64  # (..., 4, 4) maps source points into the target's frame
    correspondences: Correspondences
    inliers: Bool  # (..., N) within `inlier_threshold` under the pose
    confidence: Float32  # (..., N) the network's inlier probability, known before any pose
    score: Float64  # (...) mean over correspondences of [d < tau] (1 - d^2 / tau^2), in 0..1
    determined: Bool  # (...) False where the matches do not fix all six degrees of freedom
    inlier_threshold: float  # tau, in the unit of the clouds
    matches_found: int  # before they were thinned to `len(correspondences)`
    voxel_size: float | None = None  # None where matches were given directly
    voxel_size_estimated: bool = False
    points_read: tuple[int, int] | None = None  # of source, target
    points_dropped: tuple[int, int] = (0, 0)  # non-finite points left out of source, target
    timings: Mapping[str, float] = field(default_factory=dict)  # seconds per stage

    @property
    def inlier_count(self) -> Int64:
        return np.asarray(self.inliers.sum(axis=-1), dtype=np.int64)

    def transform(self, points: NDArray[np.floating]) -> Float64:
        """Source points (M, 3) in the target's frame, computed in float64."""
        if self.T_target_source.ndim != 2:
            raise ValueError("transform() takes one pose; index T_target_source of a batch")
        points = np.asarray(points, dtype=np.float64)
        return points @ self.T_target_source[:3, :3].T + self.T_target_source[:3, 3]
