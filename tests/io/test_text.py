from __future__ import annotations

import tracemalloc
import warnings
from pathlib import Path

import numpy as np
import pytest

from vbreg import io
from vbreg.errors import FileFormatError, VBRegWarning
from vbreg.types import PointCloud

ENDINGS = [".xyz", ".txt", ".asc", ".csv", ".pts"]


def read(tmp_path: Path, text: str | bytes, ending: str = ".txt") -> PointCloud:
    path = tmp_path / f"a{ending}"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return io.read(path)


@pytest.mark.parametrize("ending", ENDINGS)
def test_round_trip_to_the_last_digit(tmp_path: Path, utm: PointCloud, ending: str) -> None:
    rng = np.random.default_rng(0)
    points = np.concatenate([utm.points, rng.normal(size=(50, 3)) * 1e-9, [[np.nan, np.inf, 0]]])
    io.write(tmp_path / f"a{ending}", points)
    np.testing.assert_array_equal(io.read(tmp_path / f"a{ending}").points, points)


@pytest.mark.parametrize("ending", ENDINGS)
def test_attributes_come_back(tmp_path: Path, cloud: PointCloud, ending: str) -> None:
    names = ["intensity"] if ending == ".pts" else list(cloud.attributes)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        io.write(tmp_path / f"a{ending}", cloud)
    assert len(said) == (ending == ".pts")  # which has no place for red alone
    back = io.read(tmp_path / f"a{ending}")
    np.testing.assert_array_equal(back.points, cloud.points)
    assert list(back.attributes) == names
    for name in names:
        np.testing.assert_array_equal(back.attributes[name], cloud.attributes[name])


@pytest.mark.parametrize(
    "text",
    [
        "1 2 3\n4 5 6",
        "1,2,3\r\n4,5,6\r\n",
        "1;2;3\r4;5;6\r",
        "1, 2, 3\n\n4,\t5, 6\n\n",
        "  1\t2   3  \n\t4 5 6 # the last\n# end",
        "# a comment\n1 2 3\n// another\n4 5 6\n",
        "\ufeffx y z\n1 2 3\n4 5 6\n",
        "X,Y,Z\n1,2,3\n4,5,6\n",
        "//X Y Z\n1 2 3\n4 5 6\n",
        '"x";"y";"z"\n1;2;3\n4;5;6\n',
        "z y x\n3 2 1\n6 5 4\n",
        "x y z\n1,2,3\n4,5,6\n",
        "2\n1 2 3\n4 5 6\n",
        "1,2,3,\n4,5,6,\n",
        "name,x,y,z\ncar,1,2,3\ntree,4,5,6\n",
        "1e0 +2 3.\n4 5 6\n",
        "1,0;2,0;3,0\n4,0;5,0;6,0\n",
        "1,0 2,0 3\n4 5,0 6,0\n",
        "x;y;z\n1,0;2,0;3,0\n4;5;6\n",
        "Easting,Northing,Height\n1,2,3\n4,5,6\n",
        "Northing Easting Elevation\n2 1 3\n5 4 6\n",
    ],
)
def test_many_ways_to_write_the_same(tmp_path: Path, text: str) -> None:
    cloud = read(tmp_path, text)
    np.testing.assert_array_equal(cloud.points, [[1, 2, 3], [4, 5, 6]])
    assert not cloud.attributes


def test_names_find_their_columns(tmp_path: Path) -> None:
    cloud = read(tmp_path, "intensity,X,label,Y,Z,Z\n0.5,1,car,2,3,9\n0.25,4,bus,5,6,9\n", ".csv")
    np.testing.assert_array_equal(cloud.points, [[1, 2, 3], [4, 5, 6]])
    assert list(cloud.attributes) == ["intensity", "Z_1"]  # text columns have no place
    np.testing.assert_array_equal(cloud.attributes["intensity"], [0.5, 0.25])


