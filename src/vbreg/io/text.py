"""Points as text: XYZ, TXT, ASC, CSV, PTS, XYZN and XYZRGB."""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vbreg.errors import FileFormatError
from vbreg.io.columns import (
    WITH_XYZ,
    check_file,
    cloud_from_columns,
    find_axes,
    flat_attributes,
    problem,
    read_bytes,
    unique_names,
    whole_number,
)
from vbreg.io.names import COLOUR_NAMES, eight_bit_colours, has_all
from vbreg.io.rows import TextLines, parse_rows, row_blocks
from vbreg.types import NORMAL_NAMES, Float64, PointCloud

_COMMENT = re.compile(r"(?:#|//)[^\n]*")
_DECIMAL_COMMA = re.compile(r"[-+]?\d+(?:,\d+)?(?:[eE][-+]?\d+)?")
_MAX_LINE = 1 << 16  # characters of a row; a file of one long line would take all memory
_FIXED_COLUMNS: dict[tuple[str, int], tuple[str, ...]] = {  # by ending and number of columns
    (".pts", 4): ("intensity",),
    (".pts", 6): COLOUR_NAMES,
    (".pts", 7): ("intensity", *COLOUR_NAMES),
    (".xyzn", 6): NORMAL_NAMES,
    (".xyzrgb", 6): COLOUR_NAMES,
}


class _Layout(NamedTuple):
    first: str  # the first line of numbers
    above: int  # lines above it that are more than blanks and comments
    header: str | None  # the line of names
    points: int | None  # the number of points that a PTS file starts with


def read_text(path: Path) -> PointCloud:
    """Read columns between blanks, commas or semicolons; a line of names is optional.

    A comma may stand in numbers as well, where something else stands between them.
    """
    found = _find_columns(path, read_bytes(path))
    table = parse_rows(path, found.lines, delimiter=found.delimiter, usecols=found.usecols)
    _check_count(path, len(table), found.points)
    kept = [found.names[k] for k in found.numeric]
    return cloud_from_columns(path, _read_shares(path, dict(zip(kept, table.T, strict=True))))


def text_blocks(path: Path, rows: int) -> Iterator[Float64]:
    """Yield the points, so many lines at a time."""
    check_file(path)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        found = _find_columns(path, data)
        kept = [found.names[k] for k in found.numeric]
        axes = find_axes(kept)
        if axes is None:
            raise problem(path, f"columns {', '.join(kept)[:200]}", "x, y and z", WITH_XYZ)
        count = 0
        for block in row_blocks(
            path,
            found.lines,
            rows,
            [kept.index(axis) for axis in axes],
            delimiter=found.delimiter,
            usecols=found.usecols,
        ):
            yield block
            count += len(block)
        _check_count(path, count, found.points)


def _check_count(path: Path, count: int, expected: int | None) -> None:
    if expected is not None and count != expected:
        raise problem(path, f"{count} points", f"{expected}, as its first line says")


class _Columns(NamedTuple):
    names: list[str]
    numeric: list[int]  # which of them hold numbers
    delimiter: str | None
    lines: Iterable[str]
    points: int | None  # that there should be

    @property
    def usecols(self) -> list[int] | None:
        """What to parse; None where all columns hold numbers."""
        return None if len(self.numeric) == len(self.names) else self.numeric


def _find_columns(path: Path, data: bytes | mmap.mmap) -> _Columns:
    """Find out what stands in the lines of a text, and where the numbers begin."""
    if b"\0" in data[: 1 << 16]:
        raise problem(path, "binary data (or UTF-16)", "plain text", "save it as UTF-8 text")
    if _longest_line(data) > _MAX_LINE:
        raise problem(path, f"a line of more than {_MAX_LINE} characters", "one point a line")
    layout = _find_layout(path, TextLines(data))
    numbers = _without_comments
    first = numbers(layout.first)
    if has_decimal_commas(first):
        numbers = _with_decimal_points
        first = numbers(first)
    delimiter = ";" if ";" in first else "," if "," in first else None
    fields = _split(first, delimiter)
    names = _names(path, layout.header, delimiter, len(fields))
    numeric = [k for k, word in enumerate(fields) if _is_number(word)]
    if len(numeric) < len(fields) and find_axes(names[k] for k in numeric) is None:
        shown = first.strip()[:60]
        raise problem(path, f"the line {shown!r}", "numbers for x, y and z", "fix that line")
    lines = islice(TextLines(data, change=numbers), layout.above, None)
    return _Columns(names, numeric, delimiter, lines, layout.points)


def write_text(path: Path, cloud: PointCloud) -> list[str]:
    """Write the shortest digits that read back exactly, one point a line; return what is lost.

    A .csv begins with names, a .pts with the count, another with names if there are attributes. The
    columns of .pts, .xyzn and .xyzrgb are fixed and have no names.
    """
    ending = path.suffix.lower()
    given = flat_attributes(cloud)
    attributes = _fixed_columns(ending, given)
    separator = "," if ending == ".csv" else " "
    names = ["x", "y", "z", *attributes]
    lines: list[str] = []
    if ending == ".csv":
        lines = [",".join(names)]
    elif ending == ".pts":
        lines = [str(len(cloud))]
    elif attributes and ending not in (".xyzn", ".xyzrgb"):
        lines = ["# " + " ".join(names)]
    columns = [*cloud.points.T, *attributes.values()]
    values = (column.astype(np.uint8) if column.dtype.kind == "b" else column for column in columns)
    rows = zip(*(map(repr, column.tolist()) for column in values), strict=True)
    text = "\n".join(chain(lines, map(separator.join, rows)))
    path.write_bytes((text + "\n").encode())
    return [f"the attribute '{name}'" for name in given if name not in attributes]


