"""The recipe: clouds -> descriptors -> matches -> network -> voting -> estimation -> pose.

The best poses are verified on the clouds, and the chosen one is refined there.

The only room that knows all stages. Clouds are moved to a local frame once and stay there, lengths
are divided by the inlier threshold, and the pose comes back in float64 in the user's frames.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from vbreg import pretrained
from vbreg.attempts import (
    OTHER_SIZES,
    at_unknown_scale,
    may_be_mirrored,
    more_probable,
    unless_mirrored,
    worth_another_size,
)
from vbreg.backends import BackendName, devices
from vbreg.backends.devices import to_cpu
from vbreg.clouds import estimate_voxel_size
from vbreg.constraints import Constraints, Gravity
from vbreg.descriptors import Descriptor, DescriptorChoice, MatchingName, descriptor_named
from vbreg.errors import VBRegError
from vbreg.estimation import Limits, agreement, same_pose
from vbreg.frames import LocalCloud, Matches, check_units
from vbreg.inputs import (
    MIN_MATCHES,
    Cloud,
    Descriptors,
    Ignore,
    Points,
    as_descriptors,
    as_matches,
    check_choice,
    check_seed,
    check_whole_number,
    finite_rows,
    positive_number,
)
from vbreg.matching import (
    MAX_CORRESPONDENCES,
    DescribedCloud,
    Keypoints,
    MatchedClouds,
    Viewpoint,
    check_viewpoint,
    describe,
    evenly,
    match_clouds,
)
from vbreg.network import VariationalNonLocalNetwork
from vbreg.pretrained import WeightsName
from vbreg.recording import DeviceJudge, DeviceSolver, max_matches
from vbreg.refinement import with_fewer_points
from vbreg.scale import INLIER_THRESHOLD, VOXEL_SIZES, PresetName, Scale
from vbreg.solver import Solution, Solver
from vbreg.streaming import local_cloud
from vbreg.surfaces import SurfacePair
from vbreg.timing import Stopwatch
from vbreg.types import (
    Alternative,
    BackendUsed,
    Correspondences,
    Float64,
    Int64,
    Registration,
    Uncertainty,
    Votes,
)
from vbreg.uncertainty import shared_planes, uncertainty, uncertainty_of_inliers
from vbreg.verification import (
    CANDIDATES,
    Judge,
    Question,
    Verdict,
    refined_within,
    shipped_judge,
)
from vbreg.voting import VotingConfig

MAX_ESTIMATED = 20_000  # matches that are estimated from, if nothing else is said
# Of scans that leave a motion free, fewer poses are right (docs/uncertainty.md).
FREE_ODDS = 0.1
MIN_ALTERNATIVE = 0.01  # probability of another pose that is worth telling
# Pairs that go through the network together (benchmarks/throughput.py).
SOLVED_TOGETHER, SOLVED_TOGETHER_CPU = 16, 1

RefineName: TypeAlias = Literal["icp", "none"]
IgnorePair: TypeAlias = "tuple[Ignore | None, Ignore | None]"  # of source and target


def register(
    source: Cloud,
    target: Cloud,
    *,
    voxel_size: float | None = None,
    preset: PresetName | None = None,
    weights: WeightsName | str | Path | None = None,
    model: VBReg | None = None,
    descriptor: DescriptorChoice = "learned",
    device: str | torch.device = "auto",
    keypoints: Keypoints | None = None,
    matching: MatchingName | None = None,
    viewpoint: Viewpoint | None = None,
    max_correspondences: int = MAX_CORRESPONDENCES,
    gravity: Gravity | None = None,
    guess: ArrayLike | None = None,
    max_translation: float | None = None,
    max_rotation: float | None = None,
    max_scale: float | None = None,
    ignore: Ignore | IgnorePair | None = None,
    verify: bool = True,
    refine: RefineName | None = None,
    seed: int | None = None,
    on_stage: Callable[[str], None] | None = None,
) -> Registration:
    """Find the pose of `source` in the frame of `target`.

    Clouds are paths, arrays (N, 3), tensors, or objects with `.points`. `voxel_size` is the one
    scale that sets every radius; left out, it is the preset's ('indoor' 0.05 m, 'outdoor' 0.30 m)
    or, without a preset, estimated from the clouds; where the pose is not trusted at that size,
    twice and half of it are tried, too, and the most probable pose is taken. The result says what
    was chosen.

    `weights` are 'fast', 'universal' (the larger network of the paper) or a file that `vbreg train`
    wrote. A `model` given instead is used on its device.
    `descriptor` is 'learned', 'fpfh', 'fcgf', a descriptor's weights file that `vbreg train` wrote,
    a checkpoint of FCGF, or a function of points (N, 3), normals (N, 3) and the `Scale` that gives
    (N, D) numbers. `keypoints` of each cloud are described and matched, or 'all'; `matching` is
    'one-way' (each source point to its nearest), 'either-way', 'mutual', 'ratio' (where the
    nearest is clearly nearer than the second) or 'two-nearest'. Left out, 1000
    keypoints, or a quarter of the points, are matched either way with the learned descriptor, and
    all points one way with another.
    `viewpoint` is where the sensor was in the frame of each scan: 'origin', three numbers, or
    'unknown'; left out, 'origin' with the preset 'outdoor' where it lies within both clouds. Above
    `max_correspondences`, or what memory can hold, matches are thinned evenly at random.

    What you know of the pose: `gravity` is up in the frames of the scans (True or 'z', 'x', 'y',
    three numbers, or one direction for each scan), and the pose then turns about it alone. The
    middle of the source is at most `max_translation` from where `guess`, a pose (4, 4), puts it,
    and the pose at most `max_rotation` degrees from it; without a guess both count from no motion.
    With `max_scale` the scale of the source is unknown, up to so many times larger or smaller: it
    is looked for, and `result.scale` is what the source is multiplied by before it is moved.
    `ignore` leaves points out: a function of points (N, 3) that tells which, for both clouds, or a
    pair of functions, masks (N,) or None.

    With `verify`, the best poses that the matches allow are laid upon the clouds, a judge chooses
    among them and tells `success_probability`; without, the matches alone decide, as in the paper.
    A pose that is trusted but not beyond doubt is compared with what the mirror image of the source
    gives, since a flipped axis is easily overlooked.
    `refine` says whether the chosen pose is then made exact on the clouds ('icp') or not ('none');
    left out, it is where it is verified.

    `seed` samples the latent features instead of taking their mean. `on_stage` is told the name of
    each stage as it begins. The same call gives the same answer.
    """
    _check_options(preset, weights, model, device, keypoints, matching, seed, on_stage)
    _check_numbers(max_correspondences, viewpoint, voxel_size)
    _check_verification(verify, refine)
    constraints = Constraints.of(gravity, guess, max_translation, max_rotation)
    _check_max_scale(max_scale, guess, max_translation, verify)
    compute = descriptor_named(descriptor)  # a wrong name is told before any work begins
    clock = Stopwatch(on_stage)
    with clock("prepare"):
        clouds = _local_clouds(source, target, ignore)
    with clock("voxel size"):
        request = Request.of(
            *clouds,
            voxel_size=voxel_size,
            preset=preset,
            viewpoint=viewpoint,
            constraints=constraints,
            max_scale=max_scale,
            clock=clock,
        )
    with clock("weights"):
        model = _choose_model(model, weights, device)
    registrar = Registrar(
        model, compute, keypoints, matching, max_correspondences, verify, refine, seed
    )
    found = registrar([request])[0]
    if isinstance(found, VBRegError):
        raise found
    return found


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


Describe: TypeAlias = Callable[..., DescribedCloud]  # as `matching.describe`


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
    describe: Describe = describe  # or what remembers the clouds that it has described

    def __call__(self, requests: Sequence[Request]) -> list[Registration | VBRegError]:
        """Return the result of each pair, or the error that it met; the others go on."""
        found = self._first_results(requests)
        for factor in OTHER_SIZES:
            again = [
                k
                for k, request in enumerate(requests)
                if request.estimated and request.max_scale is None and worth_another_size(found[k])
            ]
            sizes = [Scale(requests[k].scale.voxel_size * factor) for k in again]
            looks = [Look(requests[k], size) for k, size in zip(again, sizes, strict=True)]
            for k, other in zip(again, self._results(looks), strict=True):
                found[k] = more_probable(found[k], other)
        doubtful = [k for k, result in enumerate(found) if may_be_mirrored(result)]
        looks = [
            Look(requests[k], Scale(result.voxel_size), result.scale, mirrored=True)
            for k in doubtful
            if isinstance(result := found[k], Registration) and result.voxel_size is not None
        ]
        for k, image in zip(doubtful, self._results(looks), strict=True):
            found[k] = unless_mirrored(found[k], image)
        return [
            result if isinstance(result, VBRegError) else replace(result, timings=clock.seconds)
            for result, clock in zip(found, (request.clock for request in requests), strict=True)
        ]

    def _first_results(self, requests: Sequence[Request]) -> list[Registration | VBRegError]:
        """Return the result of each pair as it is, or at the scale at which it fits best."""
        known = [k for k, request in enumerate(requests) if request.max_scale is None]
        results = self._results([Look(requests[k], requests[k].scale) for k in known])
        found = dict(zip(known, results, strict=True))
        for k, request in enumerate(requests):
            if request.max_scale is not None:
                once = replace(self, describe=_remembering(self.describe, request.target))
                found[k] = at_unknown_scale(request.max_scale, partial(once._at_factor, request))
        return [found[k] for k in range(len(requests))]

    def _at_factor(self, request: Request, factor: float) -> Registration | VBRegError:
        """Return the result with the source multiplied by a factor."""
        return self._results([Look(request, request.scale, factor)])[0]

    def _results(self, looks: Sequence[Look]) -> list[Registration | VBRegError]:
        """Return the result of every look, or the error that it met."""
        found: list[Registration | VBRegError | None] = [None] * len(looks)
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
                described[0],
                described[1],
                look.scale,
                matching=self.matching,
                max_matches=self.max_correspondences,
            )

    def _solved(
        self, looks: Sequence[Look], matched: Sequence[MatchedClouds]
    ) -> list[Registration | VBRegError]:
        """Solve pairs together; where that fails, one by one, so that one fails alone."""
        if not looks:
            return []
        clock = Stopwatch(looks[0].request.clock.on_stage)
        try:
            results = self.model.solve_batch(
                matched,
                constraints=[None if look.mirrored else look.request.constraints for look in looks],
                verify=self.verify,
                refine=self.refine,
                seed=self.seed,
                clock=clock,
            )
        except VBRegError as error:
            if len(looks) == 1:
                return [error]
            each = zip(looks, matched, strict=True)
            return [self._solved([look], [pair])[0] for look, pair in each]
        return [self._completed(look, result) for look, result in zip(looks, results, strict=True)]

    @staticmethod
    def _completed(look: Look, result: Registration) -> Registration:
        """Return a result with what only the request knows; its seconds go to the request."""
        request = look.request
        for stage, seconds in result.timings.items():
            request.clock.seconds[stage] = request.clock.seconds.get(stage, 0.0) + seconds
        source, target = request.source, request.target
        return replace(
            result,
            voxel_size_estimated=request.estimated,
            points_read=(source.count, target.count),
            points_dropped=(source.dropped, target.dropped),
            scale=look.factor,
        )


def _remembering(describe: Describe, once: LocalCloud) -> Describe:
    """Return what describes clouds as `describe` does, one of them no more than once."""
    held: list[DescribedCloud] = []

    def described(cloud: LocalCloud, *given: object, **options: object) -> DescribedCloud:
        if cloud is not once:
            return describe(cloud, *given, **options)
        if not held:
            held.append(describe(cloud, *given, **options))
        return held[0]

    return described


def mirror_image(cloud: LocalCloud, viewpoint: Viewpoint) -> tuple[LocalCloud, Viewpoint]:
    """Return a cloud as it is in a mirror, and where the sensor is there."""
    flip = np.array([-1.0, 1.0, 1.0])
    seen_from = viewpoint if isinstance(viewpoint, str) else np.asarray(viewpoint) * flip
    return cloud.multiplied(flip), seen_from


class VBReg:
    """The network and the search behind it: matches in, pose out."""

    def __init__(
        self,
        network: VariationalNonLocalNetwork,
        *,
        voting: VotingConfig | None = None,
        backend: BackendName = "auto",
        judge: Judge | None = None,
    ) -> None:
        """Take a network on its device; the backend 'plain' is torch without quicker forms.

        `judge` chooses by the clouds in place of the one that ships.
        """
        if not isinstance(network, VariationalNonLocalNetwork):
            raise VBRegError(
                f"network is a {type(network).__name__}: expected a VariationalNonLocalNetwork; "
                "VBReg.from_pretrained takes names and files"
            )
        check_choice(backend, "backend", get_args(BackendName))
        if judge is not None and not isinstance(judge, Judge):
            raise VBRegError(
                f"judge is a {type(judge).__name__}: expected a Judge, as "
                "vbreg.verification.load_judge gives"
            )
        self.solver = Solver(network.eval(), voting or VotingConfig())
        self._on_device = DeviceSolver(self.solver, backend)
        self._judge, self._asks = judge, DeviceJudge(backend)

    @classmethod
    def from_pretrained(
        cls,
        weights: WeightsName | str | Path = pretrained.DEFAULT,
        *,
        device: str | torch.device = "auto",
        backend: BackendName = "auto",
        judge: Judge | None = None,
    ) -> VBReg:
        """Load 'fast', 'universal' (the larger network of the paper) or a weights file."""
        _check_weights(weights)
        chosen = devices.choose_device(device)
        path = pretrained.weights_path(weights)
        network = pretrained.load_network(path).to(chosen)
        voting = pretrained.load_voting(path)
        return cls(network, voting=voting, backend=backend, judge=judge)

    @property
    def network(self) -> VariationalNonLocalNetwork:
        """The network that tells right matches from wrong ones."""
        return self.solver.network

    @property
    def voting(self) -> VotingConfig:
        """The settings of the search."""
        return self.solver.voting

    @property
    def device(self) -> torch.device:
        """The device that the network's weights are on."""
        return self.network.sigma.device

    def __repr__(self) -> str:
        config, count = self.network.config, sum(p.numel() for p in self.network.parameters())
        return (
            f"VBReg(L={config.iterations}, d={config.width}, {count / 1e6:.2f} M parameters, "
            f"{self.device})"
        )

    def estimate(
        self,
        source_points: Points,  # (N, 3)
        target_points: Points,  # (N, 3), matched to source_points row by row
        *,
        inlier_threshold: float,
        descriptors: Descriptors | None = None,  # (N, D) each, with input `feat`
        max_correspondences: int = MAX_ESTIMATED,
        seed: int | None = None,
    ) -> Registration:
        """Find the pose that the matches agree on.

        `inlier_threshold` is how far apart a right match may lie, in the unit of the points. Rows
        with a non-finite coordinate are never inliers. `descriptors` of the source and of the
        target points go row by row with the matches, for a network that was trained with them; only
        their direction counts. Above `max_correspondences`, or what memory can hold, matches are
        thinned evenly at random, since the time grows with their square: the result then has the
        rows that are left, and their numbers as indices.
        """
        given = None if descriptors is None else [descriptors]
        return self.estimate_batch(
            [source_points],
            [target_points],
            inlier_threshold=inlier_threshold,
            descriptors=given,
            max_correspondences=max_correspondences,
            seed=seed,
        )[0]

    def estimate_batch(
        self,
        sources: Sequence[Points],  # (N_b, 3) each
        targets: Sequence[Points],
        *,
        inlier_threshold: float,
        descriptors: Sequence[Descriptors] | None = None,
        max_correspondences: int = MAX_ESTIMATED,
        seed: int | None = None,
    ) -> list[Registration]:
        """Solve several problems at once, of any sizes; the results are those of `estimate`.

        With a `seed`, which latent features are sampled for a problem depends on the batch.
        """
        _check_batch(sources, targets, descriptors)
        check_seed(seed)
        unit = positive_number(inlier_threshold, "inlier_threshold")
        check_whole_number(max_correspondences, "max_correspondences", MIN_MATCHES)
        held = self._max_matches()
        most = min(held, max_correspondences)
        ends = _checked_problems(sources, targets)
        found = [len(source) for source, _ in ends]
        described = self._descriptors(ends, descriptors)
        index = [_rows_that_fit(*pair, most) for pair in ends]
        ends = [
            (source, target) if rows is None else (source[rows], target[rows])
            for rows, (source, target) in zip(index, ends, strict=True)
        ]
        matches = Matches.of_points(
            [source for source, _ in ends],
            [target for _, target in ends],
            unit,
            described and [d if r is None else d[r] for r, d in zip(index, described, strict=True)],
        )
        if len(matches) == held < max(found):
            _warn_of_memory(max(found), most, "give fewer matches", stacklevel=4)
        clock = Stopwatch()
        solution, backend = self._on_device(matches, seed, clock, most)
        poses = matches.to_user(solution.T)
        inliers, confidence = solution.inliers.numpy(), solution.confidence.numpy()
        return [
            Registration(
                T_target_source=poses[b],
                correspondences=Correspondences(source, target, index[b], index[b]),
                inliers=inliers[b, : len(source)],
                confidence=confidence[b, : len(source)],
                score=float(solution.score[b]),
                inlier_rmse=float(solution.rmse[b]) * unit,
                fixed=bool(solution.determined[b]),
                inlier_threshold=unit,
                matches_found=found[b],
                backend=backend,
                memory_limited=len(source) == held < found[b],
                timings=clock.seconds,
                doubt=uncertainty_of_inliers,
            )
            for b, (source, target) in enumerate(ends)
        ]

    def solve(
        self,
        matched: MatchedClouds,
        *,
        constraints: Constraints | None = None,
        verify: bool = True,
        refine: RefineName | None = None,
        seed: int | None = None,
        clock: Stopwatch | None = None,
        voxel_size_estimated: bool = False,
        points_read: tuple[int, int] | None = None,
        points_dropped: tuple[int, int] = (0, 0),
    ) -> Registration:
        """Find the pose of clouds that are matched already, as `register` does."""
        found = self.solve_batch(
            [matched],
            constraints=[constraints],
            verify=verify,
            refine=refine,
            seed=seed,
            clock=clock,
        )[0]
        return replace(
            found,
            voxel_size_estimated=voxel_size_estimated,
            points_read=points_read,
            points_dropped=points_dropped,
        )

    def solve_batch(
        self,
        matched: Sequence[MatchedClouds],
        *,
        constraints: Sequence[Constraints | None] | None = None,  # one for each pair
        verify: bool = True,
        refine: RefineName | None = None,
        seed: int | None = None,
        clock: Stopwatch | None = None,
    ) -> list[Registration]:
        """Find the poses of several pairs of matched clouds; the results are those of `solve`.

        On a GPU, pairs with about as many matches go through the network and the search together.
        With a `seed`, and with constraints, every pair is solved by itself. `timings` of a result
        are its share of the seconds of all.
        """
        _check_verification(verify, refine)
        known = [None] * len(matched) if constraints is None else list(constraints)
        if len(known) != len(matched):
            raise VBRegError(
                f"{len(known)} constraints for {len(matched)} pairs: give one for each"
            )
        clock = clock or Stopwatch()
        most = self._max_matches()
        exact = (refine or ("icp" if verify else "none")) == "icp"
        judge = self._judge or shipped_judge() if verify else None
        problems = [
            self._problem(*given, judge, most, clock) for given in zip(matched, known, strict=True)
        ]
        for group in self._groups(problems, seed):
            self._search(group, most, seed, clock)
        for problem in problems:
            self._settle(problem, exact, clock)
        share = clock.seconds
        if len(problems) > 1:
            share = {stage: s / len(problems) for stage, s in clock.seconds.items()}
        return [problem.result(share) for problem in problems]

    def _problem(
        self,
        matched: MatchedClouds,
        constraints: Constraints | None,
        judge: Judge | None,
        most: int,
        clock: Stopwatch,
    ) -> PairProblem:
        """Return the matches of a pair that are solved, and what is known of the pose."""
        if constraints is not None:
            with clock("match"):
                matched = constraints.narrow(matched)
        limited = len(matched.source_index) > most
        if limited:
            count = len(matched.source_index)
            _warn_of_memory(count, most, "set max_correspondences", stacklevel=6)
            matched = matched.thinned(most)
        matches = self._matches_of(matched)
        limits = None if constraints is None else constraints.limits(matches)
        surfaces = SurfacePair.of(matched)
        return PairProblem(
            matched, matches, limits, surfaces, judge if surfaces is not None else None, limited
        )

    def _groups(
        self, problems: Sequence[PairProblem], seed: int | None
    ) -> Iterator[list[PairProblem]]:
        """Yield problems that are solved together: with and without a judge, of similar sizes."""
        alone = [p for p in problems if p.limits is not None or seed is not None]
        yield from ([problem] for problem in alone)
        together = devices.chunk_size(self.device, cpu=SOLVED_TOGETHER_CPU, gpu=SOLVED_TOGETHER)
        for judged in (True, False):
            rest = [
                p
                for p in problems
                if p.limits is None and seed is None and (p.judge is not None) == judged
            ]
            rest.sort(key=lambda problem: len(problem.matches), reverse=True)
            while rest:
                # Powers of two, so that few recordings of a GPU serve batches of any length.
                count = min(together, 1 << (len(rest).bit_length() - 1))
                yield rest[:count]
                rest = rest[count:]

    def _search(
        self, group: Sequence[PairProblem], most: int, seed: int | None, clock: Stopwatch
    ) -> None:
        """Let matches choose a pose and candidates for each problem of a group."""
        first = group[0]
        solution, backend = self._on_device(
            Matches.padded([problem.matches for problem in group]),
            seed,
            clock,
            most,
            first.limits,
            CANDIDATES if first.judge else 0,
        )
        for b, problem in enumerate(group):
            problem.solution = solution.problem(b, len(problem.matches))
            problem.backend = backend

    def _settle(self, problem: PairProblem, exact: bool, clock: Stopwatch) -> None:
        """Let the clouds choose and refine the pose of a problem, and say how far to trust it."""
        solution, matches = problem.solution, problem.matches
        assert solution is not None
        found = Chosen.of(solution)
        if problem.surfaces is not None:
            found = self._on_clouds(found, problem, problem.surfaces, solution, exact, clock)
        with clock("uncertainty"):
            shared = _doubt_of_surfaces(problem.matched, matches.in_unit(found.T[None])[0])
            if shared is not None and shared.free_directions:
                found = found.doubted(FREE_ODDS)
        problem.chosen, problem.doubt = found, shared

    def votes(self, result: Registration) -> Votes:
        """Return the seeds of the search for a pose, and the matches that went with each.

        Network and votes are run once more on the matches of the result, with the same answer up to
        rounding. A network that sees descriptors cannot do so, since a result does not hold them.
        """
        if self.network.config.descriptor_width:
            raise VBRegError(
                "this network sees descriptors, which a result does not hold: no votes"
            )
        ends = result.correspondences.source, result.correspondences.target
        matches = Matches.of_points([ends[0]], [ends[1]], result.inlier_threshold)
        seeds, members = self._on_device.votes(matches)
        real = seeds.valid[0]
        rows = members.indices[0].where(members.valid[0], -1)
        return Votes(seeds.indices[0][real].numpy(), rows[real].numpy())

    def _on_clouds(
        self,
        found: Chosen,
        problem: PairProblem,
        surfaces: SurfacePair,
        solution: Solution,
        exact: bool,
        clock: Stopwatch,
    ) -> Chosen:
        """Return the candidate that a judge chooses, or the pose found, refined where asked for.

        Without candidates nothing is probable.
        """
        judge, limits = problem.judge, problem.limits
        if judge is None:
            if not exact:
                return found
            with clock("refine on clouds"):
                return found.on_clouds(surfaces, limits)
        if not bool((solution.candidate_score >= 0).any()):
            return found._replace(probability=0.0, overlap=0.0)
        with clock("verify"):
            question = Question.of(problem.matched, surfaces, solution)
            verdict = self._asks(judge, question, limits, exact)
            return Chosen.of_verdict(verdict, solution.candidates[0])

    def _matches_of(self, matched: MatchedClouds) -> Matches:
        """Return the matches as the network takes them."""
        width = self.network.config.descriptor_width
        matches = matched.matches(with_descriptors=width > 0)
        if matches.descriptors is not None and matches.descriptors.shape[-1] != 2 * width:
            raise VBRegError(
                f"the descriptor has {matches.descriptors.shape[-1] // 2} columns: this network "
                f"takes {width}; give the descriptor that it was trained with"
            )
        return matches

    def _max_matches(self) -> int:
        return max_matches(self.network.config, self.device)

    def _descriptors(
        self,
        ends: Sequence[tuple[Float64, Float64]],
        descriptors: Sequence[Descriptors] | None,
    ) -> list[Float64] | None:
        """Return (N_b, 2 D) of each problem for a network that sees them, None for another."""
        width = self.network.config.descriptor_width
        if width == 0 and descriptors is None:
            return None
        given: Sequence[Descriptors | None] = descriptors or [None] * len(ends)
        rows = [
            as_descriptors(d, finite_rows(*pair), width)
            for d, pair in zip(given, ends, strict=True)
        ]
        return [row for row in rows if row is not None]


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

    def doubted(self, odds: float) -> Chosen:
        """Return the same with the odds of every pose to be right multiplied."""
        if self.probability is None:
            return self

        def less(p: float) -> float:
            return p * odds / (1 - p + p * odds)

        others = tuple((T, less(p)) for T, p in self.others if less(p) >= MIN_ALTERNATIVE)
        return self._replace(probability=less(self.probability), others=others)


