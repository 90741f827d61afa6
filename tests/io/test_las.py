from __future__ import annotations

import struct
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vbreg import io
from vbreg.errors import FileFormatError, MissingExtraError, VBRegWarning
from vbreg.types import PointCloud

ENDINGS = [".las", ".laz"]


@pytest.fixture
def laspy() -> Any:
    pytest.importorskip("lazrs", reason="vbreg[io] is not installed")
    return pytest.importorskip("laspy", reason="vbreg[io] is not installed")


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("version", ["1.2", "1.4"])
def test_reads_what_laspy_wrote(tmp_path: Path, laspy: Any, ending: str, version: str) -> None:
    header = laspy.LasHeader(version=version, point_format=3 if version == "1.2" else 7)
    header.offsets, header.scales = [500000, 5400000, 0], [0.001, 0.001, 0.001]
    las = laspy.LasData(header)
    raw = np.random.default_rng(0).integers(0, 10**8, (200, 3)).astype(np.int32)
    las.X, las.Y, las.Z = raw.T
    las.intensity = np.arange(200)
    las.red = np.arange(200) * 300
    las.return_number = np.arange(200) % 5
    las.write(str(tmp_path / f"a{ending}"))
    cloud = io.read(tmp_path / f"a{ending}")
    np.testing.assert_array_equal(cloud.points, raw * 0.001 + np.array([500000, 5400000, 0]))
    np.testing.assert_array_equal(cloud.attributes["intensity"], np.arange(200))
    np.testing.assert_array_equal(cloud.attributes["red"], np.arange(200) * 300)
    np.testing.assert_array_equal(cloud.attributes["return_number"], np.arange(200) % 5)
    assert "X" not in cloud.attributes


@pytest.mark.parametrize("ending", ENDINGS)
def test_round_trip_at_utm(tmp_path: Path, laspy: Any, ending: str, utm: PointCloud) -> None:
    attributes = {
        "red": np.arange(50, dtype=np.uint16),
        "intensity": np.linspace(0, 1, 50),  # does not fit the integers of LAS
        "classification": np.full(50, 200, np.uint8),
        "gps_time": np.linspace(0, 1, 50),
        "time": np.arange(50, dtype=np.uint64) + 2**60,
        "normal": np.ones((50, 3), np.float32),
        "ok": np.ones(50, bool),
    }
    io.write(tmp_path / f"a{ending}", PointCloud(utm.points, attributes))
    back = io.read(tmp_path / f"a{ending}")
    np.testing.assert_allclose(back.points, utm.points, rtol=0, atol=2e-9)
    for name in ("red", "gps_time", "time", "ok", "classification"):
        np.testing.assert_array_equal(back.attributes[name], attributes[name])
    np.testing.assert_array_equal(back.attributes["intensity"], attributes["intensity"])
    np.testing.assert_array_equal(back.attributes["normal_2"], np.ones(50))
    io.write(tmp_path / f"b{ending}", back)  # what was read is written again, and the same
    again = io.read(tmp_path / f"b{ending}")
    np.testing.assert_array_equal(again.points, back.points)
    assert set(again.attributes) == set(back.attributes)


def test_scale_is_no_finer_than_the_digits(tmp_path: Path, laspy: Any, utm: PointCloud) -> None:
    io.write(tmp_path / "a.las", utm)
    with laspy.open(str(tmp_path / "a.las")) as reader:
        np.testing.assert_array_equal(reader.header.scales, [1e-4] * 3)
        np.testing.assert_array_equal(reader.header.offsets, np.floor(utm.points.min(axis=0)))
    rough = np.random.default_rng(0).normal(size=(100, 3))
    io.write(tmp_path / "b.las", rough)
    np.testing.assert_allclose(io.read(tmp_path / "b.las").points, rough, rtol=0, atol=1e-8)


def test_what_las_cannot_hold(tmp_path: Path, laspy: Any) -> None:
    with pytest.raises(FileFormatError, match="300000 m wide"):
        io.write(tmp_path / "a.las", np.array([[0, 0, 0], [3e5, 0, 0]]))
    with pytest.raises(FileFormatError, match="non-finite"):
        io.write(tmp_path / "a.las", np.array([[0, 0, np.nan]]))
    long = PointCloud(np.zeros((1, 3)), {"a" * 40: np.zeros(1)})
    with pytest.raises(FileFormatError, match="32 bytes"):
        io.write(tmp_path / "a.las", long)
    twice = {"intensity": np.array([0.5]), "intensity_value": np.array([1.0])}
    with pytest.raises(FileFormatError, match="share a name"):
        io.write(tmp_path / "a.las", PointCloud(np.zeros((1, 3)), twice))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ending", ENDINGS)
