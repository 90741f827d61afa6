"""Which ending is read and written by what: one table, two verbs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from numpy.typing import ArrayLike

from vbreg.errors import FileFormatError
from vbreg.io.arrays import read_npy, read_npz, write_npy, write_npz
from vbreg.io.atomic import atomic_path
from vbreg.io.columns import as_cloud, problem
from vbreg.io.e57 import read_e57, write_e57
from vbreg.io.kitti import read_bin, write_bin
from vbreg.io.las import read_las, write_las
from vbreg.io.pcd import read_pcd, write_pcd
from vbreg.io.ply import read_ply, write_ply
from vbreg.io.text import read_text, write_text
from vbreg.types import PointCloud

Reader = Callable[[Path], PointCloud]
Writer = Callable[[Path, PointCloud], None]


@dataclass(frozen=True)
class Format:
    """A row of the table of formats."""

    ending: str  # with the dot, in lower case
    reader: Reader | None = field(repr=False)
    writer: Writer | None = field(repr=False)
    note: str
    extra: str | None = None  # the optional dependency of vbreg that it needs

    @property
    def reads(self) -> bool:
        """Whether files of the format are read."""
        return self.reader is not None

    @property
    def writes(self) -> bool:
        """Whether files of the format are written."""
        return self.writer is not None


FORMATS: tuple[Format, ...] = (
    Format(".ply", read_ply, write_ply, "ASCII and binary, any properties; written as binary"),
    Format(".pcd", read_pcd, write_pcd, "ASCII, binary and compressed; written as binary"),
    Format(".xyz", read_text, write_text, "x y z and further columns between blanks"),
    Format(".txt", read_text, write_text, "as .xyz; blanks, commas or semicolons, optional names"),
    Format(".asc", read_text, write_text, "as .xyz"),
    Format(".csv", read_text, write_text, "columns x, y, z by name, or the first three"),
    Format(".pts", read_text, write_text, "as .xyz, after a line with the number of points"),
    Format(".npy", read_npy, write_npy, "an array (N, 3) or wider; coordinates only are written"),
    Format(".npz", read_npz, write_npz, "points under the key pcd, points or xyz"),
    Format(".bin", read_bin, write_bin, "KITTI: float32 x, y, z, intensity"),
    Format(".las", read_las, write_las, "all dimensions, coordinates in float64", "io"),
    Format(".laz", read_las, write_las, "compressed LAS", "io"),
    Format(".e57", read_e57, write_e57, "all scans, in the file's frame; colour, intensity", "io"),
)
_BY_ENDING = {row.ending: row for row in FORMATS}


def read(path: str | os.PathLike[str]) -> PointCloud:
    """Read a point cloud; its ending decides how. Non-finite points come back as they are."""
    path = Path(path)
    reader = _row(path).reader
    if reader is None:
        raise problem(path, f"'{path.suffix}', which is only written", "a format that is read")
    try:
        return reader(path)
    except (OSError, MemoryError) as exc:
        reason = str(exc) or type(exc).__name__
        raise problem(path, f"not readable ({reason})", "a file that fits into memory") from exc


def write(path: str | os.PathLike[str], cloud: PointCloud | ArrayLike) -> None:
    """Write a point cloud or an (N, 3) array, all or nothing; the path's ending decides how."""
    path = Path(path)
    writer = _row(path).writer
    if writer is None:
        raise problem(path, f"'{path.suffix}', which is only read", "a format that is written")
    with _named(path):
        checked = as_cloud(cloud)
    with atomic_path(path) as temporary, _named(path):
        writer(temporary, checked)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Put the path before complaints of writers, which only know the temporary file."""
    try:
        yield
    except FileFormatError as exc:
        raise FileFormatError(f"cannot write {path}: {exc}") from exc


def _row(path: Path) -> Format:
    row = _BY_ENDING.get(path.suffix.lower())
    if row is None:
        found = f"the ending '{path.suffix}'" if path.suffix else "no ending"
        endings = ", ".join(_BY_ENDING)
        raise problem(path, found, f"one of {endings}", "convert it or rename it to what it is")
    return row
