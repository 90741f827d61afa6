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

from vbreg.backends.neighbors import radius_knn
from vbreg.clouds import NORMAL_NEIGHBORS, Voxels, check_width, in_voxels, lone_points
from vbreg.errors import VBRegError, warn
from vbreg.inputs import (
    MIN_MATCHES,
    Cloud,
    Ignore,
    finite_points,
    ignored_points,
    load_points,
)
from vbreg.types import Bool, Float32, Float64

NEARLY_ALL = 0.98  # of the points, by whose distance from the middle a cloud's size is told
STRAY_REACH = 1000.0  # times that distance, beyond which a point belongs to nothing
MIN_STRAY_CLOUD = 200  # points, below which nobody can tell
MAX_SAMPLE = 5_000  # points that suffice to tell a cloud's size
MAX_STEPS = 2000  # across a cloud that was rounded so much that it shows
THOUSAND = (300.0, 3000.0)  # the ratio of millimetres to metres, for clouds that overlap in part
MAX_EXTENT = 1e7  # inlier thresholds; beyond, float32 cannot tell an inlier from its neighbour


@dataclass(frozen=True, eq=False)
class LocalCloud:
    """A cloud's finite points about an origin of its own, so that float32 holds them."""

    points: Tensor  # (N, 3) float32, CPU
    origin: Float64  # (3,)
    count: int  # of points read
    dropped: int  # of them, not finite, strays or lone; those to ignore are not among them

    @staticmethod
    def of(cloud: Cloud, role: str, ignore: Ignore | None = None) -> LocalCloud:
        """Move a user's cloud to its middle; `role` names it in an error.

        Points to ignore are left out. So are a few that lie very far from all others, with a
        warning: a scanner's zeros would else make the cloud as wide as its distance from the
        origin.
        """
        points = load_points(cloud, role)
        finite, left_out = finite_points(points), 0
        every = finite.all()  # mostly so
        kept = points if every else points[finite]
        if ignore is not None:
            ignored = ignored_points(ignore, points, role)
            ignored = ignored if every else ignored[finite]
            kept, left_out = kept[~ignored], int(ignored.sum())
        check_count(len(kept), len(points), left_out, role)
        low, high = bounds(kept)
        strays = strays_of(kept, low, high)
        if strays.any():
            kept = kept[~strays]
            warn_of_strays(int(strays.sum()), len(points), role)
            low, high = bounds(kept)
        warn_of_rounding(kept, low, high, role)
        origin = np.einsum("ni->i", kept) / len(kept)  # as a mean, in a quarter of the time
        local = torch.from_numpy((kept - origin).astype(np.float32))
        return LocalCloud(local, origin, len(points), len(points) - len(kept) - left_out)

    def thinned(self, sizes: Sequence[float], device: torch.device | None = None) -> list[Tensor]:
        """Return one point (M, 3) a voxel, of every voxel size, on the device."""
        low, high = (torch.from_numpy(end) for end in bounds(self.points.numpy()))
        for size in sizes:
            check_width(low, high, size)  # here, since to ask a GPU takes as long as the rest
        points = self.points.to(device)
        voxels = [Voxels.of(points, size) for size in sizes]
        return [each.mean_points(points) for each in voxels]

    def multiplied(self, factors: Float64) -> LocalCloud:
        """Return the cloud with each axis times its factor (3,), about the user's origin."""
        points = self.points * torch.from_numpy(factors).to(self.points)
        return replace(self, points=points, origin=self.origin * factors)

    def without_lone_points(self, voxel_size: float, radius: float) -> LocalCloud:
        """Return the cloud without the voxels that lie on no surface, as `lone_points` tells."""
        voxels = in_voxels(self.points, voxel_size)
        means = voxels.mean_points(self.points)
        alone = lone_points(radius_knn(means, None, radius, NORMAL_NEIGHBORS))
        kept = self.points[~alone[voxels.index()]]
        dropped = self.dropped + len(self.points) - len(kept)
        return LocalCloud(kept, self.origin, self.count, dropped)


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
        ends = torch.stack([source, target]).double().div_(unit)  # (2, N, 3)
        _check_extent(float(ends.abs().max()), unit)
        mask = torch.ones(1, len(source), dtype=torch.bool, device=source.device)
        shift = origins[0][None], origins[1][None]
        return Matches(ends[0][None], ends[1][None], mask, descriptors, shift, unit)

    @staticmethod
    def of_points(
        sources: Sequence[Float64],  # (N_b, 3) each, in the user's frames
        targets: Sequence[Float64],
        unit: float,
        descriptors: Sequence[Float64] | None = None,  # (N_b, 2 D) each
    ) -> Matches:
        """Make problems of a user's points, padded to the longest.

        Rows that are not finite are masked out.
        """
        longest = max(len(source) for source in sources)
        ends = np.full((2, len(sources), longest, 3), np.nan)  # padding is not finite, either
        for b, (source, target) in enumerate(zip(sources, targets, strict=True)):
            ends[0, b, : len(source)], ends[1, b, : len(target)] = source, target
        mask = finite_points(ends[0]) & finite_points(ends[1])  # (B, N)
        if (fewest := int(mask.sum(1).min())) < MIN_MATCHES:
            raise VBRegError(
                f"{fewest} usable correspondences: at least {MIN_MATCHES} are needed to fix a pose"
            )
        whole = bool(mask.all())
        if not whole:
            ends[:, ~mask] = 0.0
        # The same as a sum, in a quarter of the time where the last axis is short.
        origins = np.einsum("ebni->ebi", ends) / mask.sum(1)[:, None]  # (2, B, 3)
        ends -= origins[:, :, None]
        if not whole:
            ends[:, ~mask] = 0.0
        ends /= unit
        _check_extent(float(np.abs(ends).max()), unit)
        described = None
        if descriptors is not None:
            rows = np.zeros((len(sources), longest, descriptors[0].shape[-1]))
            for b, given in enumerate(descriptors):
                rows[b, : len(given)] = given
            described = torch.from_numpy(rows)
        source, target = torch.from_numpy(ends)
        real = torch.from_numpy(mask)
        return Matches(source, target, real, described, (origins[0], origins[1]), unit)

    @staticmethod
    def padded(problems: Sequence[Matches]) -> Matches:
        """Make one batch of several problems for a solver, padded to the longest.

        Lengths stay in the thresholds of each, so that a pose goes back to the user through the
        matches that it was made for: the batch has no origins and the unit 1.
        """
        if len(problems) == 1:
            return problems[0]
        longest = max(len(each) for each in problems)
        count = sum(each.problems for each in problems)
        parts = [
            each.map(
                lambda part: torch.cat(
                    [part, part.new_zeros(len(part), longest - part.shape[1], *part.shape[2:])], 1
                )
            )
            for each in problems
        ]
        described = [each.descriptors for each in parts if each.descriptors is not None]
        return Matches(
            torch.cat([each.source for each in parts]),
            torch.cat([each.target for each in parts]),
            torch.cat([each.mask for each in parts]),
            torch.cat(described) if described else None,
            (np.zeros((count, 3)), np.zeros((count, 3))),
            1.0,
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

    def problems_from(self, start: int, count: int) -> Matches:
        """Return at most `count` of the problems, from one on."""
        some = slice(start, start + count)
        origins = self.origins[0][some], self.origins[1][some]
        return replace(self.map(lambda part: part[some]), origins=origins)

    def in_unit(self, T_local: Tensor) -> Tensor:
        """Return poses (B, 4, 4) in the unit of the user's points, between the local frames."""
        T = T_local.double().clone()
        T[:, :3, 3] *= self.unit
        return T

    def to_user(self, T_local: Tensor) -> Float64:
        """Return poses (B, 4, 4) in the unit and the frames of the user's points."""
        T = T_local.double().cpu().numpy().copy()
        source_origin, target_origin = self.origins
        moved = np.einsum("bij,bj->bi", T[:, :3, :3], source_origin)
        T[:, :3, 3] = T[:, :3, 3] * self.unit + target_origin - moved
        return T


def check_units(source: LocalCloud, target: LocalCloud) -> None:
    """Raise where one cloud is about a thousand times as large as the other."""
    sizes = [middle_and_reach(cloud.points.numpy())[1] for cloud in (source, target)]
    if min(sizes) > 0 and THOUSAND[0] < max(sizes) / min(sizes) < THOUSAND[1]:
        larger = "source" if sizes[0] > sizes[1] else "target"
        raise VBRegError(
            f"source reaches {sizes[0]:.4g} from its middle and target {sizes[1]:.4g}: is {larger} "
            "in millimetres and the other in metres? Bring both to one unit, or give voxel_size if "
            "they are in one unit already"
        )


def check_count(kept: int, read: int, ignored: int, role: str) -> None:
    """Raise where too few points of a cloud are left to register it."""
    if kept < MIN_MATCHES:
        raise VBRegError(
            f"{role} has {kept} finite points of {read}"
            + (f", with {ignored} ignored" if ignored else "")
            + f": at least {MIN_MATCHES} are needed, and a real scan has thousands; check that "
            "the file is the one you meant"
        )


def warn_of_strays(count: int, read: int, role: str) -> None:
    """Say that points of a cloud are left out for lying very far from nearly all others."""
    warn(
        f"{count} of {read} points of {role} lie more than {STRAY_REACH:g} times as far from its "
        "middle as nearly all others, and are left out"
    )


def warn_of_rounding(points: Float64, low: Float64, high: Float64, role: str) -> None:
    """Say that points (N, 3) within these bounds were rounded to float32 far away, if so."""
    farthest = np.maximum(np.abs(low), np.abs(high)).max()
    extent = (high - low).max()
    if not (farthest < np.finfo(np.float32).max and extent > 0):
        return
    step = float(np.spacing(np.float32(farthest)))
    if step * MAX_STEPS > extent and np.array_equal(points, points.astype(np.float32)):
        warn(
            f"the points of {role} lie on steps of {step:g}: with coordinates as large as "
            f"{farthest:.3g}, float32 cannot hold more digits; give float64, or subtract an offset "
            "before they are made float32"
        )


def strays_of(points: Float64, low: Float64, high: Float64) -> Bool:
    """Tell (N,) which points (N, 3), with these bounds, lie very far from nearly all others."""
    limit = stray_limit(points, low, high)
    if limit is None:
        return np.zeros(len(points), dtype=bool)
    middle, most = limit
    with np.errstate(over="ignore"):
        away = (points - middle) / most
        return np.asarray(np.einsum("ni,ni->n", away, away) > 1)  # a norm would take three times


def stray_limit(sample: Float64, low: Float64, high: Float64) -> tuple[Float64, float] | None:
    """Return the middle (3,) of a cloud and how far from it points count, None where all surely do.

    That is told from a sample (N, 3) of the cloud and from the bounds (3,) of all its points; a
    small cloud cannot tell.
    """
    if len(sample) < MIN_STRAY_CLOUD:
        return None
    middle, reach = middle_and_reach(sample)
    most = STRAY_REACH * reach
    with np.errstate(over="ignore"):
        farthest = float(np.linalg.norm(np.maximum(high - middle, middle - low)))
    return (middle, most) if 0 < most < farthest else None


def bounds(points: Float64) -> tuple[Float64, Float64]:
    """Return the least and the largest coordinates (3,) of points (N, 3)."""
    axes = _by_axis(points)
    return axes.min(axis=1), axes.max(axis=1)


def middle_and_reach(points: Float32 | Float64) -> tuple[Float64, float]:
    """Return the middle (3,) of points (N, 3), and how far from it nearly all of them lie."""
    axes = _by_axis(points[:: max(1, len(points) // MAX_SAMPLE)])
    middle = _quantile(axes, 0.5)
    offset = axes - middle[:, None]
    distance = np.sqrt((offset * offset).sum(axis=0))
    return middle, float(_quantile(distance, NEARLY_ALL))


def _by_axis(points: Float32 | Float64) -> Float64:
    """Return points (N, 3) as rows (3, N), along which numpy is many times quicker."""
    return np.ascontiguousarray(points.T, dtype=np.float64)


def _quantile(values: Float64, share: float) -> Float64:
    """Return the quantile along the last axis, as np.quantile does in five times the time."""
    place = share * (values.shape[-1] - 1)
    below = int(place)
    above = min(below + 1, values.shape[-1] - 1)
    ordered = np.partition(values, (below, above), axis=-1)
    lower, upper = ordered[..., below], ordered[..., above]
    return np.asarray(lower + (place - below) * (upper - lower))


def _check_extent(widest: float, unit: float) -> None:
    """Raise where points lie so many thresholds from their middle that float32 loses them."""
    if not widest <= MAX_EXTENT:
        raise VBRegError(
            f"matches lie up to {widest * unit:.3g} from their middle, with an inlier threshold of "
            f"{unit:.3g}: check that both are in the same unit"
        )
