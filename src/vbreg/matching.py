"""The front end: the one way from clouds to matches.

    cloud -> local frame -> one point a voxel -> normals -> descriptors -> 1-NN matches

`register`, the benchmarks and training all come through here, so that what is measured is what
ships. A step of your own goes in as the `descriptor`: a function of points, normals and scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vbreg.backends.devices import to_cpu
from vbreg.clouds import check_width, estimate_voxel_size
from vbreg.description import Sampled, description_of
from vbreg.descriptors import Descriptor, DescriptorChoice, MatchingName, descriptor_named
from vbreg.errors import VBRegError
from vbreg.frames import LocalCloud, Matches
from vbreg.inputs import MIN_MATCHES, Cloud, as_array, check_choice, check_points
from vbreg.scale import Scale
from vbreg.streaming import local_cloud
from vbreg.timing import Clock, untimed
from vbreg.types import Correspondences, Float64

MAX_CORRESPONDENCES = 8000  # of a registration, if nothing else is said
MAX_POINTS = 300_000  # of a cloud after downsampling; a registration needs some thousands
MAX_RATIO = 0.9  # of the distances to the nearest and the second nearest descriptor
MAX_SIMILARITIES = 2**22  # held at a time: 16 MB, near a CPU's cache
NEEDED = {"mutual": "mutual", "ratio": "clearly the nearest"}  # by the kind of matching

Keypoints: TypeAlias = int | Literal["all"]
Viewpoint: TypeAlias = Literal["origin", "unknown"] | Sequence[float] | Float64


class ThinnedSurface(NamedTuple):
    """All points of a cloud at its working resolution, in its local frame."""

    points: Tensor  # (M, 3) float32
    normals: Tensor  # (M, 3) unit


@dataclass(frozen=True, eq=False)
class DescribedCloud:
    """A cloud at its working resolution, in a local frame, with what describes each point."""

    points: Tensor  # (N, 3) float32
    normals: Tensor | None  # (N, 3) unit; None where descriptors come from a file
    descriptors: Tensor  # (N, D); a row of zeros where a point has none
    origin: Float64  # (3,) of the local frame in the user's
    matching: MatchingName = "one-way"  # how its descriptors are matched, if nothing else is said
    surface: ThinnedSurface | None = None  # around the points; None if described elsewhere
    # Shares () of all thinned points: those that lie on no surface, and those in a volume.
    lone_share: Tensor | None = None
    volume_share: Tensor | None = None

    def __len__(self) -> int:
        return len(self.points)

    def in_user_frame(self, rows: Tensor | slice = slice(None)) -> Float64:
        """Return points (N, 3) float64 in the frame in which the cloud was given."""
        return self.points[rows].double().cpu().numpy() + self.origin

    def surface_in_user_frame(self) -> Float64:
        """Return all thinned points (M, 3) float64 in that frame, those described if none else."""
        if self.surface is None:
            return self.in_user_frame()
        return self.surface.points.double().cpu().numpy() + self.origin

    def take(self, rows: Tensor) -> DescribedCloud:
        """Return the cloud of some of the points, described as they were among all."""
        normals = None if self.normals is None else self.normals[rows]
        return replace(
            self, points=self.points[rows], normals=normals, descriptors=self.descriptors[rows]
        )

    def moved(self, T: Float64) -> DescribedCloud:
        """Return the cloud in the frame into which a pose T (4, 4) takes its own.

        Descriptors say the same in every frame, so they go with their points.
        """
        R = torch.from_numpy(T[:3, :3]).to(self.points)

        def turned(part: Tensor) -> Tensor:
            return part @ R.to(part).T

        return replace(
            self,
            points=turned(self.points),
            normals=None if self.normals is None else turned(self.normals),
            origin=T[:3, :3] @ self.origin + T[:3, 3],
            surface=None if self.surface is None else ThinnedSurface(*map(turned, self.surface)),
        )

    def to(self, device: torch.device) -> DescribedCloud:
        """Return the cloud on a device."""
        return replace(
            self,
            points=self.points.to(device),
            normals=None if self.normals is None else self.normals.to(device),
            descriptors=self.descriptors.to(device),
            surface=None
            if self.surface is None
            else ThinnedSurface(*(part.to(device) for part in self.surface)),
        )


@dataclass(frozen=True, eq=False)
class MatchedClouds:
    """Two described clouds and which of their points may be the same."""

    source: DescribedCloud
    target: DescribedCloud
    source_index: Tensor  # (K,) rows of `source`
    target_index: Tensor  # (K,) rows of `target`
    matches_found: int  # before they were thinned to K
    scale: Scale

    def thinned(self, most: int) -> MatchedClouds:
        """Return at most so many of the matches, evenly at random, the same in every call."""
        i, j = self.source_index, self.target_index
        if len(i) <= most:
            return self
        rows = evenly(len(i), most).to(i.device)
        return replace(self, source_index=i[rows], target_index=j[rows])

    def matches(self, *, with_descriptors: bool = False) -> Matches:
        """Return the matches as a solver takes them: local frames, in inlier thresholds."""
        i, j = self.source_index, self.target_index
        described = None
        if with_descriptors:
            ends = self.source.descriptors[i], self.target.descriptors[j]
            described = torch.cat([F.normalize(end.double(), dim=-1) for end in ends], dim=-1)[None]
        return Matches.local(
            self.source.points[i],
            self.target.points[j],
            (self.source.origin, self.target.origin),
            self.scale.inlier_threshold,
            described,
        )

    @cached_property
    def lone_shares(self) -> tuple[float, float] | None:
        """The share of each cloud that lies on no surface; None where that is not known."""
        return _as_numbers(self.source.lone_share, self.target.lone_share)

    @cached_property
    def volume_shares(self) -> tuple[float, float] | None:
        """The share of each cloud that lies in a volume; None where that is not known."""
        return _as_numbers(self.source.volume_share, self.target.volume_share)

    @cached_property
    def correspondences(self) -> Correspondences:
        """The matches in the user's frames."""
        i, j = self.source_index, self.target_index
        ends = self.source.points[i].double(), self.target.points[j].double()
        source, target, *index = (part.numpy() for part in to_cpu((*ends, i, j)))
        return Correspondences(source + self.source.origin, target + self.target.origin, *index)


