"""PLY: ASCII and both binary byte orders, any properties, any elements around the vertices."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vbreg.io.columns import (
    cloud_from_columns,
    problem,
    read_bytes,
    records,
    unique_names,
    whole_number,
)
from vbreg.io.rows import narrowed, parse_rows, text_lines
from vbreg.types import PointCloud

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
    def least_bytes(self) -> int:
        """The size of a row with every list empty."""
        return sum((p.count or p.dtype).itemsize for p in self.properties)


def read_ply(path: Path) -> PointCloud:
    """Read the vertices of a PLY in any of its encodings."""
    data = read_bytes(path)
    encoding, elements, start = _parse_header(path, data)
    names = [element.name for element in elements]
    if "vertex" not in names:
        found = ", ".join(names) or "none"
        raise problem(path, f"the elements {found}", "an element 'vertex'")
    before, vertex = elements[: names.index("vertex")], elements[names.index("vertex")]
    if vertex.count == 0:
        raise problem(path, "zero points (element vertex 0)", "at least one point")
    if encoding == "ascii":
        columns = _ascii_vertices(path, data[start:], before, vertex)
    else:
        for element in before:
            _, start = _binary_rows(path, data, element, start)
        columns, _ = _binary_rows(path, data, vertex, start)
    return cloud_from_columns(path, columns)


def write_ply(path: Path, cloud: PointCloud, encoding: Encoding = "binary_little_endian") -> None:
    """Write a PLY of vertices in any of its encodings."""
    table = records(cloud, integer_bytes=4)
    dtype = table.dtype.newbyteorder(_ORDERS[encoding])
    kinds = {name: _NAMES[table.dtype[name].str[1:]] for name in table.dtype.names or ()}
    header = ["ply", f"format {encoding} 1.0", f"element vertex {len(table)}"]
    header += [f"property {kind} {name}" for name, kind in kinds.items()]
    with path.open("wb") as file:
        file.write("\n".join([*header, "end_header\n"]).encode())
        if encoding == "ascii":
            rows = (" ".join(map(repr, row)) for row in table.tolist())
            file.write(("\n".join(rows) + "\n").encode())
        else:
            file.write(table.astype(dtype).tobytes())


def _parse_header(path: Path, data: bytes) -> tuple[str, list[_Element], int]:
    """Parse the encoding, the elements in file order, and where the data starts."""
    if not re.match(rb"ply[ \t]*[\r\n]", data):
        raise problem(path, f"a file that starts with {data[:12]!r}", "the line 'ply'")
    end = _END.search(data)
    if end is None:
        raise problem(path, "a header without end", "a line 'end_header'")
    encoding = ""
    elements: list[_Element] = []
    for line in text_lines(data[: end.start()])[1:]:
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


def _binary_rows(path: Path, data: bytes, element: _Element, start: int) -> tuple[Columns, int]:
    """Return the scalar columns of an element and where the next element starts."""
    if element.count == 0 or not element.properties:
        return {}, start
    present = len(data) - start
    if element.count * element.least_bytes > present:
        raise _truncated(path, element, f"{present} bytes")
    lengths, offsets = _walk_row(path, data, element, start)
    stop = start + element.count * (offsets[-1] - start)
    if stop <= len(data):
        table = np.frombuffer(data, _row_type(element, lengths), element.count, start)
        uniform = all(
            np.all(table[f"length{k}"] == lengths[k])
            for k, p in enumerate(element.properties)
            if p.count is not None
        )
        if uniform:  # always, without lists; with lists, a mesh of triangles only
            return {name: table[f"value{k}"] for name, k in _scalars(element)}, stop
    return _ragged_rows(path, data, element, start)


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


def _ragged_rows(path: Path, data: bytes, element: _Element, at: int) -> tuple[Columns, int]:
    """Walk rows of different sizes one by one, then gather each column at once."""
    places = []
    for _ in range(element.count):
        _, offsets = _walk_row(path, data, element, at)
        places.append(offsets[:-1])
        at = offsets[-1]
    table = np.asarray(places)
    raw = np.frombuffer(data, np.uint8)
    columns: Columns = {}
    for name, k in _scalars(element):
        dtype = element.properties[k].dtype
        columns[name] = raw[table[:, k, None] + np.arange(dtype.itemsize)].view(dtype)[:, 0]
    return columns, at


def _ascii_vertices(path: Path, data: bytes, before: list[_Element], vertex: _Element) -> Columns:
    lines = [line for line in text_lines(data) if line and not line.isspace()]
    skipped = sum(element.count for element in before if element.properties)
    if len(lines) < skipped + vertex.count:
        raise _truncated(path, vertex, f"{max(0, len(lines) - skipped)} lines")
    lines = lines[skipped : skipped + vertex.count]
    if vertex.has_lists:
        lines = [_without_lists(path, line, vertex) for line in lines]
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


def _without_lists(path: Path, line: str, vertex: _Element) -> str:
    words, kept = line.split(), []
    at = 0
    try:
        for p in vertex.properties:
            if p.count is None:
                kept.append(words[at])
                at += 1
            else:
                at += 1 + _count(words[at])
    except (ValueError, IndexError):
        raise problem(path, f"the vertex {line[:80]!r}", "a value per property") from None
    return " ".join(kept)
