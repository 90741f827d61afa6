"""What verification and refinement look at: surfaces of both clouds and their matches, in voxels.

Shapes: B pairs of clouds, M points of a surface, N matches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from vbreg.backends.neighbors import Searchable
from vbreg.matching import DescribedCloud, MatchedClouds


@dataclass(frozen=True, eq=False)
class OrientedPoints:
    """Points with normals, of B clouds; rows beyond the last of a smaller cloud are not real."""

    points: Tensor  # (B, M, 3) in voxels
    normals: Tensor  # (B, M, 3) of length 1
    real: Tensor  # (B, M)

    @staticmethod
    def of(points: Tensor, normals: Tensor, voxel_size: float) -> OrientedPoints:
        """Return the points (M, 3) of one cloud, all of them real."""
        real = torch.ones(1, len(points), dtype=torch.bool, device=points.device)
        return OrientedPoints(points.float()[None] / voxel_size, normals.float()[None], real)

    @staticmethod
    def together(clouds: Sequence[OrientedPoints]) -> OrientedPoints:
        """Return clouds of one each as B clouds."""
        return OrientedPoints(
            _padded([cloud.points for cloud in clouds]),
            _padded([cloud.normals for cloud in clouds]),
            _padded([cloud.real for cloud in clouds]),
        )

    @cached_property
    def searchable(self) -> Searchable:
        """The points as neighbours are looked for among them."""
        return Searchable(self.points, self.real)

    def take(self, rows: Tensor | slice) -> OrientedPoints:
        """Return some of the points, the same rows of each cloud."""
        return OrientedPoints(self.points[:, rows], self.normals[:, rows], self.real[:, rows])


class SurfacePair(NamedTuple):
    """The surfaces of both clouds at their working resolution, and the matches between them."""

    source: OrientedPoints
    target: OrientedPoints
    matched_source: Tensor  # (B, N, 3) in voxels
    matched_target: Tensor  # (B, N, 3) in voxels
    matched_real: Tensor  # (B, N) which rows are matches

    @staticmethod
    def of(matched: MatchedClouds) -> SurfacePair | None:
        """Return the surfaces of one pair; None where clouds were described elsewhere."""
        source, target = (_surface(end, matched) for end in (matched.source, matched.target))
        if source is None or target is None:
            return None
        size = matched.scale.voxel_size
        real = torch.ones_like(matched.source_index, dtype=torch.bool)[None]
        return SurfacePair(
            source,
            target,
            matched.source.points[matched.source_index].float()[None] / size,
            matched.target.points[matched.target_index].float()[None] / size,
            real,
        )

    @staticmethod
    def together(pairs: Sequence[SurfacePair]) -> SurfacePair:
        """Return pairs of one each as B pairs."""
        return SurfacePair(
            OrientedPoints.together([pair.source for pair in pairs]),
            OrientedPoints.together([pair.target for pair in pairs]),
            _padded([pair.matched_source for pair in pairs]),
            _padded([pair.matched_target for pair in pairs]),
            _padded([pair.matched_real for pair in pairs]),
        )


def _padded(parts: Sequence[Tensor]) -> Tensor:
    """Return parts (1, n, ...) of different lengths as rows of one tensor, with zeros behind."""
    return pad_sequence([part[0] for part in parts], batch_first=True)


def _surface(cloud: DescribedCloud, matched: MatchedClouds) -> OrientedPoints | None:
    if cloud.surface is None:
        return None
    return OrientedPoints.of(*cloud.surface, matched.scale.voxel_size)
