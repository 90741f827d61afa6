"""NumPy's own files. Arrays are read from their raw bytes: nothing is ever unpickled."""

from __future__ import annotations

import io
import math
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vbreg.errors import FileFormatError, VBRegError
from vbreg.io.columns import (
    cloud_from_columns,
    cloud_from_rows,
    native_copy,
    problem,
    read_bytes,
)
from vbreg.types import PointCloud

POINT_KEYS = ("pcd", "points", "xyz")
_MAX_DEFLATE_RATIO = 1100  # the method itself ends at 1032


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


def write_npy(path: Path, cloud: PointCloud) -> None:
    """Write the points alone, as an array (N, 3)."""
    with path.open("wb") as file:
        np.lib.format.write_array(file, cloud.points, allow_pickle=False)


def read_npz(path: Path) -> PointCloud:
    """Read points under the first of POINT_KEYS; other arrays of as many rows are attributes."""
    data = read_bytes(path)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return _read_archive(path, archive)
    except VBRegError:
        raise
    except Exception as exc:  # zipfile and zlib raise a dozen types on a damaged archive
        raise problem(path, f"a damaged archive ({exc})", "an .npz archive") from exc


def write_npz(path: Path, cloud: PointCloud) -> None:
    """Write `points` and every attribute under its name."""
    clash = next((key for key in POINT_KEYS if key in cloud.attributes), None)
    if clash is not None:
        raise FileFormatError(f"the attribute '{clash}' has the name of the points; rename it")
    members = {**cloud.attributes, "points": cloud.points}
    with zipfile.ZipFile(path, "w", allowZip64=True) as archive:
        for name, values in members.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asarray(values), allow_pickle=False)


def _read_archive(path: Path, archive: zipfile.ZipFile) -> PointCloud:
    members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
    key = next((key for key in POINT_KEYS if key in members), None)
    if key is None:
        found = ", ".join(members) or "none"
        wanted = ", ".join(POINT_KEYS)
        raise problem(path, f"keys {found}", f"one of {wanted}", "save it under one of these names")
    cloud = cloud_from_rows(path, _array(path, f"'{key}'", _member(path, archive, members[key])))
    attributes = dict(cloud.attributes)
    for name, info in members.items():
        if name != key:
            values = _attribute(path, name, _member(path, archive, info), len(cloud))
            attributes.update({} if values is None else {name: values})
    return PointCloud(cloud.points, attributes)


def _attribute(path: Path, name: str, data: bytes, count: int) -> NDArray[Any] | None:
    """Return an array of numbers per point, or None for anything else that an archive holds."""
    if not data.startswith(np.lib.format.MAGIC_PREFIX):
        return None
    header = _header(path, f"'{name}'", data)
    fits = len(header.shape) in (1, 2) and header.shape[0] == count
    if not fits or header.dtype.kind not in "biuf":
        return None
    return native_copy(_array(path, f"'{name}'", data))


def _member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    most = info.compress_size * _MAX_DEFLATE_RATIO + 1024
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise problem(path, f"'{info.filename}' in an unusual compression", "deflate or none")
    if info.file_size > most:
        claim = f"'{info.filename}' of {info.compress_size} bytes that claims {info.file_size}"
        raise problem(path, claim, f"at most {most}")
    return archive.read(info)


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
    """Return the bytes as an array, if they are as many as the header says."""
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
