"""Simulated pairs are made late, come the same again, and are true to their pose."""

import numpy as np
import pytest

from tests.datasets.layouts import within
from vbreg.datasets.pairs import Pair
from vbreg.datasets.synthetic import synthetic
from vbreg.errors import VBRegError


@pytest.fixture(scope="module")
def pair() -> Pair:
    return synthetic(2, seed=3)[1]


def test_names_are_known_before_any_room_is_built() -> None:
    pairs = synthetic(10**5, seed=7)
    assert len(pairs) == 10**5
    assert pairs.names[:2] == ("living_room-7-0/0-1", "living_room-7-1/0-1")
    assert pairs.scenes[1] == "living_room-7-1"


def test_the_pose_is_true(pair: Pair) -> None:
    assert pair.name == "living_room-3-1/0-1"
    assert pair.scene == "living_room-3-1"
    assert min(len(pair.source), len(pair.target)) > 4000
    assert pair.overlap is not None
    assert 0.3 < pair.overlap <= 1.0
    assert within(pair, 0.05) == pytest.approx(pair.overlap, abs=1e-3)
    R = pair.T_target_source[:3, :3]
    np.testing.assert_allclose(R @ R.T, np.eye(3), atol=1e-9)


def test_a_pair_depends_on_its_seed_and_number_only(pair: Pair) -> None:
    again = synthetic(5, seed=3)[1]
    np.testing.assert_array_equal(again.source, pair.source)
    np.testing.assert_array_equal(again.target, pair.target)
    np.testing.assert_array_equal(again.T_target_source, pair.T_target_source)


@pytest.mark.parametrize(
    "options", [{"count": -1}, {"min_overlap": 0.5, "max_overlap": 0.4}, {"max_overlap": 1.5}]
)
def test_wrong_options_are_named(options: dict[str, float]) -> None:
    with pytest.raises(VBRegError, match="expected 0 or more pairs"):
        synthetic(**options)  # type: ignore[arg-type]


def test_an_unknown_room_is_told_the_known_ones() -> None:
    with pytest.raises(VBRegError, match="kitchen"):
        synthetic(1, room="cellar")
