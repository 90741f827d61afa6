"""Files in blocks: what comes block by block is what `read` gives at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vbreg import io
from vbreg.errors import FileFormatError
from vbreg.io.pcd import write_pcd
from vbreg.io.ply import write_ply
from vbreg.types import PointCloud

STREAMED = [".ply", ".pcd", ".xyz", ".txt", ".csv", ".pts", ".npy", ".bin", ".las", ".laz"]


def cloud(count: int = 101) -> PointCloud:
    rng = np.random.default_rng(0)
    points = np.round(rng.normal(size=(count, 3)), 4).astype(np.float32).astype(np.float64)
    return PointCloud(points, {"intensity": rng.random(count).astype(np.float32)})


def same(path: Path) -> None:
    """Of any number of rows at a time; no block is longer, and all are float64."""
    expected = io.read(path).points
    for rows in (1, 7, 101, 1000):
        blocks = list(io.read_blocks(path, rows))
        assert all(len(block) <= rows and block.dtype == np.float64 for block in blocks)
        np.testing.assert_array_equal(np.concatenate(blocks), expected)
        if path.suffix == ".laz":
            return  # a process for every look


@pytest.mark.filterwarnings("ignore::vbreg.errors.VBRegWarning")
@pytest.mark.parametrize("ending", [*STREAMED, ".npz"])
def test_blocks_are_the_whole(tmp_path: Path, ending: str) -> None:
    if ending in (".las", ".laz"):
        pytest.importorskip("laspy", reason="vbreg[io] is not installed")
    path = tmp_path / f"cloud{ending}"
    io.write(path, cloud())
    assert io.streams(path) == (ending in STREAMED)
    same(path)


@pytest.mark.parametrize("encoding", ["ascii", "binary_little_endian", "binary_big_endian"])
def test_every_kind_of_ply(tmp_path: Path, encoding: str) -> None:
    faces = np.array([[0, 1, 2], [2, 3, 4]])
    given = cloud()
    mesh = PointCloud(given.points, given.attributes, faces)
    write_ply(tmp_path / "a.ply", mesh, encoding)  # type: ignore[arg-type]
    assert io.streams(tmp_path / "a.ply")
    same(tmp_path / "a.ply")


@pytest.mark.parametrize("encoding", ["ascii", "binary", "binary_compressed"])
def test_every_kind_of_pcd(tmp_path: Path, encoding: str) -> None:
    write_pcd(tmp_path / "a.pcd", cloud(), encoding)  # type: ignore[arg-type]
    assert io.streams(tmp_path / "a.pcd") == (encoding != "binary_compressed")
    same(tmp_path / "a.pcd")


def test_vertices_behind_other_elements(tmp_path: Path) -> None:
    head = ["ply", "format ascii 1.0", "element camera 2", "property float f"]
    head += ["element vertex 2", "property float z", "property float x", "property float y"]
    text = "\n".join([*head, "end_header", "1", "2", "3 1 2", "6 4 5"]) + "\n"
    (tmp_path / "a.ply").write_text(text)
    same(tmp_path / "a.ply")
    np.testing.assert_array_equal(next(io.read_blocks(tmp_path / "a.ply")), [[1, 2, 3], [4, 5, 6]])


def test_every_kind_of_npy(tmp_path: Path) -> None:
    points = cloud().points
    fields = np.zeros(101, [("t", "i8"), ("y", "f4"), ("x", "f8"), ("z", "f4")])
    for axis, column in zip("xyz", points.T, strict=True):
        fields[axis] = column
    arrays = {
        "wide": np.concatenate([points, points], axis=1).astype(">f4"),
        "columns": np.asfortranarray(points),
        "records": fields,
        "integers": (1000 * points).astype(np.int32),
    }
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
        assert io.streams(tmp_path / f"{name}.npy") == (name != "columns")
        same(tmp_path / f"{name}.npy")


def test_text_with_names_commas_and_words(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("name,Y,X,Z\na,2,1,3\nb,5,4,6\n")
    (tmp_path / "b.txt").write_text("# x y z\n1,5 2,5 3,5 7\n4 5 6 7\n")
    for name in ("a.csv", "b.txt"):
        same(tmp_path / name)


def test_a_shift_is_added(tmp_path: Path) -> None:
    io.write(tmp_path / "a.pcd", cloud().points + 5e6, coordinates="shifted")
    same(tmp_path / "a.pcd")


def test_gzip_is_read_whole(tmp_path: Path) -> None:
    import gzip

    io.write(tmp_path / "a.ply", cloud())
    (tmp_path / "a.ply.gz").write_bytes(gzip.compress((tmp_path / "a.ply").read_bytes()))
    assert not io.streams(tmp_path / "a.ply.gz")
    same(tmp_path / "a.ply.gz")


@pytest.mark.filterwarnings("ignore::vbreg.errors.VBRegWarning")
@pytest.mark.parametrize("ending", [".ply", ".pcd", ".npy", ".bin", ".las", ".pts"])
def test_a_file_that_ends_too_soon_is_told(tmp_path: Path, ending: str) -> None:
    if ending == ".las":
        pytest.importorskip("laspy", reason="vbreg[io] is not installed")
    path = tmp_path / f"cloud{ending}"
    io.write(path, cloud())
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(FileFormatError, match="cloud"):
        list(io.read_blocks(path, 10))


def test_what_is_no_cloud_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.ply").write_text("no ply")
    for name in ("a.ply", "none.ply", "a.unknown"):
        with pytest.raises(FileFormatError, match=name):
            list(io.read_blocks(tmp_path / name))
