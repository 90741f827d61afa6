"""PCD, versions up to 0.7: ASCII, binary and compressed."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vbreg.errors import FileFormatError
from vbreg.io import lzf
from vbreg.io.columns import (
    check_file,
    cloud_from_columns,
    coordinate_columns,
    find_axes,
    flat_attributes,
    point_blocks,
    problem,
    read_bytes,
    records,
    unique_names,
    whole_number,
    with_eight_bit_colours,
)
from vbreg.io.names import COLOUR_NAMES, PCL_NORMALS, has_all, packed_colours, unpacked_colours
from vbreg.io.rows import TextLines, decoded, narrowed, parse_rows, row_blocks
from vbreg.types import NORMAL_NAMES, Float64, PointCloud

Encoding = Literal["ascii", "binary", "binary_compressed"]
Columns = dict[str, NDArray[Any]]

_TYPES = {"I": (1, 2, 4, 8), "U": (1, 2, 4, 8), "F": (4, 8)}
_KINDS = {"i": "I", "u": "U", "f": "F"}
_PADDING = "_"
_ALL_DIGITS = ("x", "y", "z", "rgb", "rgba")  # float32 would round packed colours in ASCII
_MAX_HEADER = 1 << 20
_MAX_COUNT = 1 << 20


@dataclass(frozen=True)
class _Field:
    name: str
    dtype: np.dtype[Any]
    count: int

    @property
    def bytes(self) -> int:
        return self.dtype.itemsize * self.count


def read_pcd(path: Path) -> PointCloud:
    """Read PCL's format in any of its encodings; packed colours become red, green and blue."""
    data = read_bytes(path)
    header, start = _parse_header(path, data)
    fields = _parse_fields(path, header)
    width, height = _parse_size(path, header)
    encoding = header["DATA"][0].lower() if header["DATA"] else ""
    body = data[start:]
    if encoding == "ascii":
        columns = _ascii(path, body, fields, width * height)
    elif encoding == "binary":
        columns = _binary(path, body, fields, width * height)
    elif encoding == "binary_compressed":
        columns = _compressed(path, body, fields, width * height)
    else:
        raise problem(path, f"DATA {encoding!r}", "ascii, binary or binary_compressed")
    cloud = cloud_from_columns(path, unpacked(columns))
    return replace(cloud, grid=(width, height) if height > 1 else None)


def pcd_blocks(path: Path, rows: int) -> Iterator[Float64] | None:
    """Return what yields the points, so many at a time; None where they are compressed."""
    check_file(path)
    with path.open("rb") as file:
        head = file.read(_MAX_HEADER)
    header, start = _parse_header(path, head)
    fields = _parse_fields(path, header)
    width, height = _parse_size(path, header)
    names = [field.name if field.count == 1 else "" for field in fields]
    axes = find_axes(names)
    encoding = header["DATA"][0].lower() if header["DATA"] else ""
    if axes is None or encoding not in ("ascii", "binary"):
        return None  # reading all of it tells what is wrong, if something is
    places = [names.index(axis) for axis in axes]
    if encoding == "ascii":
        columns = [sum(field.count for field in fields[:k]) for k in places]
        return _ascii_blocks(path, start, width * height, columns, rows)
    record = np.dtype([(f"f{k}", f.dtype, (f.count,)) for k, f in enumerate(fields)])
    flat = (f"f{k}" for k in places)
    found = point_blocks(path, start, record, list(flat), width * height, rows)
    return (block[..., 0] for block in found)


def _ascii_blocks(
    path: Path, start: int, points: int, axes: list[int], rows: int
) -> Iterator[Float64]:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        count = 0
        for block in row_blocks(path, islice(TextLines(data, start), points), rows, axes):
            yield block
            count += len(block)
    if count < points:
        raise problem(path, f"{count} lines of data", f"{points}")


def write_pcd(path: Path, cloud: PointCloud, encoding: Encoding = "binary") -> list[str]:
    """Write PCL's format in any of its encodings, fields as PCL has them; return what is lost.

    Coordinates are float32 if the cloud holds them so: PCL and Open3D read no others.
    """
    columns, lost = _pcl_columns(cloud)
    table = records(columns, integer_bytes=8)
    names = table.dtype.names or ()
    dtypes = [table.dtype[name] for name in names]
    width, height = cloud.grid or (len(table), 1)
    header = {
        "VERSION": "0.7",
        "FIELDS": " ".join(names),
        "SIZE": " ".join(str(dtype.itemsize) for dtype in dtypes),
        "TYPE": " ".join(_KINDS[dtype.kind] for dtype in dtypes),
        "COUNT": " ".join("1" for _ in names),
        "WIDTH": str(width),
        "HEIGHT": str(height),
        "VIEWPOINT": "0 0 0 1 0 0 0",
        "POINTS": str(len(table)),
        "DATA": encoding,
    }
    lines = ["# .PCD v0.7 - Point Cloud Data file format"]
    lines += [f"{key} {value}" for key, value in header.items()]
    with path.open("wb") as file:
        file.write(("\n".join(lines) + "\n").encode())
        if encoding == "ascii":
            rows = (" ".join(map(repr, row)) for row in table.tolist())
            file.write(("\n".join(rows) + "\n").encode())
        elif encoding == "binary":
            file.write(table.tobytes())
        else:
            file.write(_compress(table))
    return lost


