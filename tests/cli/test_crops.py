from __future__ import annotations

import numpy as np
import pytest

from vbreg.cli.crops import ROLES, cropped, parse_crop, without_outliers
from vbreg.errors import VBRegError
from vbreg.types import PointCloud

CLOUD = PointCloud(np.array([[0.0, 0, 0], [1, 1, 1], [3, 0, 0], [np.nan, 0, 0]]))


@pytest.mark.parametrize(
    ("text", "role", "rows"),
    [
        ("2", "source", [0, 1]),
        ("target:2", "source", [0, 1, 2, 3]),
        ("0.5,0.5,0.5,1,1,1", "target", [1]),
        ("source:0,-1,-1,5,1,0", "source", [0, 2]),
    ],
)
def test_balls_and_boxes(text: str, role: str, rows: list[int]) -> None:
    kept = cropped(CLOUD, role, [parse_crop(text)])  # type: ignore[arg-type]
    np.testing.assert_array_equal(kept.points, CLOUD.points[rows])


@pytest.mark.parametrize(
    "text", ["", "-1", "0", "1,2", "1,2,3,4,5", "5,5,5,1,1,1", "inf", "scan:1", "a,b,c,d,e,f"]
)
def test_other_words_are_an_error(text: str) -> None:
    with pytest.raises(VBRegError, match=r"--crop .*: expected a radius"):
        parse_crop(text)


def test_nothing_left_says_where_the_cloud_is() -> None:
    with pytest.raises(
        VBRegError, match="leaves nothing of target, which lies from 0,0,0 to 3,1,1"
    ):
        cropped(CLOUD, "target", [parse_crop("5,5,5,6,6,6")])
    assert set(parse_crop("5").roles) == set(ROLES)


def test_points_apart_are_left_out() -> None:
    rng = np.random.default_rng(0)
    points = rng.random((500, 3))
    points[7], points[8] = 30, np.nan
    kept = without_outliers(PointCloud(points, {"row": np.arange(500)})).attributes["row"]
    assert not {7, 8} & set(kept)
    assert len(kept) > 480
