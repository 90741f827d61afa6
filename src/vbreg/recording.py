"""A solver and a judge on their device: which backend, how much at once, recorded or not."""

from __future__ import annotations

from threading import Lock
from typing import Any, NamedTuple

import torch

from vbreg import backends
from vbreg.backends import BackendName, devices
from vbreg.backends.devices import to_cpu
from vbreg.backends.plain import Backend
from vbreg.backends.recorder import MAX_RECORDINGS, Recorder, bucket, coarse_bucket
from vbreg.estimation import Limits
from vbreg.frames import Matches
from vbreg.network import NetworkConfig
from vbreg.refinement import MAX_POINTS
from vbreg.solver import Solution, Solver
from vbreg.timing import Clock
from vbreg.types import BackendUsed
from vbreg.verification.judge import Judge, Question, SeenCloud, Verdict, give_verdict
from vbreg.verification.network import JudgeNetwork
from vbreg.voting import HypotheticalInliers, Seeds, seed_count

MEMORY_SHARE = 0.5  # of the free memory that is used
FIXED_BYTES = 3 * 2**28  # a map of all by all matches on a CPU, and some of some rows by all
MIN_SOLVED_MATCHES = 2000  # however little memory is free
MAX_RECORDED_MATCHES = 8192  # of a problem; beyond, a GPU is busy without a recording
MAX_RECORDED_POINTS = 2**15  # of a cloud that is judged
MAX_RECORDED_ROWS = 2**17  # of all problems of a recording together


class Recording(NamedTuple):
    """One recorded run of a solver."""

    graph: torch.cuda.CUDAGraph
    inputs: Matches
    output: Solution
    weights: object  # that the graph reads and that nobody else may hold by then


class RecordedSolver:
    """A solver whose work is recorded once for every bucket of sizes and then replayed."""

    def __init__(self, solver: Solver, backend: Backend, device: torch.device) -> None:
        self.solver, self.backend = solver, backend
        self.recorder = Recorder(device)
        self.recordings: dict[tuple[int, ...], Recording] = {}
        self.lock = Lock()

    @staticmethod
    def takes(matches: Matches) -> bool:
        """Tell whether problems of this size are worth a recording."""
        return (
            len(matches) <= MAX_RECORDED_MATCHES
            and matches.problems * bucket(len(matches)) <= MAX_RECORDED_ROWS
        )

    def __call__(self, matches: Matches, candidates: int = 0) -> Solution:
        """Solve matches of any device; the solution is on the CPU. One thread at a time."""
        B, N = matches.mask.shape
        key = B, bucket(N), candidates, *self.backend.weights_state(self.solver.network)
        with self.lock:
            if key not in self.recordings:
                if len(self.recordings) >= MAX_RECORDINGS:
                    self.recordings.pop(next(iter(self.recordings)))
                self.recordings[key] = self._record(matches, B, bucket(N), candidates)
            graph, inputs, output, _ = self.recordings[key]
            _fill(inputs, matches)
            graph.replay()
            found = Solution(*to_cpu(output))
        return found._replace(
            inliers=found.inliers[:, :N],
            confidence=found.confidence[:, :N],
            crowd=found.crowd[:, :N],
        )

    def _record(self, matches: Matches, B: int, N: int, candidates: int) -> Recording:
        inputs = matches.map(
            lambda part: torch.zeros(
                B, N, *part.shape[2:], dtype=part.dtype, device=self.recorder.device
            )
        )
        _fill(inputs, matches)
        most = int(seed_count(torch.tensor(N), self.solver.voting))
        graph, output = self.recorder.record(
            lambda: self.solver(inputs, self.backend, most_seeds=most, candidates=candidates)
        )
        return Recording(graph, inputs, output, self.backend.kept_alive(self.solver.network))


def _fill(held: Matches, given: Matches) -> None:
    """Copy the tensors of given matches into longer ones."""
    N = len(given)
    pairs = (
        (held.source, given.source),
        (held.target, given.target),
        (held.mask, given.mask),
        (held.descriptors, given.descriptors),
    )
    for a, b in pairs:
        if a is not None and b is not None:
            a[:, :N].copy_(b, non_blocking=True)
    held.mask[:, N:] = False


class Wanted(NamedTuple):
    """What a call asks for beside the pose that the matches agree on."""

    seed: int | None  # to sample latent features
    limits: Limits | None  # on the pose
    candidates: int  # distinct poses