@dataclass(eq=False)
class PairProblem:
    """One pair of `solve_batch` on its way from matches to a pose."""

    matched: MatchedClouds
    matches: Matches  # the same as a solver takes them
    limits: Limits | None
    surfaces: SurfacePair | None  # None where clouds were described elsewhere
    judge: Judge | None  # None where the matches alone decide
    memory_limited: bool
    solution: Solution | None = None  # what the search found,
    backend: BackendUsed = "plain"  # and what ran it
    chosen: Chosen | None = None  # what the clouds made of it
    doubt: Uncertainty | None = None

    def result(self, timings: Mapping[str, float]) -> Registration:
        """Return what users are given once everything is known."""
        matches, found, solution = self.matches, self.chosen, self.solution
        assert found is not None
        assert solution is not None
        ends = matches.source, matches.target, matches.mask
        inliers, score, rmse = (part.cpu() for part in agreement(found.T[None].to(ends[0]), *ends))
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
            timings=timings,
            doubt=self.doubt or uncertainty_of_inliers,
            success_probability=found.probability,
            overlap=found.overlap,
            alternatives=tuple(
                Alternative(matches.to_user(T[None])[0], p) for T, p in found.others
            ),
        )


def _check_verification(verify: object, refine: object) -> None:
    """Raise where an option of the verification is of a wrong type."""
    if not isinstance(verify, bool | np.bool_):
        raise VBRegError(f"verify {verify!r}: expected True or False")
    if refine is not None:
        check_choice(refine, "refine", get_args(RefineName))


