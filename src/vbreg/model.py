"""The model: matches in, pose out; with the clouds they come from, verified and refined there.

`VBReg` holds the network and calls solver, verification and refinement, on any number of pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch

from vbreg import pretrained
from vbreg.backends import BackendName, devices
from vbreg.constraints import Constraints
from vbreg.errors import VBRegError, warn
from vbreg.frames import Matches
from vbreg.inputs import (
    MIN_MATCHES,
    Descriptors,
    Points,
    as_descriptors,
    as_matches,
    check_choice,
    check_flag,
    check_seed,
    check_whole_number,
    finite_rows,
    positive_number,
)
from vbreg.matching import MatchedClouds, evenly
from vbreg.network import VariationalNonLocalNetwork
from vbreg.pair_problem import Chosen, PairProblem, UncertaintyOfSurfaces
from vbreg.pretrained import WeightsName
from vbreg.recording import DeviceJudge, DeviceSolver, max_matches
from vbreg.solver import Solution, Solver
from vbreg.surfaces import SurfacePair
from vbreg.timing import Stopwatch
from vbreg.types import (
    FREE_ODDS,
    VOLUME_ODDS,
    Correspondences,
    Float64,
    Int64,
    Registration,
    Votes,
    fill_volume,
)
from vbreg.uncertainty import uncertainty_of_inliers
from vbreg.verification import CANDIDATES, Judge, Question, shipped_judge
from vbreg.voting import VotingConfig

MAX_ESTIMATED = 20_000  # matches that are estimated from, if nothing else is said
# Pairs that go through the network together (benchmarks/throughput.py).
SOLVED_TOGETHER, SOLVED_TOGETHER_CPU = 16, 1
# Pairs that `solve_batch` is given at a time: on a GPU several such groups, of similar sizes.
GIVEN_TOGETHER, GIVEN_TOGETHER_CPU = 64, 1

RefineName: TypeAlias = Literal["icp", "none"]


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

        It is for the search and for the choice among poses. VBREG_BACKEND=plain in the environment
        asks for it everywhere, descriptions of clouds and refinement included.
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
        pretrained.check_weights(weights)
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
    def judge(self) -> Judge:
        """What chooses by the clouds: the judge that was given, or the one that ships."""
        return self._judge or shipped_judge()

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
        `timings` of a result are its share of the seconds of all.
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
            _warn_of_memory(max(found), most, "give fewer matches")
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
                timings=clock.share(of=len(ends)),
                uncertainty_given=uncertainty_of_inliers,
            )
            for b, (source, target) in enumerate(ends)
        ]

    def solve(
        self,
        matched: MatchedClouds,
        *,
        constraints: Constraints | None = None,
        max_correspondences: int | None = None,
        verify: bool = True,
        refine: RefineName | None = None,
        seed: int | None = None,
        clock: Stopwatch | None = None,
    ) -> Registration:
        """Find the pose of clouds that are matched already, as `register` does."""
        return self.solve_batch(
            [matched],
            constraints=[constraints],
            max_correspondences=max_correspondences,
            verify=verify,
            refine=refine,
            seed=seed,
            clock=clock,
        )[0]

    def solve_batch(
        self,
        matched: Sequence[MatchedClouds],
        *,
        constraints: Sequence[Constraints | None] | None = None,  # one for each pair
        max_correspondences: int | None = None,
        verify: bool = True,
        refine: RefineName | None = None,
        seed: int | None = None,
        clock: Stopwatch | None = None,
    ) -> list[Registration]:
        """Find the poses of several pairs of matched clouds; the results are those of `solve`.

        Matches that contradict the constraints are dropped; of those that are left, more than
        `max_correspondences`, or than memory holds, are thinned evenly at random. On a GPU, pairs
        with about as many matches go through the network and the search together. With a `seed`,
        and with constraints, every pair is solved by itself. `timings` of a result are its share of
        the seconds of all.
        """
        check_verification(verify, refine)
        if max_correspondences is not None:
            check_whole_number(max_correspondences, "max_correspondences", MIN_MATCHES)
        known = [None] * len(matched) if constraints is None else list(constraints)
        if len(known) != len(matched):
            raise VBRegError(
                f"{len(known)} constraints for {len(matched)} pairs: give one for each"
            )
        clock = clock or Stopwatch()
        most = self._max_matches()
        exact = (refine or ("icp" if verify else "none")) == "icp"
        judge = self.judge if verify else None
        problems = [
            self._problem(*given, max_correspondences, judge, exact, most, clock)
            for given in zip(matched, known, strict=True)
        ]
        for group in self._groups(problems, seed):
            self._search(group, most, seed, clock)
        for problem in problems:
            self._settle(problem, clock)
        return [problem.result(clock.share(of=len(problems))) for problem in problems]

    def solve_each(
        self,
        matched: Sequence[MatchedClouds],
        *,
        constraints: Sequence[Constraints | None],  # one for each pair
        max_correspondences: int | None = None,
        verify: bool = True,
        refine: RefineName | None = None,
        seed: int | None = None,
        clock: Stopwatch | None = None,
    ) -> list[Registration | VBRegError]:
        """Find the poses of several pairs as `solve_batch` does; of a pair that fails, the error.

        Where they cannot be solved together, pairs are solved one by one, so that one fails alone.
        """
        if not matched:
            return []
        clock = clock or Stopwatch()
        options: dict[str, Any] = {
            "max_correspondences": max_correspondences,
            "verify": verify,
            "refine": refine,
            "seed": seed,
        }
        try:
            return [*self.solve_batch(matched, constraints=constraints, clock=clock, **options)]
        except VBRegError as error:
            if len(matched) == 1:
                return [error]
        return [
            self.solve_each(
                [pair], constraints=[limits], clock=Stopwatch(clock.on_stage), **options
            )[0]
            for pair, limits in zip(matched, constraints, strict=True)
        ]

    def _problem(
        self,
        matched: MatchedClouds,
        constraints: Constraints | None,
        max_correspondences: int | None,
        judge: Judge | None,
        exact: bool,
        most: int,
        clock: Stopwatch,
    ) -> PairProblem:
        """Return the matches of a pair that are solved, and what is known of the pose."""
        if constraints is not None:
            with clock("match"):
                matched = constraints.narrow(matched)
        if max_correspondences is not None:
            matched = matched.thinned(max_correspondences)
        limited = len(matched.source_index) > most
        if limited:
            count = len(matched.source_index)
            _warn_of_memory(count, most, "set max_correspondences")
            matched = matched.thinned(most)
        matches = self._matches_of(matched)
        limits = None if constraints is None else constraints.limits(matches)
        surfaces = SurfacePair.of(matched) if judge is not None or exact else None
        judge = judge if surfaces is not None else None
        names = () if constraints is None else constraints.names
        return PairProblem(matched, matches, limits, surfaces, judge, exact, limited, names)

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

    def _settle(self, problem: PairProblem, clock: Stopwatch) -> None:
        """Let the clouds choose and refine the pose of a problem, and say how far to trust it."""
        solution, matches = problem.solution, problem.matches
        assert solution is not None
        found = Chosen.of(solution)
        if problem.judge is not None:
            found = self._judged(found, problem, problem.judge, solution, clock)
        elif problem.exact and problem.surfaces is not None:
            with clock("refine on clouds"):
                found = found.on_clouds(problem.surfaces, problem.limits)
        told = UncertaintyOfSurfaces.of(problem.matched, matches.in_unit(found.T[None])[0])
        problem.uncertainty = told
        if told is not None and found.probability is not None:
            with clock("uncertainty"):
                problem.uncertainty = told()
            if problem.uncertainty.free_directions:
                found = found.with_odds_times(FREE_ODDS)
            if fill_volume(problem.matched.volume_shares):
                found = found.with_odds_times(VOLUME_ODDS)
        problem.chosen = found

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

    def _judged(
        self,
        found: Chosen,
        problem: PairProblem,
        judge: Judge,
        solution: Solution,
        clock: Stopwatch,
    ) -> Chosen:
        """Return the candidate that a judge chooses, refined where that is asked for.

        Without candidates nothing is probable.
        """
        assert problem.surfaces is not None, "a judge looks at surfaces"
        if not bool((solution.candidate_score >= 0).any()):
            return found._replace(probability=0.0, overlap=0.0)
        with clock("verify"):
            question = Question.of(problem.matched, problem.surfaces, solution)
            verdict = self._asks(judge, question, problem.limits, problem.exact)
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


def check_verification(verify: object, refine: object) -> None:
    """Raise where an option of the verification is of a wrong type."""
    check_flag(verify, "verify")
    if refine is not None:
        check_choice(refine, "refine", get_args(RefineName))


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


def _warn_of_memory(found: int, most: int, advice: str) -> None:
    warn(
        f"{found} matches are more than the free memory holds, so that {most} of them are used; "
        "with other memory free, or on another machine, the answer may differ: "
        f"{advice} to have the same everywhere"
    )