def _pcl_columns(cloud: PointCloud) -> tuple[Columns, list[str]]:
    """Return the columns as PCL's own types of points have them, and what is lost by that."""
    attributes, lost = with_eight_bit_colours(flat_attributes(cloud))
    columns: Columns = {**coordinate_columns(cloud), **attributes}
    if "intensity" in columns:
        columns["intensity"] = columns["intensity"].astype(np.float32)
    if has_all(columns, COLOUR_NAMES) and "rgb" not in columns:
        packed = packed_colours({name: columns[name] for name in COLOUR_NAMES})
        columns = _replaced(columns, COLOUR_NAMES, {"rgb": packed.view(np.float32)})
    if has_all(columns, NORMAL_NAMES) and not set(PCL_NORMALS) & set(columns):
        normals = [columns[name].astype(np.float32) for name in NORMAL_NAMES]
        columns = _replaced(columns, NORMAL_NAMES, dict(zip(PCL_NORMALS, normals, strict=True)))
    return columns, lost


def _replaced(columns: Columns, old: tuple[str, ...], new: Columns) -> Columns:
    """Return the columns with some in place of others, where the first of these was."""
    result: Columns = {}
    for name, values in columns.items():
        result.update(new if name == old[0] else {} if name in old else {name: values})
    return result


def unpacked(columns: Columns) -> Columns:
    """Return the columns with red, green and blue in place of PCL's packed rgb or rgba."""
    for name in ("rgb", "rgba"):
        packed = columns.get(name)
        if packed is None or packed.ndim != 1 or packed.dtype.itemsize not in (4, 8):
            continue
        if not set(COLOUR_NAMES) & set(columns):
            colours = unpacked_colours(packed, alpha=name == "rgba")
            columns = _replaced(columns, (name,), {k: v for k, v in colours.items()})
    return columns


def _compress(table: NDArray[Any]) -> bytes:
    """Compress column after column, as the format wants it: equal bytes lie closer together."""
    raw = b"".join(table[name].tobytes() for name in table.dtype.names or ())
    packed = lzf.compress(raw)
    if max(len(raw), len(packed)) >= 1 << 32:
        raise FileFormatError(
            f"binary_compressed holds 4 GiB at most and this cloud has {len(raw)} bytes; "
            "write binary"
        )
    return struct.pack("<II", len(packed), len(raw)) + packed


def _parse_header(path: Path, data: bytes) -> tuple[dict[str, list[str]], int]:
    """Parse the header to the words of each key, and find where the data starts."""
    header: dict[str, list[str]] = {}
    start = 0
    while "DATA" not in header:
        end = data.find(b"\n", start, start + _MAX_HEADER)
        if end < 0 or end > _MAX_HEADER:
            raise problem(path, "a header without the line DATA", "a PCD header")
        words = decoded(data[start:end]).split()
        start = end + 1
        if words and not words[0].startswith("#"):
            header[words[0].upper()] = words[1:]
    return header, start


def _parse_fields(path: Path, header: dict[str, list[str]]) -> list[_Field]:
    names = header.get("FIELDS") or header.get("COLUMNS") or []  # COLUMNS before version 0.6
    if not names:
        raise problem(path, "no line FIELDS", "FIELDS x y z ...")
    sizes = header.get("SIZE") or ["4"] * len(names)
    kinds = header.get("TYPE") or ["F"] * len(names)
    counts = header.get("COUNT") or ["1"] * len(names)
    if not len(names) == len(sizes) == len(kinds) == len(counts):
        found = f"{len(names)} FIELDS, {len(sizes)} SIZE, {len(kinds)} TYPE, {len(counts)} COUNT"
        raise problem(path, found, "as many of each")
    fields = []
    for name, size, kind, count in zip(names, sizes, kinds, counts, strict=True):
        repeats = whole_number(count) or 0
        if whole_number(size) not in _TYPES.get(kind.upper(), ()) or not 1 <= repeats <= _MAX_COUNT:
            found = f"the field '{name}' of TYPE {kind}, SIZE {size}, COUNT {count}"
            raise problem(
                path, found, f"I or U of 1, 2, 4, 8 bytes or F of 4, 8, COUNT 1 to {_MAX_COUNT}"
            )
        fields.append(_Field(name, np.dtype(f"<{kind.lower()}{int(size)}"), repeats))
    return fields


