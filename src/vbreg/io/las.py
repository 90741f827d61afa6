"""LAS and LAZ, through laspy (installed by vbreg[io])."""

from __future__ import annotations

import logging
import mmap
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vbreg.errors import FileFormatError, MissingExtraError, VBRegError
from vbreg.io.child import blocks_from_child, decode_in_child
from vbreg.io.columns import check_file, cloud_from_columns, flat_attributes, problem, storable
from vbreg.io.names import (
    COLOUR_NAMES,
    LAS_NORMALS,
    has_all,
    narrowed_colours,
    sixteen_bit_colours,
)
from vbreg.types import NORMAL_NAMES, Float64, PointCloud

_CHUNK = 1_000_000  # points decoded at a time: a header cannot make us allocate what it claims
_OLD_FORMATS = (0, 1, 2, 3)  # point formats without waveforms, the plainest first
_FORMATS = (*_OLD_FORMATS, 6, 7, 8)
_PROJECTION = "LASF_Projection"
_WKT = 2112
_CRS_RECORDS = (2111, _WKT, 34735, 34736, 34737)  # well-known text, and the keys of GeoTIFF
_MAX_RECORDS = 10_000
_MAX_RATIO = 100  # of the size of the points to that of the file; 20 is much already
_SPARE = 1 << 26  # bytes of points that a file of any size may claim
_COPIES = 6  # of the points that the decoder holds at a time, widened to float64
_MEMORY = 1 << 28  # bytes that it may need besides
_COARSEST, _FINEST = 4, 9  # decimals of the written scale, 0.1 mm to 1 nm
_MOST_STEPS = 2_000_000_000  # of the scale along an axis, just within int32
_MAX_NAME = 32
_ELSEWHERE = "_value"  # behind the name of a dimension whose values do not fit into its own place
_VARIABLE = 0xFFFFFFFF  # the chunk size of a LAZ file whose chunks differ
_SILENT = logging.NullHandler()


def read_las(path: Path) -> PointCloud:
    """Read LAS or LAZ with all dimensions; coordinates are float64, scaled and shifted.

    Compressed points are decoded in a process of their own, with a limit of memory.
    """
    _laspy("reading", path)
    check_file(path)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        header = _check_header(path, data)
        crs = _reference_system(data, header)
    if header.compressed:
        cloud = decode_in_child(path, "las", _MEMORY + _COPIES * header.points * header.point_bytes)
    else:
        cloud = decode(path)
    return replace(cloud, crs=crs)


def las_blocks(path: Path, rows: int) -> Iterator[Float64]:
    """Yield the points, so many at a time; compressed ones from a process of their own."""
    _laspy("reading", path)
    check_file(path)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        header = _check_header(path, data)
    if not header.compressed:
        yield from decode_blocks(path, rows)
        return
    held = _COPIES * min(rows, header.points) * header.point_bytes
    yield from blocks_from_child(path, "las", _MEMORY + held, rows)


