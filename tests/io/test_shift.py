from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from vbreg import io
from vbreg.errors import FileFormatError
from vbreg.types import PointCloud


@pytest.mark.parametrize("ending", [".pcd", ".ply", ".bin"])
def test_a_shift_lies_beside_the_file(tmp_path: Path, utm: PointCloud, ending: str) -> None:
    path = tmp_path / f"a{ending}"
    io.write(path, utm, coordinates="shifted")
    beside = tmp_path / f"a{ending}.shift.json"
    shift = json.loads(beside.read_text())["shift"]
    assert shift == [512400.0, 5403300.0, 400.0]
    np.testing.assert_allclose(io.read(path).points, utm.points, rtol=0, atol=1e-5)
    beside.unlink()
    np.testing.assert_allclose(io.read(path).points + shift, utm.points, rtol=0, atol=1e-5)


def test_a_shift_of_another_content_is_refused(tmp_path: Path, utm: PointCloud) -> None:
    path = tmp_path / "a.pcd"
    io.write(path, utm, coordinates="shifted")
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(FileFormatError, match=r"a\.pcd\.shift\.json: it belongs to another"):
        io.read(path)
    io.write(path, utm, coordinates="float64")  # which needs no shift, and takes it away
    assert [item.name for item in tmp_path.iterdir()] == ["a.pcd"]
    np.testing.assert_array_equal(io.read(path).points, utm.points)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"shift": [1, 2], "crc32": ""}', '{"shift": ["nan", 1, 2]}', "9" * 5000],
)
def test_a_broken_shift_is_refused(tmp_path: Path, text: str) -> None:
    io.write(tmp_path / "a.ply", np.eye(3))
    (tmp_path / "a.ply.shift.json").write_text(text)
    with pytest.raises(FileFormatError, match="no shift of three numbers"):
        io.read(tmp_path / "a.ply")


def test_only_some_formats_are_shifted(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"\.xyz is not written with .*\.ply, \.pcd, \.bin"):
        io.write(tmp_path / "a.xyz", np.eye(3), coordinates="shifted")
