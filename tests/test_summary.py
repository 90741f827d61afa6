"""Numbers of a result: what is told agrees with the result that it is told of."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.viewer.helpers import POSE, planted_clouds, planted_result, turned
from vbreg.summary import as_json, pose_difference, standard_deviation


def test_json_is_json_and_says_where_it_comes_from() -> None:
    result = planted_result(planted_clouds()[0])
    said = json.loads(
        json.dumps(as_json(result, {"read files": 1.0}, Path("a.ply"), Path("b.ply"), ["careful"]))
    )
    assert said["source"] == "a.ply"
    assert said["timings"] == {"read files": 1.0}
    assert said["warnings"] == ["careful"]
    assert said["T_target_source"] == POSE.tolist()
    assert said["rotation_deg"] == pytest.approx(70.0)


def test_differences_of_poses_are_known() -> None:
    degrees, length = pose_difference(turned(50.0, (1.0, 2.0, 2.0)), np.eye(4))
    assert degrees == pytest.approx(50.0)
    assert length == pytest.approx(3.0)


def test_the_deviation_is_that_at_the_inliers() -> None:
    """A turn alone is felt the more, the further from the axis the inliers lie."""
    result = planted_result(planted_clouds()[0])
    near, far = (
        standard_deviation(
            replace(
                result,
                correspondences=replace(result.correspondences, target=np.full((60, 3), place)),
            )
        )
        for place in (0.0, 100.0)
    )
    assert near is not None
    assert far is not None
    assert near[0] == pytest.approx(far[0]) == pytest.approx(np.degrees(np.sqrt(3e-4)))
    assert near[1] == pytest.approx(np.sqrt(12e-4))
    assert far[1] > 50 * near[1]


def test_nothing_is_told_without_inliers_or_covariance() -> None:
    result = planted_result(planted_clouds()[0])
    assert standard_deviation(replace(result, inliers=np.zeros(60, dtype=bool))) is None
    assert standard_deviation(replace(result, uncertainty_given=None)) is None