def _parse_size(path: Path, header: dict[str, list[str]]) -> tuple[int, int]:
    """Return width and height, with whose product POINTS must agree."""
    numbers: dict[str, int] = {}
    for key in ("WIDTH", "HEIGHT", "POINTS"):
        words = header.get(key)
        if words is not None:
            number = whole_number(words[0]) if len(words) == 1 else None
            if number is None:
                raise problem(path, f"{key} {' '.join(words)[:40]}", "one whole number")
            numbers[key] = number
    area = numbers["WIDTH"] * numbers.get("HEIGHT", 1) if "WIDTH" in numbers else None
    points = numbers.get("POINTS", area)
    if points is None:
        raise problem(path, "neither POINTS nor WIDTH and HEIGHT", "the number of points")
    if area is not None and points != area:
        raise problem(path, f"POINTS {points} but WIDTH x HEIGHT = {area}", "equal numbers")
    if points == 0:
        raise problem(path, "zero points", "at least one point")
    return (points, 1) if area is None else (numbers["WIDTH"], numbers.get("HEIGHT", 1))


def _named(fields: list[_Field], values: list[NDArray[Any]]) -> Columns:
    """Return columns by name; padding is left out, COUNT 1 loses its second axis."""
    kept = [
        (field.name, column[:, 0] if field.count == 1 else column)
        for field, column in zip(fields, values, strict=True)
        if field.name != _PADDING
    ]
    names = unique_names(name for name, _ in kept)
    return dict(zip(names, (column for _, column in kept), strict=True))


def _need(path: Path, present: int, wanted: int, points: int) -> None:
    if present < wanted:
        raise problem(path, f"{present} bytes of data", f"{wanted} for {points} points")


def _binary(path: Path, body: bytes, fields: list[_Field], points: int) -> Columns:
    _need(path, len(body), points * sum(field.bytes for field in fields), points)
    row = np.dtype([(f"f{k}", f.dtype, (f.count,)) for k, f in enumerate(fields)])
    table = np.frombuffer(body, row, points)
    return _named(fields, [table[f"f{k}"] for k in range(len(fields))])


def _compressed(path: Path, body: bytes, fields: list[_Field], points: int) -> Columns:
    _need(path, len(body), 8, points)
    packed, size = struct.unpack_from("<II", body)
    _need(path, len(body) - 8, packed, points)
    wanted = points * sum(field.bytes for field in fields)
    if size != wanted or size > packed * lzf.MAX_RATIO:
        found = f"{packed} compressed bytes that claim to be {size}"
        raise problem(path, found, f"{wanted} bytes for {points} points")
    try:
        raw = lzf.decompress(body[8 : 8 + packed], size)
    except ValueError as exc:
        raise problem(path, f"damaged compressed data ({exc})", f"{size} bytes") from exc
    columns, start = [], 0
    for field in fields:
        flat = np.frombuffer(raw, field.dtype, points * field.count, start)
        columns.append(flat.reshape(points, field.count))
        start += points * field.bytes
    return _named(fields, columns)


def _ascii(path: Path, body: bytes, fields: list[_Field], points: int) -> Columns:
    width = sum(field.count for field in fields)
    _need(path, len(body) + 1, points * width * 2, points)  # a digit and a blank each
    lines = TextLines(body)
    table = parse_rows(path, islice(lines, points))
    if len(table) < points:
        raise problem(path, f"{len(table)} lines of data", f"{points}")
    if table.shape[1] != width:
        raise problem(path, f"{table.shape[1]} values per line", f"{width}")
    columns, at = [], 0
    for field in fields:
        values = table[:, at : at + field.count]
        if field.dtype.kind in "iu" and field.dtype.itemsize == 8:
            values = _whole(path, lines, range(at, at + field.count), values, field.dtype)
        elif field.name.lower() not in _ALL_DIGITS:
            values = narrowed(values, field.dtype)
        columns.append(values)
        at += field.count
    return _named(fields, columns)


def _whole(
    path: Path, lines: TextLines, usecols: range, values: NDArray[Any], dtype: np.dtype[Any]
) -> NDArray[Any]:
    """Parse 64-bit integers (time stamps) as such: float64 would round them."""
    try:
        return parse_rows(path, islice(lines, len(values)), usecols=usecols, dtype=dtype)
    except FileFormatError:
        return values  # written as 1e9 or nan: what float64 made of it is all there is
