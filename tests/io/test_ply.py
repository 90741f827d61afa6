from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.io.conftest import assert_same_cloud

from vbreg import io
from vbreg.errors import FileFormatError, VBRegWarning
from vbreg.io.ply import Encoding, write_ply
from vbreg.types import PointCloud

ENCODINGS: list[Encoding] = ["ascii", "binary_little_endian", "binary_big_endian"]


def save(path: Path, header: str, body: bytes, end: str = "\n") -> Path:
    lines = ["ply", *(line.strip() for line in header.strip().splitlines()), "end_header", ""]
    path.write_bytes(end.join(lines).encode() + body)
    return path


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_round_trip(tmp_path: Path, cloud: PointCloud, encoding: Encoding) -> None:
    write_ply(tmp_path / "a.ply", cloud, encoding)
    assert_same_cloud(io.read(tmp_path / "a.ply"), cloud)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_utm_is_exact_and_doubles_only_where_needed(
    tmp_path: Path, cloud: PointCloud, utm: PointCloud, encoding: Encoding
) -> None:
    write_ply(tmp_path / "a.ply", utm, encoding)
    np.testing.assert_array_equal(io.read(tmp_path / "a.ply").points, utm.points)
    assert b"property double x" in (tmp_path / "a.ply").read_bytes()
    write_ply(tmp_path / "b.ply", cloud, encoding)
    assert b"property float x" in (tmp_path / "b.ply").read_bytes()


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_faces_before_vertices_and_lists_inside(tmp_path: Path, order: str, end: str) -> None:
    name = {"<": "binary_little_endian", ">": "binary_big_endian"}[order]
    header = f"""
        format {name} 1.0
        comment end_header is not yet here
        obj_info made by hand
        element face 2
        property list uchar int vertex_indices
        property ushort flag
        element empty 0
        property float nothing
        element vertex 3
        property uchar red
        property list ushort short neighbours
        property double z
        property float x
        property float y
    """
    body = struct.pack(f"{order}B3iH", 3, 0, 1, 2, 7) + struct.pack(
        f"{order}B4iH", 4, 0, 1, 2, 0, 7
    )
    for k in range(3):
        body += struct.pack(f"{order}BH{k}h", 10 + k, k, *range(k))
        body += struct.pack(f"{order}dff", 0.1 + k, k, -k)
    cloud = io.read(save(tmp_path / "a.ply", header, body, end))
    np.testing.assert_array_equal(cloud.points, [[k, -k, 0.1 + k] for k in range(3)])
    np.testing.assert_array_equal(cloud.faces, [[0, 1, 2], [0, 1, 2], [0, 2, 0]])
    np.testing.assert_array_equal(cloud.attributes["red"], [10, 11, 12])
    assert cloud.attributes["red"].dtype == np.uint8


def test_triangles_before_vertices(tmp_path: Path) -> None:
    header = """
        format binary_little_endian 1.0
        element face 1000
        property list uchar int vertex_indices
        element vertex 1
        property float x
        property float y
        property float z
    """
    body = struct.pack("<B3i", 3, 0, 0, 0) * 1000 + struct.pack("<3f", 1, 2, 3)
    np.testing.assert_array_equal(
        io.read(save(tmp_path / "a.ply", header, body)).points, [[1, 2, 3]]
    )


def test_ascii_with_faces_first_crlf_and_digits_beyond_float(tmp_path: Path) -> None:
    header = """
        format ascii 1.0
        element face 2
        property list uchar int vertex_index
        element vertex 2
        property float x
        property list uchar float weights
        property float y
        property float z
        property uchar red
        property uchar grey
        property float x
    """
    faces = b"3 0 1 1\r\n4 0 1 1 0\r\n\r\n"
    body = faces + b"512345.678 2 .5 .5 1 nan 255 0.5 9\r\n1 0 2 -nan(ind) 0 1 9\r\n"
    cloud = io.read(save(tmp_path / "a.ply", header, body, "\r\n"))
    np.testing.assert_array_equal(cloud.points, [[512345.678, 1, np.nan], [1, 2, np.nan]])
    assert cloud.attributes["red"].dtype == np.uint8
    np.testing.assert_array_equal(cloud.attributes["grey"], [0.5, 1])  # the header was wrong
    np.testing.assert_array_equal(cloud.attributes["x_1"], [9, 9])  # a second x is not lost


XYZ = "property float x\nproperty float y\nproperty float z"


