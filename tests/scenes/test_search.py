"""Laws of the search on made-up pairs: what is tried, what is joined, what stays apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from vbreg.matching import DescribedCloud, ThinnedSurface
from vbreg.motions import exponential, inverse, logarithm
from vbreg.scale import Scale
from vbreg.scenes.graph import MAX_ERROR
from vbreg.scenes.pairs import Guess, PairResult, PairStore
from vbreg.scenes.search import MAX_MOVE, SceneSearch, pair_budget
from vbreg.types import Float64

SCALE = Scale(0.1)
WIDTH = 3.0  # of what a scan sees of a strip of ground
SURE = 0.99

Pair = tuple[int, int]
Answer = tuple[float, Float64] | None  # probability and T_target_source; None: no pose found


class Strip(NamedTuple):
    """Scans along a strip of ground, and their true poses (K, 4, 4)."""

    scans: list[DescribedCloud]
    T: Float64

    def pose(self, pair: Pair) -> Float64:
        """The true T_target_source."""
        return np.asarray(inverse(self.T[pair[1]]) @ self.T[pair[0]])


def strip(middles: Sequence[float]) -> Strip:
    rng = np.random.default_rng(0)
    T = exponential(rng.normal(size=(len(middles), 6)))
    scans = []
    for middle, pose in zip(middles, T, strict=True):
        x = np.arange(middle - WIDTH / 2, middle + WIDTH / 2, 0.1)
        ground = np.stack(np.meshgrid(x, np.arange(0, 1, 0.1), [0.0]), axis=-1).reshape(-1, 3)
        points = torch.from_numpy((ground - pose[:3, 3]) @ pose[:3, :3]).float()
        surface = ThinnedSurface(points, torch.zeros_like(points))
        none = torch.zeros(len(points), 1)
        scans.append(DescribedCloud(points, surface.normals, none, np.zeros(3), "one-way", surface))
    return Strip(scans, T)


class MadeUp:
    """In place of `register_pairs`: it knows what becomes of every pair."""

    def __init__(
        self, answer: Callable[[Pair, Guess | None], Answer], variance: Mapping[Pair, float]
    ) -> None:
        self.answer, self.variance = answer, variance
        self.asked: list[tuple[Pair, bool]] = []  # with a guess or not

    def __call__(
        self,
        scans: object,
        pairs: Sequence[Pair],
        scale: object,
        model: object,
        guesses: Mapping[Pair, Guess],
    ) -> Iterator[PairResult]:
        for pair in pairs:
            guess = guesses.get(pair)
            self.asked.append((pair, guess is not None))
            found = self.answer(pair, guess)
            if found is None:
                yield PairResult.failed(*pair, guess is not None)
            else:
                C, guided = self.variance.get(pair, 1e-4) * np.eye(6), guess is not None
                yield PairResult(*pair, found[1], C, found[0], 0.5, True, (), guided)


Search = Callable[..., tuple[SceneSearch, MadeUp]]


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> Search:
    """Run a search of a strip in which pairs become what they are said to become."""

    def run(
        given: Strip,
        answer: Callable[[Pair, Guess | None], Answer],
        budget: int = 1000,
        variance: Mapping[Pair, float] = MappingProxyType({}),
        **more: Any,
    ) -> tuple[SceneSearch, MadeUp]:
        pairs = MadeUp(answer, variance)
        monkeypatch.setattr("vbreg.scenes.search.register_pairs", pairs)
        K = len(given.scans)
        store = PairStore(None, {}, [str(k) for k in range(K)])
        near = -np.abs(np.subtract.outer(np.arange(K), np.arange(K))).astype(float)
        model: Any = None
        found = SceneSearch(given.scans, SCALE, model, store, near, **more)
        found.run(budget)
        return found, pairs

    return run


def off(A: Float64, B: Float64) -> float:
    """The largest number in the motion between two poses."""
    return float(np.abs(logarithm(A @ inverse(B))).max())


def test_a_pair_that_failed_is_found_from_where_the_graph_has_it(search: Search) -> None:
    """Pairs 2-3 and 1-3 fail at first; 0-3 and 2-4 hold the two halves together."""
    given = strip([0.0, 0.6, 1.2, 1.8, 2.4, 3.0])
    right = {(0, 1), (1, 2), (3, 4), (4, 5), (0, 3), (2, 4)}
    off_by: list[float] = []

    def answer(pair: Pair, guess: Guess | None) -> Answer:
        if guess is None:
            return (SURE, given.pose(pair)) if pair in right else None
        off_by.append(off(guess.T_target_source, given.pose(pair)))
        return (0.9, given.pose(pair)) if pair != (1, 3) else None

    found, pairs = search(given, answer)
    assert max(off_by) < 1e-6
    assert ((2, 3), False) in pairs.asked
    assert ((2, 3), True) in pairs.asked
    assert len(set(pairs.asked)) == len(pairs.asked)  # nothing is asked twice
    result = found.result([str(k) for k in range(6)], refine=False)
    assert (result.component == 0).all()
    by_pair = {(e.source, e.target): e for e in result.edges}
    assert by_pair[2, 3].kept
    assert by_pair[2, 3].guided
    assert not by_pair[0, 1].guided
    assert (1, 3) not in by_pair
    assert set(result.tried) == {pair for pair, _ in pairs.asked}
    assert result.registrations == len(pairs.asked) > len(result.tried)


@pytest.mark.parametrize("wrong", [True, False])
def test_a_bridge_stays_only_if_further_pairs_across_it_fit(search: Search, wrong: bool) -> None:
    """Scans 0 to 2 and 3 to 5, which one pair joins; if wrong, they are of different places."""
    given = strip([0.0, 0.5, 1.0, 1.5, 2.0, 2.5])

    def answer(pair: Pair, guess: Guess | None) -> Answer:
        if (pair[0] < 3) == (pair[1] < 3) or pair == (2, 3):
            return SURE, given.pose(pair)
        return (0.9, given.pose(pair)) if guess is not None and not wrong else None

    found, pairs = search(given, answer)
    across = [pair for pair, guided in pairs.asked if guided and pair[0] < 3 <= pair[1]]
    assert len(across) >= 2
    result = found.result([str(k) for k in range(6)], refine=False)
    assert result.component.tolist() == ([0, 0, 0, 1, 1, 1] if wrong else [0] * 6)
    assert ((2, 3) in found.cut) == wrong
    [bridge] = [e for e in result.edges if (e.source, e.target) == (2, 3)]
    assert (bridge.kept, bridge.dropped) == (not wrong, wrong)
    assert bridge.doubt == (
        "dropped: further pairs across it were tried and do not fit" if wrong else ""
    )
    assert not any(edge.bridge for edge in result.edges)


@pytest.mark.parametrize("places", [[0, 1, 2], [1, 0, 2], [2, 1, 0], [1, 2, 0], [2, 0, 1]])
def test_a_right_bridge_stays_where_a_wrong_one_beside_it_is_cut(
    search: Search, monkeypatch: pytest.MonkeyPatch, places: list[int]
) -> None:
    """One right pair joins two parts of a place; a third place was glued to the first of them.

    Tries between the first and the third fail, also once these are apart, whatever their order.
    """
    monkeypatch.setattr("vbreg.scenes.search.PARTNERS", 3)
    parts = [[0.0, 0.6, 1.2], [3.2, 3.8], [-1.0, -0.5]]
    middles = [middle for place in places for middle in parts[place]]
    owner = [place for place in places for _ in parts[place]]
    given = strip(middles)

    def answer(pair: Pair, guess: Guess | None) -> Answer:
        glued = {middles[k] for k in pair} in ({1.2, 3.2}, {0.0, -0.5})
        right = owner[pair[0]] == owner[pair[1]] or glued
        return (SURE, given.pose(pair)) if right else None

    found, _ = search(given, answer)
    result = found.result([str(k) for k in range(7)], refine=False)
    seen = {place: set(result.component[np.array(owner) == place].tolist()) for place in range(3)}
    assert len(seen[0]) == len(seen[2]) == 1
    assert seen[0] == seen[1]
    assert seen[0] != seen[2]


def test_an_edge_that_is_too_far_off_is_dropped_for_its_distance(search: Search) -> None:
    """It is so unsure of itself that it is few standard deviations off, while points move far."""
    given = strip([0.0, 0.5, 1.0, 1.5])
    moved = exponential(np.array([0.0, 0.0, 0.0, 0.5, 0.0, 0.0]))

    def answer(pair: Pair, guess: Guess | None) -> Answer:
        return SURE, moved @ given.pose(pair) if pair == (0, 3) else given.pose(pair)

    found, _ = search(given, answer, variance={(0, 3): 1.0})
    result = found.result([str(k) for k in range(4)], refine=False)
    for edge in result.edges:
        off_by = (edge.source, edge.target) == (0, 3)
        assert edge.kept != off_by
        assert edge.error < MAX_ERROR
        assert edge.allowed == (MAX_MOVE * SCALE.inlier_threshold if off_by else None)
        assert edge.distance == pytest.approx(0.5 if off_by else 0.0, abs=1e-3)


def test_what_no_pair_joins_stays_apart(search: Search) -> None:
    """Though they lie side by side: nobody says so."""
    given = strip([0.0, 0.5, 1.0, 0.0, 0.5, 1.0, 1.5])

    def answer(pair: Pair, guess: Guess | None) -> Answer:
        return (SURE, given.pose(pair)) if (pair[0] < 3) == (pair[1] < 3) else None

    found, _ = search(given, answer)
    result = found.result([str(k) for k in range(7)], refine=False)
    assert result.components == [[3, 4, 5, 6], [0, 1, 2]]
    for members in result.components:
        np.testing.assert_array_equal(result.T_world_scan[members[0]], np.eye(4))
        for k in members[1:]:
            pose = inverse(result.T_world_scan[members[0]]) @ result.T_world_scan[k]
            assert off(pose, given.pose((k, members[0]))) < 1e-6


def test_components_are_compared_until_a_pair_joins_them(
    search: Search, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two halves that are joined by pairs that do not look alike."""
    monkeypatch.setattr("vbreg.scenes.search.PARTNERS", 1)
    given = strip([0.0, 0.5, 1.0, 1.0, 0.5, 0.0])

    def answer(pair: Pair, guess: Guess | None) -> Answer:
        right = (pair[0] < 3) == (pair[1] < 3) or (sum(pair) == 5 and pair != (2, 3))
        return (SURE, given.pose(pair)) if right or guess is not None else None

    found, pairs = search(given, answer)
    assert pairs.asked.index(((0, 5), False)) > pairs.asked.index(((2, 3), False))
    assert (found.joined.solution.component == 0).all()