def decode_blocks(path: Path, rows: int) -> Iterator[Float64]:
    """Decode the coordinates of a file whose header was checked, so many points at a time."""
    laspy = _laspy("reading", path)
    try:
        with laspy.open(str(path), laz_backend=laspy.LazBackend.Lazrs, read_evlrs=False) as reader:
            present = 0
            for chunk in reader.chunk_iterator(rows):
                axes = [np.asarray(chunk[axis], dtype=np.float64) for axis in "xyz"]
                yield np.stack(axes, axis=1)
                present += len(axes[0])
            expected = reader.header.point_count
    except (VBRegError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as exc:  # a panic inside the LAZ decoder is not an Exception
        reason = str(exc).split("\n")[0]
        raise problem(path, f"damaged data ({reason})", "a LAS or LAZ file") from exc
    if present != expected:
        raise problem(path, f"{present} points", f"{expected}")


def decode(path: Path) -> PointCloud:
    """Decode the points of a file whose header was checked."""
    laspy = _laspy("reading", path)
    try:
        columns = _read_columns(laspy, path)
    except (VBRegError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as exc:  # a panic inside the LAZ decoder is not an Exception
        reason = str(exc).split("\n")[0]
        raise problem(path, f"damaged data ({reason})", "a LAS or LAZ file") from exc
    for name in [name for name in columns if name.endswith(_ELSEWHERE)]:
        if not np.any(columns.get(name.removesuffix(_ELSEWHERE), 1)):
            columns[name.removesuffix(_ELSEWHERE)] = columns.pop(name)
    if has_all(columns, COLOUR_NAMES):
        columns |= narrowed_colours({name: columns[name] for name in COLOUR_NAMES})
    return cloud_from_columns(path, columns)


def write_las(path: Path, cloud: PointCloud) -> list[str]:
    """Write LAS or LAZ, attributes as its dimensions where it has them; return what is lost."""
    laspy = _laspy("writing", path)
    if not np.isfinite(cloud.points).all():
        raise FileFormatError("LAS has no way to store a non-finite point; drop these points first")
    attributes = _las_attributes(cloud)
    header = _new_header(laspy, cloud, attributes)
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
    return []


def _las_attributes(cloud: PointCloud) -> dict[str, NDArray[Any]]:
    """Return the attributes with 16-bit colours, and with normals under the names of LAS."""
    attributes = flat_attributes(cloud)
    if has_all(attributes, COLOUR_NAMES):
        attributes |= sixteen_bit_colours(attributes)
    if has_all(attributes, NORMAL_NAMES):
        renamed = dict(zip(NORMAL_NAMES, LAS_NORMALS, strict=True))
        attributes = {renamed.get(name, name): values for name, values in attributes.items()}
    return attributes


def _new_header(laspy: ModuleType, cloud: PointCloud, attributes: dict[str, NDArray[Any]]) -> Any:
    """Make a header with scale, offset and the records of the reference system."""
    wkt = _WKT in cloud.crs
    formats = _FORMATS if wkt or not cloud.crs else _OLD_FORMATS
    number = _choose_format(laspy, attributes, formats)
    header = laspy.LasHeader(point_format=number, version="1.4" if wkt else None)
    header.offsets, header.scales = _offset_and_scale(cloud.points)
    for record, content in cloud.crs.items():
        header.vlrs.append(laspy.VLR(_PROJECTION, record, "", content))
    header.global_encoding.wkt = wkt or number > max(_OLD_FORMATS)
    return header


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


class _Header(NamedTuple):
    size: int  # bytes of the header itself
    records: int  # before the points
    start: int  # of the points
    points: int
    point_bytes: int
    compressed: bool


def _check_header(path: Path, data: mmap.mmap) -> _Header:
    """Refuse what laspy would answer with a huge allocation or an endless loop."""
    if data[:4] != b"LASF" or len(data) < 227:
        raise problem(path, f"a file of {len(data)} bytes from {data[:4]!r} on", "a LAS header")
    header_size, start, records = struct.unpack_from("<HII", data, 94)
    kind, size, points = struct.unpack_from("<BHI", data, 104)
    if data[25] >= 4 and len(data) >= 255:
        points = struct.unpack_from("<Q", data, 247)[0] or points
    header = _Header(header_size, records, start, points, size, bool(kind & 0x80))
    if points == 0:
        raise problem(path, "zero points", "at least one point")
    if start > len(data) or header_size + 54 * records > start:
        raise problem(path, f"{len(data)} bytes", f"points from byte {start} on")
    if not header.compressed:
        if start + points * size > len(data):
            raise problem(path, f"{len(data) - start} bytes of points", f"{points} of {size} bytes")
        return header
    record = next(
        (r.content for r in _records(data, header) if r.is_a("laszip encoded", 22204)), b""
    )
    _check_laz(path, data, record, header)
    return header


class _Record(NamedTuple):
    user: bytes
    number: int
    content: bytes

    def is_a(self, user: str, number: int) -> bool:
        return self.user == user.encode() and self.number == number


def _records(data: mmap.mmap, header: _Header) -> Iterator[_Record]:
    """Yield the records before the points, and those behind them that LAS 1.4 allows."""
    at = header.size
    for _ in range(header.records):
        if at + 54 > len(data):
            break
        user, number, length = struct.unpack_from("<2x16sHH", data, at)
        yield _Record(user.rstrip(b"\0"), number, data[at + 54 : at + 54 + length])
        at += 54 + length
    if data[25] < 4 or header.size < 247 or len(data) < 247:
        return
    at, count = struct.unpack_from("<QI", data, 235)
    for _ in range(min(count, _MAX_RECORDS)):
        if at + 60 > len(data) or not at:
            break
        user, number, length = struct.unpack_from("<2x16sHQ", data, at)
        yield _Record(user.rstrip(b"\0"), number, data[at + 60 : min(at + 60 + length, len(data))])
        at += 60 + length


def _reference_system(data: mmap.mmap, header: _Header) -> dict[int, bytes]:
    """Return the records that say in which reference system the coordinates are."""
    return {
        record.number: record.content
        for record in _records(data, header)
        if record.user == _PROJECTION.encode() and record.number in _CRS_RECORDS
    }


def _check_laz(path: Path, data: mmap.mmap, record: bytes, header: _Header) -> None:
    """Refuse more points than the chunks hold: a decoder would go on for ever on a wrong count.

    Chunks without a fixed size, or whose table's place a stream left open, are not checked.
    """
    start, points = header.start, header.points
    if len(record) < 34 or start + 8 > len(data):
        raise problem(path, "compressed points without their description", "a LASzip record")
    if points * header.point_bytes > _MAX_RATIO * len(data) + _SPARE:
        found = f"{len(data)} bytes that claim to hold {points} points of {header.point_bytes}"
        raise problem(path, found, f"points of at most {_MAX_RATIO} times the size of the file")
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


def _choose_format(
    laspy: ModuleType, attributes: dict[str, NDArray[Any]], formats: tuple[int, ...]
) -> int:
    """Choose the plainest point format that has a place of its own for most attributes."""

    def covered(number: int) -> int:
        point_format = laspy.PointFormat(number)
        known = set(point_format.standard_dimension_names).intersection(attributes)
        return sum(_dimension(point_format, name, attributes[name]) == name for name in known)

    return max(formats, key=covered)


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
    return name if fits else f"{name}{_ELSEWHERE}"


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
