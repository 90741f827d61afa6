"""What goes in and what comes out: frozen, numpy at the boundary."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vbreg.errors import VBRegError

Float64 = NDArray[np.float64]
Float32 = NDArray[np.float32]
Bool = NDArray[np.bool_]
Int64 = NDArray[np.int64]

BackendUsed = Literal["plain", "cpu", "triton", "external"]
LimitName = Literal["max_translation", "max_rotation"]

FEW_INLIERS, FEW_INLIERS_SHARE = 30, 0.02  # below either, chance can make them
HARDLY_ANY = 10  # inliers, below which nothing else is worth telling of the matches
LITTLE_OVERLAP = 0.1  # share of both clouds
SURE, LIKELY = 0.9, 0.5  # probabilities from which a verdict is good, or not bad
MANY_LONE_POINTS = 0.07  # share of a cloud, at most reached where surfaces are scanned densely
MOSTLY_VOLUME = 0.75  # share of a cloud in a volume; noisy scans of rooms have at most 0.44
# Of scans that leave a motion free, fewer poses are right (docs/uncertainty.md).
FREE_ODDS = 0.1
# Of clouds that fill a volume, which any pose lays upon each other (docs/trust.md).
VOLUME_ODDS = 0.001
RIVAL = 0.25  # of the chosen pose's probability, from which an alternative is told

NORMAL_NAMES = ("nx", "ny", "nz")  # of attributes that turn with a cloud


@dataclass(frozen=True, eq=False, repr=False)
class PointCloud:
    """Points, and whatever else the file holds per point (colours, intensity, normals)."""

    points: Float64  # (N, 3)
    attributes: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # name -> (N,) or (N, k)
    faces: Int64 | None = None  # (F, 3) triangles of a mesh, as rows of the points
    grid: tuple[int, int] | None = None  # width and height, where points are pixels row by row
    crs: Mapping[int, bytes] = field(default_factory=dict)  # LAS records of the reference system

    def __len__(self) -> int:
        return len(self.points)

    def __repr__(self) -> str:
        return f"PointCloud({len(self)} points, attributes {list(self.attributes)})"

    def selected(self, rows: Bool) -> PointCloud:
        """Return the points of some rows (N,) with their attributes, without faces and grid."""
        attributes = {name: values[rows] for name, values in self.attributes.items()}
        return PointCloud(self.points[rows], attributes, crs=self.crs)

    def transformed(self, T: Float64) -> PointCloud:
        """Return the cloud moved by a pose T (4, 4), which may scale, computed in float64.

        Normals (nx, ny, nz) turn with it; other attributes, faces and points that are not finite
        stay as they are. The reference system is left out, since the cloud is in another frame now.
        """
        R, t = T[:3, :3], T[:3, 3]
        size = float(np.cbrt(np.linalg.det(R)))
        attributes = dict(self.attributes)
        names = [next((n for n in attributes if n.lower() == axis), "") for axis in NORMAL_NAMES]
        if all(names):
            turned = np.stack([attributes[name] for name in names], axis=1) @ (R / size).T
            for name, column in zip(names, turned.T, strict=True):
                attributes[name] = column.astype(attributes[name].dtype)
        return PointCloud(_moved(self.points, R, t), attributes, self.faces, self.grid)


@dataclass(frozen=True, eq=False, repr=False)
class Correspondences:
    """N putative matches: row n says that `source[n]` and `target[n]` may be one physical point.

    The indices point into the clouds that were matched (after voxel downsampling), where known.
    """

    source: Float64  # (N, 3)
    target: Float64  # (N, 3)
    source_index: Int64 | None = None  # (N,)
    target_index: Int64 | None = None  # (N,)

    def __len__(self) -> int:
        return len(self.source)

    def __repr__(self) -> str:
        return f"Correspondences({len(self)})"


@dataclass(frozen=True)
class FreeDirection:
    """A motion of the source against the target that what they share does not fix."""

    motion: Literal["slides", "turns"]
    direction: tuple[float, float, float]  # unit, in the target's frame: of the shift, of the axis
    through: tuple[float, float, float] | None = None  # a point of the axis of a turn

    def __str__(self) -> str:
        along = ", ".join(f"{round(x, 2) + 0.0:.2f}" for x in self.direction)  # no -0.00
        if self.through is None:
            return f"slides along ({along})"
        return f"turns about ({along}) through ({', '.join(f'{x:.4g}' for x in self.through)})"


class Votes(NamedTuple):
    """The matches that the search voted to be right if a seed is: its hypothetical inliers."""

    seeds: Int64  # (K,) rows of the correspondences, in the order in which they were chosen
    members: Int64  # (K, kappa) rows, the seed first; -1 where fewer were voted for


class Uncertainty(NamedTuple):
    """How far a pose may be off."""

    # (6, 6) of (omega, v), where exp((omega, v)^) T_target_source is the true pose: radians and the
    # unit of the clouds, in the target's frame, about its origin.
    covariance: Float64
    free_directions: tuple[FreeDirection, ...]  # motions that what both clouds share allows


@dataclass(frozen=True, eq=False, repr=False)
class Alternative:
    """Another pose that the clouds allow."""

    T_target_source: Float64  # (4, 4)
    probability: float  # of its being the right one

    def __repr__(self) -> str:
        return f"Alternative({100 * self.probability:.1f} %)"


@dataclass(frozen=True, eq=False, repr=False)
class Registration:
    """A pose and the evidence for it."""

    T_target_source: Float64  # (4, 4) maps source points into the target's frame
    correspondences: Correspondences
    inliers: Bool  # (N,) within `inlier_threshold` under the pose
    confidence: Float32  # (N,) the network's inlier probability, known before any pose
    score: float  # mean over correspondences of [d < tau] (1 - d^2 / tau^2), in 0..1
    inlier_rmse: float  # root mean square distance of the inliers, in the unit of the clouds
    fixed: bool  # False where no set of matches fixes all six degrees of freedom
    inlier_threshold: float  # tau, in the unit of the clouds
    matches_found: int  # before they were thinned to `len(correspondences)`
    backend: BackendUsed  # that computed it; "external" for other libraries
    memory_limited: bool = False  # thinned because of free memory: other machines may differ
    voxel_size: float | None = None  # None where matches were given directly
    # Given or estimated; where it is not `voxel_size`, a second look at the clouds found the pose.
    first_voxel_size: float | None = None
    voxel_size_estimated: bool = False
    points_read: tuple[int, int] | None = None  # of source, target
    # Left out of source, target: not finite, far from all others, or on no surface.
    points_dropped: tuple[int, int] = (0, 0)
    # Of source, target, one point a voxel: what lies on no surface. None where nobody looked.
    lone_shares: tuple[float, float] | None = None
    # The same of what lies in a volume, more than half as thick as it is wide.
    volume_shares: tuple[float, float] | None = None
    timings: Mapping[str, float] = field(default_factory=dict)  # seconds per stage, as it was run
    # How far the pose may be off, or what tells it of this result once `uncertainty` is asked for,
    # so that those who do not ask need not wait. None for compared methods.
    uncertainty_given: Uncertainty | Callable[[Registration], Uncertainty] | None = None
    # Of the pose to be right, as a judge says that looked at both clouds; None where none did.
    success_probability: float | None = None
    # Of the source to be a mirror image of what the target shows; None where nobody asked.
    mirrored_probability: float | None = None
    overlap: float | None = None  # share of both clouds that lands on the other, where judged
    alternatives: tuple[Alternative, ...] = ()  # the most probable first
    constrained_by: tuple[str, ...] = ()  # names of what was said to be known of the pose
    limits_reached: tuple[LimitName, ...] = ()  # of those given, that the pose all but reaches
    # What the source is multiplied by before the pose is applied. Its points among the
    # correspondences are multiplied already.
    scale: float = 1.0

    @cached_property
    def uncertainty(self) -> Uncertainty | None:
        """How far the pose may be off: covariance and free directions."""
        given = self.uncertainty_given
        return given(self) if callable(given) else given

    @property
    def similarity(self) -> Float64:
        """The motion (4, 4) that maps source points into the target's frame, with its scale."""
        return self.T_target_source @ np.diag([self.scale] * 3 + [1.0])

    @property
    def covariance(self) -> Float64 | None:
        """The covariance (6, 6) of the pose as `Uncertainty` has it; None for compared methods."""
        return None if self.uncertainty is None else self.uncertainty.covariance

    @property
    def free_directions(self) -> tuple[FreeDirection, ...]:
        """The motions that what both clouds share allows."""
        return () if self.uncertainty is None else self.uncertainty.free_directions

    @property
    def determined(self) -> bool:
        """Whether the matches fix a pose and nothing is left free."""
        return self.fixed and not self.free_directions

    @property
    def fills_volume(self) -> bool:
        """Whether one of the clouds fills a volume, where surfaces are expected."""
        return fill_volume(self.volume_shares)

    @property
    def hardly_matched(self) -> bool:
        """Whether hardly any correspondence agrees with the pose."""
        return self.inlier_count < min(HARDLY_ANY, len(self.correspondences) / 2)

    @property
    def settled(self) -> bool:
        """Whether nothing is left free, and no limit that was given holds the pose back."""
        return self.determined and not self.limits_reached

    @property
    def reasons(self) -> tuple[str, ...]:
        """What speaks against the pose, in plain words; empty where nothing does."""
        said = tuple(_reasons(self))
        p = self.success_probability
        doubted = p is not None and p < SURE
        return said or (("the surfaces do not fit well under this pose",) if doubted else ())

    @property
    def verdict(self) -> str:
        """Whether to trust the pose, in a line of plain words."""
        p = self.success_probability
        if p is None:
            return "not judged"
        if p >= SURE and self.settled:
            return f"aligned, {in_percent(p)}"
        said = "probably aligned" if p >= LIKELY else "do not trust this pose"
        return f"{said}, {in_percent(p)}: {self.reasons[0]}"

    @property
    def inlier_count(self) -> int:
        """The number of correspondences that agree with the pose."""
        return int(self.inliers.sum())

    @property
    def fitness(self) -> float:
        """The share of correspondences that agree with the pose, as Open3D calls it."""
        return self.inlier_count / max(1, len(self.correspondences))

    @overload
    def apply_to(self, cloud: PointCloud) -> PointCloud: ...
    @overload
    def apply_to(self, cloud: ArrayLike) -> Float64: ...
    def apply_to(self, cloud: PointCloud | ArrayLike) -> PointCloud | Float64:
        """Return the source cloud in the target's frame, computed in float64.

        Points (M, 3) give points, a PointCloud gives what `PointCloud.transformed` says, and a
        cloud or a mesh of Open3D gives a moved copy of its own kind.
        """
        if isinstance(cloud, PointCloud):
            return cloud.transformed(self.similarity)
        if type(cloud).__module__.startswith("open3d."):
            theirs: Any = cloud
            # A copy of a tensor cloud would share the caller's points.
            moved = theirs.clone() if hasattr(theirs, "clone") else copy(theirs)
            return moved.transform(self.similarity)
        given = getattr(cloud, "points", cloud)
        if hasattr(given, "detach"):  # a tensor of any device
            given = given.detach().cpu()
        try:
            given = np.asarray(given, dtype=np.float64)
        except (TypeError, ValueError, RuntimeError) as error:
            raise VBRegError(
                f"a {type(cloud).__name__} to apply the pose to: expected points (M, 3) as an "
                "array, a PointCloud as `vbreg.io.read` gives it, or an object with .points "
                f"({error})"
            ) from error
        if given.ndim != 2 or given.shape[1] != 3:
            raise VBRegError(f"points to move have shape {given.shape}: expected (M, 3)")
        return _moved(given, self.similarity[:3, :3], self.similarity[:3, 3])

    def __repr__(self) -> str:
        cosine = np.clip((np.trace(self.T_target_source[:3, :3]) - 1) / 2, -1, 1)
        length = np.linalg.norm(self.T_target_source[:3, 3])
        judged = self.success_probability
        right = "" if judged is None else f"right with {in_percent(judged)}, "
        scaled = "" if self.scale == 1.0 else f"scale {self.scale:.4g}, "
        return (
            f"Registration(rotation {np.degrees(np.arccos(cosine)):.2f} deg, translation "
            f"{length:.4g}, {scaled}{right}{self.inlier_count} of {len(self.correspondences)} "
            f"matches agree, score {self.score:.3f}, determined {self.determined})"
        )