def test_latin_1_comment_and_windows_nan(tmp_path: Path) -> None:
    cloud = read(tmp_path, b"// 20 \xb0C\n1 2 3\n4 -nan(ind) nan\n5 1.#QNAN 6 # -1.#IND\n")
    np.testing.assert_array_equal(cloud.points, [[1, 2, 3], [4, np.nan, np.nan], [5, np.nan, 6]])


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("ending", [".xyz", ".ply", ".pcd", ".ptx"])
def test_a_file_of_several_pieces(tmp_path: Path, ending: str, end: str) -> None:
    """Its lines are decoded some at a time; where the cut lies does not show."""
    points = np.arange(180_000.0).reshape(-1, 3) % 977
    rows = [f"{x:g} {y:g} {z:g}" for x, y, z in points]
    axes = [f"property float {axis}" for axis in "xyz"]
    above = {
        ".ply": ["ply", "format ascii 1.0", f"element vertex {len(rows)}", *axes, "end_header"],
        ".pcd": ["FIELDS x y z", f"POINTS {len(rows)}", "DATA ascii"],
        ".ptx": [str(len(rows)), "1", *["0 0 0"] * 4, *map(" ".join, np.eye(4).astype(str))],
    }
    if ending == ".pcd" and end == "\r":
        return  # a PCD's header ends in line feeds
    text = end.join([*above.get(ending, []), *rows, ""])
    assert len(text) > 2 * (1 << 18)
    expected = points.copy()
    if ending == ".ptx":
        expected[(points == 0).all(axis=1)] = np.nan
    np.testing.assert_array_equal(read(tmp_path, text, ending).points, expected)


def test_short_lines_take_little_memory(tmp_path: Path) -> None:
    text = "1 2 3\n" * 200_000
    tracemalloc.start()
    try:
        points = read(tmp_path, text, ".xyz").points
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 3 * (points.nbytes + len(text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello world\n", "the line 'hello world'; expected three numbers"),
        ("1 2\n3 4\n", "the line '1 2'"),
        ("1 2 3\n4 5\n", "not numbers"),
        ("1 2 3\n4 5 six\n", "not numbers"),
        ("1,2,3\n4,,6\n", "not numbers"),
        ("1 2 3 " * 20_000, "a line of more than 65536 characters"),
        ("a b c\n1 2 3\n", "a line that names x, y and z"),
        ("x y z\n", "no line of numbers"),
        ("x y z\na b c\n", "numbers for x, y and z"),
        ("x y z w\n1 2 3\n", "4 names above 3 columns"),
        ("x y z\n1 2\n", "2 columns; expected three"),
        ("# nothing\n\n", "no line of numbers"),
        ("\n \n", "no line of numbers"),
        ("3\n1 2 3\n", "1 points; expected 3"),
        (b"\0\1\2\3", "binary data"),
        ("x y z\n".encode("utf-16"), "binary data"),
        ("9" * 5000 + "\n1 2 3\n", "the line '999"),
    ],
)
def test_bad_text(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(FileFormatError, match=message):
        read(tmp_path, text)


def test_columns_that_an_ending_fixes(tmp_path: Path) -> None:
    attributes = {name: np.array([0, 51, 255], np.uint8) for name in ("red", "green", "blue")}
    attributes |= {name: np.array([0.5, 1, -1]) for name in ("nx", "ny", "nz")}
    cloud = PointCloud(np.arange(9.0).reshape(3, 3), attributes)
    for ending, line, names in (
        (".xyzn", "0.0 1.0 2.0 0.5 0.5 0.5", ["nx", "ny", "nz"]),
        (".xyzrgb", "3.0 4.0 5.0 0.2 0.2 0.2", ["red", "green", "blue"]),
        (".pts", "3.0 4.0 5.0 51 51 51", ["red", "green", "blue"]),
    ):
        path = tmp_path / f"a{ending}"
        with pytest.warns(VBRegWarning, match="cannot hold the attribute"):
            io.write(path, cloud)
        assert line in path.read_text().splitlines()
        back = io.read(path)
        assert list(back.attributes) == names
        for name in names:
            np.testing.assert_array_equal(back.attributes[name], attributes[name])
    with pytest.raises(FileFormatError, match=r"\.xyzn needs nx, ny, nz"):
        io.write(tmp_path / "a.xyzn", np.zeros((1, 3)))