def _check_max_scale(
    max_scale: object, guess: object, max_translation: object, verify: object
) -> None:
    """Raise where an unknown scale is asked for and could not be found."""
    if max_scale is None:
        return
    if positive_number(max_scale, "max_scale") <= 1.0:
        raise VBRegError(
            f"max_scale {max_scale!r}: expected a number above 1, say 2 where the source may be "
            "half or twice as large as it should be"
        )
    if guess is not None or max_translation is not None:
        raise VBRegError(
            "max_scale with a guess or max_translation: where the source is says nothing while its "
            "scale is unknown; leave one of them out (gravity and max_rotation do go with it)"
        )
    if not verify:
        raise VBRegError(
            "max_scale with verify=False: scales are chosen by how probable their poses are; leave "
            "one of them out"
        )


def _check_options(
    preset: object,
    weights: object,
    model: object,
    device: str | torch.device,
    keypoints: object,
    matching: object,
    seed: object,
    on_stage: object,
) -> None:
    """Raise where an option of `register` is of a wrong type, before any work begins."""
    if preset is not None:
        check_choice(preset, "preset", tuple(VOXEL_SIZES))
    if weights is not None:
        _check_weights(weights)
    if model is not None and not isinstance(model, VBReg):
        raise VBRegError(
            f"model is a {type(model).__name__}: expected a VBReg, say "
            "VBReg.from_pretrained('fast'); a name or a file goes to weights"
        )
    devices.choose_device(device)
    if keypoints is not None and not (isinstance(keypoints, str) and keypoints == "all"):
        try:
            check_whole_number(keypoints, "keypoints", MIN_MATCHES)
        except VBRegError as error:
            raise VBRegError(f"{error}, or 'all'") from None
    if matching is not None:
        check_choice(matching, "matching", get_args(MatchingName))
    check_seed(seed)
    if on_stage is not None and not callable(on_stage):
        raise VBRegError(
            f"on_stage is a {type(on_stage).__name__}: expected a function that takes the name of "
            "a stage"
        )