@pytest.mark.parametrize("budget", [0, 4, 9, 16, 20])
def test_the_budget_is_kept_and_every_pair_is_told(
    search: Search, monkeypatch: pytest.MonkeyPatch, budget: int
) -> None:
    monkeypatch.setattr("vbreg.scenes.search.PARTNERS", 1)
    given = strip(np.arange(12) * 0.5)
    told: list[tuple[int, int]] = []

    def answer(pair: Pair, guess: Guess | None) -> Answer:
        near = abs(pair[0] - pair[1]) == 1 and pair != (5, 6)
        return (SURE, given.pose(pair)) if near or guess is not None else None

    def tell(stage: str, done: int, total: int) -> None:
        assert stage == "register pairs"
        assert done <= total <= budget
        told.append((done, total))

    found, pairs = search(given, answer, budget, tell=tell)
    assert found.registrations == len(pairs.asked) == budget  # there is more to do than that
    assert [done for done, _ in told] == list(range(1, budget + 1))


@pytest.mark.parametrize(
    ("scans", "share", "most"),
    [
        (2, None, 2),  # the one pair, and once more
        (8, None, 56),  # all 28, and once more
        (18, None, 56),
        (37, None, 166),
        (60, None, 442),
        (2, 0.01, 1),
        (18, 0.25, 38),
        (60, 1.0, 1770),
        (60, 0.01, 17),
    ],
)
def test_a_share_of_all_pairs_is_registered_and_more_of_few_scans_if_none_is_given(
    scans: int, share: float | None, most: int
) -> None:
    assert pair_budget(scans, share) == most
