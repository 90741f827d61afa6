"""Any number of pairs, looked at in as many ways as it takes.

As they are, without stray points, at other voxel sizes and scales, in a mirror.

A `Request` is one pair and what was said of it; a `Registrar` answers requests on one device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import NamedTuple, TypeAlias

import numpy as np

from vbreg.attempts import (
    at_unknown_scale,
    may_be_mirrored,
    more_probable,
    other_sizes,
    spoilt_by_lone_points,
    unless_mirrored,
    worth_another_size,
)
from vbreg.clouds import estimate_voxel_size
from vbreg.constraints import Constraints
from vbreg.descriptors import Descriptor, MatchingName
from vbreg.errors import VBRegError, warn
from vbreg.frames import LocalCloud, check_units
from vbreg.matching import (
    MAX_CORRESPONDENCES,
    DescribedCloud,
    Keypoints,
    MatchedClouds,
    Viewpoint,
    describe,
    match_clouds,
)
from vbreg.model import RefineName, VBReg
from vbreg.pair_problem import as_free_as_seen, filling_a_volume
from vbreg.scale import PresetName, Scale
from vbreg.timing import Stopwatch
from vbreg.types import Registration

MIN_POINTS_LEFT = 200  # of a cloud without those on no surface, for a pose to be told from

Describe: TypeAlias = Callable[..., DescribedCloud]  # as `matching.describe`
Found: TypeAlias = Registration | VBRegError  # of a pair; the others go on where one meets an error


@dataclass(frozen=True, eq=False)
class Request:
    """One pair that is to be registered, and what was said or found out about it."""

    source: LocalCloud
    target: LocalCloud
    scale: Scale
    estimated: bool  # whether the scale was
    viewpoint: Viewpoint
    constraints: Constraints | None
    max_scale: float | None  # how many times larger or smaller the source may be
    clock: Stopwatch
    lone_shares: tuple[float, float] | None = None  # of the clouds before they were left out

    @staticmethod
    def of(
        source: LocalCloud,
        target: LocalCloud,
        *,
        voxel_size: float | None = None,
        preset: PresetName | None = None,
        viewpoint: Viewpoint | None = None,
        constraints: Constraints | None = None,
        max_scale: float | None = None,
        clock: Stopwatch | None = None,
    ) -> Request:
        """Decide what is left open, as `register` says."""
        unit_of = source if max_scale is None else target  # of clouds in two units, the target's
        return Request(
            source,
            target,
            _choose_scale(voxel_size, preset, unit_of, target),
            voxel_size is None and preset is None,
            usual_viewpoint(preset, source, target) if viewpoint is None else viewpoint,
            constraints,
            max_scale,
            clock or Stopwatch(),
        )

    def role_of(self, cloud: LocalCloud) -> str | None:
        """Return which of the clouds one is; None for another."""
        if cloud is self.target:
            return "target"
        return "source" if cloud is self.source else None

    def other_sizes(self) -> tuple[float, ...]:
        """Return what times the voxel size may be tried, the first one first."""
        if self.max_scale is not None:
            return ()
        known = self.constraints is not None
        return other_sizes(estimated=self.estimated, constrained=known)

    def without_lone_points(self, lone_shares: tuple[float, float] | None) -> Request | None:
        """Return the request without what lies on no surface, which is such a share of its clouds.

        None where too little is left.
        """
        lengths = self.scale.voxel_size, self.scale.normal_radius
        source, target = (c.without_lone_points(*lengths) for c in (self.source, self.target))
        if min(len(source.points), len(target.points)) < MIN_POINTS_LEFT:
            return None
        return replace(self, source=source, target=target, lone_shares=lone_shares)


class Look(NamedTuple):
    """One way to look at a request: at a voxel size, its source multiplied, in a mirror or not."""

    request: Request
    scale: Scale
    factor: float = 1.0  # that the source is multiplied by
    mirrored: bool = False

    def source(self) -> tuple[LocalCloud, Viewpoint]:
        """Return the source as it is looked at, and where the sensor is then."""
        cloud, viewpoint = self.request.source, self.request.viewpoint
        if self.factor != 1.0:
            cloud = cloud.multiplied(np.full(3, self.factor))
            if not isinstance(viewpoint, str):
                viewpoint = self.factor * np.asarray(viewpoint, dtype=np.float64)
        return mirror_image(cloud, viewpoint) if self.mirrored else (cloud, viewpoint)


@dataclass(frozen=True, eq=False)
class Registrar:
    """Registers any number of pairs in the way that `register` does one, on one device."""

    model: VBReg
    descriptor: Descriptor
    keypoints: Keypoints | None = None
    matching: MatchingName | None = None
    max_correspondences: int = MAX_CORRESPONDENCES
    verify: bool = True
    refine: RefineName | None = None
    seed: int | None = None
    retry: bool = True  # whether a pose that is in doubt is looked at in other ways, too
    describe: Describe = describe  # or what remembers the clouds that it has described

    def __call__(self, requests: Sequence[Request]) -> list[Found]:
        """Return the result of each pair, or the error that it met; the others go on."""
        alone = len(requests) == 1  # the descriptions of many would not fit into memory
        looking = self._remembering(requests[0]) if alone else self
        found = looking._first_results(requests)
        if self.retry:
            found = looking._looked_at_again(requests, found)
        return [
            result if isinstance(result, VBRegError) else replace(result, timings=clock.share())
            for result, clock in zip(found, (request.clock for request in requests), strict=True)
        ]

    def _remembering(self, request: Request) -> Registrar:
        """Return a registrar that describes both clouds once at each scale, for all looks."""
        held: dict[tuple[str, Scale], DescribedCloud] = {}

        def described(cloud: LocalCloud, scale: Scale, **options: object) -> DescribedCloud:
            role = request.role_of(cloud)
            if role is None:  # without lone points, multiplied or mirrored: looked at once
                return self.describe(cloud, scale, **options)
            if (role, scale) not in held:
                held[role, scale] = self.describe(cloud, scale, **options)
            return held[role, scale]

        return replace(self, describe=described)

    def _looked_at_again(self, requests: Sequence[Request], found: Sequence[Found]) -> list[Found]:
        """Return what becomes of results in doubt when their pairs are looked at in other ways."""
        requests, found = self._without_lone_points(requests, found)
        for factors in zip_longest(*(request.other_sizes() for request in requests)):
            sizes = [
                Look(request, Scale(request.scale.voxel_size * factor))
                if factor is not None and worth_another_size(result)
                else None
                for request, factor, result in zip(requests, factors, found, strict=True)
            ]
            looked = self._after(sizes, found, more_probable)
            found = [
                self._as_doubtful_as_before(*each)
                for each in zip(requests, found, looked, strict=True)
            ]
        in_mirror = [_in_mirror(*each) for each in zip(requests, found, strict=True)]
        return self._after(in_mirror, found, unless_mirrored)

    def _as_doubtful_as_before(self, request: Request, before: Found, now: Found) -> Found:
        """Return what another voxel size found, unless it hides why the first pose is doubted."""
        if now is before or isinstance(before, VBRegError) or isinstance(now, VBRegError):
            return now
        if before.fills_volume:
            now = filling_a_volume(now, before)
        if before.free_directions:
            first = self._matched(Look(request, request.scale))
            now = as_free_as_seen(now, first)
        return more_probable(before, now)

    def _without_lone_points(
        self, requests: Sequence[Request], found: Sequence[Found]
    ) -> tuple[list[Request], list[Found]]:
        """Return requests and results, without points that lie on no surface if that is better.

        Further looks leave these points out only if the pose is trusted without them.
        """
        cleaned = [
            request.without_lone_points(result.lone_shares)
            if request.max_scale is None and spoilt_by_lone_points(result)
            else None
            for request, result in zip(requests, found, strict=True)
        ]
        looks = [None if each is None else Look(each, each.scale) for each in cleaned]
        better = self._after(looks, found, more_probable)
        kept = [
            request if now is before or without is None or worth_another_size(now) else without
            for request, without, before, now in zip(requests, cleaned, found, better, strict=True)
        ]
        return kept, better

    def _after(
        self,
        looks: Sequence[Look | None],
        found: Sequence[Found],
        judged: Callable[[Found, Found], Found],
    ) -> list[Found]:
        """Return each result as judged by another look; those without one stay as they are."""
        again = {k: look for k, look in enumerate(looks) if look is not None}
        after = list(found)
        for k, other in zip(again, self._further_results(list(again.values())), strict=True):
            after[k] = judged(found[k], other)
        return after

    def _further_results(self, looks: Sequence[Look]) -> list[Found]:
        """Return the result of every look; one that memory or a descriptor fails is an error.

        There are results already, so that nothing is lost by it.
        """
        try:
            return self._results(looks)
        except (MemoryError, RuntimeError) as error:
            if len(looks) == 1:
                size = looks[0].scale.voxel_size
                warn(f"a second look at voxel size {size:g} failed and is left out: {error}")
                return [VBRegError(str(error))]
        return [self._further_results([look])[0] for look in looks]

    def _first_results(self, requests: Sequence[Request]) -> list[Found]:
        """Return the result of each pair as it is, or at the scale at which it fits best."""
        known = [k for k, request in enumerate(requests) if request.max_scale is None]
        results = self._results([Look(requests[k], requests[k].scale) for k in known])
        found = dict(zip(known, results, strict=True))
        for k, request in enumerate(requests):
            if request.max_scale is not None:
                at_factor = partial(self._at_factor, request)
                found[k] = at_unknown_scale(request.max_scale, at_factor, request.clock.go_to)
                request.clock.go_to("")
        return [found[k] for k in range(len(requests))]

    def _at_factor(self, request: Request, factor: float) -> Found:
        """Return the result with the source multiplied by a factor."""
        return self._results([Look(request, request.scale, factor)])[0]

    def _results(self, looks: Sequence[Look]) -> list[Found]:
        """Return the result of every look, or the error that it met."""
        found: list[Found | None] = [None] * len(looks)
        matched: dict[int, MatchedClouds] = {}
        for k, look in enumerate(looks):
            try:
                matched[k] = self._matched(look)
            except VBRegError as error:  # too few points or matches, or too many
                found[k] = error
        solved = self._solved([looks[k] for k in matched], list(matched.values()))
        for k, result in zip(matched, solved, strict=True):
            found[k] = result
        return [result for result in found if result is not None]

    def _matched(self, look: Look) -> MatchedClouds:
        """Return all matches: they are thinned once those are dropped that cannot be."""
        request, clock = look.request, look.request.clock
        ends = look.source(), (request.target, request.viewpoint)
        described = [
            self.describe(
                cloud,
                look.scale,
                descriptor=self.descriptor,
                keypoints=self.keypoints,
                viewpoint=view,
                device=self.model.device,
                clock=clock,
            )
            for cloud, view in ends
        ]
        with clock("match"):
            return match_clouds(
                described[0], described[1], look.scale, matching=self.matching, max_matches=None
            )

    def _solved(self, looks: Sequence[Look], matched: Sequence[MatchedClouds]) -> list[Found]:
        """Solve pairs together; one that fails does so alone."""
        if not looks:
            return []
        results = self.model.solve_each(
            matched,
            constraints=[None if look.mirrored else look.request.constraints for look in looks],
            max_correspondences=self.max_correspondences,
            verify=self.verify,
            refine=self.refine,
            seed=self.seed,
            clock=Stopwatch(looks[0].request.clock.on_stage),
        )
        return [
            result if isinstance(result, VBRegError) else self._completed(look, result)
            for look, result in zip(looks, results, strict=True)
        ]

    @staticmethod
    def _completed(look: Look, result: Registration) -> Registration:
        """Return a result with what only the request knows; its seconds go to the request."""
        request = look.request
        for stage, seconds in result.timings.items():
            request.clock.seconds[stage] = request.clock.seconds.get(stage, 0.0) + seconds
        source, target = request.source, request.target
        return replace(
            result,
            first_voxel_size=request.scale.voxel_size,
            voxel_size_estimated=request.estimated,
            points_read=(source.count, target.count),
            points_dropped=(source.dropped, target.dropped),
            lone_shares=request.lone_shares or result.lone_shares,
            scale=look.factor,
        )


def _in_mirror(request: Request, result: Found) -> Look | None:
    """Return the look at the mirror image of the source, where it might tell something."""
    if isinstance(result, VBRegError) or result.voxel_size is None or not may_be_mirrored(result):
        return None
    return Look(request, Scale(result.voxel_size), result.scale, mirrored=True)


def mirror_image(cloud: LocalCloud, viewpoint: Viewpoint) -> tuple[LocalCloud, Viewpoint]:
    """Return a cloud as it is in a mirror, and where the sensor is there."""
    flip = np.array([-1.0, 1.0, 1.0])
    seen_from = viewpoint if isinstance(viewpoint, str) else np.asarray(viewpoint) * flip
    return cloud.multiplied(flip), seen_from


def _choose_scale(
    voxel_size: float | None, preset: PresetName | None, source: LocalCloud, target: LocalCloud
) -> Scale:
    if voxel_size is not None:
        return Scale(voxel_size)
    if preset is not None:
        return Scale.of_preset(preset)
    check_units(source, target)
    return Scale(estimate_voxel_size(source.points, target.points))


def usual_viewpoint(preset: PresetName | None, *clouds: LocalCloud) -> Viewpoint:
    """Return the origin for scans of streets, if all have it within: there the LiDAR was."""
    if preset != "outdoor":
        return "unknown"
    within = [
        bool((cloud.points.amin(0).double().numpy() < -cloud.origin).all())
        and bool((cloud.points.amax(0).double().numpy() > -cloud.origin).all())
        for cloud in clouds
    ]
    return "origin" if all(within) else "unknown"