def _check_numbers(
    max_correspondences: object, viewpoint: Viewpoint | None, voxel_size: object
) -> None:
    """Raise where a number of `register` is out of its range, before any work begins."""
    check_whole_number(max_correspondences, "max_correspondences", MIN_MATCHES)
    if viewpoint is not None:
        check_viewpoint(viewpoint)
    if voxel_size is not None:
        positive_number(voxel_size, "voxel_size")


def _check_weights(weights: object) -> None:
    if not isinstance(weights, str | os.PathLike):
        raise VBRegError(
            f"weights {weights!r}: expected one of {', '.join(get_args(WeightsName))}, or the path "
            "of a .safetensors file that vbreg wrote"
        )


@torch.inference_mode()
def _doubt_of_surfaces(matched: MatchedClouds, T_local: Tensor) -> Uncertainty | None:
    """Tell how far a pose may be off from the surfaces that clouds share; None without normals.

    It is computed at once, where the clouds are: a result does not hold them.
    """
    source, target = matched.source, matched.target
    if source.normals is None or target.normals is None:
        return None
    planes = shared_planes(
        (source.points, source.normals),
        (target.points, target.normals),
        T_local,
        matched.scale.inlier_threshold,
    )
    return uncertainty(planes, matched.scale, target.origin)


def _local_clouds(
    source: Cloud, target: Cloud, ignore: Ignore | IgnorePair | None
) -> tuple[LocalCloud, LocalCloud]:
    """Move both clouds to their middles, without the points to ignore."""
    pair = ignore if isinstance(ignore, tuple) and len(ignore) == 2 else (ignore, ignore)
    return local_cloud(source, "source", pair[0]), local_cloud(target, "target", pair[1])


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
    within = [
        bool((cloud.points.amin(0).double().numpy() < -cloud.origin).all())
        and bool((cloud.points.amax(0).double().numpy() > -cloud.origin).all())
        for cloud in clouds
    ]
    return "origin" if preset == "outdoor" and all(within) else "unknown"


