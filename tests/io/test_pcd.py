from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from tests.io.conftest import assert_same_cloud

from vbreg import io
from vbreg.errors import FileFormatError
from vbreg.io import lzf
from vbreg.io.pcd import Encoding, write_pcd
from vbreg.types import PointCloud

ENCODINGS: list[Encoding] = ["ascii", "binary", "binary_compressed"]


def header(**changes: str | None) -> bytes:
    """A valid header of two points, with some lines changed or left out."""
    lines: dict[str, str | None] = {
        "VERSION": "0.7",
        "FIELDS": "x y z",
        "SIZE": "4 4 4",
        "TYPE": "F F F",
        "COUNT": "1 1 1",
        "WIDTH": "2",
        "HEIGHT": "1",
        "VIEWPOINT": "0 0 0 1 0 0 0",
        "POINTS": "2",
        "DATA": "ascii",
    }
    lines.update(changes)
    kept = [f"{key} {value}" for key, value in lines.items() if value is not None]
    return ("\n".join(["# .PCD v0.7", *kept]) + "\n").encode()


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_round_trip(tmp_path: Path, cloud: PointCloud, encoding: Encoding) -> None:
    write_pcd(tmp_path / "a.pcd", cloud, encoding)
    assert_same_cloud(io.read(tmp_path / "a.pcd"), cloud)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_utm_nan_and_time_stamps_are_exact(
    tmp_path: Path, utm: PointCloud, encoding: Encoding
) -> None:
    points = utm.points.copy()
    points[3] = np.nan
    points[4, 0] = np.inf
    time = np.arange(50, dtype=np.uint64) + 1_700_000_000_123_456_789
    write_pcd(tmp_path / "a.pcd", PointCloud(points, {"t": time}), encoding)
    back = io.read(tmp_path / "a.pcd")
    np.testing.assert_array_equal(back.points, points)
    np.testing.assert_array_equal(back.attributes["t"], time)


FOREIGN = np.dtype(
    [
        ("rgb", "<f4"),
        ("_a", "<u1", (3,)),
        ("z", "<f8"),
        ("y", "<i2"),
        ("h", "<f4", (2,)),
        ("x", "<f4"),
    ]
)
FOREIGN_LINES = {
    "FIELDS": "rgb _ z y histogram x",
    "SIZE": "4 1 8 2 4 4",
    "TYPE": "F U F I F F",
    "COUNT": "1 3 1 1 2 1",
    "WIDTH": "3",
    "HEIGHT": "2",
    "POINTS": "6",
}


def foreign() -> np.ndarray:
    table = np.zeros(6, FOREIGN)
    table["x"], table["y"], table["z"] = np.arange(6), -np.arange(6), np.arange(6) / 3
    table["h"] = np.arange(12).reshape(6, 2)
    table["rgb"] = np.arange(0xFF0000, 0xFF0006, dtype="<u4").view("<f4")
    table["x"][2] = np.nan
    return table


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_foreign_fields(tmp_path: Path, encoding: Encoding) -> None:
    table = foreign()
    if encoding == "binary":
        body = table.tobytes()
    elif encoding == "binary_compressed":
        raw = b"".join(np.ascontiguousarray(table[name]).tobytes() for name in FOREIGN.names or ())
        packed = lzf.compress(raw)
        body = struct.pack("<II", len(packed), len(raw)) + packed
    else:
        rows = [[r["rgb"], *r["_a"], r["z"], r["y"], *r["h"], r["x"]] for r in table]
        body = "\r\n".join(" ".join(repr(float(v)) for v in row) for row in rows).encode()
    (tmp_path / "a.pcd").write_bytes(header(**FOREIGN_LINES, DATA=encoding) + body)
    cloud = io.read(tmp_path / "a.pcd")
    expected = np.stack([table["x"], table["y"], table["z"]], axis=1)
    np.testing.assert_array_equal(cloud.points, expected)
    assert list(cloud.attributes) == ["red", "green", "blue", "histogram"]
    np.testing.assert_array_equal(cloud.attributes["histogram"], table["h"])
    np.testing.assert_array_equal(cloud.attributes["red"], [255] * 6)
    np.testing.assert_array_equal(cloud.attributes["blue"], np.arange(6))
    assert cloud.grid == (3, 2)
    io.write(tmp_path / "b.pcd", cloud)
    assert io.read(tmp_path / "b.pcd").grid == (3, 2)


