"""NumPy's own files. Arrays are read from their raw bytes: nothing is ever unpickled."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vbreg.errors import FileFormatError, VBRegError
from vbreg.io.columns import (
    check_file,
    cloud_from_columns,
    cloud_from_rows,
    find_axes,
    is_transposed,
    native_copy,
    point_blocks,
    problem,
    read_bytes,
)
from vbreg.io.names import usual_names
from vbreg.types import Float64, PointCloud

POINT_KEYS = ("pcd", "points", "xyz", "arr_0")  # the last is what numpy calls an unnamed one
MAX_RATIO = 30  # of the size of the arrays to that of the compressed file; 5 is much already
SPARE = 1 << 27  # bytes of arrays that a file of any size may hold
_MAX_HEADER = 1 << 16


class _Header(NamedTuple):
    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype[Any]
    offset: int


def read_npy(path: Path) -> PointCloud:
    """Read an array (N, 3+) of numbers, or a record array with fields x, y and z."""
    array = _array(path, "the file", read_bytes(path))
    if array.dtype.names is not None and array.ndim == 1:
        fields = {name: array[name] for name in array.dtype.names}
        numbers = {name: column for name, column in fields.items() if column.dtype.kind in "biuf"}
        return cloud_from_columns(path, numbers)
    return cloud_from_rows(path, array)


def npy_blocks(path: Path, rows: int) -> Iterator[Float64] | None:
    """Return what yields the points, so many rows at a time; None where columns lie together."""
    check_file(path)
    with path.open("rb") as file:
        header = _header(path, "the file", file.read(_MAX_HEADER))
    record, shape = header.dtype, header.shape
    if record.names is not None and len(shape) == 1:
        numbers = [name for name in record.names if record[name].kind in "biuf"]
        axes = find_axes(numbers)
        plain = not record.hasobject
    else:
        axes = ["x", "y", "z"]
        plain = len(shape) == 2 and shape[1] >= 3 and record.kind in "iuf"
        plain = plain and not header.fortran_order and not is_transposed(shape)
        if plain:
            names = [*axes, *(f"column_{k}" for k in range(3, shape[1]))]
            record = np.dtype([(name, record) for name in names])
    size = path.stat().st_size - header.offset
    if not plain or axes is None or not shape[0] or shape[0] * record.itemsize != size:
        return None  # reading all of it tells what is wrong, if something is
    return point_blocks(path, header.offset, record, axes, shape[0], rows)


def write_npy(path: Path, cloud: PointCloud) -> list[str]:
    """Write the points alone, as an array (N, 3); return what is lost."""
    with path.open("wb") as file:
        np.lib.format.write_array(file, cloud.points, allow_pickle=False)
    return [f"the attribute '{name}'" for name in cloud.attributes]


def read_npz(path: Path) -> PointCloud:
    """Read points under the first of POINT_KEYS; other arrays of as many rows are attributes."""
    with open_archive(path) as archive:
        key = next((key for key in POINT_KEYS if key in archive), None)
        if key is None:
            found = ", ".join(archive.names)[:200] or "none"
            wanted = ", ".join(POINT_KEYS)
            hint = "save it under one of these names"
            raise problem(path, f"keys {found}", f"one of {wanted}", hint)
        cloud = cloud_from_rows(path, archive.array(key))
        attributes = dict(cloud.attributes)
        for name in archive.names:
            if name != key and archive.is_numeric(name, rows=len(cloud)):
                attributes[name] = native_copy(archive.array(name))
    return PointCloud(cloud.points, usual_names(attributes))


def write_npz(path: Path, cloud: PointCloud) -> list[str]:
    """Write `points` and every attribute under its name; nothing is lost."""
    clash = next((key for key in POINT_KEYS if key in cloud.attributes), None)
    if clash is not None:
        raise FileFormatError(f"the attribute '{clash}' has the name of the points; rename it")
    members = {**cloud.attributes, "points": cloud.points}
    with zipfile.ZipFile(path, "w", allowZip64=True) as archive:
        for name, values in members.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asarray(values), allow_pickle=False)
    return []


class Archive:
    """The arrays of an .npz by name. One is read when it is asked for, and within a limit.

    The limit is on all of them together: deflate turns a megabyte into a gigabyte of zeros.
    """

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self._path, self._archive = path, archive
        self._members = {i.filename.removesuffix(".npy"): i for i in archive.infolist()}
        self._left = MAX_RATIO * path.stat().st_size + SPARE

    def __contains__(self, name: str) -> bool:
        return name in self._members

    @property
    def names(self) -> list[str]:
        """The names of all members, without '.npy'."""
        return list(self._members)

    def is_numeric(self, name: str, rows: int | None = None) -> bool:
        """Tell whether a member is an array of numbers, with so many rows if these are given."""
        with self._open(name) as file:
            head = file.read(_MAX_HEADER)
        if not head.startswith(np.lib.format.MAGIC_PREFIX):
            return False
        header = _header(self._path, f"'{name}'", head)
        fits = rows is None or (len(header.shape) in (1, 2) and header.shape[0] == rows)
        return fits and header.dtype.kind in "biuf"

    def array(self, name: str) -> NDArray[Any]:
        """Read an array, if that and what was read before does not exceed the limit."""
        info = self._members[name]
        if info.file_size > self._left:
            claim = f"'{info.filename}' of {info.compress_size} bytes that claims {info.file_size}"
            raise problem(self._path, claim, f"at most {self._left}", "save it uncompressed")
        self._left -= info.file_size
        with self._open(name) as file:
            return _array(self._path, f"'{name}'", file.read(info.file_size))

    def _open(self, name: str) -> IO[bytes]:
        info = self._members[name]
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            found = f"'{info.filename}' in an unusual compression"
            raise problem(self._path, found, "deflate or none")
        return self._archive.open(info)


@contextmanager
def open_archive(path: Path) -> Iterator[Archive]:
    """Open an .npz, whose arrays are read within a limit; nothing in it is ever unpickled."""
    check_file(path)
    try:
        with zipfile.ZipFile(path) as archive:
            yield Archive(path, archive)
    except VBRegError:
        raise
    except Exception as exc:  # zipfile and zlib raise a dozen types on a damaged archive
        raise problem(path, f"a damaged archive ({exc})", "an .npz archive") from exc


def _header(path: Path, what: str, data: bytes) -> _Header:
    stream = io.BytesIO(data)
    try:
        major, _ = np.lib.format.read_magic(stream)
        if major == 1:
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
        elif major == 2:
            shape, fortran, dtype = np.lib.format.read_array_header_2_0(stream)
        else:
            raise ValueError(f"format version {major}")
    except Exception as exc:  # a damaged header is Python source that does not parse
        reason = str(exc).split("\n")[0]
        raise problem(path, f"{what} has no usable header ({reason})", "an array in .npy") from exc
    return _Header(shape, fortran, dtype, stream.tell())


def _array(path: Path, what: str, data: bytes) -> NDArray[Any]:
    """Return the bytes as an array, if they are as many as the header says.

    An array without pickles whose values are objects, text or the like is for the caller to refuse.
    """
    header = _header(path, what, data)
    if header.dtype.hasobject:
        raise problem(
            path,
            f"{what} holds pickled Python objects, which are never loaded",
            "an array of numbers",
            "save it with np.save(path, array.astype(float))",
        )
    count = math.prod(header.shape)  # Python integers: a lying header cannot overflow
    wanted, present = count * header.dtype.itemsize, len(data) - header.offset
    if min(header.shape, default=0) < 0 or wanted != present:
        claim = f"{what} has {present} bytes of data for the shape {header.shape}"
        raise problem(path, claim, f"{wanted} bytes of {header.dtype}")
    flat = np.frombuffer(data, header.dtype, count, header.offset) if count else np.empty(0)
    return flat.reshape(header.shape, order="F" if header.fortran_order else "C")
