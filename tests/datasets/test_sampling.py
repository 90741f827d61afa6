"""Fewer keypoints: with their descriptors, as many as asked, and the same for a pair every time."""

from dataclasses import replace

import numpy as np
import pytest

from vbreg.datasets import Pair, subsample, subsample_pair
from vbreg.datasets.sampling import pair_seed, sample_rows
from vbreg.errors import VBRegError

POINTS = np.arange(30000.0).reshape(-1, 3)
DESCRIPTORS = np.repeat(np.arange(10000, dtype=np.float32)[:, None], 4, axis=1)


def described(name: str = "attic/0-1") -> Pair:
    few = 400
    return Pair(
        name,
        POINTS,
        POINTS[:few],
        np.eye(4),
        descriptors=(DESCRIPTORS, DESCRIPTORS[:few]),
        scores=(np.ones(10000, np.float32), np.ones(few, np.float32)),
    )


@pytest.mark.parametrize("count", [5000, 2500, 1000, 500, 250])
def test_points_keep_their_descriptors(count: int) -> None:
    points, descriptors = subsample(POINTS, DESCRIPTORS, count, 0)
    assert len(points) == len(descriptors) == count
    np.testing.assert_array_equal(points[:, 0], 3 * descriptors[:, 0])
    assert (np.diff(points[:, 0]) > 0).all()  # none twice
    assert points[:, 0].mean() == pytest.approx(15000, rel=0.2)


def test_small_clouds_stay_whole() -> None:
    points, descriptors = subsample(POINTS, DESCRIPTORS, 10**6, 0)
    assert points is POINTS
    assert descriptors is DESCRIPTORS


def test_a_pair_is_drawn_from_its_own_seed() -> None:
    one, again, other = (subsample_pair(described(n), 300) for n in ("a/0-1", "a/0-1", "a/0-2"))
    np.testing.assert_array_equal(one.source, again.source)
    assert one.descriptors is not None
    assert len(one.source) == len(one.target) == len(one.descriptors[0]) == 300
    np.testing.assert_array_equal(one.source[:, 0], 3 * one.descriptors[0][:, 0])
    assert (one.source != other.source).any()
    assert (one.source != subsample_pair(described("a/0-1"), 300, seed=1).source).any()
    assert len(subsample_pair(described(), 1000).target) == 400
    assert one.scores is not None
    assert len(one.scores[1]) == 300


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
        subsample(POINTS, DESCRIPTORS, 0, 0)
    with pytest.raises(VBRegError, match="10000 points and 3 descriptors"):
        subsample(POINTS, DESCRIPTORS[:3], 5, 0)
    with pytest.raises(VBRegError, match="attic/0-1 has no descriptors"):
        subsample_pair(replace(described(), descriptors=None), 5)
