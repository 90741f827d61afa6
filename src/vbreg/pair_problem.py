"""One pair on its way from matches to a result: which pose is chosen, how far to trust it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from vbreg.backends.devices import to_cpu
from vbreg.estimation import Limits, agreement, same_pose
from vbreg.frames import Matches
from vbreg.matching import MatchedClouds
from vbreg.refinement import with_fewer_points
from vbreg.scale import INLIER_THRESHOLD, Scale
from vbreg.solver import Solution
from vbreg.surfaces import SurfacePair
from vbreg.types import (
    FREE_ODDS,
    VOLUME_ODDS,
    Alternative,
    BackendUsed,
    Float64,
    LimitName,
    Registration,
    Uncertainty,
    odds_times,
)
from vbreg.uncertainty import shared_planes, uncertainty, uncertainty_of_inliers
from vbreg.verification import Judge, Verdict, refined_within

NEARLY_ALL = 0.98  # of what a limit allows
MIN_ALTERNATIVE = 0.01  # probability of another pose that is worth telling


class Chosen(NamedTuple):
    """The pose of one problem on its way out, in inlier thresholds, and what a judge says of it."""

    T: Tensor  # (4, 4) float64
    determined: bool
    probability: float | None = None
    overlap: float | None = None
    others: tuple[tuple[Tensor, float], ...] = ()  # poses and their probabilities

    @staticmethod
    def of(solution: Solution) -> Chosen:
        """Return the pose that the matches choose."""
        return Chosen(solution.T[0], bool(solution.determined[0]))

    @staticmethod
    def of_verdict(verdict: Verdict, candidates: Tensor) -> Chosen:
        """Return the pose that a judge chose among candidates (C, 4, 4), and what it says of it."""
        T, probabilities, chosen, overlap = to_cpu(verdict)
        T = T.clone()
        T[:3, 3] /= INLIER_THRESHOLD
        others = [
            (candidates[k], float(probabilities[k]))
            for k in probabilities.argsort(descending=True, stable=True).tolist()
            if k != int(chosen)
            and probabilities[k] >= MIN_ALTERNATIVE
            # A pose may be refined to where another was; that is no alternative any more.
            and not bool(same_pose(candidates[k], T))
        ]
        probability = float(probabilities[chosen])
        return Chosen(T, True, probability, float(overlap), tuple(others))

    def on_clouds(self, surfaces: SurfacePair, limits: Limits | None) -> Chosen:
        """Return the pose refined on the clouds, as far as the limits allow."""
        T = self.T.to(surfaces.source.points.device).clone()
        T[:3, 3] *= INLIER_THRESHOLD
        found = refined_within(limits, with_fewer_points(surfaces), T[None])[0]
        found[:3, 3] /= INLIER_THRESHOLD
        return self._replace(T=found)

    def with_odds_times(self, factor: float) -> Chosen:
        """Return the same with the odds of every pose to be right multiplied."""
        if self.probability is None:
            return self
        others = ((T, odds_times(p, factor)) for T, p in self.others)
        kept = tuple((T, p) for T, p in others if p >= MIN_ALTERNATIVE)
        return self._replace(probability=odds_times(self.probability, factor), others=kept)


@dataclass(eq=False)
class PairProblem:
    """One pair of `solve_batch` on its way from matches to a pose."""

    matched: MatchedClouds
    matches: Matches  # the same as a solver takes them
    limits: Limits | None
    surfaces: SurfacePair | None  # None where nobody looks, or clouds were described elsewhere
    judge: Judge | None  # None where the matches alone decide; it needs the surfaces
    exact: bool  # whether the pose is refined, which needs the surfaces, too
    memory_limited: bool
    constrained_by: tuple[str, ...]  # names of what was said of the pose
    solution: Solution | None = None  # what the search found,
    backend: BackendUsed = "plain"  # and what ran it
    chosen: Chosen | None = None  # what the clouds made of it
    uncertainty: Uncertainty | UncertaintyOfSurfaces | None = None

    def result(self, timings: Mapping[str, float]) -> Registration:
        """Return what users are given once everything is known."""
        matches, found, solution = self.matches, self.chosen, self.solution
        assert found is not None
        assert solution is not None
        ends = matches.source, matches.target, matches.mask
        inliers, score, rmse = to_cpu(agreement(found.T[None].to(ends[0]), *ends))
        return Registration(
            T_target_source=matches.to_user(found.T[None])[0],
            correspondences=self.matched.correspondences,
            inliers=inliers[0].numpy(),
            confidence=solution.confidence[0].numpy(),
            score=float(score[0]),
            inlier_rmse=float(rmse[0]) * matches.unit,
            fixed=found.determined,
            inlier_threshold=matches.unit,
            matches_found=self.matched.matches_found,
            backend=self.backend,
            memory_limited=self.memory_limited,
            voxel_size=self.matched.scale.voxel_size,
            lone_shares=self.matched.lone_shares,
            volume_shares=self.matched.volume_shares,
            timings=timings,
            uncertainty_given=self.uncertainty or uncertainty_of_inliers,
            success_probability=found.probability,
            overlap=found.overlap,
            constrained_by=self.constrained_by,
            limits_reached=() if self.limits is None else _reached(self.limits, found.T),
            alternatives=tuple(
                Alternative(matches.to_user(T[None])[0], p) for T, p in found.others
            ),
        )


def _reached(limits: Limits, T: Tensor) -> tuple[LimitName, ...]:
    """Return the names of the limits that a pose all but reaches: it may be held back by them."""
    length, angle = limits.to(T.cpu()).used(T.cpu())
    used: dict[LimitName, float] = {"max_translation": length, "max_rotation": angle}
    return tuple(name for name, share in used.items() if share > NEARLY_ALL)


class PosedSurfaces(NamedTuple):
    """Both clouds of a pair with their normals, and a pose between their local frames."""

    source: tuple[Tensor, Tensor]  # points (N, 3) and unit normals (N, 3)
    target: tuple[Tensor, Tensor]
    T_local: Tensor  # (4, 4)
    scale: Scale
    origin: Float64  # (3,) of the target's local frame in the user's


class UncertaintyOfSurfaces:
    """Tells how far a pose may be off, by the surfaces that both clouds share, once it is asked.

    Until then it holds these surfaces on their device; afterwards it remembers the answer alone,
    and this is what arrives in another process, too.
    """

    def __init__(self, surfaces: PosedSurfaces) -> None:
        self._surfaces: PosedSurfaces | None = surfaces
        self._answer: Uncertainty | None = None

    @staticmethod
    def of(matched: MatchedClouds, T_local: Tensor) -> UncertaintyOfSurfaces | None:
        """Return what can be asked of matched clouds; None where they have no normals."""
        source, target = matched.source, matched.target
        if source.normals is None or target.normals is None:
            return None
        ends = (source.points, source.normals), (target.points, target.normals)
        return UncertaintyOfSurfaces(PosedSurfaces(*ends, T_local, matched.scale, target.origin))

    @torch.inference_mode()
    def __call__(self, result: Registration | None = None) -> Uncertainty:
        """Return the covariance and the free directions of the pose, whatever the result says."""
        held = self._surfaces
        if held is not None:
            radius = held.scale.inlier_threshold
            planes = shared_planes(held.source, held.target, held.T_local, radius)
            self._answer = uncertainty(planes, held.scale, held.origin)
            self._surfaces = None  # last, since another thread may ask meanwhile
        assert self._answer is not None
        return self._answer

    def __reduce__(self) -> tuple[type[Uncertainty], tuple[object, ...]]:
        return Uncertainty, tuple(self())


def as_free_as_seen(found: Registration, first: MatchedClouds) -> Registration:
    """Return a pose of another voxel size, doubted where the first look sees a motion left free.

    At smaller voxels noise may look like relief, which would fix what a smooth wall does not. A
    pose that is doubted for what its own look sees as free stays as it is.
    """
    if found.free_directions:
        return found
    T = found.T_target_source
    local = T.copy()
    local[:3, 3] += T[:3, :3] @ first.source.origin - first.target.origin
    told = UncertaintyOfSurfaces.of(first, torch.from_numpy(local))
    seen = None if told is None else told()
    if seen is None or not seen.free_directions:
        return found
    return replace(_with_odds_times(found, FREE_ODDS), uncertainty_given=seen)


def filling_a_volume(found: Registration, first: Registration) -> Registration:
    """Return a pose of another voxel size, doubted as that of a first look at clouds of no surface.

    At smaller voxels the points of a volume may lie too far apart for one to be seen.
    """
    doubted = found if found.fills_volume else _with_odds_times(found, VOLUME_ODDS)
    return replace(doubted, volume_shares=first.volume_shares)


def _with_odds_times(found: Registration, factor: float) -> Registration:
    """Return a result with the odds of every pose to be right multiplied."""
    if found.success_probability is None:
        return found
    others = (
        replace(each, probability=odds_times(each.probability, factor))
        for each in found.alternatives
    )
    return replace(
        found,
        success_probability=odds_times(found.success_probability, factor),
        alternatives=tuple(each for each in others if each.probability >= MIN_ALTERNATIVE),
    )
