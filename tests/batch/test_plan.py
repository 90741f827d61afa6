"""The order of the work: all rows once, those that share clouds near each other."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest

from vbreg.batch.plan import Plan, work_order
from vbreg.batch.rows import PairRow


def pairs(ends: list[tuple[int, int]]) -> list[PairRow]:
    return [PairRow(k, str(a), str(b), {}) for k, (a, b) in enumerate(ends)]


def reads(rows: list[PairRow], held: int) -> int:
    """How often a cloud is read by who keeps so many."""
    kept: OrderedDict[str, None] = OrderedDict()
    count = 0
    for row in rows:
        for path in row[1:3]:
            count += path not in kept
            kept[path] = None
            kept.move_to_end(path)
            if len(kept) > held:
                kept.popitem(last=False)
    return count


def shuffled(ends: list[tuple[int, int]], seed: int = 0) -> list[PairRow]:
    order = np.random.default_rng(seed).permutation(len(ends))
    return pairs([ends[k] for k in order])


def test_a_trajectory_is_followed_from_end_to_end() -> None:
    """Each scan with the next three: every cloud is read once by who keeps eight."""
    rows = shuffled([(k, k + step) for k in range(60) for step in (1, 2, 3) if k + step < 60])
    ordered = work_order(rows)
    assert sorted(ordered) == sorted(rows)
    assert reads(ordered, 8) <= 66 < reads(rows, 8)


def test_all_pairs_of_many_clouds_go_corner_by_corner() -> None:
    rows = shuffled([(a, b) for a in range(32) for b in range(a)])
    assert reads(work_order(rows), 8) < 0.5 * reads(sorted(rows, key=lambda r: r[1:3]), 8)


def test_the_order_is_the_same_in_every_call() -> None:
    rows = shuffled([(a, b) for a in range(12) for b in range(a)])
    assert work_order(rows) == work_order(list(rows))
    assert work_order([]) == []


@pytest.mark.parametrize("workers", [1, 3, 50])
def test_every_row_is_given_once_whoever_asks(workers: int) -> None:
    rows = shuffled([(k, k + 1) for k in range(40)])
    plan = Plan(rows, workers, 4)
    taken = []
    turn = np.random.default_rng(1)
    while plan:
        chunk = plan.take(int(turn.integers(workers)))
        assert chunk is not None
        assert len(chunk) <= 4
        taken += chunk
    assert sorted(taken) == sorted(rows)
    assert plan.take(0) is None
    plan.put_back(rows[:2])
    assert plan.take(0) == rows[:1]
