"""Seconds are told of every stage, and each problem has its share of them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.conftest import make_problem
from tests.test_constraints import FAR, NEAR, two_answers
from vbreg import VBReg
from vbreg.errors import VBRegError
from vbreg.timing import Stopwatch


def test_a_stage_that_fails_is_timed() -> None:
    clock = Stopwatch()
    with pytest.raises(VBRegError), clock("match"):
        raise VBRegError("no match")
    assert list(clock.seconds) == ["match"]


def test_shares_add_up_and_are_ones_own() -> None:
    clock = Stopwatch()
    clock.seconds |= {"vote": 3.0, "match": 1.5}
    share = clock.share(of=3)
    assert share == {"vote": 1.0, "match": 0.5}
    clock.seconds["vote"] = 9.0
    assert share["vote"] == 1.0
    assert clock.share() == clock.seconds
    assert clock.share() is not clock.seconds


def test_problems_of_a_batch_share_its_seconds(
    fast: VBReg, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stage takes a second here, also that of four problems together."""
    now = iter(range(1000))
    monkeypatch.setattr(Stopwatch, "_now", lambda clock: float(next(now)))
    problems = [make_problem(60, 0.5, seed=k) for k in range(4)]
    ends = [p.source for p in problems], [p.target for p in problems]
    found = fast.estimate_batch(*ends, inlier_threshold=0.1)
    alone = fast.estimate(problems[0].source, problems[0].target, inlier_threshold=0.1)
    assert set(alone.timings.values()) == {1.0}
    for result in found:
        assert result.timings == dict.fromkeys(alone.timings, 0.25)
    assert len({id(result.timings) for result in found}) == 4


def test_seconds_that_come_later_are_not_a_results(fast: VBReg) -> None:
    clock = Stopwatch()
    first = fast.solve(two_answers(FAR, NEAR), clock=clock, verify=False)
    before = dict(first.timings)
    fast.solve(two_answers(FAR, NEAR), clock=clock, verify=False)
    assert first.timings == before
    assert np.all(np.array(list(clock.seconds.values())) > list(before.values()))