class DeviceSolver:
    """A solver on the device of its network, with the quickest backend that runs there."""

    def __init__(self, solver: Solver, backend: BackendName) -> None:
        self.solver, self.backend = solver, backend
        self.recorded: dict[tuple[str, str], RecordedSolver] = {}  # by backend and device
        self.lock = Lock()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what a GPU has recorded, which is made anew where it is needed."""
        return {"solver": self.solver, "backend": self.backend}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Begin without recordings."""
        self.__init__(**state)  # type: ignore[misc]

    def __call__(
        self,
        matches: Matches,
        seed: int | None,
        clock: Clock,
        most: int,
        limits: Limits | None = None,
        candidates: int = 0,
    ) -> tuple[Solution, BackendUsed]:
        """Solve at most so many rows at a time -> the solution, on the CPU, and the backend.

        With limits, which are new for each problem, nothing is recorded.
        """
        sigma = self.solver.network.sigma
        wanted = Wanted(seed, limits, candidates)

        def work(backend: Backend) -> Solution:
            step = max(1, min(most, backend.max_rows) // len(matches))
            with torch.inference_mode(), devices.current(sigma):
                parts = [
                    self._solve(matches.problems_from(start, step), backend, wanted, clock)
                    for start in range(0, matches.problems, step)
                ]
            if len(parts) == 1:
                return parts[0]
            return Solution(*(torch.cat(each) for each in zip(*parts, strict=True)))

        return backends.run(work, sigma.device, self.backend)

    def votes(self, matches: Matches) -> tuple[Seeds, HypotheticalInliers]:
        """Return seeds and the matches that are voted to go with each, on the CPU."""
        sigma = self.solver.network.sigma
        held = matches.map(lambda part: part.to(sigma.device))

        def work(backend: Backend) -> tuple[Seeds, HypotheticalInliers]:
            with torch.inference_mode(), devices.current(sigma):
                output = self.solver.run_network(held, backend, whole=bool(held.mask.all()))
                seeds, members = self.solver.search(output, held, backend)
            return Seeds(*to_cpu(seeds)), HypotheticalInliers(*to_cpu(members))

        return backends.run(work, sigma.device, self.backend)[0]

    def _solve(
        self,
        matches: Matches,
        backend: Backend,
        wanted: Wanted,
        clock: Clock,
    ) -> Solution:
        """Solve some problems -> on the CPU.

        Where the features leave no seed with enough company (a handful of matches, far from what
        the network was trained on), the geometry votes alone.
        """
        plain = wanted.seed is None and wanted.limits is None
        if backend.records and plain and RecordedSolver.takes(matches):
            with clock("solve"):
                solution = self._recorded_on(backend)(matches, wanted.candidates)
        else:
            solution = self._step_by_step(matches, backend, wanted, clock)
        if bool(solution.voted.all()):
            return solution
        other = self._step_by_step(matches, backend, wanted, clock, geometry_alone=True)
        chosen = (
            torch.where(solution.voted.view(-1, *[1] * (a.ndim - 1)), a, b)
            for a, b in zip(solution, other, strict=True)
        )
        return Solution(*chosen)

    def _recorded_on(self, backend: Backend) -> RecordedSolver:
        device = self.solver.network.sigma.device
        key = backend.name, str(device)
        with self.lock:
            if key not in self.recorded:
                self.recorded[key] = RecordedSolver(self.solver, backend, device)
            return self.recorded[key]

    def _step_by_step(
        self,
        matches: Matches,
        backend: Backend,
        wanted: Wanted,
        clock: Clock,
        *,
        geometry_alone: bool = False,
    ) -> Solution:
        device, generator = self.solver.network.sigma.device, None
        if wanted.seed is not None:
            generator = torch.Generator(device).manual_seed(int(wanted.seed))
        solution = self.solver(
            matches.map(lambda part: part.to(device)),
            backend,
            whole=bool(matches.mask.all()),
            most_seeds=int(seed_count(matches.mask.sum(-1), self.solver.voting).max()),
            geometry_alone=geometry_alone,
            generator=generator,
            limits=wanted.limits,
            candidates=wanted.candidates,
            clock=clock,
        )
        return Solution(*to_cpu(solution))


class RecordedVerdict(NamedTuple):
    """One recorded run of a judge."""

    graph: torch.cuda.CUDAGraph
    inputs: Question
    output: Verdict
    network: JudgeNetwork  # whose weights the graph reads


class RecordedJudge:
    """A judge whose work is recorded once for every bucket of sizes and then replayed.

    A pair has five sizes. So that few recordings serve all pairs, both clouds share theirs, and
    buckets are coarse.
    """

    def __init__(self, device: torch.device) -> None:
        self.recorder = Recorder(device)
        self.recordings: dict[tuple[object, ...], RecordedVerdict] = {}
        self.lock = Lock()

    @staticmethod
    def takes(question: Question) -> bool:
        """Tell whether a pair of this size is worth a recording."""
        return max(_question_sizes(question)) <= MAX_RECORDED_POINTS

    def __call__(self, network: JudgeNetwork, question: Question, refine: bool) -> Verdict:
        """Return the verdict on a pair, on its device. One thread at a time."""
        sizes = tuple(coarse_bucket(size) for size in _question_sizes(question))
        ends = question.source, question.target
        rest = [(cloud.descriptors.shape[-1], cloud.looked_at.shape[1]) for cloud in ends]
        key = id(network), refine, *sizes, *rest, question.valid.shape
        with self.lock:
            if key not in self.recordings:
                if len(self.recordings) >= MAX_RECORDINGS:
                    self.recordings.pop(next(iter(self.recordings)))
                self.recordings[key] = self._record(network, question, sizes, refine)
            graph, inputs, output, _ = self.recordings[key]
            _fill_question(inputs, question)
            graph.replay()
            return Verdict(*(part.clone() for part in output))

    def _record(
        self, network: JudgeNetwork, question: Question, sizes: tuple[int, ...], refine: bool
    ) -> RecordedVerdict:
        inputs = _longer(question, *sizes)
        _fill_question(inputs, question)
        graph, output = self.recorder.record(lambda: give_verdict(network, inputs, refine=refine))
        return RecordedVerdict(graph, inputs, output, network)


def _question_sizes(question: Question) -> tuple[int, int, int]:
    """Return the number of keypoints, of points of a surface, and of matches."""
    ends = question.source, question.target
    return (
        max(cloud.points.shape[1] for cloud in ends),
        max(cloud.surface.shape[1] for cloud in ends),
        question.matched_real.shape[1],
    )


def _longer(question: Question, keypoints: int, surface: int, matches: int) -> Question:
    """Return a question of zeros for so many rows."""

    def zeros(part: torch.Tensor, rows: int) -> torch.Tensor:
        return part.new_zeros(1, rows, *part.shape[2:])

    def cloud(given: SeenCloud) -> SeenCloud:
        rows = (*[keypoints] * 3, *[surface] * 3, given.looked_at.shape[1])
        return SeenCloud(*(zeros(part, n) for part, n in zip(given, rows, strict=True)))

    candidates = question.valid.shape[1]
    rest = question[2:]
    rows = (*[MAX_POINTS] * 3, *[matches] * 5, candidates, candidates)
    return Question(
        cloud(question.source),
        cloud(question.target),
        *(zeros(part, n) for part, n in zip(rest, rows, strict=True)),
    )


def _fill_question(held: Question, given: Question) -> None:
    """Copy the tensors of a question into longer ones; zeros beyond are not real."""
    for a, b in zip(_flat(held), _flat(given), strict=True):
        a[:, : b.shape[1]].copy_(b, non_blocking=True)
        a[:, b.shape[1] :].zero_()


def _flat(question: Question) -> list[torch.Tensor]:
    """Return all tensors of a question, always in the same order."""
    return [*question.source, *question.target, *question[2:]]


class DeviceJudge:
    """Asks a judge on the device of the clouds, by a recording where that is worth it."""

    def __init__(self, backend: BackendName) -> None:
        self.backend = backend
        self.recorded: dict[str, RecordedJudge] = {}  # by device
        self.lock = Lock()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what a GPU has recorded, which is made anew where it is needed."""
        return {"backend": self.backend}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Begin without recordings."""
        self.__init__(**state)  # type: ignore[misc]

    def __call__(
        self, judge: Judge, question: Question, limits: Limits | None, refine: bool
    ) -> Verdict:
        """Return the verdict of a judge; with limits, which are new for each pair, unrecorded."""
        device = question.T.device
        network = devices.network_on(judge.network, device)

        def work(backend: Backend) -> Verdict:
            with torch.inference_mode(), devices.current(question.T):
                if backend.records and limits is None and RecordedJudge.takes(question):
                    return self._recorded_on(device)(network, question, refine)
                return give_verdict(network, question, refine=refine, limits=limits)

        return backends.run(work, device, self.backend)[0]

    def _recorded_on(self, device: torch.device) -> RecordedJudge:
        with self.lock:
            if str(device) not in self.recorded:
                self.recorded[str(device)] = RecordedJudge(device)
            return self.recorded[str(device)]


def max_matches(config: NetworkConfig, device: torch.device) -> int:
    """Return how many matches can be solved at once in a share of the device's free memory.

    They need features of all iterations, once more in length 1 for the votes; what the branches
    carry; and what one iteration computes on the way.
    """
    features = 2 * config.iterations * config.width
    carried = 3 * (config.latent_width + config.hidden_width)
    on_the_way = 14 * config.hidden_width + 12 * config.width
    bytes_each = 4 * (features + carried + on_the_way)
    free = int(MEMORY_SHARE * devices.free_memory(device)) - FIXED_BYTES
    return max(MIN_SOLVED_MATCHES, free // bytes_each)
