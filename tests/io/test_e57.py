from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vbreg import io
from vbreg.errors import FileFormatError, MissingExtraError, VBRegWarning
from vbreg.io import e57
from vbreg.types import PointCloud


@pytest.fixture
def pye57() -> Any:
    return pytest.importorskip("pye57", reason="vbreg[io] is not installed")


def test_round_trip(tmp_path: Path, pye57: Any, utm: PointCloud) -> None:
    points = utm.points.copy()
    points[3] = np.nan
    attributes = {
        "intensity": np.linspace(0, 1, 50).astype(np.float32),
        "red": np.arange(50, dtype=np.uint8),
        "green": np.arange(50, dtype=np.uint16) * 1000,
        "blue": np.arange(50, dtype=np.uint8),
        "unknown to E57": np.arange(50),
    }
    with pytest.warns(VBRegWarning, match="cannot hold the attribute 'unknown to E57'"):
        io.write(tmp_path / "a.e57", PointCloud(points, attributes))
    back = io.read(tmp_path / "a.e57")
    np.testing.assert_array_equal(back.points, points)
    assert set(back.attributes) == {"intensity", "red", "green", "blue"}
    for name, values in back.attributes.items():
        np.testing.assert_array_equal(values, attributes[name])
        assert values.dtype == attributes[name].dtype


def test_scans_are_moved_into_the_frame_of_the_file(tmp_path: Path, pye57: Any) -> None:
    rng = np.random.default_rng(0)
    local = rng.normal(size=(2, 30, 3)).astype(np.float32).astype(np.float64)
    half = np.sqrt(0.5)
    with pye57.E57(str(tmp_path / "a.e57"), mode="w") as file:
        for points, rotation, colour in (
            (local[0], [1, 0, 0, 0], True),
            (local[1], [half, 0, 0, half], False),  # a quarter turn about z
        ):
            data = dict(zip(["cartesianX", "cartesianY", "cartesianZ"], points.T, strict=True))
            data["intensity"] = np.arange(30, dtype=np.float32)
            if colour:
                data |= {f"color{c}": np.zeros(30, np.uint8) for c in ("Red", "Green", "Blue")}
            file.write_scan_raw(
                data, rotation=np.array(rotation), translation=np.array([5e5, 5e6, 100.0])
            )
    cloud = io.read(tmp_path / "a.e57")
    turned = local[1] @ np.array([[0, 1, 0], [-1, 0, 0], [0, 0, 1.0]])
    expected = np.concatenate([local[0], turned]) + np.array([5e5, 5e6, 100])
    np.testing.assert_allclose(cloud.points, expected, rtol=0, atol=1e-8)
    assert list(cloud.attributes) == ["intensity"]  # colours are not in every scan
    np.testing.assert_array_equal(cloud.attributes["intensity"], np.tile(np.arange(30), 2))


def test_invalid_points_stay_as_nan(tmp_path: Path, pye57: Any) -> None:
    data = {f"cartesian{axis}": np.arange(4.0) for axis in "XYZ"}
    data["cartesianInvalidState"] = np.array([0, 1, 2, 0])
    with pye57.E57(str(tmp_path / "a.e57"), mode="w") as file:
        file.write_scan_raw(data)
    points = io.read(tmp_path / "a.e57").points
    np.testing.assert_array_equal(np.isfinite(points).all(axis=1), [True, False, False, True])


def test_several_chunks(tmp_path: Path, pye57: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    points = np.arange(300.0).reshape(100, 3)
    io.write(tmp_path / "a.e57", points)
    monkeypatch.setattr(e57, "_CHUNK", 7)
    np.testing.assert_array_equal(e57.decode(tmp_path / "a.e57").points, points)


def test_normals_come_back_and_turn_with_their_scan(tmp_path: Path, pye57: Any) -> None:
    normals = dict(zip(("nx", "ny", "nz"), np.eye(3)[:, [0, 0, 1]].T, strict=True))
    io.write(tmp_path / "a.e57", PointCloud(np.eye(3), normals))
    back = io.read(tmp_path / "a.e57")
    for name, values in normals.items():
        np.testing.assert_array_equal(back.attributes[name], values)
    quarter = np.array([[0, -1, 0], [1, 0, 0], [0, 0, 1.0]])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(e57, "_pose", lambda path, header: (quarter, np.zeros(3)))
        turned = e57.decode(tmp_path / "a.e57")
    np.testing.assert_array_equal(turned.attributes["ny"], normals["nx"])
    np.testing.assert_array_equal(turned.points[0], [0, 1, 0])


def test_spherical() -> None:
    quarter = np.pi / 2
    points = e57._cartesian(np.array([[2, 0, 0], [2, quarter, 0], [2, 0, quarter]]))
    np.testing.assert_allclose(points, [[2, 0, 0], [0, 2, 0], [0, 0, 2]], atol=1e-12)


def test_other_file_and_no_scan(tmp_path: Path, pye57: Any) -> None:
    (tmp_path / "a.e57").write_bytes(b"something else")
    with pytest.raises(FileFormatError, match="the signature 'ASTM-E57'"):
        io.read(tmp_path / "a.e57")
    pye57.E57(str(tmp_path / "b.e57"), mode="w").close()
    with pytest.raises(FileFormatError, match="zero points in 0 scans"):
        io.read(tmp_path / "b.e57")


def test_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pye57", None)
    (tmp_path / "a.e57").write_bytes(b"ASTM-E57")
    with pytest.raises(MissingExtraError, match=r"reading E57 files needs.*vbreg\[io\]"):
        io.read(tmp_path / "a.e57")
