"""Points as text: XYZ, TXT, ASC, CSV and PTS."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vbreg.io.columns import (
    cloud_from_columns,
    flat_attributes,
    problem,
    read_bytes,
    unique_names,
    whole_number,
)
from vbreg.io.rows import parse_rows, text_lines
from vbreg.types import PointCloud

_COMMENT = re.compile(r"#|//")


class _Layout(NamedTuple):
    first: int  # the first line of numbers
    header: str | None  # the line of names
    points: int | None  # the number of points that a PTS file starts with


def read_text(path: Path) -> PointCloud:
    """Read columns between blanks, commas or semicolons; a line of names is optional."""
    data = read_bytes(path)
    if b"\0" in data[: 1 << 16]:
        raise problem(path, "binary data (or UTF-16)", "plain text", "save it as UTF-8 text")
    lines = text_lines(data)
    layout = _find_layout(path, lines)
    first = _COMMENT.split(lines[layout.first])[0]
    delimiter = ";" if ";" in first else "," if "," in first else None
    fields = _split(first, delimiter)
    names = _names(path, layout.header, delimiter, len(fields))
    numeric = [k for k, word in enumerate(fields) if _is_number(word)]
    body = lines[layout.first :]
    if any("#" in line or "//" in line for line in body):
        body = [_COMMENT.split(line)[0] for line in body]
    usecols = None if len(numeric) == len(fields) else numeric
    if usecols is not None and not {"x", "y", "z"} <= {names[k].lower() for k in numeric}:
        shown = first.strip()[:60]
        hint = "use '.' for decimals" if delimiter == ";" and "," in first else "fix that line"
        raise problem(path, f"the line {shown!r}", "numbers for x, y and z", hint)
    table = parse_rows(path, body, delimiter=delimiter, usecols=usecols)
    if layout.points is not None and len(table) != layout.points:
        raise problem(path, f"{len(table)} points", f"{layout.points}, as its first line says")
    kept = names if usecols is None else [names[k] for k in numeric]
    return cloud_from_columns(path, dict(zip(kept, table.T, strict=True)))


def write_text(path: Path, cloud: PointCloud) -> None:
    """Write the shortest digits that read back exactly, one point a line.

    A .csv begins with names, a .pts with the count, another with names if there are attributes.
    """
    attributes = flat_attributes(cloud)
    separator = "," if path.suffix.lower() == ".csv" else " "
    names = ["x", "y", "z", *attributes]
    lines: list[str] = []
    if path.suffix.lower() == ".csv":
        lines = [",".join(names)]
    elif path.suffix.lower() == ".pts":
        lines = [str(len(cloud))]
    elif attributes:
        lines = ["# " + " ".join(names)]
    columns = [*cloud.points.T, *attributes.values()]
    values = (column.astype(np.uint8) if column.dtype.kind == "b" else column for column in columns)
    rows = zip(*(map(repr, column.tolist()) for column in values), strict=True)
    text = "\n".join(chain(lines, map(separator.join, rows)))
    path.write_bytes((text + "\n").encode())


def _find_layout(path: Path, lines: list[str]) -> _Layout:
    """Pass over comments, names and a count to the first line of numbers."""
    header: str | None = None
    comment: str | None = None
    count: int | None = None
    for k, line in enumerate(lines):
        text = line.strip()
        if not text:
            continue
        if _COMMENT.match(text):
            comment = text.lstrip("#/ \t")
            continue
        words = re.split(r"[\s,;]+", text.strip(",;"))
        if header is not None or (len(words) >= 3 and all(map(_is_number, words[:3]))):
            return _Layout(k, header or _if_names(comment), count)
        if len(words) == 1 and count is None and whole_number(words[0]) is not None:
            count = whole_number(words[0])
        else:
            header = text
            if _if_names(header) is None:
                shown = repr(text[:60])
                raise problem(
                    path, f"the line {shown}", "three numbers or a line that names x, y and z"
                )
    raise problem(path, "no line of numbers", "three or more numbers per line")


def _if_names(line: str | None) -> str | None:
    """Return the line if it names x, y and z: a comment above the numbers often does."""
    words = {word.strip("\"'").lower() for word in re.split(r"[\s,;]+", line or "")}
    return line if {"x", "y", "z"} <= words else None


def _split(line: str, delimiter: str | None) -> list[str]:
    return [word.strip().strip("\"'") for word in line.split(delimiter)]


def _names(path: Path, header: str | None, delimiter: str | None, width: int) -> list[str]:
    if width < 3:
        raise problem(path, f"{width} columns", "three or more")
    if header is None:
        return ["x", "y", "z", *(f"column_{k}" for k in range(3, width))]
    names = _split(header, delimiter)
    if len(names) == 1:  # names between blanks above numbers between commas, or the reverse
        names = re.split(r"[\s,;]+", header.strip())
    if len(names) > width:
        raise problem(path, f"{len(names)} names above {width} columns", "a name per column")
    return unique_names([*names, *(f"column_{k}" for k in range(len(names), width))])


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