def test_old_header_without_size_type_count(tmp_path: Path) -> None:
    lines = header(
        VERSION=".5", COLUMNS="x y z", FIELDS=None, SIZE=None, TYPE=None, COUNT=None,
        WIDTH=None, HEIGHT=None, VIEWPOINT=None, DATA=None,
    )  # fmt: skip
    (tmp_path / "a.pcd").write_bytes(lines + b"DATA ascii\r\n1 2 3\r\n4 nan 6\r\n")
    np.testing.assert_array_equal(io.read(tmp_path / "a.pcd").points, [[1, 2, 3], [4, np.nan, 6]])


@pytest.mark.parametrize(
    ("lines", "body", "message"),
    [
        (header(POINTS="1000000000000", WIDTH="1000000000000"), b"1 2 3\n", "for 1000000000000"),
        (
            header(POINTS="1000000000000", WIDTH="1000000000000", DATA="binary"),
            bytes(24),
            "expected 12000000000000 for",
        ),
        (header(POINTS="9" * 5000), b"", "one whole number"),
        (header(POINTS="3"), b"1 2 3\n", r"POINTS 3 but WIDTH x HEIGHT = 2"),
        (header(POINTS="-2"), b"", "POINTS -2"),
        (header(POINTS="0", WIDTH="0"), b"", "zero points"),
        (header(POINTS=None, WIDTH=None), b"", "neither POINTS nor WIDTH"),
        (header(FIELDS=None), b"", "no line FIELDS"),
        (header(FIELDS="x y w"), b"1 2 3\n1 2 3\n", "columns x, y, w"),
        (header(SIZE="4 4"), b"", "3 FIELDS, 2 SIZE"),
        (header(TYPE="F F X"), b"", "TYPE X"),
        (header(SIZE="4 4 3"), b"", "SIZE 3"),
        (header(COUNT="1 1 0"), b"", "COUNT 0"),
        (header(COUNT="1 1 9999999999999"), b"", "COUNT 9999999999999"),
        (header(COUNT="1 1 2"), b"1 2 3 4\n1 2 3 4\n", "one value each of x, y and z"),
        (header(DATA="binary"), bytes(23), "23 bytes of data; expected 24"),
        (header(DATA="zip"), b"", "DATA 'zip'"),
        (header(DATA=None), b"", "without the line DATA"),
        (header(), b"1 2 3\n              ", "1 lines of data; expected 2"),
        (header(), b"1 2 3 4\n1 2 3 4\n", "4 values per line"),
        (header(), b"1 2 three\n1 2 3\n", "not numbers"),
        (header(DATA="binary_compressed"), b"123", "3 bytes of data"),
        (header(DATA="binary_compressed"), struct.pack("<II", 50, 24) + b"1", "expected 50"),
        (header(DATA="binary_compressed"), struct.pack("<II", 1, 23) + b"1", "claim to be 23"),
        (header(DATA="binary_compressed"), struct.pack("<II", 2, 24) + b"\x05a", "damaged"),
    ],
)
def test_bad_files(tmp_path: Path, lines: bytes, body: bytes, message: str) -> None:
    path = tmp_path / "a.pcd"
    path.write_bytes(lines + body)
    with pytest.raises(FileFormatError, match=message) as caught:
        io.read(path)
    assert str(path) in str(caught.value)


