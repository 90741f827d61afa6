"""Fewer keypoints: as many as asked, and the same for a pair every time."""

import numpy as np
import pytest

from vbreg.benchmark.problems import Settings, keypoint_rows
from vbreg.datasets import Pair
from vbreg.datasets.sampling import pair_seed, sample_rows
from vbreg.errors import VBRegError


def drawn(name: str = "attic/0-1", points: int = 300, seed: int = 0) -> tuple[np.ndarray, ...]:
    nothing = np.zeros((0, 3))
    pair = Pair(
        name,
        nothing,
        nothing,
        np.eye(4),
        scores=(np.ones(10000, np.float32), np.ones(400, np.float32)),
    )
    return keypoint_rows((10000, 400), pair, Settings("synthetic", points=points, seed=seed))


@pytest.mark.parametrize("count", [5000, 2500, 1000, 500, 250])
def test_rows_are_spread_evenly(count: int) -> None:
    rows = sample_rows(10000, count, 0)
    assert len(rows) == count
    assert (np.diff(rows) > 0).all()  # none twice
    assert rows.mean() == pytest.approx(5000, rel=0.2)


def test_small_clouds_stay_whole() -> None:
    np.testing.assert_array_equal(sample_rows(50, 10**6, 0), np.arange(50))


def test_a_pair_is_drawn_from_its_own_seed() -> None:
    one, again, other = (drawn(name) for name in ("a/0-1", "a/0-1", "a/0-2"))
    np.testing.assert_array_equal(one[0], again[0])
    np.testing.assert_array_equal(one[1], again[1])
    assert len(one[0]) == len(one[1]) == 300
    assert (one[0] != other[0]).any()
    assert (one[0] != drawn("a/0-1", seed=1)[0]).any()
    assert len(drawn(points=1000)[1]) == 400


def test_seeds_are_the_same_on_every_machine() -> None:
    assert pair_seed(0, "attic/0-1") == 12218866732878729599
    assert pair_seed(1, "attic/0-1") != pair_seed(0, "attic/0-1") != pair_seed(0, "attic/0-2")


def test_scores_lead_the_choice() -> None:
    weights = np.where(np.arange(10000) < 5000, 1.0, 0.0)
    weights[0] = np.nan
    rows = sample_rows(10000, 4000, 0, weights)
    assert (rows < 5000).all()
    assert len(sample_rows(10000, 9000, 0, weights)) == 9000  # more than have a score


def test_errors() -> None:
    with pytest.raises(VBRegError, match="0 points are asked for"):
        sample_rows(10000, 0, 0)