def _choose_model(
    model: VBReg | None, weights: str | Path | None, device: str | torch.device
) -> VBReg:
    if model is not None and weights is not None:
        raise VBRegError(f"weights {str(weights)!r} and a model: give one of them")
    if model is not None:
        return model
    chosen = devices.choose_device(device)
    name = pretrained.DEFAULT if weights is None else weights
    if str(name) in pretrained.WEIGHTS:
        return _shipped_model(str(name), str(chosen))
    return VBReg.from_pretrained(name, device=chosen)


@lru_cache(maxsize=4)
def _shipped_model(weights: str, device: str) -> VBReg:
    return VBReg.from_pretrained(weights, device=device)


def _check_batch(
    sources: Sequence[Points], targets: Sequence[Points], descriptors: Sequence[Descriptors] | None
) -> None:
    """Raise unless there are as many sources as targets, and as many descriptors if any."""
    for name, given in (("sources", sources), ("targets", targets)):
        if not isinstance(given, Sequence | np.ndarray | torch.Tensor):
            raise VBRegError(
                f"{name} is a {type(given).__name__}: expected a list of points (N, 3) each"
            )
    if len(sources) != len(targets) or not len(sources):
        raise VBRegError(
            f"{len(sources)} sources and {len(targets)} targets: expected one of each for "
            "every problem, and at least one"
        )
    if descriptors is not None and len(descriptors) != len(sources):
        raise VBRegError(f"{len(descriptors)} descriptors for {len(sources)} problems")


