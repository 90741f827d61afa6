"""What a row of the output says of its pose."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.test_types import result
from vbreg.batch.rows import BatchSettings, PairRow, request_options, succeeded
from vbreg.errors import VBRegError
from vbreg.types import Registration

SURE = result(success_probability=0.95, overlap=0.5)


@pytest.mark.parametrize(
    ("found", "status", "said"),
    [
        (SURE, "ok", None),
        (replace(SURE, success_probability=0.8), "doubtful", "probably aligned, 80 %"),
        (replace(SURE, success_probability=None), "doubtful", "not judged"),
        (replace(SURE, success_probability=None, fixed=False), "doubtful", "not judged; "),
        (replace(SURE, fixed=False), "doubtful", "do not fix all six"),
        (replace(SURE, limits_reached=("max_rotation",)), "doubtful", "limit of max_rotation"),
    ],
)
def test_a_row_is_ok_where_its_pose_is_probable_and_settled(
    found: Registration, status: str, said: str | None
) -> None:
    row = succeeded(7, found, 0.9)
    assert row["row"] == 7
    assert row["status"] == status
    assert (row["message"] is None) if said is None else (said in row["message"])


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("matching", "mutal", "matching 'mutal': expected one of one-way"),
        ("min_probability", 90, "min_probability 90: expected a number from 0 to 1"),
        ("min_probability", "0.9", "min_probability '0.9'"),
        ("min_probability", float("nan"), "min_probability nan"),
        ("voxel_size", -1, "voxel_size -1: expected a positive number"),
        ("preset", "inside", "preset 'inside': expected one of indoor, outdoor"),
        ("keypoints", "some", "keypoints 'some': expected a whole number from 3 up, or 'all'"),
        ("keypoints", 2, "keypoints 2"),
        ("max_correspondences", 0, "max_correspondences 0"),
        ("verify", "no", "verify 'no': expected True or False"),
        ("retry", 1, "retry 1: expected True or False"),
        ("refine", "icp2", "refine 'icp2': expected one of icp, none"),
        ("cache_bytes", 0.5, "cache_bytes 0.5: expected a whole number"),
        ("descriptor", print, "descriptor <built-in function print>: expected a name or the path"),
        ("weights", 7, "weights 7: expected a name or the path"),
    ],
)
def test_a_wrong_setting_is_told_at_once(name: str, value: object, said: str) -> None:
    with pytest.raises(VBRegError, match=re.escape(said)):
        BatchSettings(**{name: value})  # type: ignore[arg-type]


def test_settings_in_numbers_of_numpy_are_those_of_python() -> None:
    numbers = BatchSettings(
        keypoints=np.int64(500), verify=np.bool_(True), voxel_size=np.float64(1)
    )  # type: ignore[arg-type]
    alike = BatchSettings(keypoints=500, verify=True, voxel_size=1.0)
    assert json.dumps(numbers.identity()) == json.dumps(alike.identity())


@pytest.mark.parametrize(("p", "said"), [(0.92, "92 %"), (0.94999, "94.9 %")])
def test_a_sure_pose_that_is_not_as_probable_as_asked_for_says_so(p: float, said: str) -> None:
    row = succeeded(7, replace(SURE, success_probability=p), 0.95)
    assert (row["status"], row["message"]) == ("doubtful", f"{said}, below 95 %")
    assert succeeded(7, replace(SURE, success_probability=p), 0.9)["status"] == "ok"


@pytest.mark.parametrize(
    ("of_row", "of_command", "expected"),
    [
        ({}, (None, None), (None, None)),
        ({}, (0.2, "outdoor"), (0.2, "outdoor")),
        ({"voxel_size": 0.1}, (0.2, "outdoor"), (0.1, "outdoor")),
        ({"preset": "indoor"}, (0.2, "outdoor"), (None, "indoor")),
        ({"voxel_size": 0.1, "preset": "indoor"}, (0.2, "outdoor"), (0.1, "indoor")),
    ],
)
def test_a_row_has_the_sizes_of_the_command_where_it_says_nothing(
    of_row: dict[str, Any], of_command: tuple[float | None, Any], expected: tuple[object, object]
) -> None:
    """The preset is more than a size: it tells where the sensor was."""
    settings = BatchSettings(voxel_size=of_command[0], preset=of_command[1])
    given = request_options(PairRow(0, "a", "b", of_row), settings)
    assert (given.get("voxel_size"), given.get("preset")) == expected