def fill_volume(volume_shares: tuple[float, float] | None) -> bool:
    """Tell whether one of two clouds, so large a share of which lies in a volume, fills one."""
    return volume_shares is not None and max(volume_shares) > MOSTLY_VOLUME


def odds_times(probability: float, factor: float) -> float:
    """Return the probability whose odds are so many times those of another."""
    return probability * factor / (1 - probability + probability * factor)


def in_percent(probability: float) -> str:
    """Return a probability in whole per cent, never as certain."""
    if 0.005 < probability < 0.995:
        return f"{100 * probability:.0f} %"
    return "over 99 %" if probability > 0.5 else "under 1 %"


def _reasons(result: Registration) -> Iterator[str]:
    """Say what speaks against a pose, what explains most first."""
    inliers, matches = result.inlier_count, len(result.correspondences)
    chosen = result.success_probability or 0.0
    few = inliers < max(FEW_INLIERS, FEW_INLIERS_SHARE * matches)
    if result.hardly_matched:
        size = "" if result.voxel_size is None else ", and does the voxel size suit them"
        yield (
            f"hardly any match agrees with this pose ({inliers} of {matches}): do the scans "
            f"overlap{size}?"
        )
    elif result.free_directions:
        free = ", ".join(map(str, result.free_directions))
        yield f"what the scans share does not fix the pose: the source {free}"
    elif not result.fixed:
        yield "the matches do not fix all six degrees of freedom"
    if result.constrained_by and result.success_probability is not None and chosen < LIKELY:
        yield f"is what you said of the pose right ({', '.join(result.constrained_by)})?"
    if result.limits_reached:
        names = " and ".join(result.limits_reached)
        yield f"the pose lies at the limit of {names}: allow more if it may be farther off"
    if result.fills_volume:
        shares = zip(("source", "target"), result.volume_shares or (), strict=False)
        said = ", ".join(f"{100 * share:.0f} % of {role}" for role, share in shares)
        yield (
            f"points fill a volume, where surfaces are expected ({said}): stray points, or too "
            "large a voxel size"
        )
    if (result.mirrored_probability or 0.0) > RIVAL * chosen:
        said = in_percent(result.mirrored_probability or 0.0)
        yield f"the mirror image of the source is possible, too ({said}): is an axis flipped?"
    if result.overlap is not None and result.overlap < LITTLE_OVERLAP:
        share = 100 * result.overlap
        yield f"the scans may not overlap: {share:.0f} % of them lies on the other under this pose"
    if few and not result.hardly_matched:
        yield f"only {inliers} of {matches} matches agree with this pose"
    yield from _lone_points(result)
    yield from _rival(result)


