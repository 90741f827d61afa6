"""Laws of pairs: a result is read back as it was written, and a store knows what it has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers import EAST, motion, move, surface
from vbreg.matching import DescribedCloud, MatchedClouds, describe, match_clouds
from vbreg.model import VBReg
from vbreg.motions import exponential
from vbreg.scale import Scale
from vbreg.scenes.pairs import Guess, PairResult, PairStore, register_pairs
from vbreg.types import Alternative, Registration


def result(source: int = 0, target: int = 1, seed: int = 0) -> PairResult:
    rng = np.random.default_rng(seed)
    T, other = exponential(rng.normal(size=(2, 6)))
    C = rng.normal(size=(6, 6))
    return PairResult(source, target, T, C @ C.T, 0.7, 0.3, True, (Alternative(other, 0.1),))


def same(a: PairResult, b: PairResult) -> bool:
    return a.as_row("x") == b.as_row("x") and (a.source, a.target) == (b.source, b.target)


def test_a_store_on_disk_gives_back_every_bit(tmp_path: Path) -> None:
    given = result()
    PairStore(tmp_path, {"voxel_size": 0.05}, ["a", "b", "c"]).add(given)
    again = PairStore(tmp_path, {"voxel_size": 0.05}, ["a", "b", "c"])
    found = again.get(0, 1)
    assert found is not None
    assert same(found, given)
    assert again.get(0, 2) is None
    assert again.get(1, 0) is None


def test_scans_are_known_by_what_they_are(tmp_path: Path) -> None:
    """Scans may be added before others, and one that changed is computed anew."""
    PairStore(tmp_path, {}, ["a", "b"]).add(result(0, 1))
    later = PairStore(tmp_path, {}, ["new", "a", "b", "changed"])
    found = later.get(1, 2)
    assert found is not None
    assert (found.source, found.target) == (1, 2)
    assert later.get(1, 3) is None


def test_other_settings_have_results_of_their_own(tmp_path: Path) -> None:
    PairStore(tmp_path, {"voxel_size": 0.05}, ["a", "b"]).add(result())
    assert PairStore(tmp_path, {"voxel_size": 0.1}, ["a", "b"]).get(0, 1) is None
    assert len(list(tmp_path.iterdir())) == 2


def test_a_guess_is_part_of_the_question(tmp_path: Path) -> None:
    store = PairStore(tmp_path, {}, ["a", "b"])
    guess = Guess(np.eye(4), 0.5, 20.0)
    store.add(result(), guess)
    assert store.get(0, 1) is None
    assert store.get(0, 1, guess) is not None
    nearly = Guess(np.eye(4) + 1e-5, 0.5, 20.0)
    assert store.get(0, 1, nearly) is not None
    assert store.get(0, 1, Guess(np.eye(4), 0.6, 20.0)) is None


NOTHING = DescribedCloud(torch.zeros(5, 3), None, torch.zeros(5, 64), np.zeros(3))


def test_a_pair_without_matches_is_no_error(fast: VBReg) -> None:
    [found] = register_pairs([NOTHING, NOTHING], [(0, 1)], Scale(0.1), fast)
    assert found.probability == 0.0
    assert not found.determined
    assert "0 matches between clouds of 5 and 5 points" in (found.failure or "")


def test_pairs_of_a_group_are_those_solved_one_by_one(
    fast: VBReg, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a guess or without one, though some of them fail; in the order given."""
    scale = Scale(0.1)
    clouds = [move(motion(k), surface(1200 + 300 * k, k)) + EAST for k in range(3)]
    scans = [*(describe(cloud, scale) for cloud in clouds), NOTHING]
    pairs = [(0, 1), (3, 0), (2, 1), (1, 0), (0, 2)]  # one without matches
    alone = {
        p: fast.solve(match_clouds(scans[p[0]], scans[p[1]], scale)) for p in pairs if p[0] < 3
    }
    near = Guess(alone[0, 2].T_target_source, 0.5, 20.0)
    far = Guess(alone[1, 0].T_target_source + 1e3 * np.eye(4, k=3), 0.1, 1.0)  # no match is there
    guesses = {(0, 2): near, (1, 0): far}
    alone[0, 2] = fast.solve(
        match_clouds(scans[0], scans[2], scale), constraints=near.constraints()
    )
    sizes: list[int] = []
    usual = VBReg.solve_batch

    def noted(self: VBReg, matched: list[MatchedClouds], **options: Any) -> list[Registration]:
        sizes.append(len(matched))
        return usual(self, matched, **options)

    monkeypatch.setattr(VBReg, "solve_batch", noted)
    monkeypatch.setattr("vbreg.scenes.pairs.GIVEN_TOGETHER_CPU", 3)
    monkeypatch.setattr("vbreg.model.SOLVED_TOGETHER_CPU", 2)
    found = list(register_pairs(scans, pairs, scale, fast, guesses))
    assert sizes == [2, 2, 1, 1]  # the second group has one that fails
    assert [(r.source, r.target) for r in found] == pairs
    assert [r.guided for r in found] == [pair in guesses for pair in pairs]
    assert [r.probability > 0.5 for r in found] == [True, False, True, False, True]
    for pair, result in zip(pairs, found, strict=True):
        if result.probability:
            expected = alone[pair]
            np.testing.assert_allclose(result.T_target_source, expected.T_target_source, atol=1e-5)
            assert result.probability == pytest.approx(expected.success_probability, abs=1e-3)
            np.testing.assert_allclose(result.covariance, expected.covariance, rtol=1e-2, atol=1e-9)
