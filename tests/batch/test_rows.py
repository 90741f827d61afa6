"""What a row of the output says of its pose."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.test_types import result
from vbreg.batch.rows import succeeded
from vbreg.types import Registration

SURE = result(success_probability=0.95, overlap=0.5)


@pytest.mark.parametrize(
    ("found", "status", "said"),
    [
        (SURE, "ok", None),
        (replace(SURE, success_probability=0.8), "doubtful", "probably aligned, 80 %"),
        (replace(SURE, success_probability=None), "doubtful", ""),
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