@pytest.mark.parametrize(
    ("header", "body", "message"),
    [
        (
            f"format ascii 1.0\nelement vertex 1000000000000\n{XYZ}",
            b"1 2 3\n",
            "1000000000000 rows",
        ),
        (f"format binary_little_endian 1.0\nelement vertex 1000000000000\n{XYZ}", b"1", "1 bytes"),
        (
            "format binary_little_endian 1.0\nelement face 1\nproperty list int int v\n"
            f"element vertex 1\n{XYZ}",
            struct.pack("<i3f", -5, 1, 2, 3),
            "a list of -5 values",
        ),
        (
            "format binary_little_endian 1.0\nelement face 1\nproperty list uint int v\n"
            f"element vertex 1\n{XYZ}",
            struct.pack("<I3f", 2**31, 1, 2, 3),
            "a list of 2147483648 values",
        ),
        (f"format ascii 1.0\nelement vertex 0\n{XYZ}", b"", "zero points"),
        (f"format ascii 1.0\nelement vertex {'9' * 5000}\n{XYZ}", b"", "the header line"),
        (f"format ascii 1.0\nelement face 1\n{XYZ}", b"1 2 3\n", "the elements face"),
        (f"format middle_endian 1.0\nelement vertex 1\n{XYZ}", b"", "the header line"),
        (f"element vertex 1\n{XYZ}", b"", "the header line"),
        ("format ascii 1.0\nproperty float x", b"", "the header line"),
        ("format ascii 1.0\nelement vertex 1\nproperty quad x", b"", "the header line"),
        ("format ascii 1.0\nelement vertex 1\nproperty list float int x", b"", "the header line"),
        ("format ascii 1.0\nelement vertex 1\nproperty float x", b"1\n", "columns x; expected"),
        (f"format ascii 1.0\nelement vertex 1\n{XYZ}", b"1 2\n", "2 values per vertex"),
        (f"format ascii 1.0\nelement vertex 1\n{XYZ}", b"1 two 3\n", "not numbers"),
        (f"format ascii 1.0\nelement vertex 2\n{XYZ}", b"1 2 3\n1 2\n", "not numbers"),
        (
            f"format ascii 1.0\nelement vertex 1\n{XYZ}\nproperty list uchar int v",
            b"1 2 3 four 5\n",
            "a value per property",
        ),
    ],
)
def test_bad_files(tmp_path: Path, header: str, body: bytes, message: str) -> None:
    path = save(tmp_path / "a.ply", header, body)
    with pytest.raises(FileFormatError, match=message) as caught:
        io.read(path)
    assert str(path) in str(caught.value)


def test_no_ply_and_no_end(tmp_path: Path) -> None:
    path = tmp_path / "a.ply"
    path.write_bytes(b"solid cube\n")
    with pytest.raises(FileFormatError, match="the line 'ply'"):
        io.read(path)
    path.write_bytes(b"ply\nformat ascii 1.0\n")
    with pytest.raises(FileFormatError, match="a header without end"):
        io.read(path)


def test_attributes_of_odd_types(tmp_path: Path) -> None:
    points = np.zeros((2, 3))
    attributes = {
        "valid": np.array([True, False]),
        "time": np.array([2**40, 1], dtype=np.int64),
        "index": np.array([7, 8], dtype=np.int64),
        "half": np.array([0.5, 1], dtype=np.float16),
        "my colour": np.array([[1, 2], [3, 4]], dtype=np.uint8),
    }
    io.write(tmp_path / "a.ply", PointCloud(points, attributes))
    back = io.read(tmp_path / "a.ply").attributes
    assert {name: values.tolist() for name, values in back.items()} == {
        "valid": [1, 0],
        "time": [2**40, 1],
        "index": [7, 8],
        "half": [0.5, 1],
        "my_colour_0": [1, 3],
        "my_colour_1": [2, 4],
    }
    too_big = PointCloud(points, {"time": np.array([2**63 - 1, 1], dtype=np.int64)})
    with pytest.raises(FileFormatError, match="'time' holds integers"):
        io.write(tmp_path / "a.ply", too_big)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_mesh_keeps_its_faces(tmp_path: Path, cloud: PointCloud, encoding: Encoding) -> None:
    faces = np.random.default_rng(0).integers(0, 50, (20, 3))
    write_ply(tmp_path / "a.ply", replace(cloud, faces=faces), encoding)
    back = io.read(tmp_path / "a.ply")
    assert_same_cloud(back, cloud)
    np.testing.assert_array_equal(back.faces, faces)
    np.testing.assert_array_equal(back.transformed(np.eye(4)).faces, faces)
    with pytest.warns(VBRegWarning, match="cannot hold the faces of the mesh"):
        io.write(tmp_path / "a.pcd", replace(cloud, faces=faces))


@pytest.mark.parametrize("body", [b"0 0 0\n1 1 1\n3 0 1 2\n", b"0 0 0\n1 1 1\n3 0 1\n"])
def test_faces_that_lie(tmp_path: Path, body: bytes) -> None:
    faces = "element face 1\nproperty list uchar int vertex_indices"
    path = save(tmp_path / "a.ply", f"format ascii 1.0\nelement vertex 2\n{XYZ}\n{faces}", body)
    with pytest.raises(FileFormatError, match=r"a face with the vertex 2|the face '3 0 1'"):
        io.read(path)


def test_colours_are_bytes_and_what_is_lost_is_said(tmp_path: Path) -> None:
    attributes = {name: np.array([0, 257, 1000], np.uint16) for name in ("red", "green", "blue")}
    with pytest.warns(VBRegWarning, match="cannot hold colours beyond 8 bits"):
        io.write(tmp_path / "a.ply", PointCloud(np.zeros((3, 3)), attributes))
    np.testing.assert_array_equal(io.read(tmp_path / "a.ply").attributes["red"], [0, 1, 4])