def describe(
    cloud: Cloud | LocalCloud,
    scale: Scale,
    *,
    descriptor: DescriptorChoice = "learned",
    keypoints: Keypoints | None = None,
    viewpoint: Viewpoint = "unknown",
    device: torch.device | None = None,
    clock: Clock = untimed,
) -> DescribedCloud:
    """Thin a cloud to one point a voxel and describe `keypoints` of them, on the device.

    Keypoints are drawn evenly at random, the same in every call; left out, there are as many as
    the descriptor needs: all of them for FPFH, some for a trained one. Normals point to the
    `viewpoint`: where the sensor was, as a point or 'origin', in the frame of the cloud.
    """
    local = cloud if isinstance(cloud, LocalCloud) else local_cloud(cloud, "the cloud")
    compute = descriptor_named(descriptor)
    with clock("downsample"):
        points, detail = local.thinned((scale.voxel_size, scale.detail_size), device)
        _check_size(points, local, scale)
    return _described(points, detail, local.origin, scale, compute, keypoints, viewpoint, clock)


def thin(cloud: LocalCloud, scale: Scale, device: torch.device | None = None) -> Tensor:
    """Return one point (N, 3) a voxel, on the device."""
    points = cloud.thinned((scale.voxel_size,), device)[0]
    _check_size(points, cloud, scale)
    return points


def _check_size(points: Tensor, cloud: LocalCloud, scale: Scale) -> None:
    """Raise where a cloud has more points (N, 3) at its working resolution than are matched."""
    if len(points) > MAX_POINTS:
        better = estimate_voxel_size(cloud.points)
        raise VBRegError(
            f"a cloud has {len(points)} points at voxel size {scale.voxel_size:g}: at most "
            f"{MAX_POINTS} are matched; use a larger voxel size (about {better:g} would suit "
            "this cloud)"
        )


