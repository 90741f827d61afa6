from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vbreg import io
from vbreg.errors import FileFormatError, VBRegWarning
from vbreg.types import PointCloud


def test_layout_and_round_trip(tmp_path: Path, cloud: PointCloud) -> None:
    with pytest.warns(VBRegWarning, match="cannot hold the attribute 'red', the attribute 'nx'"):
        io.write(tmp_path / "a.bin", cloud)
    rows = np.fromfile(tmp_path / "a.bin", "<f4").reshape(-1, 4)
    np.testing.assert_array_equal(rows[:, :3], cloud.points)
    np.testing.assert_array_equal(rows[:, 3], cloud.attributes["intensity"])
    back = io.read(tmp_path / "a.bin")
    np.testing.assert_array_equal(back.points, cloud.points)
    assert list(back.attributes) == ["intensity"]


def test_bare_points_and_nan(tmp_path: Path) -> None:
    points = np.array([[1, 2, np.nan], [np.inf, 0.1, 3]])
    io.write(tmp_path / "a.bin", points)
    np.testing.assert_allclose(io.read(tmp_path / "a.bin").points, points, atol=1e-6)


@pytest.mark.parametrize("far", [512345.678, 1e300])
def test_refuses_to_lose_a_millimetre(tmp_path: Path, far: float) -> None:
    with pytest.raises(FileFormatError, match=r"a\.bin: float32 would move points by up to"):
        io.write(tmp_path / "a.bin", np.array([[far, 0, 0]]))
    assert not list(tmp_path.iterdir())


def test_sizes(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(bytes(20))
    with pytest.raises(FileFormatError, match="20 bytes; expected a multiple of 16"):
        io.read(path)
    nuscenes = tmp_path / "a.pcd.bin"
    nuscenes.write_bytes(bytes(80))
    with pytest.raises(FileFormatError, match="nuScenes"):
        io.read(nuscenes)


@pytest.mark.parametrize("columns", [3, 4])
@pytest.mark.parametrize("first", [np.float32, np.float64])
def test_doubles_are_refused_and_not_read_as_nonsense(
    tmp_path: Path, columns: int, first: type
) -> None:
    rows = np.random.default_rng(0).normal(scale=20, size=(100, columns)).astype(first)
    rows.astype("<f8").tofile(tmp_path / "a.bin")
    with pytest.raises(FileFormatError, match="make sense as float64 alone"):
        io.read(tmp_path / "a.bin")
