"""LAS and LAZ, through laspy (installed by vbreg[io])."""

from __future__ import annotations

import logging
import mmap
import struct
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vbreg.errors import FileFormatError, MissingExtraError, VBRegError
from vbreg.io.columns import check_file, cloud_from_columns, flat_attributes, problem, storable
from vbreg.types import Float64, PointCloud

_CHUNK = 1_000_000  # points decoded at a time: a header cannot make us allocate what it claims
_FORMATS = (0, 1, 2, 3, 6, 7, 8)  # point formats without waveforms, the plainest first
_COARSEST, _FINEST = 4, 9  # decimals of the written scale, 0.1 mm to 1 nm
_MOST_STEPS = 2_000_000_000  # of the scale along an axis, just within int32
_MAX_NAME = 32
_VARIABLE = 0xFFFFFFFF  # the chunk size of a LAZ file whose chunks differ
_SILENT = logging.NullHandler()


def read_las(path: Path) -> PointCloud:
    """Read LAS or LAZ with all dimensions; coordinates are float64, scaled and shifted."""
    laspy = _laspy("reading", path)
    check_file(path)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        _check_header(path, data)
    try:
        return cloud_from_columns(path, _read_columns(laspy, path))
    except (VBRegError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as exc:  # a panic inside the LAZ decoder is not an Exception
        reason = str(exc).split("\n")[0]
        raise problem(path, f"damaged data ({reason})", "a LAS or LAZ file") from exc


def write_las(path: Path, cloud: PointCloud) -> None:
    """Write LAS or LAZ, attributes as its dimensions where it has them."""
    laspy = _laspy("writing", path)
    if not np.isfinite(cloud.points).all():
        raise FileFormatError("LAS has no way to store a non-finite point; drop these points first")
    attributes = flat_attributes(cloud)
    point_format = _choose_format(laspy, attributes)
    header = laspy.LasHeader(point_format=point_format)
    header.offsets, header.scales = _offset_and_scale(cloud.points)
    columns = {_dimension(header.point_format, k, v): (k, v) for k, v in attributes.items()}
    if len(columns) != len(attributes):
        raise FileFormatError(f"two attributes would share a name in LAS: {', '.join(columns)}")
    known = set(header.point_format.standard_dimension_names)
    extra = {name: storable(k, v, 8) for name, (k, v) in columns.items() if name not in known}
    for name in extra:
        if len(name.encode()) > _MAX_NAME:
            raise FileFormatError(f"LAS names end at {_MAX_NAME} bytes; rename '{name}'")
    header.add_extra_dims(
        [laspy.ExtraBytesParams(name, values.dtype) for name, values in extra.items()]
    )
    las = laspy.LasData(header)
    steps = np.round((cloud.points - header.offsets) / header.scales).astype(np.int32)
    las.X, las.Y, las.Z = steps.T
    for name, (_, values) in columns.items():
        las[name] = extra.get(name, values)
    with path.open("w+b") as file:
        las.write(file, do_compress=path.suffix.lower() == ".laz")


def _laspy(doing: str, path: Path) -> ModuleType:
    kind = path.suffix[1:].upper()
    try:
        import laspy
    except ImportError:
        raise MissingExtraError("laspy", "io", f"{doing} {kind} files") from None
    if kind == "LAZ" and not laspy.LazBackend.Lazrs.is_available():
        raise MissingExtraError("lazrs", "io", f"{doing} {kind} files")
    # laspy logs what it then raises; without a handler that would reach the terminal twice.
    logging.getLogger("laspy").addHandler(_SILENT)
    module: ModuleType = laspy
    return module


def _check_header(path: Path, data: mmap.mmap) -> None:
    """Refuse what laspy would answer with a huge allocation or an endless loop."""
    if data[:4] != b"LASF" or len(data) < 227:
        raise problem(path, f"a file of {len(data)} bytes from {data[:4]!r} on", "a LAS header")
    header_size, start, records = struct.unpack_from("<HII", data, 94)
    kind, size, points = struct.unpack_from("<BHI", data, 104)
    if data[25] >= 4 and len(data) >= 255:
        points = struct.unpack_from("<Q", data, 247)[0] or points
    if points == 0:
        raise problem(path, "zero points", "at least one point")
    if start > len(data) or header_size + 54 * records > start:
        raise problem(path, f"{len(data)} bytes", f"points from byte {start} on")
    if not kind & 0x80:  # the upper bit marks compressed points
        if start + points * size > len(data):
            raise problem(path, f"{len(data) - start} bytes of points", f"{points} of {size} bytes")
        return
    _check_laz(path, data, _laszip_record(data, header_size, records), start, points)


def _laszip_record(data: mmap.mmap, at: int, records: int) -> bytes:
    """Find the record that says how the points are compressed; empty where there is none."""
    for _ in range(records):
        if at + 54 > len(data):
            break
        user, number, length = struct.unpack_from("<2x16sHH", data, at)
        at += 54
        if user.rstrip(b"\0") == b"laszip encoded" and number == 22204:
            return data[at : at + length]
        at += length
    return b""


def _check_laz(path: Path, data: mmap.mmap, record: bytes, start: int, points: int) -> None:
    """Refuse more points than the chunks hold: a decoder would go on for ever on a wrong count.

    Chunks without a fixed size, or whose table's place a stream left open, are not checked.
    """
    if len(record) < 34 or start + 8 > len(data):
        raise problem(path, "compressed points without their description", "a LASzip record")
    compressor, chunk_points = struct.unpack_from("<H10xI", record)
    table = struct.unpack_from("<q", data, start)[0]
    if compressor not in (2, 3) or not start < table <= len(data) - 8:
        return
    chunks = struct.unpack_from("<I", data, table + 4)[0]
    if chunks > len(data):
        raise problem(path, f"a table of {chunks} chunks", f"fewer, in {len(data)} bytes")
    if chunk_points != _VARIABLE and points > chunks * chunk_points:
        found = f"{chunks} chunks of at most {chunk_points} points"
        raise problem(path, found, f"{points} points")


def _read_columns(laspy: ModuleType, path: Path) -> dict[str, NDArray[Any]]:
    parts: list[dict[str, NDArray[Any]]] = []
    # One thread: the parallel decoder allocates what a damaged chunk size tells it to, and aborts.
    with laspy.open(str(path), laz_backend=laspy.LazBackend.Lazrs, read_evlrs=False) as reader:
        expected = reader.header.point_count
        names = [n for n in reader.header.point_format.dimension_names if n not in ("X", "Y", "Z")]
        for chunk in reader.chunk_iterator(_CHUNK):
            parts.append({axis: np.asarray(chunk[axis], dtype=np.float64) for axis in "xyz"})
            parts[-1].update({name: np.array(chunk[name]) for name in names})
    present = sum(len(part["x"]) for part in parts)
    if present != expected:
        raise problem(path, f"{present} points", f"{expected}")
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _choose_format(laspy: ModuleType, attributes: dict[str, NDArray[Any]]) -> int:
    """Choose the plainest point format that has a place of its own for most attributes."""

    def covered(number: int) -> int:
        point_format = laspy.PointFormat(number)
        known = set(point_format.standard_dimension_names).intersection(attributes)
        return sum(_dimension(point_format, name, attributes[name]) == name for name in known)

    return max(_FORMATS, key=covered)


def _dimension(point_format: Any, name: str, values: NDArray[Any]) -> str:
    """Return where an attribute goes: to its standard dimension if it fits, else to an extra.

    An intensity of 0.25 does not fit into the 16-bit integer of LAS, so it becomes intensity_value.
    """
    if name not in point_format.standard_dimension_names:
        return name
    dimension = point_format.dimension_by_name(name)
    if dimension.dtype is not None and dimension.dtype.kind == "f":
        return name
    whole = np.isfinite(values).all() and np.array_equal(values, np.round(values))
    fits = whole and dimension.min <= values.min() and values.max() <= dimension.max
    return name if fits else f"{name}_value"


def _offset_and_scale(points: Float64) -> tuple[Float64, Float64]:
    """Return the minimum, rounded, and the coarsest power of ten that loses nothing, if any.

    Failing that the scale is the finest that int32 allows, and never coarser than 0.1 mm.
    """
    offset = np.floor(points.min(axis=0))
    extent = float((points.max(axis=0) - offset).max())
    decimals = [d for d in range(_COARSEST, _FINEST + 1) if extent * 10**d <= _MOST_STEPS]
    if not decimals:
        raise FileFormatError(
            f"the cloud is {extent:.6g} m wide and LAS at 0.1 mm ends at "
            f"{_MOST_STEPS / 10**_COARSEST:.0f} m; write .ply or split it"
        )
    rounding = 2 * np.spacing(np.abs(points).max(axis=0))
    for d in decimals:
        scale = 10.0**-d
        back = np.round((points - offset) / scale) * scale + offset
        if np.all(np.abs(back - points) <= rounding):
            break
    return offset, np.full(3, scale)
