from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vbreg import io
from vbreg.errors import FileFormatError

POSE = "0 1 0 0\n-1 0 0 0\n0 0 1 0\n500000 5400000 10 1\n"  # a quarter turn about z, in rows
HEAD = "500000 5400000 10\n1 0 0\n0 1 0\n0 0 1\n" + POSE


def test_scans_are_moved_into_the_frame_of_the_file(tmp_path: Path) -> None:
    one = f"2\n1\n{HEAD}1 2 3 0.5 255 0 7\n0 0 0 0.5 0 0 0\n"
    two = f"1\n1\n{HEAD}1 0 0 0.25 1 2 3\n"
    (tmp_path / "a.ptx").write_text((one + two).replace("\n", "\r\n"))
    cloud = io.read(tmp_path / "a.ptx")
    expected = [[499998, 5400001, 13], [np.nan] * 3, [500000, 5400001, 10]]
    np.testing.assert_array_equal(cloud.points, expected)
    np.testing.assert_array_equal(cloud.attributes["intensity"], [0.5, 0.5, 0.25])
    np.testing.assert_array_equal(cloud.attributes["red"], [255, 0, 1])
    assert cloud.attributes["red"].dtype == np.uint8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2\n", "the numbers of columns and rows"),
        (f"0\n1\n{HEAD}1 2 3 4\n", "the numbers of columns and rows"),
        (f"2\n1\n{HEAD}1 2 3 4\n", "1 points in a scan; expected 2 x 1"),
        (f"999999999\n999999999\n{HEAD}1 2 3 4\n", "1 points in a scan"),
        (f"1\n1\n{HEAD}1 2 3 4 5\n", "5 numbers per point"),
        (f"1\n1\n{HEAD.replace(' 1', '')}1 2 3 4\n", "not numbers|a pose of shape"),
        ("\n", "no scan"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.ptx").write_text(text)
    with pytest.raises(FileFormatError, match=message):
        io.read(tmp_path / "a.ptx")
