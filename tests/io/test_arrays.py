from __future__ import annotations

import io as stdio
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vbreg import io
from vbreg.errors import FileFormatError
from vbreg.types import PointCloud


class Bomb:
    """Unpickling it would be noticed."""

    def __reduce__(self) -> Any:
        return (pytest.fail, ("a pickle was loaded",))


def npy(array: Any) -> bytes:
    stream = stdio.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


@pytest.mark.parametrize("dtype", ["<f8", ">f8", "<f4", "<f2", "<i4", "u1"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_of_any_type_and_order(tmp_path: Path, dtype: str, order: Any) -> None:
    array = np.arange(20).reshape(4, 5).astype(dtype, order=order)
    np.save(tmp_path / "a.npy", array)
    cloud = io.read(tmp_path / "a.npy")
    np.testing.assert_array_equal(cloud.points, array[:, :3])
    np.testing.assert_array_equal(cloud.attributes["column_4"], array[:, 4])
    assert cloud.points.dtype == np.float64
    assert cloud.points.flags.writeable


def test_npy_record_array(tmp_path: Path) -> None:
    table = np.zeros(
        2, dtype=[("t", "<i8"), ("name", "<U3"), ("z", "<f4"), ("y", "<f4"), ("x", "<f8")]
    )
    table["x"], table["t"] = [1, 2], [5, 6]
    np.save(tmp_path / "a.npy", table)
    cloud = io.read(tmp_path / "a.npy")
    np.testing.assert_array_equal(cloud.points, [[1, 0, 0], [2, 0, 0]])
    assert list(cloud.attributes) == ["t"]


def test_round_trips(tmp_path: Path, utm: PointCloud) -> None:
    attributes = {"file": np.arange(50), "normals": np.ones((50, 3)), "ok": np.ones(50, bool)}
    io.write(tmp_path / "a.npz", PointCloud(utm.points, attributes))
    back = io.read(tmp_path / "a.npz")
    np.testing.assert_array_equal(back.points, utm.points)
    assert set(back.attributes) == set(attributes)
    for name, values in attributes.items():
        np.testing.assert_array_equal(back.attributes[name], values)
        assert back.attributes[name].dtype == values.dtype
    with pytest.raises(FileFormatError, match="'pcd' has the name of the points"):
        io.write(tmp_path / "b.npz", PointCloud(utm.points, {"pcd": np.arange(50)}))
    io.write(tmp_path / "a.npy", utm)
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy", allow_pickle=False), utm.points)
    np.testing.assert_array_equal(io.read(tmp_path / "a.npy").points, utm.points)


@pytest.mark.parametrize("key", ["pcd", "points", "xyz", "arr_0"])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_keys(tmp_path: Path, key: str, save: Any) -> None:
    save(
        tmp_path / "a.npz",
        **{key: np.ones((4, 3), np.float32), "pose": np.eye(4), "n": np.array(3)},
    )
    cloud = io.read(tmp_path / "a.npz")
    np.testing.assert_array_equal(cloud.points, np.ones((4, 3)))
    assert set(cloud.attributes) == {"pose"}  # 4 rows by accident; the scalar is no attribute


def test_npz_without_points_lists_its_keys(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", cloud=np.ones((4, 3)), pose=np.eye(4))
    with pytest.raises(
        FileFormatError, match="keys cloud, pose; expected one of pcd, points, xyz, arr_0"
    ):
        io.read(tmp_path / "a.npz")


def test_pickles_are_refused_unread(tmp_path: Path) -> None:
    array = np.empty((2, 3), dtype=object)
    array[:] = Bomb()
    (tmp_path / "a.npy").write_bytes(npy(array))
    with pytest.raises(FileFormatError, match="never loaded"):
        io.read(tmp_path / "a.npy")
    np.savez(tmp_path / "a.npz", points=array)
    with pytest.raises(FileFormatError, match="never loaded"):
        io.read(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", points=np.ones((2, 3)), other=array)
    assert not io.read(tmp_path / "b.npz").attributes
    (tmp_path / "b.npy").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(FileFormatError, match="no usable header"):
        io.read(tmp_path / "b.npy")


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones((3, 9)).T[:0], "zero points"),
        (np.ones((3, 2)), r"shape \(3, 2\); expected the shape \(N, 3\)"),
        (np.ones(9), r"shape \(9,\)"),
        (np.ones((2, 2, 3)), r"shape \(2, 2, 3\)"),
        (np.array(3.0), r"shape \(\)"),
        (np.ones((2, 3), complex), "complex128; expected real"),
        (np.full((2, 3), "1"), "expected real numbers"),
        (np.ones((3, 1000)), r"shape \(3, 1000\), which looks like columns.*transpose it"),
        (np.ones((4, 64)), r"shape \(4, 64\), which looks like columns.*transpose it"),
    ],
)
def test_arrays_that_are_no_clouds(tmp_path: Path, array: Any, message: str) -> None:
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(FileFormatError, match=message):
        io.read(tmp_path / "a.npy")


def test_shape_that_lies(tmp_path: Path) -> None:
    data = npy(np.ones((20, 3)))
    (tmp_path / "a.npy").write_bytes(data.replace(b"(20, 3)", b"(10**12,"[:7]))
    with pytest.raises(FileFormatError, match="no usable header"):
        io.read(tmp_path / "a.npy")
    (tmp_path / "a.npy").write_bytes(data.replace(b"(20, 3), }      ", b"(99999999999,3)}"))
    with pytest.raises(FileFormatError, match="480 bytes of data for the shape"):
        io.read(tmp_path / "a.npy")
    (tmp_path / "a.npy").write_bytes(data[:-1])
    with pytest.raises(FileFormatError, match="479 bytes of data"):
        io.read(tmp_path / "a.npy")


def test_archive_that_lies(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(b"PK\x03\x04 no archive")
    with pytest.raises(FileFormatError, match="damaged archive"):
        io.read(path)
    np.savez(path, points=np.ones((2, 3)))
    data = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        size = archive.infolist()[0].file_size.to_bytes(4, "little")
    at = data.rindex(size)  # in the central directory
    path.write_bytes(data[:at] + b"\xf0\xff\xff\xff" + data[at + 4 :])
    with pytest.raises(FileFormatError, match="that claims 4294967280"):
        io.read(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("points.npy", npy(np.ones((2, 3))))
    with pytest.raises(FileFormatError, match="unusual compression"):
        io.read(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("points.npy", npy(np.ones((2, 3))))
        archive.writestr("readme.txt", "hello")
    assert len(io.read(path)) == 2


@pytest.mark.parametrize("key", ["points", "unused"])
def test_zeros_do_not_fill_the_memory(tmp_path: Path, key: str) -> None:
    """A megabyte of deflate is a gigabyte of zeros: the sum of what is read has a limit."""
    path = tmp_path / "a.npz"
    np.savez_compressed(path, **{"points": np.ones((9, 3)), key: np.zeros((6_000_000, 3))})
    assert path.stat().st_size < 200_000
    if key == "points":
        with pytest.raises(FileFormatError, match=r"that claims 144000128; expected at most 13\d+"):
            io.read(path)
    else:
        assert not io.read(path).attributes  # other rows than the points: never unpacked
    with pytest.raises(FileFormatError, match="that claims 144000128"):
        io.read_arrays(path)
