"""PLY: ASCII and both binary byte orders, any properties, any elements around the vertices."""

from __future__ import annotations

import mmap
import re
from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vbreg.io.columns import (
    check_file,
    cloud_from_columns,
    coordinate_columns,
    coordinate_type,
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
from vbreg.io.rows import TextLines, narrowed, parse_rows, row_blocks
from vbreg.types import Float64, Int64, PointCloud

Encoding = Literal["ascii", "binary_little_endian", "binary_big_endian"]
Columns = dict[str, NDArray[Any]]

_ORDERS: dict[str, Literal["=", "<", ">"]] = {
    "ascii": "=",
    "binary_little_endian": "<",
    "binary_big_endian": ">",
}
_TYPES = {
    "char": "i1", "uchar": "u1", "short": "i2", "ushort": "u2", "int": "i4", "uint": "u4",
    "float": "f4", "double": "f8", "int8": "i1", "uint8": "u1", "int16": "i2", "uint16": "u2",
    "int32": "i4", "uint32": "u4", "int64": "i8", "uint64": "u8", "float32": "f4", "float64": "f8",
}  # fmt: skip
_NAMES = {code: name for name, code in reversed(list(_TYPES.items()))}
_CORNERS = ("vertex_indices", "vertex_index")  # the list of a face, as programs call it
_MAX_HEADER = 1 << 20
_END = re.compile(rb"[\r\n]end_header[ \t]*(?:\r\n|\n|\r|\Z)")


@dataclass(frozen=True)
class _Property:
    name: str
    dtype: np.dtype[Any]
    count: np.dtype[Any] | None = None  # the type of the length, where the property is a list


@dataclass(frozen=True)
class _Element:
    name: str
    count: int
    properties: list[_Property] = field(default_factory=list)

    @property
    def has_lists(self) -> bool:
        return any(p.count is not None for p in self.properties)

    @property
    def corners(self) -> int | None:
        """The property that lists the corners of a face."""
        found = [k for k, p in enumerate(self.properties) if p.name in _CORNERS and p.count]
        return found[0] if self.name == "face" and found else None

    @property
    def least_bytes(self) -> int:
        """The size of a row with every list empty."""
        return sum((p.count or p.dtype).itemsize for p in self.properties)


def read_ply(path: Path) -> PointCloud:
    """Read vertices and faces of a PLY in any of its encodings; polygons become triangles."""
    data = read_bytes(path)
    encoding, elements, start = _parse_header(path, data)
    names = [element.name for element in elements]
    if "vertex" not in names:
        found = ", ".join(names) or "none"
        raise problem(path, f"the elements {found}", "an element 'vertex'")
    vertex = elements[names.index("vertex")]
    if vertex.count == 0:
        raise problem(path, "zero points (element vertex 0)", "at least one point")
    wanted = {id(vertex)} | {id(e) for e in elements if e.corners is not None}
    last = max(k for k, element in enumerate(elements) if id(element) in wanted)
    read = _ascii_elements if encoding == "ascii" else _binary_elements
    columns, faces = read(path, data, elements[: last + 1], vertex, start)
    return replace(cloud_from_columns(path, columns), faces=_checked(path, faces, vertex.count))


def ply_blocks(path: Path, rows: int) -> Iterator[Float64] | None:
    """Return what yields the vertices, so many at a time; None where lists stand before them."""
    check_file(path)
    with path.open("rb") as file:
        head = file.read(_MAX_HEADER)
    encoding, elements, start = _parse_header(path, head)
    names = [element.name for element in elements]
    if "vertex" not in names:
        return None  # reading all of it tells what is wrong
    before = elements[: names.index("vertex")]
    vertex = elements[len(before)]
    axes = find_axes(p.name for p in vertex.properties)
    if vertex.has_lists or any(e.has_lists for e in before) or axes is None or not vertex.count:
        return None
    places = [[p.name for p in vertex.properties].index(axis) for axis in axes]
    if encoding == "ascii":
        return _ascii_blocks(path, start, sum(e.count for e in before), vertex, places, rows)
    start += sum(element.count * element.least_bytes for element in before)
    record = _row_type(vertex, [0] * len(vertex.properties))
    fields = [f"value{k}" for k in places]
    return point_blocks(path, start, record, fields, vertex.count, rows)


def _ascii_blocks(
    path: Path, start: int, above: int, vertex: _Element, axes: list[int], rows: int
) -> Iterator[Float64]:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        lines = islice(TextLines(data, start), above, above + vertex.count)
        yield from row_blocks(path, _counted(path, lines, vertex), rows, axes)


def write_ply(
    path: Path, cloud: PointCloud, encoding: Encoding = "binary_little_endian"
) -> list[str]:
    """Write a PLY of vertices and faces in any of its encodings; return what is lost."""
    attributes, lost = with_eight_bit_colours(flat_attributes(cloud))
    coordinate = coordinate_type(cloud.points)
    axes = {axis: v.astype(coordinate) for axis, v in coordinate_columns(cloud).items()}
    table = records({**axes, **attributes}, integer_bytes=4)
    kinds = {name: _NAMES[table.dtype[name].str[1:]] for name in table.dtype.names or ()}
    header = ["ply", f"format {encoding} 1.0", f"element vertex {len(table)}"]
    header += [f"property {kind} {name}" for name, kind in kinds.items()]
    tables = [table]
    if cloud.faces is not None and len(cloud.faces):
        header += [f"element face {len(cloud.faces)}", "property list uchar int vertex_indices"]
        tables.append(np.empty(len(cloud.faces), [("count", "u1"), ("corners", "<i4", (3,))]))
        tables[1]["count"], tables[1]["corners"] = 3, cloud.faces
    with path.open("wb") as file:
        file.write("\n".join([*header, "end_header\n"]).encode())
        for rows in tables:
            if encoding == "ascii":
                file.write(("\n".join(map(_ascii_row, rows.tolist())) + "\n").encode())
            else:
                file.write(rows.astype(rows.dtype.newbyteorder(_ORDERS[encoding])).tobytes())
    return lost


def _ascii_row(values: tuple[Any, ...]) -> str:
    return " ".join(
        " ".join(map(repr, v.tolist())) if isinstance(v, np.ndarray) else repr(v) for v in values
    )


def _parse_header(path: Path, data: bytes) -> tuple[str, list[_Element], int]:
    """Parse the encoding, the elements in file order, and where the data starts."""
    if not re.match(rb"ply[ \t]*[\r\n]", data):
        raise problem(path, f"a file that starts with {data[:12]!r}", "the line 'ply'")
    end = _END.search(data)
    if end is None:
        raise problem(path, "a header without end", "a line 'end_header'")
    encoding = ""
    elements: list[_Element] = []
    for line in islice(TextLines(data[: end.start()]), 1, None):
        words = line.split()
        try:
            if not words or words[0] in ("comment", "obj_info"):
                continue
            if words[0] == "format" and words[1] in _ORDERS:
                encoding = words[1]
            elif words[0] == "element":
                elements.append(_Element(words[1], _count(words[2])))
            elif words[0] == "property":
                elements[-1].properties.append(_parse_property(words[1:], _ORDERS[encoding]))
            else:
                raise ValueError
        except (ValueError, LookupError):
            shown = repr(line.strip()[:80])
            raise problem(path, f"the header line {shown}", "what PLY 1.0 allows") from None
    if not encoding:
        raise problem(path, "no line 'format'", f"one of {', '.join(_ORDERS)}")
    return encoding, elements, end.end()


def _count(word: str) -> int:
    number = whole_number(word)
    if number is None:
        raise ValueError(word)
    return number


def _parse_property(words: list[str], order: Literal["=", "<", ">"]) -> _Property:
    if words[0] != "list":
        kind, name = words
        return _Property(name, np.dtype(_TYPES[kind]).newbyteorder(order))
    _, length, kind, name = words
    count = np.dtype(_TYPES[length]).newbyteorder(order)
    if count.kind == "f":
        raise ValueError(length)
    return _Property(name, np.dtype(_TYPES[kind]).newbyteorder(order), count)


def _truncated(path: Path, element: _Element, present: str) -> Exception:
    return problem(path, f"{present} for the element '{element.name}'", f"{element.count} rows")


def _scalars(element: _Element) -> list[tuple[str, int]]:
    """List the unique name and the index of every property that is not a list."""
    names = unique_names(p.name for p in element.properties)
    return [(names[k], k) for k, p in enumerate(element.properties) if p.count is None]


def _binary_elements(
    path: Path, data: bytes, elements: list[_Element], vertex: _Element, start: int
) -> tuple[Columns, list[Int64]]:
    """Return the scalar columns of the vertices, and the triangles of the faces."""
    columns: Columns = {}
    faces: list[Int64] = []
    for element in elements:
        if element.count == 0 or not element.properties:
            continue
        uniform = _uniform_rows(path, data, element, start)
        if uniform is not None:
            table, start = uniform
            if element is vertex:
                columns = {name: table[f"value{k}"] for name, k in _scalars(element)}
            elif element.corners is not None:
                faces = [_fan(table[f"value{element.corners}"])]
            continue
        places, start = _ragged_rows(path, data, element, start)
        if element is vertex:
            columns = {name: _gather(data, places, element, k) for name, k in _scalars(element)}
        elif element.corners is not None:
            faces = _ragged_faces(data, places, element, element.corners)
    return columns, faces


def _uniform_rows(
    path: Path, data: bytes, element: _Element, start: int
) -> tuple[NDArray[Any], int] | None:
    """Return the rows as records and where the next element starts, if all have one size.

    They always have without lists; with lists, if a mesh is of triangles only.
    """
    present = len(data) - start
    if element.count * element.least_bytes > present:
        raise _truncated(path, element, f"{present} bytes")
    lengths, offsets = _walk_row(path, data, element, start)
    stop = start + element.count * (offsets[-1] - start)
    if stop > len(data):
        return None
    table = np.frombuffer(data, _row_type(element, lengths), element.count, start)
    lists = [k for k, p in enumerate(element.properties) if p.count is not None]
    uniform = all(np.all(table[f"length{k}"] == lengths[k]) for k in lists)
    return (table, stop) if uniform else None


def _row_type(element: _Element, lengths: list[int]) -> np.dtype[Any]:
    """Return the type of one row as a record, if every list is as long as given."""
    fields: list[Any] = []
    for k, p in enumerate(element.properties):
        if p.count is None:
            fields.append((f"value{k}", p.dtype))
        else:
            fields += [(f"length{k}", p.count), (f"value{k}", p.dtype, (lengths[k],))]
    return np.dtype(fields)


def _walk_row(path: Path, data: bytes, element: _Element, at: int) -> tuple[list[int], list[int]]:
    """Find list length (0 for a scalar) and offset of each property; the row's end is last."""
    lengths, offsets = [], []
    for p in element.properties:
        length = 0
        offsets.append(at)
        if p.count is None:
            at += p.dtype.itemsize
        else:
            word = data[at : at + p.count.itemsize]
            length = int.from_bytes(
                word, "big" if p.count.str[0] == ">" else "little", signed=p.count.kind == "i"
            )
            at += p.count.itemsize + length * p.dtype.itemsize
        if length < 0 or at > len(data):
            raise _truncated(path, element, f"a list of {length} values that the file cannot hold")
        lengths.append(length)
    return lengths, [*offsets, at]


def _ragged_rows(path: Path, data: bytes, element: _Element, at: int) -> tuple[Int64, int]:
    """Walk rows of different sizes; return where each property of each lies, and their end."""
    places = array("q")  # eight bytes each, so that a small file cannot take much memory
    for _ in range(element.count):
        _, offsets = _walk_row(path, data, element, at)
        places.extend(offsets[:-1])
        at = offsets[-1]
    return np.frombuffer(places, np.int64).reshape(element.count, -1), at


def _gather(data: bytes, places: Int64, element: _Element, k: int) -> NDArray[Any]:
    """Return the scalar property of all rows."""
    return _values_at(data, places[:, k], element.properties[k].dtype, 1)[:, 0]


def _values_at(data: bytes, places: Int64, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
    """Return (M, count) values of one type, as many from each place on."""
    raw = np.frombuffer(data, np.uint8)
    return raw[places[:, None] + np.arange(count * dtype.itemsize)].view(dtype)


def _ragged_faces(data: bytes, places: Int64, element: _Element, k: int) -> list[Int64]:
    """Return the triangles of polygons that have different numbers of corners."""
    corner = element.properties[k]
    assert corner.count is not None
    lengths = _values_at(data, places[:, k], corner.count, 1)[:, 0]
    faces = []
    for length in np.unique(lengths):
        first = places[lengths == length, k] + corner.count.itemsize
        if length >= 3:
            faces.append(_fan(_values_at(data, first, corner.dtype, int(length))))
    return faces


def _fan(polygons: NDArray[Any]) -> Int64:
    """Cut polygons (F, k) into triangles that all begin at their first corner."""
    polygons = polygons.astype(np.int64)
    parts = [polygons[:, [0, k, k + 1]] for k in range(1, polygons.shape[1] - 1)]
    return np.concatenate(parts) if parts else np.empty((0, 3), np.int64)


def _checked(path: Path, faces: list[Int64], points: int) -> Int64 | None:
    """Return all triangles, or None where there are none."""
    faces = [part for part in faces if len(part)]
    if not faces:
        return None
    triangles = np.concatenate(faces)
    low, high = int(triangles.min()), int(triangles.max())
    if low < 0 or high >= points:
        wrong = low if low < 0 else high
        raise problem(path, f"a face with the vertex {wrong}", f"0 to {points - 1}")
    return triangles


def _ascii_elements(
    path: Path, data: bytes, elements: list[_Element], vertex: _Element, start: int
) -> tuple[Columns, list[Int64]]:
    """Return the scalar columns of the vertices, and the triangles of the faces."""
    lines = iter(TextLines(data, start))
    columns: Columns = {}
    faces: list[Int64] = []
    for element in elements:
        if not element.properties:
            continue
        rows = _counted(path, islice(lines, element.count), element)
        if element is vertex:
            columns = _ascii_vertices(path, rows, vertex)
        elif element.corners is not None:
            faces = _ascii_faces(path, rows, element, element.corners)
        deque(rows, maxlen=0)  # passes over an element that nobody asks for
    return columns, faces


def _counted(path: Path, lines: Iterable[str], element: _Element) -> Iterator[str]:
    """Yield the lines of an element, and complain where there are too few."""
    count = 0
    for line in lines:
        yield line
        count += 1
    if count < element.count:
        raise _truncated(path, element, f"{count} lines")


def _ascii_vertices(path: Path, lines: Iterable[str], vertex: _Element) -> Columns:
    if vertex.has_lists:
        lines = (" ".join(_words(path, line, vertex)[0]) for line in lines)
    scalars = _scalars(vertex)
    if not scalars:
        return {}
    table = parse_rows(path, lines)
    if table.shape[1] != len(scalars):
        raise problem(path, f"{table.shape[1]} values per vertex", f"{len(scalars)}")
    columns: Columns = {}
    for (name, k), values in zip(scalars, table.T, strict=True):
        # Coordinates keep every digit of the text, even where the header says float.
        coordinate = name.lower() in ("x", "y", "z")
        columns[name] = values if coordinate else narrowed(values, vertex.properties[k].dtype)
    return columns


def _ascii_faces(path: Path, lines: Iterable[str], element: _Element, k: int) -> list[Int64]:
    """Return the triangles of polygons, sorted by their number of corners."""
    by_length: dict[int, array[int]] = {}
    for line in lines:
        corners = _words(path, line, element)[1].get(k, [])
        try:
            by_length.setdefault(len(corners), array("q")).extend(map(int, corners))
        except (ValueError, OverflowError):
            raise problem(path, f"the face {line[:80]!r}", "whole numbers") from None
    return [
        _fan(np.frombuffer(values, np.int64).reshape(-1, length))
        for length, values in by_length.items()
        if length >= 3
    ]


def _words(path: Path, line: str, element: _Element) -> tuple[list[str], dict[int, list[str]]]:
    """Return the words of a row that are scalars, and those of each list by its property."""
    words, kept = line.split(), []
    lists: dict[int, list[str]] = {}
    at = 0
    try:
        for k, p in enumerate(element.properties):
            if p.count is None:
                kept.append(words[at])
                at += 1
            else:
                length = _count(words[at])
                lists[k] = words[at + 1 : at + 1 + length]
                at += 1 + length
                if at > len(words):
                    raise ValueError(line)
    except (ValueError, IndexError):
        shown = f"the {element.name} {line[:80]!r}"
        raise problem(path, shown, "a value per property") from None
    return kept, lists
