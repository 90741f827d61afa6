"""The search for the poses of described scans: which pairs to try, what they join, how exactly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from vbreg.errors import VBRegError
from vbreg.matching import DescribedCloud
from vbreg.model import VBReg
from vbreg.motions import inverse, logarithm
from vbreg.scale import Scale
from vbreg.scenes.graph import (
    GraphSolution,
    PoseEdges,
    bridges,
    components,
    near_edges,
    residuals,
    solve_graph,
    squared_errors,
)
from vbreg.scenes.joining import JoinedScans, join_scans, triangle_support
from vbreg.scenes.overlaps import (
    ScanSurface,
    exact_poses,
    overlapping_pairs,
    overlaps,
    pairs_within,
)
from vbreg.scenes.pairs import Guess, PairResult, PairStore, register_pairs
from vbreg.scenes.results import Reconstruction, SceneEdge
from vbreg.scenes.retrieval import first_pairs
from vbreg.types import LIKELY, Bool, Float64, Int64

PAIR_SHARE = 0.25  # of all pairs: so many registrations, if nothing else is said,
FEW_REGISTRATIONS = 56  # or so many, where that is more: of 8 scans, each pair twice
PARTNERS = 6  # of each scan, that are registered first
MIN_EDGE = 0.1  # probability from which on a pose is heard at all
ERROR_SCALE = 2.0  # errors of edges by those of pairs: scans are bent a little, too
MAX_ROUNDS = 8  # of looking for more pairs
MIN_LOOPS = 3  # kept edges that each scan should have
MIN_PREDICTED = 0.3  # overlap under the graph's poses from which on a pair is worth another try
GUESS_SHIFT, GUESS_TURN = 5.0, 20.0  # inlier thresholds and degrees off, that a prediction may be
REFUTED = 2  # tries across a bridge that fail, after which it is not believed
MAX_MOVE = 2.0  # inlier thresholds that an edge may move a point from where the solution has it

Progress: TypeAlias = Callable[[str, int, int], object]  # stage, done, of how many


def pair_budget(scans: int, pair_share: float | None = None) -> int:
    """Return the most registrations for so many scans, those of pairs tried again included.

    They are a share of all pairs. Without a share a small folder has more than a quarter, up to
    each pair twice.
    """
    everything = scans * (scans - 1) // 2
    if pair_share is not None:
        return max(1, int(pair_share * everything))
    return max(int(PAIR_SHARE * everything), min(FEW_REGISTRATIONS, 2 * everything))


class _Try(NamedTuple):
    """A pair to register: source below target, and where it is predicted if the graph says."""

    pair: tuple[int, int]
    guess: Guess | None = None


class SceneSearch:
    """The search for poses of described scans: which pairs were tried, and what they joined."""

    def __init__(
        self,
        scans: Sequence[DescribedCloud],
        scale: Scale,
        model: VBReg,
        store: PairStore,
        similarity: Float64,  # (K, K)
        tell: Progress = lambda stage, done, total: None,
    ) -> None:
        self.scans, self.scale, self.model = scans, scale, model
        self.store, self.similarity, self.tell = store, similarity, tell
        self.surfaces = [ScanSurface.of(scan, scale) for scan in scans]
        self.found: dict[tuple[int, int], PairResult] = {}
        self.again: dict[tuple[int, int], PairResult] = {}  # from the graph's prediction
        self.cut: set[tuple[int, int]] = set()  # bridges that further pairs refuted
        self.joined = JoinedScans(solve_graph(len(scans), PoseEdges.of([], [])), ())

    @property
    def registrations(self) -> int:
        """The number of registrations so far, those of pairs that were tried again included."""
        return len(self.found) + len(self.again)

    def run(self, budget: int) -> None:
        """Register pairs, at most `budget` times, until nothing more is to be gained.

        Where no pair could be registered, the error of the first is raised.
        """
        self._register([_Try(p) for p in first_pairs(self.similarity, PARTNERS, budget)])
        self._join()
        for _ in range(MAX_ROUNDS):
            more = self._next(budget - self.registrations)
            if not more:
                break
            self._register(more)
            self._join()
        failures = [result.failure for result in self.found.values()]
        if failures and failures[0] is not None and None not in failures:
            raise VBRegError(
                f"none of {len(failures)} pairs of scans could be registered; the first: "
                f"{failures[0]}"
            )

    def edges(self) -> tuple[PoseEdges, list[PairResult]]:
        """Return every pose that is worth hearing, and the pair that each is of.

        Those of bridges that were cut are not.
        """
        results = self._results()
        return _poses([r for r in results if (r.source, r.target) not in self.cut])

    def _results(self) -> list[PairResult]:
        """Return what became of every try.

        By number, so that a run that goes on gives what one without a break gives.
        """
        return [tries[pair] for tries in (self.found, self.again) for pair in sorted(tries)]

    def _register(self, tries: Sequence[_Try]) -> None:
        """Register pairs, or take what is known of them."""
        missing = []
        for each in tries:
            known = self.store.get(*each.pair, each.guess)
            if known is None:
                missing.append(each)
            else:
                self._keep(each, known)
        total = self.registrations + len(missing)
        guesses = {each.pair: each.guess for each in missing if each.guess is not None}
        run = register_pairs(
            self.scans, [each.pair for each in missing], self.scale, self.model, guesses
        )
        for each, result in zip(missing, run, strict=True):
            self.store.add(result, each.guess)
            self._keep(each, result)
            self.tell("register pairs", self.registrations, total)

    def _keep(self, each: _Try, result: PairResult) -> None:
        (self.found if each.guess is None else self.again)[each.pair] = result

    def _join(self) -> None:
        """Solve the graph; while further pairs refute a bridge, cut it and solve it again."""
        edges, _ = self.edges()
        self.joined = join_scans(len(self.scans), edges)
        while refuted := self._refuted(edges):
            self.cut |= refuted
            edges, _ = self.edges()
            self.joined = join_scans(len(self.scans), edges)

    def _refuted(self, edges: PoseEdges) -> set[tuple[int, int]]:
        """Return bridges across which pairs should overlap, were tried again, and do not fit.

        Those with the most tries alone: a wrong bridge makes tries fail that cross others, too.
        """
        kept = edges.take(self.joined.solution.kept)
        pairs = kept.pairs()
        refuted: dict[tuple[int, int], int] = {}
        for e in np.flatnonzero(bridges(len(self.scans), kept)).tolist():
            sides = _sides(len(self.scans), kept, e)
            across = [r for pair, r in self.again.items() if _crosses(pair, sides)]
            failed = [r for r in across if r.probability < LIKELY]
            if len(failed) >= REFUTED and len(failed) == len(across):
                refuted[pairs[e]] = len(failed)
        most = max(refuted.values(), default=0)
        return {pair for pair, count in refuted.items() if count == most}

    def _next(self, left: int) -> list[_Try]:
        """Return the pairs to try next: where the graph is thin, and between components."""
        if left <= 0:
            return []
        within = self._within_components()[:left]
        between = self._between_components()[: left - len(within)]
        return [*within, *between]

    def _within_components(self) -> list[_Try]:
        """Return pairs that should overlap, at scans that too few edges hold."""
        solution = self.joined.solution
        edges, _ = self.edges()
        kept = edges.take(solution.kept)
        joined = set(kept.pairs())
        degree = np.zeros(len(self.scans), dtype=np.int64)
        for s, t in joined:
            degree[[s, t]] += 1
        threads = bridges(len(self.scans), kept)
        split = [_sides(len(self.scans), kept, e) for e in np.flatnonzero(threads).tolist()]
        wanted = [
            (s, t)
            for s, t in pairs_within(solution.component)
            if (s, t) not in joined
            and (s, t) not in self.again
            and (
                min(degree[s], degree[t]) < MIN_LOOPS
                or any(_crosses((s, t), sides) for sides in split)
            )
        ]
        shared = overlaps(self.surfaces, solution.T_world_scan, wanted, self.scale)
        found: list[_Try] = []
        given = np.zeros(len(self.scans), dtype=np.int64)
        for pair in sorted(wanted, key=lambda pair: (-shared[pair], pair)):
            if shared[pair] < MIN_PREDICTED or min(given[list(pair)]) >= MIN_LOOPS:
                continue
            given[list(pair)] += 1
            found.append(_Try(pair, self._guess(pair)))
        return found

    def _guess(self, pair: tuple[int, int]) -> Guess:
        """Return where the graph says that a pair lies."""
        T = self.joined.solution.T_world_scan
        shift = GUESS_SHIFT * self.scale.inlier_threshold
        return Guess(inverse(T[pair[1]]) @ T[pair[0]], shift, GUESS_TURN)

    def _between_components(self) -> list[_Try]:
        """Return the pairs of different components that look most alike, a few for each scan."""
        component = self.joined.solution.component
        apart = [
            (s, t)
            for s, t in zip(
                *(part.tolist() for part in np.triu_indices(len(self.scans), 1)), strict=True
            )
            if component[s] != component[t] and (s, t) not in self.found
        ]
        found: list[_Try] = []
        given = np.zeros(len(self.scans), dtype=np.int64)
        for pair in sorted(apart, key=lambda pair: -self.similarity[pair]):
            if max(given[list(pair)]) < MIN_LOOPS:
                given[list(pair)] += 1
                found.append(_Try(pair))
        return found

    # --- the end

    def result(self, names: Sequence[str], refine: bool) -> Reconstruction:
        """Return the poses, refined on the scans if asked for, and what became of each edge."""
        edges, _ = self.edges()
        solution = self.joined.solution
        if refine:
            solution = self._refined(solution, edges)
        edges, pairs = _poses(self._results())
        cut = np.array([pair in self.cut for pair in edges.pairs()], dtype=bool)
        solution = _with_cut(solution, edges, cut)
        distance = self._distances(solution, edges)
        limit = MAX_MOVE * self.scale.inlier_threshold
        kept = solution.kept.copy()
        kept[kept] = near_edges(len(self.scans), edges.take(kept), distance[kept], limit)
        too_far = solution.kept & ~kept
        closed, fit = triangle_support(edges, kept, len(self.scans))
        thread = np.zeros(len(edges), dtype=bool)
        thread[kept] = bridges(len(self.scans), edges.take(kept))
        listed = [
            SceneEdge(
                int(edges.source[e]),
                int(edges.target[e]),
                edges.T_target_source[e],
                pairs[e].covariance,
                float(edges.probability[e]),
                bool(kept[e]),
                float(solution.error[e]),
                float(distance[e]),
                limit if too_far[e] else None,
                int(closed[e]),
                int(fit[e]),
                bool(thread[e]),
                pairs[e].guided,
                bool(cut[e]),
            )
            for e in range(len(edges))
        ]
        return Reconstruction(
            tuple(names),
            solution.T_world_scan,
            solution.component,
            tuple(listed),
            self.similarity,
            self.joined.refused,
            tuple(sorted({*self.found, *self.again})),
            self.registrations,
            self.scale.voxel_size,
            refine,
        )

    def _distances(self, solution: GraphSolution, edges: PoseEdges) -> Float64:
        """Return how far (E,) edges move points at most from where the solved poses have them.

        Between components, which share no frame, that is infinite.
        """
        T = solution.T_world_scan
        predicted = inverse(T[edges.target]) @ T[edges.source]
        middles = np.stack([surface.middle for surface in self.surfaces])[edges.source]
        there, here = (
            (X[:, :3, :3] @ middles[..., None])[..., 0] + X[:, :3, 3]
            for X in (predicted, edges.T_target_source)
        )
        shift = np.linalg.norm(there - here, axis=1)
        turn = np.linalg.norm(logarithm(predicted @ inverse(edges.T_target_source))[:, :3], axis=1)
        arm = np.array([surface.radius for surface in self.surfaces])[edges.source]
        apart = solution.component[edges.source] != solution.component[edges.target]
        return np.where(apart, np.inf, shift + turn * arm)

    def _refined(self, solution: GraphSolution, edges: PoseEdges) -> GraphSolution:
        """Return poses after overlapping scans were laid onto each other, pair by pair."""
        pairs = overlapping_pairs(
            self.surfaces, solution.T_world_scan, solution.component, self.scale
        )
        ends, poses, covariances = [], [], []
        run = exact_poses(self.scans, solution.T_world_scan, pairs, self.scale)
        for done, (pair, laid) in enumerate(zip(pairs, run, strict=True), start=1):
            if laid is not None:
                ends.append(pair)
                poses.append(laid[0])
                covariances.append(ERROR_SCALE**2 * laid[1])
            self.tell("refine", done, len(pairs))
        exact = _joined(PoseEdges.of(ends, poses, covariances), edges.take(solution.kept))
        found = solve_graph(len(self.scans), exact, start=solution.T_world_scan)
        if (found.component != solution.component).any():
            return solution  # what holds scans together is not lost for the sake of exactness
        errors = np.sqrt(squared_errors(residuals(found.T_world_scan, edges), edges))
        errors[~np.isfinite(solution.error)] = np.inf
        return GraphSolution(found.T_world_scan, solution.component, solution.kept, errors)


def _poses(results: Sequence[PairResult]) -> tuple[PoseEdges, list[PairResult]]:
    """Return the poses of pairs that are worth hearing, and the pair that each is of."""
    listed: list[tuple[PairResult, Float64, float]] = []
    for result in results:
        poses = [(result.T_target_source, result.probability)]
        poses += [(a.T_target_source, a.probability) for a in result.alternatives]
        listed += [(result, T, p) for T, p in poses if p >= MIN_EDGE]
    edges = PoseEdges.of(
        [(result.source, result.target) for result, _, _ in listed],
        [T for _, T, _ in listed],
        [ERROR_SCALE**2 * result.covariance for result, _, _ in listed],
        [p for _, _, p in listed],
    )
    return edges, [result for result, _, _ in listed]


def _with_cut(solution: GraphSolution, edges: PoseEdges, cut: Bool) -> GraphSolution:
    """Return a solution of the edges that were not cut, with those that were (E,) in their places.

    They are not kept, and as far from the poses as these have them.
    """
    T, component = solution.T_world_scan, solution.component
    kept, error = np.zeros(len(edges), dtype=bool), np.full(len(edges), np.inf)
    kept[~cut], error[~cut] = solution.kept, solution.error
    within = cut & (component[edges.source] == component[edges.target])
    some = edges.take(within)
    error[within] = np.sqrt(squared_errors(residuals(T, some), some))
    return GraphSolution(T, component, kept, error)


def _sides(scans: int, edges: PoseEdges, bridge: int) -> Int64:
    """Return (K,) 1 for scans on the source's side of a bridge, -1 on the target's, else 0."""
    label = components(scans, edges.take(np.arange(len(edges)) != bridge))
    ends = (label == label[end] for end in (edges.source[bridge], edges.target[bridge]))
    source, target = (side.astype(np.int64) for side in ends)
    return np.asarray(source - target)


def _crosses(pair: tuple[int, int], sides: Int64) -> bool:
    """Tell whether a pair has one scan on either side (K,) of a bridge."""
    return bool(sides[pair[0]] * sides[pair[1]] == -1)


def _joined(exact: PoseEdges, rough: PoseEdges) -> PoseEdges:
    """Return exact edges, and rough ones for pairs that have no exact one."""
    have = set(exact.pairs())
    rest = rough.take(np.array([pair not in have for pair in rough.pairs()], dtype=bool))
    return PoseEdges(
        np.concatenate([exact.source, rest.source]),
        np.concatenate([exact.target, rest.target]),
        np.concatenate([exact.T_target_source, rest.T_target_source]),
        np.concatenate([exact.information, rest.information]),
        np.concatenate([exact.probability, rest.probability]),
    )
