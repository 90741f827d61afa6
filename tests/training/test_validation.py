"""Whole registrations of sets that training never sees."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.conftest import fresh
from tests.training.helpers import CPU, KINDS, NETWORK, described_sets, match_sets
from vbreg.training import validation
from vbreg.training.descriptors import CloudDescriptors, clouds_of, fpfh_sets
from vbreg.training.validation import validate


def test_validation_sees_what_is_right() -> None:
    network, sets = fresh(NETWORK), match_sets(2)
    found = validate(network, sets)
    assert found.recall == 1.0  # three inliers of ten are easy for any features
    shifted = [replace(s, T_target_source=np.eye(4)) for s in sets]
    assert validate(network, shifted).recall == 0.0


def test_a_success_is_in_units_of_the_threshold() -> None:
    """Two thresholds off is right at any scale, four are wrong."""
    for threshold in (0.1, 0.6):
        for off, recall in ((2.0, 1.0), (4.0, 0.0)):
            sets = match_sets(2, threshold)
            for s in sets:
                s.T_target_source[0, 3] += off * threshold
            assert validate(fresh(NETWORK), sets).recall == recall


def test_labels_are_judged_as_a_classification() -> None:
    found = validate(fresh(NETWORK), match_sets(3))
    assert all(0.0 <= value <= 1.0 for value in found)
    if found.inlier_precision + found.inlier_recall > 0:
        assert found.inlier_f1 <= max(found.inlier_precision, found.inlier_recall)


def test_of_many_sets_some_are_looked_at_from_first_to_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first and the last among them: spoilt ones at either end count."""
    monkeypatch.setattr(validation, "MAX_SETS", 3)
    sets = [match_sets(1)[0]] * 7
    wrong = replace(sets[0], T_target_source=np.eye(4))
    assert validate(fresh(NETWORK), sets).recall == 1.0
    for place, recall in ((0, 2 / 3), (3, 2 / 3), (6, 2 / 3), (1, 1.0)):
        spoilt = [*sets[:place], wrong, *sets[place + 1 :]]
        assert validate(fresh(NETWORK), spoilt).recall == pytest.approx(recall)


def test_a_network_that_sees_descriptors_is_given_them() -> None:
    sets = fpfh_sets(described_sets("patch", 0))
    found = validate(fresh(KINDS["feat"]), sets, CloudDescriptors(clouds_of(sets), CPU))
    assert found.recall == 1.0