def _checked_problems(
    sources: Sequence[Points], targets: Sequence[Points]
) -> list[tuple[Float64, Float64]]:
    """Return both ends of every problem; an error names the problem where there are several."""
    ends = []
    for b, pair in enumerate(zip(sources, targets, strict=True)):
        try:
            ends.append(as_matches(*pair))
            usable = int(finite_rows(*ends[-1]).sum())
            if usable < MIN_MATCHES:
                raise VBRegError(
                    f"{usable} usable correspondences: at least {MIN_MATCHES} are needed to fix a "
                    "pose"
                )
        except VBRegError as error:
            if len(sources) == 1:
                raise
            raise VBRegError(f"problem {b} of the batch: {error}") from error
    return ends


def _rows_that_fit(source: Float64, target: Float64, most: int) -> Int64 | None:
    """Return which finite rows to solve where memory cannot hold all rows, None where it can."""
    if len(source) <= most:
        return None
    rows = np.flatnonzero(finite_rows(source, target))
    return rows[evenly(len(rows), most).numpy()]


def _warn_of_memory(found: int, most: int, advice: str, stacklevel: int) -> None:
    warnings.warn(
        f"{found} matches are more than the free memory holds, so that {most} of them are used; "
        "with other memory free, or on another machine, the answer may differ: "
        f"{advice} to have the same everywhere",
        stacklevel=stacklevel,
    )