def has_decimal_commas(line: str) -> bool:
    """Tell whether commas stand within the numbers of a line and something else between them."""
    if "," not in line:
        return False
    words = line.split(";") if ";" in line else line.split()
    words = [word.strip() for word in words if word.strip()]
    return len(words) >= 3 and all(_DECIMAL_COMMA.fullmatch(word) for word in words[:3])


def _fixed_columns(ending: str, attributes: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the attributes in the order that the ending asks for, without those it has not."""
    if ending == ".pts":
        wanted = ["intensity"] if "intensity" in attributes else []
        if has_all(attributes, COLOUR_NAMES):
            attributes = {**attributes, **eight_bit_colours(attributes)[0]}
            wanted += COLOUR_NAMES
        return {name: attributes[name] for name in wanted}
    fixed = {".xyzn": NORMAL_NAMES, ".xyzrgb": COLOUR_NAMES}.get(ending)
    if fixed is None:
        return attributes
    if not has_all(attributes, fixed):
        raise FileFormatError(f"{ending} needs {', '.join(fixed)} of every point; write .xyz")
    if fixed is COLOUR_NAMES:
        colours = eight_bit_colours(attributes)[0]
        return {name: values / 255 for name, values in colours.items()}
    return {name: attributes[name] for name in fixed}


def _read_shares(path: Path, columns: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the columns with the colours of an .xyzrgb, shares of 1, as bytes."""
    if path.suffix.lower() != ".xyzrgb" or not has_all(columns, COLOUR_NAMES):
        return columns
    rows = np.stack([columns[name] for name in COLOUR_NAMES])
    if not (rows >= 0).all() or not (rows <= 1).all():
        return columns  # whole numbers up to 255, which some programs write
    return {
        **columns,
        **dict(zip(COLOUR_NAMES, np.round(rows * 255).astype(np.uint8), strict=True)),
    }


def _longest_line(data: bytes | mmap.mmap) -> int:
    """Return the length of the longest line, or what is beyond the limit; no copy is made."""
    start = 0
    while start < len(data):
        window = start + _MAX_LINE + 1
        end = max(data.rfind(b"\n", start, window), data.rfind(b"\r", start, window))
        if end < 0:
            return min(len(data), window) - start
        start = end + 1
    return 0


def _without_comments(text: str) -> str:
    return _COMMENT.sub("", text) if "#" in text or "//" in text else text


def _with_decimal_points(text: str) -> str:
    return _without_comments(text).replace(",", ".")


def _find_layout(path: Path, lines: Iterable[str]) -> _Layout:
    """Pass over comments, names and a count to the first line of numbers."""
    header: str | None = None
    comment: str | None = None
    count: int | None = None
    for line in lines:
        text = line.strip()
        if _COMMENT.match(text):
            comment = text.lstrip("#/ \t")
            continue
        words = re.split(r"[\s,;]+", text.strip(",;"))
        if header is not None or (len(words) >= 3 and all(map(_is_number, words[:3]))):
            above = (header is not None) + (count is not None)
            return _Layout(line, above, header or _if_names(comment), count)
        if len(words) == 1 and count is None and whole_number(words[0]) is not None:
            count = whole_number(words[0])
        else:
            header = text
            if _if_names(header) is None:
                shown = repr(text[:60])
                raise problem(
                    path,
                    f"the line {shown}",
                    "three numbers or a line that names x, y and z",
                    WITH_XYZ,
                )
    raise problem(path, "no line of numbers", "three or more numbers per line", WITH_XYZ)


def _if_names(line: str | None) -> str | None:
    """Return the line if it names x, y and z: a comment above the numbers often does."""
    words = (word.strip("\"'") for word in re.split(r"[\s,;]+", line or ""))
    return line if find_axes(words) is not None else None


def _split(line: str, delimiter: str | None) -> list[str]:
    return [word.strip().strip("\"'") for word in line.split(delimiter)]


def _names(path: Path, header: str | None, delimiter: str | None, width: int) -> list[str]:
    if width < 3:
        raise problem(path, f"{width} columns", "three or more", WITH_XYZ)
    if header is None:
        further = _FIXED_COLUMNS.get((path.suffix.lower(), width))
        return ["x", "y", "z", *(further or (f"column_{k}" for k in range(3, width)))]
    names = _split(header, delimiter)
    if len(names) == 1:  # names between blanks above numbers between commas, or the reverse
        names = re.split(r"[\s,;]+", header.strip())
    if len(names) > width:
        found = f"{len(names)} names above {width} columns"
        raise problem(path, found, "a name per column", "correct that line")
    return unique_names([*names, *(f"column_{k}" for k in range(len(names), width))])


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