def thin_to_detail(cloud: LocalCloud, scale: Scale, device: torch.device | None = None) -> Tensor:
    """Return the finer points (F, 3) that show the relief of a surface."""
    return cloud.thinned((scale.detail_size,), device)[0]


def describe_points(
    points: Tensor,  # (N, 3), one a voxel
    origin: Float64,
    scale: Scale,
    *,
    descriptor: DescriptorChoice = "learned",
    detail: Tensor | None = None,  # (F, 3) finer points of the same cloud
    keypoints: Keypoints | None = None,
    viewpoint: Viewpoint = "unknown",
    clock: Clock = untimed,
) -> DescribedCloud:
    """Describe points that are at their working resolution already."""
    detail = points if detail is None else detail
    for name, part in (("points", points), ("detail", detail)):
        check_points(name, part)
        if len(part):
            check_width(part.amin(0), part.amax(0), scale.voxel_size)
    compute = descriptor_named(descriptor)
    return _described(points, detail, origin, scale, compute, keypoints, viewpoint, clock)


def _described(
    points: Tensor,
    detail: Tensor,
    origin: Float64,
    scale: Scale,
    descriptor: Descriptor,
    keypoints: Keypoints | None,
    viewpoint: Viewpoint,
    clock: Clock,
) -> DescribedCloud:
    """Describe points that are known to be sound, so that no device need be asked."""
    sensor = check_viewpoint(viewpoint)
    count = descriptor.keypoints(len(points)) if keypoints is None else keypoints
    rows = evenly(len(points), len(points) if count == "all" else count).to(points.device)
    place = None if sensor is None else torch.from_numpy(sensor - origin)
    cloud = Sampled(points, detail, rows, place)
    surface, descriptors = description_of(cloud, scale, descriptor, clock)
    return DescribedCloud(
        points[rows],
        surface.normals[rows],
        descriptors,
        origin,
        descriptor.matching,
        ThinnedSurface(points, surface.normals),
        surface.lone_share,
        surface.volume_share,
    )


def _as_numbers(source: Tensor | None, target: Tensor | None) -> tuple[float, float] | None:
    if source is None or target is None:
        return None
    first, second = torch.stack([source, target.to(source)]).tolist()  # one wait for both
    return first, second


def check_viewpoint(viewpoint: Viewpoint) -> Float64 | None:
    """Return the point (3,) that is meant, None where it is unknown."""
    if isinstance(viewpoint, str) and viewpoint in ("origin", "unknown"):
        return np.zeros(3) if viewpoint == "origin" else None
    try:
        point = as_array(viewpoint).astype(np.float64)
    except (TypeError, ValueError):
        point = np.empty(0)
    if point.shape != (3,) or not np.isfinite(point).all():
        raise VBRegError(
            f"viewpoint {viewpoint!r}: expected 'origin', 'unknown' or three numbers, the place of "
            "the sensor in the frame of its cloud"
        )
    return point


def match_clouds(
    source: DescribedCloud,
    target: DescribedCloud,
    scale: Scale,
    *,
    matching: MatchingName | None = None,
    max_matches: int | None = MAX_CORRESPONDENCES,
) -> MatchedClouds:
    """Match described points to those of the other cloud with the nearest descriptor.

    `matching` says which way, as in `match`; left out, the descriptor's own. A lone point, whose
    descriptor is all zeros, is matched to nothing. More than `max_matches` are thinned evenly at
    random, the same in every call.
    """
    matching = source.matching if matching is None else matching
    described = [end.descriptors.any(-1) for end in (source, target)]  # (N,) each
    if bool(described[0].all() & described[1].all()):  # mostly so, and one wait tells
        i, j = match(source.descriptors, target.descriptors, matching=matching)
    else:
        kept = [rows.nonzero().squeeze(-1) for rows in described]
        i, j = match(source.descriptors[kept[0]], target.descriptors[kept[1]], matching=matching)
        i, j = kept[0][i], kept[1][j]
    found = len(i)
    if found < MIN_MATCHES:
        raise VBRegError(
            f"{found} matches between clouds of {len(source)} and {len(target)} points at voxel "
            f"size {scale.voxel_size:g}: at least {MIN_MATCHES} are needed; use a smaller voxel "
            "size if these are few points, a larger one if most of them stand alone, and check "
            "that both clouds and the voxel size are in one unit"
            + (f", or matches that need not be {NEEDED[matching]}" if matching in NEEDED else "")
        )
    matched = MatchedClouds(source, target, i, j, found, scale)
    return matched if max_matches is None else matched.thinned(max_matches)