def _lone_points(result: Registration) -> Iterator[str]:
    """Tell of clouds that are no surfaces, where the pose is not trusted."""
    if result.success_probability is None or result.success_probability >= LIKELY:
        return
    for role, share in zip(("source", "target"), result.lone_shares or (), strict=False):
        if share > MANY_LONE_POINTS:
            yield (
                f"{100 * share:.0f} % of {role} lies on no surface: stray points, or a voxel size "
                "below the spacing of the points"
            )


def _rival(result: Registration) -> Iterator[str]:
    """Tell of the most probable other pose, if it is not far less probable."""
    chosen = result.success_probability
    rivals = [a for a in result.alternatives if chosen and a.probability > RIVAL * chosen]
    if rivals:
        R = rivals[0].T_target_source[:3, :3] @ result.T_target_source[:3, :3].T
        angle = np.degrees(np.arccos(np.clip((np.trace(R) - 1) / 2, -1, 1)))
        shift = np.linalg.norm((rivals[0].T_target_source - result.T_target_source)[:3, 3])
        away = f"{angle:.0f} degrees" if angle >= 5 else f"{shift:.3g}"
        said = in_percent(rivals[0].probability)
        yield f"another pose, {away} away, is possible, too ({said})"


def _moved(points: Float64, R: Float64, t: Float64) -> Float64:
    """Move the finite ones of points (M, 3); the others stay as they are."""
    finite = np.isfinite(points).all(axis=1)
    moved = points.copy()
    moved[finite] = points[finite] @ R.T + t
    return moved