def test_header_that_lies(tmp_path: Path, laspy: Any, ending: str, utm: PointCloud) -> None:
    path = tmp_path / f"a{ending}"
    io.write(path, utm)
    good = path.read_bytes()

    def change(at: int, code: str, value: int) -> None:
        data = bytearray(good)
        struct.pack_into(code, data, at, value)
        path.write_bytes(data)

    change(107, "<I", 4_000_000_000)
    with pytest.raises(FileFormatError, match="4000000000"):
        io.read(path)
    change(107, "<I", 0)
    with pytest.raises(FileFormatError, match="zero points"):
        io.read(path)
    change(100, "<I", 4_000_000_000)  # variable length records
    with pytest.raises(FileFormatError, match="points from byte"):
        io.read(path)
    change(0, "<I", 0)
    with pytest.raises(FileFormatError, match="expected a LAS header"):
        io.read(path)
    path.write_bytes(good[:-200])
    with pytest.raises(FileFormatError):
        io.read(path)


def test_laz_chunk_table_that_lies(tmp_path: Path, laspy: Any, utm: PointCloud) -> None:
    path = tmp_path / "a.laz"
    io.write(path, utm)
    data = bytearray(path.read_bytes())
    start = struct.unpack_from("<I", data, 96)[0]
    table = struct.unpack_from("<q", data, start)[0]
    struct.pack_into("<I", data, table + 4, 0xFFFFFFFF)
    path.write_bytes(data)
    with pytest.raises(FileFormatError, match="a table of 4294967295 chunks"):
        io.read(path)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("number", [2112, 34735])
def test_the_reference_system_is_kept(
    tmp_path: Path, laspy: Any, ending: str, number: int, utm: PointCloud
) -> None:
    content = (
        b"PROJCS[...]\0" if number == 2112 else struct.pack("<8H", 1, 1, 0, 1, 3072, 0, 1, 25832)
    )
    cloud = replace(utm, crs={number: content})
    io.write(tmp_path / f"a{ending}", cloud)
    back = io.read(tmp_path / f"a{ending}")
    assert back.crs == {number: content}
    with laspy.open(str(tmp_path / f"a{ending}")) as reader:
        assert reader.header.global_encoding.wkt == (number == 2112)
        assert [vlr.record_id for vlr in reader.header.vlrs if "Proj" in vlr.user_id] == [number]
    assert not back.transformed(np.eye(4)).crs  # it is in another frame now
    with pytest.warns(VBRegWarning, match="cannot hold the coordinate reference system"):
        io.write(tmp_path / "a.ply", cloud)


@pytest.mark.parametrize("ending", ENDINGS)
def test_colours_fill_sixteen_bits_and_normals_have_their_names(
    tmp_path: Path, laspy: Any, ending: str
) -> None:
    colours = {name: np.array([0, 1, 255], np.uint8) for name in ("red", "green", "blue")}
    normals = {name: np.array([0, 1, 0.5], np.float32) for name in ("nx", "ny", "nz")}
    io.write(tmp_path / f"a{ending}", PointCloud(np.eye(3), colours | normals))
    written = laspy.read(str(tmp_path / f"a{ending}"))
    np.testing.assert_array_equal(written.red, [0, 257, 65535])
    np.testing.assert_array_equal(written["NormalY"], [0, 1, 0.5])
    back = io.read(tmp_path / f"a{ending}").attributes
    for name, values in (colours | normals).items():
        np.testing.assert_array_equal(back[name], values)
        assert back[name].dtype == values.dtype


def test_a_small_file_takes_little_memory(tmp_path: Path, laspy: Any, utm: PointCloud) -> None:
    """What a header claims is held against the file; the decoder itself has a limit."""
    path = tmp_path / "a.laz"
    io.write(path, utm)
    data = bytearray(path.read_bytes())
    start = struct.unpack_from("<I", data, 96)[0]
    struct.pack_into("<q", data, start, -1)  # a table of chunks that a stream left open
    struct.pack_into("<I", data, 107, 10_000_000)
    path.write_bytes(data)
    with pytest.raises(FileFormatError, match="claim to hold 10000000 points"):
        io.read(path)


def test_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "laspy", None)
    (tmp_path / "a.las").write_bytes(b"LASF")
    with pytest.raises(MissingExtraError, match=r"reading LAS files needs.*vbreg\[io\]"):
        io.read(tmp_path / "a.las")
    with pytest.raises(MissingExtraError, match="writing LAZ files"):
        io.write(tmp_path / "b.laz", np.zeros((1, 3)))
    assert [path.name for path in tmp_path.iterdir()] == ["a.las"]
