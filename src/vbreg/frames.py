"""From the user's frames and units to the ones computed in, and back.

Points may lie millions of metres from their origin. Here they are moved once to an origin of their
own, where float32 holds them; they stay there, and the pose goes back to the user's frames.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from vbreg.errors import VBRegError
from vbreg.inputs import MIN_MATCHES, Cloud, load_points
from vbreg.types import Bool, Float64

MAX_EXTENT = 1e7  # inlier thresholds; beyond, float32 cannot tell an inlier from its neighbour


@dataclass(frozen=True, eq=False)
class LocalCloud:
    """A cloud's finite points about an origin of its own, so that float32 holds them."""

    points: Tensor  # (N, 3) float32, CPU
    origin: Float64  # (3,)
    count: int  # of points read
    dropped: int  # of them, not finite

    @staticmethod
    def of(cloud: Cloud, role: str) -> LocalCloud:
        """Move a user's cloud to its middle; `role` names it in an error."""
        points = load_points(cloud, role)
        finite = np.isfinite(points).all(axis=1)
        kept = points[finite]
        if len(kept) < MIN_MATCHES:
            raise VBRegError(
                f"{role} has {len(kept)} finite points of {len(points)}: at least {MIN_MATCHES} "
                "are needed, and a real scan has thousands; check that the file is the one you "
                "meant"
            )
        origin = kept.mean(axis=0)
        local = torch.from_numpy((kept - origin).astype(np.float32))
        return LocalCloud(local, origin, len(points), len(points) - len(kept))


@dataclass(frozen=True, eq=False)
class Matches:
    """Matches of B problems in local frames and in units of the inlier threshold, and the way back.

    This is what all solvers work on; users are given `Correspondences`.
    """

    source: Tensor  # (B, N, 3) float64
    target: Tensor  # (B, N, 3) float64
    mask: Tensor  # (B, N) True for real rows
    descriptors: Tensor | None  # (B, N, 2 D), each end of length 1
    origins: tuple[Float64, Float64]  # (B, 3) of source and target, in the user's frames
    unit: float  # the inlier threshold, in the unit of the user's points

    @staticmethod
    def local(
        source: Tensor,  # (N, 3) about the first origin, in the user's unit
        target: Tensor,  # (N, 3) about the second
        origins: tuple[Float64, Float64],  # (3,) each
        unit: float,
        descriptors: Tensor | None = None,  # (1, N, 2 D)
    ) -> Matches:
        """Make one problem of points that lie in local frames already."""
        ends = source.double() / unit, target.double() / unit
        widest = max(float(end.abs().max()) for end in ends)
        if not widest <= MAX_EXTENT:
            raise VBRegError(
                f"matches lie up to {widest * unit:.3g} from their middle, with an inlier "
                f"threshold of {unit:.3g}: check that both are in the same unit"
            )
        mask = torch.ones(1, len(source), dtype=torch.bool, device=source.device)
        shift = origins[0][None], origins[1][None]
        return Matches(ends[0][None], ends[1][None], mask, descriptors, shift, unit)

    @staticmethod
    def of_points(
        source: Float64, target: Float64, unit: float, descriptors: Float64 | None = None
    ) -> Matches:
        """Make one problem of finite points (N, 3) in the user's frames."""
        origins = source.mean(0), target.mean(0)
        described = None if descriptors is None else torch.from_numpy(descriptors)[None]
        ends = torch.from_numpy(source - origins[0]), torch.from_numpy(target - origins[1])
        return Matches.local(ends[0], ends[1], origins, unit, described)

    @staticmethod
    def batch(problems: Sequence[Matches]) -> Matches:
        """Join problems of one unit, padded to the longest."""
        if len(problems) == 1:
            return problems[0]
        longest = max(len(problem) for problem in problems)

        def padded(parts: Sequence[Tensor]) -> Tensor:
            whole = parts[0].new_zeros(len(parts), longest, *parts[0].shape[2:])
            for row, part in zip(whole, parts, strict=True):
                row[: part.shape[1]] = part[0]
            return whole

        described = [p.descriptors for p in problems if p.descriptors is not None]
        return Matches(
            padded([p.source for p in problems]),
            padded([p.target for p in problems]),
            padded([p.mask for p in problems]),
            padded(described) if described else None,
            (
                np.concatenate([p.origins[0] for p in problems]),
                np.concatenate([p.origins[1] for p in problems]),
            ),
            problems[0].unit,
        )

    def __len__(self) -> int:
        """Return N, the number of rows of each problem."""
        return self.mask.shape[1]

    @property
    def problems(self) -> int:
        """The number of problems, B."""
        return self.mask.shape[0]

    def map(self, change: Callable[[Tensor], Tensor]) -> Matches:
        """Return the same matches with every tensor changed."""
        return replace(
            self,
            source=change(self.source),
            target=change(self.target),
            mask=change(self.mask),
            descriptors=None if self.descriptors is None else change(self.descriptors),
        )

    def take(self, rows: Tensor) -> Matches:
        """Return some rows of every problem."""
        return self.map(lambda part: part[:, rows.to(part.device)])

    def to_user(self, T_local: Tensor) -> Float64:
        """Return poses (B, 4, 4) in the unit and the frames of the user's points."""
        T = T_local.double().cpu().numpy().copy()
        source_origin, target_origin = self.origins
        moved = np.einsum("bij,bj->bi", T[:, :3, :3], source_origin)
        T[:, :3, 3] = T[:, :3, 3] * self.unit + target_origin - moved
        return T

    def points_in_user_frame(self, problem: int = 0) -> tuple[Float64, Float64]:
        """Return source and target (N, 3) of one problem, in the user's frames."""
        source, target = (
            end[problem].double().cpu().numpy() * self.unit + origin[problem]
            for end, origin in zip((self.source, self.target), self.origins, strict=True)
        )
        return source, target

    def real_rows(self, problem: int) -> Bool:
        """Tell which rows (N,) of one problem are no padding."""
        mask: Bool = self.mask[problem].cpu().numpy()
        return mask