def evenly(n: int, most: int) -> Tensor:
    """Return `most` of n rows, ascending, the same in every call."""
    if most >= n:
        return torch.arange(n)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
    return order[:most].sort().values


def match(
    source_features: Tensor, target_features: Tensor, *, matching: MatchingName = "one-way"
) -> tuple[Tensor, Tensor]:
    """Find nearest descriptors, all compared at length 1.

    source_features (N, D), target_features (M, D) -> source_index, target_index (K,) int64,
    ascending in the source. One way, each source point finds its nearest target point; either way,
    the matches of target points to their nearest source points join; mutual are those matches that
    are nearest in both directions; ratio those whose nearest is at most MAX_RATIO as far as the
    second nearest; two nearest are a source point's with both. Of several nearest the lowest index
    wins. Memory is bounded.
    """
    check_choice(matching, "matching", get_args(MatchingName))
    _check_features(source_features, target_features)
    source = F.normalize(source_features.detach().float(), dim=-1)
    target = F.normalize(target_features.detach().float(), dim=-1)
    index = torch.arange(len(source), device=source.device)
    if len(source) == 0 or len(target) == 0:
        return index[:0], index[:0]
    if matching in ("ratio", "two-nearest"):
        return _of_two_nearest(source, target, matching == "ratio")
    nearest, nearest_back = _nearest(source, target, matching != "one-way")
    if nearest_back is None:
        return index, nearest
    if matching == "mutual":
        kept = (nearest_back[nearest] == index).nonzero().squeeze(-1)
        return kept, nearest[kept]
    back = torch.arange(len(target), device=target.device)
    new = (nearest[nearest_back] != back).nonzero().squeeze(-1)
    i, j = torch.cat([index, nearest_back[new]]), torch.cat([nearest, new])
    order = torch.argsort(i * len(target) + j)
    return i[order], j[order]


def _nearest(source: Tensor, target: Tensor, both_ways: bool) -> tuple[Tensor, Tensor | None]:
    """Return the most similar row of the other set: (N,) and, if asked for, (M,) back."""
    rows = min(len(source), max(1, MAX_SIMILARITIES // len(target)))
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


def _of_two_nearest(source: Tensor, target: Tensor, ratio: bool) -> tuple[Tensor, Tensor]:
    """Match rows of length 1 to their two nearest, or to the nearest where that is clearly so."""
    rows = max(1, MAX_SIMILARITIES // len(target))
    found = [(chunk @ target.T).topk(min(2, len(target)), dim=1) for chunk in source.split(rows)]
    nearest = torch.cat([each.indices for each in found])  # (N, 2)
    if not ratio:
        index = torch.arange(len(source), device=source.device)
        return index.repeat_interleave(nearest.shape[1]), nearest.sort(1).values.flatten()
    distance2 = (2 - 2 * torch.cat([each.values for each in found])).clamp_min(0)
    clear = (distance2[:, 0] < MAX_RATIO**2 * distance2[:, -1]).nonzero().squeeze(-1)
    return clear, nearest[clear, 0]


def _check_features(source: Tensor, target: Tensor) -> None:
    for name, features in (("source_features", source), ("target_features", target)):
        if features.ndim != 2:
            raise VBRegError(f"{name} has shape {tuple(features.shape)}: expected (N, D)")
    finite = [features.isfinite().all() for features in (source, target)]
    if not bool(finite[0] & finite[1]):  # one wait for both
        name = "target_features" if bool(finite[0]) else "source_features"
        raise VBRegError(f"{name} holds NaN or infinity: drop these points first")
    if source.shape[1] != target.shape[1]:
        raise VBRegError(
            f"source_features have {source.shape[1]} columns and target_features "
            f"{target.shape[1]}: describe both clouds with the same descriptor"
        )
