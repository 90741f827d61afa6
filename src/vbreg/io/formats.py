"""Which ending is read and written by what: one table, two verbs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import ArrayLike

from vbreg.errors import FileFormatError, VBRegError, warn
from vbreg.io.arrays import npy_blocks, read_npy, read_npz, write_npy, write_npz
from vbreg.io.atomic import atomic_path
from vbreg.io.bags import BAG_ENDINGS, bag_address, read_bag
from vbreg.io.columns import INSIDE, as_cloud, check_file, every_scan_of, problem
from vbreg.io.e57 import read_e57, write_e57
from vbreg.io.gzipped import GZIP_ENDING, read_gzip
from vbreg.io.kitti import bin_blocks, read_bin, write_bin
from vbreg.io.las import las_blocks, read_las, write_las
from vbreg.io.meshes import read_mesh
from vbreg.io.pcd import pcd_blocks, read_pcd, write_pcd
from vbreg.io.ply import ply_blocks, read_ply, write_ply
from vbreg.io.ptx import read_ptx
from vbreg.io.shift import choose_shift, read_shift, shift_path, write_shift
from vbreg.io.text import read_text, text_blocks, write_text
from vbreg.types import Float64, PointCloud

Reader = Callable[[Path], PointCloud]
Writer = Callable[[Path, PointCloud], list[str]]  # gives what the format could not hold
BlockReader = Callable[[Path, int], Iterator[Float64] | None]  # None: not of such a file
Coordinates = Literal["float32", "float64", "shifted"]
Structure = Literal["faces", "grid", "crs"]

BLOCK_ROWS = 1 << 20  # points of a file that are held at a time
MAX_LOSS = 1e-3  # metres that float32 may move a point by before a write is refused
_UNAVOIDABLE = 1e-7  # of the reach: what float32 costs a cloud about its own middle
_NEARLY_ALL = 0.98  # of the points lie within a cloud's reach
_STRAY_REACH = 1000.0  # times the reach, beyond which a point belongs to nothing
_STRUCTURES: dict[Structure, str] = {
    "faces": "the faces of the mesh",
    "grid": "width and height of the organised cloud",
    "crs": "the coordinate reference system",
}


@dataclass(frozen=True)
class Format:
    """A row of the table of formats."""

    ending: str  # with the dot, in lower case
    reader: Reader | None = field(repr=False)
    writer: Writer | None = field(repr=False)
    note: str
    extra: str | None = None  # the optional dependency of vbreg that it needs
    coordinates: tuple[Coordinates, ...] = ("float64",)  # that it can be written with, usual first
    keeps: tuple[Structure, ...] = ()  # besides points and attributes
    blocks: BlockReader | None = field(default=None, repr=False)  # of files too large for memory

    @property
    def reads(self) -> bool:
        """Whether files of the format are read."""
        return self.reader is not None

    @property
    def writes(self) -> bool:
        """Whether files of the format are written."""
        return self.writer is not None


def _text(ending: str, note: str) -> Format:
    return Format(ending, read_text, write_text, note, blocks=text_blocks)


_SINGLE: tuple[Coordinates, ...] = ("float32", "float64", "shifted")
FORMATS: tuple[Format, ...] = (
    Format(
        *(".ply", read_ply, write_ply, "ASCII and binary, any properties; written as binary"),
        coordinates=("float64", "float32", "shifted"),
        keeps=("faces",),
        blocks=ply_blocks,
    ),
    Format(
        *(".pcd", read_pcd, write_pcd, "ASCII, binary and compressed; written as binary float32"),
        coordinates=_SINGLE,
        keeps=("grid",),
        blocks=pcd_blocks,
    ),
    _text(".xyz", "x y z and further columns between blanks"),
    _text(".txt", "as .xyz; blanks, commas or semicolons, optional names"),
    _text(".asc", "as .xyz"),
    _text(".csv", "columns x, y, z by name, or the first three"),
    _text(".pts", "the number of points, then x y z intensity red green blue"),
    _text(".xyzn", "x y z and a normal"),
    _text(".xyzrgb", "x y z and a colour in 0..1"),
    Format(".ptx", read_ptx, None, "Leica's text format: all scans, in the file's frame"),
    Format(
        *(".npy", read_npy, write_npy, "an array (N, 3) or wider; coordinates only are written"),
        blocks=npy_blocks,
    ),
    Format(".npz", read_npz, write_npz, "points under the key pcd, points, xyz or arr_0"),
    Format(
        *(".bin", read_bin, write_bin, "KITTI: float32 x, y, z, intensity"),
        coordinates=("float32", "shifted"),
        blocks=bin_blocks,
    ),
    Format(
        *(".las", read_las, write_las, "all dimensions, coordinates in float64", "io"),
        keeps=("crs",),
        blocks=las_blocks,
    ),
    Format(
        *(".laz", read_las, write_las, "compressed LAS", "io"), keeps=("crs",), blocks=las_blocks
    ),
    Format(
        *(".e57", read_e57, write_e57),
        *("all scans, in the file's frame; colour, normal, intensity", "io"),
    ),
    *(
        Format(ending, read_mesh, None, "a surface, on which points are sampled", "mesh")
        for ending in (".obj", ".stl", ".glb", ".off")
    ),
    *(
        Format(ending, read_bag, None, f"ROS: scan{ending}:/topic@seconds", "ros")
        for ending in BAG_ENDINGS
    ),
)
_BY_ENDING = {row.ending: row for row in FORMATS}


def read(path: str | os.PathLike[str]) -> PointCloud:
    """Read a point cloud; its ending decides how. Non-finite points come back as they are.

    Behind any ending may stand .gz. A cloud in a ROS bag is named `run.bag:/topic@seconds`. A shift
    that `write` put beside the file is added.
    """
    path = Path(path)
    reader = _reader(path)
    try:
        if path.suffix.lower() == GZIP_ENDING:
            return read_gzip(path, reader)
        cloud = reader(path)
        shift = read_shift(path)
    except VBRegError:
        raise
    except (OSError, ValueError, MemoryError) as exc:  # ValueError: a NUL in the name
        reason = getattr(exc, "strerror", None) or str(exc) or type(exc).__name__
        raise problem(path, f"not readable ({reason})", "a file that fits into memory") from exc
    return cloud if shift is None else replace(cloud, points=cloud.points + shift)


def read_blocks(path: str | os.PathLike[str], rows: int = BLOCK_ROWS) -> Iterator[Float64]:
    """Yield the points (n, 3) of a file block by block, as `read` gives them all at once.

    Where `streams(path)`, memory holds a block at a time and never the file.
    """
    path = Path(path)
    try:
        found = _blocks(path, rows)
        shift = None if found is None else read_shift(path)
        if found is None:
            points = read(path).points
            found = (points[start : start + rows] for start in range(0, len(points), rows))
        for block in found:
            yield block if shift is None else block + shift
    except VBRegError:
        raise
    except (OSError, ValueError, MemoryError) as exc:
        reason = getattr(exc, "strerror", None) or str(exc) or type(exc).__name__
        raise problem(path, f"not readable ({reason})", "a point cloud") from exc


def streams(path: str | os.PathLike[str]) -> bool:
    """Tell whether a file can be read block by block, so that it need not fit into memory."""
    return _blocks(Path(path), 1) is not None


def _blocks(path: Path, rows: int) -> Iterator[Float64] | None:
    _reader(path)  # an unknown ending is an error
    reader = None if path.suffix.lower() == GZIP_ENDING else _row(path).blocks
    return None if reader is None else reader(path, rows)


def check_readable(path: str | os.PathLike[str]) -> None:
    """Raise an error unless the path is a file and its ending one of those that are read."""
    path = Path(path)
    try:
        address = bag_address(path)
        if address is None:
            check_file(path)
        elif not address.bag.exists():
            raise problem(path, "no such file", "an existing bag", "check the spelling")
    except (OSError, ValueError) as exc:  # a name of 300 characters, or with a NUL in it
        if isinstance(exc, VBRegError):
            raise
        reason = getattr(exc, "strerror", None) or str(exc)
        raise problem(path, f"not readable ({reason})", "an existing point cloud") from exc
    _reader(path)


def _reader(path: Path) -> Reader:
    """Return what reads the file, or the file within a .gz."""
    inner = path.with_suffix("") if path.suffix.lower() == GZIP_ENDING else path
    reader = _row(inner, every_scan_of(path)).reader
    if reader is None:
        found = f"'{inner.suffix}', which is only written"
        raise problem(path, found, "a format that is read", "convert it first")
    return reader


def write(
    path: str | os.PathLike[str],
    cloud: PointCloud | ArrayLike,
    *,
    coordinates: Coordinates | None = None,
) -> None:
    """Write a point cloud or an (N, 3) array, all or nothing; the path's ending decides how.

    `coordinates` are 'float64', 'float32', or 'shifted': float32 minus a shift that is written
    beside the file and added by `read`. Left out, .pcd and .bin are float32, since other programs
    read no others there, and refuse to lose more than a millimetre; the other formats lose nothing.
    What a format cannot hold is named in a warning.
    """
    path = Path(path)
    row = _row(path)
    if row.writer is None:
        endings = ", ".join(row.ending for row in FORMATS if row.writes)
        found = f"'{path.suffix}', which is only read"
        raise problem(path, found, f"one of {endings} to write", "choose another ending")
    with _named(path):
        given = as_cloud(cloud)
        chosen = _chosen_coordinates(row, coordinates)
        shift = choose_shift(given.points) if chosen == "shifted" else None
        checked = given if shift is None else replace(given, points=given.points - shift)
        if chosen != "float64":
            checked = _single_precision(row, checked)
    with atomic_path(path) as temporary:
        with _named(path):
            lost = row.writer(temporary, checked)
        if shift is not None:
            write_shift(path, shift, temporary)
    if shift is None:
        shift_path(path).unlink(missing_ok=True)
    lost += [
        words
        for name, words in _STRUCTURES.items()
        if name not in row.keeps and _holds(given, name)
    ]
    if lost:
        text = f"{path}: {row.ending} cannot hold {', '.join(lost)}, which the file is without"
        warn(text)


def _chosen_coordinates(row: Format, wanted: Coordinates | None) -> Coordinates:
    if wanted is None:
        return row.coordinates[0]
    if wanted not in get_args(Coordinates):
        known = ", ".join(get_args(Coordinates))
        raise FileFormatError(f"coordinates {wanted!r}: expected one of {known}")
    if wanted not in row.coordinates:
        able = [r.ending for r in FORMATS if wanted in r.coordinates]
        raise FileFormatError(
            f"{row.ending} is not written with coordinates {wanted!r}; expected one of "
            f"{', '.join(row.coordinates)}, or an ending of {', '.join(able)}"
        )
    return wanted


def _single_precision(row: Format, cloud: PointCloud) -> PointCloud:
    """Return the cloud with float32 points, if that does not move them; strays do not count."""
    with np.errstate(over="ignore", invalid="ignore"):
        small = cloud.points.astype(np.float32)
        finite = np.isfinite(cloud.points).all(axis=1)
        moved = np.abs(small[finite].astype(np.float64) - cloud.points[finite]).max(axis=1)
        middle = np.median(cloud.points[finite], axis=0) if finite.any() else np.zeros(3)
        distance = np.abs(cloud.points[finite] - middle).max(axis=1)
    reach = float(np.quantile(distance, _NEARLY_ALL)) if len(distance) else 0.0
    worst = float(moved.max(initial=0.0, where=distance <= _STRAY_REACH * reach))
    if worst > max(MAX_LOSS, _UNAVOIDABLE * reach):
        ways = [f"coordinates={name!r}" for name in row.coordinates if name != "float32"]
        raise FileFormatError(
            f"float32 would move points by up to {worst:.3g}; expected at most {MAX_LOSS:g}; "
            f"choose {' or '.join(ways)} (--coordinates), or write .ply. 'shifted' writes the "
            "shift beside the file; PCL and Open3D read float64 in a .pcd as zeros"
        )
    return replace(cloud, points=cast(Any, small))


def _holds(cloud: PointCloud, name: Structure) -> bool:
    held = getattr(cloud, name)
    return held is not None and len(held) > 0


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Put the path before complaints of writers, which only know the temporary file."""
    try:
        yield
    except FileFormatError as exc:
        raise FileFormatError(f"cannot write {path}: {exc}") from exc


def _row(path: Path, instead_of_folder: str = INSIDE) -> Format:
    ending = BAG_ENDINGS[0] if bag_address(path) is not None else path.suffix.lower()
    row = _BY_ENDING.get(ending)
    if row is None and path.is_dir():
        raise problem(path, "a directory", "one point cloud", instead_of_folder)
    if row is None:
        found = f"the ending '{path.suffix}'" if path.suffix else "no ending"
        endings = ", ".join(_BY_ENDING)
        raise problem(path, found, f"one of {endings}", "convert it or rename it to what it is")
    return row