def test_compressed_size_is_checked_before_memory_is_taken(tmp_path: Path) -> None:
    claim = (1 << 32) - 4
    lines = header(FIELDS="x y z", POINTS=str(claim // 12), WIDTH=str(claim // 12))
    lines = lines.replace(b"ascii", b"binary_compressed")
    (tmp_path / "a.pcd").write_bytes(lines + struct.pack("<II", 4, claim) + bytes(4))
    with pytest.raises(FileFormatError, match="4 compressed bytes that claim"):
        io.read(tmp_path / "a.pcd")


def test_repeats_are_compressed(tmp_path: Path) -> None:
    cloud = PointCloud(np.zeros((10_000, 3)))
    write_pcd(tmp_path / "a.pcd", cloud, "binary_compressed")
    assert (tmp_path / "a.pcd").stat().st_size < 3000
    np.testing.assert_array_equal(io.read(tmp_path / "a.pcd").points, cloud.points)


def coloured(count: int = 4) -> PointCloud:
    rng = np.random.default_rng(0)
    attributes = {name: rng.integers(0, 256, count).astype(np.uint8) for name in ("red", "green")}
    attributes["blue"] = rng.integers(0, 256, count).astype(np.uint8)
    normals = rng.normal(size=(count, 3))
    attributes |= {name: normals[:, k] for k, name in enumerate(("nx", "ny", "nz"))}
    return PointCloud(rng.normal(size=(count, 3)), attributes)


def test_the_layout_is_that_of_pcl(tmp_path: Path) -> None:
    """PointXYZRGBNormal as PCL writes it: seven floats a point, the colour in the bits of one."""
    cloud = coloured()
    io.write(tmp_path / "a.pcd", cloud)
    head, _, body = (tmp_path / "a.pcd").read_bytes().partition(b"DATA binary\n")
    lines = dict(line.split(" ", 1) for line in head.decode().splitlines()[1:])
    assert lines["FIELDS"] == "x y z rgb normal_x normal_y normal_z"
    assert (lines["SIZE"], lines["TYPE"]) == (" ".join("4" * 7), " ".join("F" * 7))
    for k in range(4):
        x, y, z, blue, green, red, alpha, *normal = struct.unpack_from("<3f4B3f", body, 28 * k)
        np.testing.assert_allclose([x, y, z], cloud.points[k], atol=1e-6)
        assert (red, green, blue, alpha) == (
            *(cloud.attributes[name][k] for name in ("red", "green", "blue")), 0,
        )  # fmt: skip
        expected = [cloud.attributes[name][k] for name in ("nx", "ny", "nz")]
        np.testing.assert_allclose(normal, expected, atol=1e-6)
    back = io.read(tmp_path / "a.pcd")
    assert list(back.attributes) == ["red", "green", "blue", "nx", "ny", "nz"]
    np.testing.assert_array_equal(back.attributes["green"], cloud.attributes["green"])


@pytest.mark.parametrize("text", ["4294923605", "16733525", "2.34486629e-38"])
def test_colours_in_ascii_as_numbers_and_as_floats(tmp_path: Path, text: str) -> None:
    lines = header(FIELDS="x y z rgb", SIZE="4 4 4 4", TYPE="F F F F", COUNT="1 1 1 1")
    (tmp_path / "a.pcd").write_bytes(lines + f"1 2 3 {text}\n1 2 3 0\n".encode())
    attributes = io.read(tmp_path / "a.pcd").attributes
    found = [attributes[name].tolist() for name in ("red", "green", "blue")]
    assert found == [[0xFF, 0], [0x55, 0], [0x55, 0]]


def test_utm_is_a_choice(tmp_path: Path, utm: PointCloud) -> None:
    path = tmp_path / "a.pcd"
    with pytest.raises(FileFormatError, match="'float64' or coordinates='shifted'"):
        io.write(path, utm)
    assert not list(tmp_path.iterdir())
    io.write(path, utm, coordinates="float64")
    np.testing.assert_array_equal(io.read(path).points, utm.points)
    io.write(path, utm, coordinates="shifted")
    assert b"SIZE 4 4 4\n" in path.read_bytes()
    np.testing.assert_allclose(io.read(path).points, utm.points, rtol=0, atol=1e-5)
    with pytest.raises(FileFormatError, match="expected one of float32, float64, shifted"):
        io.write(path, utm, coordinates="half")  # type: ignore[arg-type]


def test_strays_do_not_hide_what_float32_costs(tmp_path: Path, utm: PointCloud) -> None:
    """A few zeros make the cloud 5000 km wide, and 25 cm nothing beside that."""
    points = np.concatenate([np.tile(utm.points, (4, 1)), np.zeros((2, 3))])
    with pytest.raises(FileFormatError, match=r"would move points by up to 0\.2"):
        io.write(tmp_path / "a.pcd", points)
    io.write(tmp_path / "a.pcd", points, coordinates="shifted")
    back = io.read(tmp_path / "a.pcd").points
    np.testing.assert_allclose(back[:200], points[:200], rtol=0, atol=1e-5)


@pytest.mark.baselines
def test_open3d_reads_points_colours_and_normals(tmp_path: Path) -> None:
    o3d = pytest.importorskip("open3d")
    cloud = coloured()
    io.write(tmp_path / "a.pcd", cloud)
    read = o3d.io.read_point_cloud(str(tmp_path / "a.pcd"))
    np.testing.assert_allclose(np.asarray(read.points), cloud.points, atol=1e-6)
    for k, names in ((255, ("red", "green", "blue")), (1, ("nx", "ny", "nz"))):
        found = np.asarray(read.colors if k == 255 else read.normals) * k
        expected = np.stack([cloud.attributes[name] for name in names], axis=1)
        np.testing.assert_allclose(found, expected, atol=1e-4)
