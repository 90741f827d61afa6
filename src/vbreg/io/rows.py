"""Numbers in text, shared by the ASCII variants of every format."""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from vbreg.errors import FileFormatError
from vbreg.io.columns import problem

_PIECE = 1 << 18  # bytes that are decoded at a time
# How C libraries of Windows print a missing value.
_ODD_NAN = re.compile(r"[-+]?(?:nan\(\w*\)|1\.#(?:ind|qnan|snan)\d*)", re.IGNORECASE)


@dataclass(frozen=True)
class TextLines:
    """The lines of a text that are not blank, without their ends, decoded as they are asked for.

    All lines at once would take twenty times the memory of a file whose lines are short. A missing
    value is always written as nan.
    """

    data: bytes | mmap.mmap = field(repr=False)
    start: int = 0  # the byte at which the text begins
    change: Callable[[str], str] | None = None  # what is done to a piece of whole lines

    def __iter__(self) -> Iterator[str]:
        for start, end in _pieces(self.data, self.start):
            text = decoded(self.data[start:end])
            if "(" in text or "#" in text:
                text = _ODD_NAN.sub("nan", text)
            if self.change is not None:
                text = self.change(text)
            yield from (line for line in text.split("\n") if line and not line.isspace())


def decoded(data: bytes) -> str:
    """Decode a text; as Latin-1, which cannot fail, where UTF-8 does. Its lines end in one way."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text


def _pieces(data: bytes | mmap.mmap, start: int) -> Iterator[tuple[int, int]]:
    """Yield where pieces of whole lines begin and end, from a byte on."""
    while start < len(data):
        window = start + _PIECE
        end = len(data)
        if window < end:
            end = max(data.rfind(mark, start, window) for mark in (b"\n", b"\r"))
        if end < 0:  # a line that is longer than a piece
            ends = (data.find(mark, window) for mark in (b"\n", b"\r"))
            end = min((place for place in ends if place >= 0), default=len(data))
        yield start, end
        start = end + 1


def parse_rows(
    path: Path,
    lines: Iterable[str],
    *,
    delimiter: str | None = None,
    usecols: Sequence[int] | None = None,
    dtype: DTypeLike = np.float64,
) -> NDArray[Any]:
    """Parse lines to numbers (rows, columns)."""
    rest = iter(lines)
    first = next(rest, None)
    if first is None:
        raise problem(path, "no rows of numbers", "one row per point")
    try:
        return np.loadtxt(
            chain([first], rest),
            dtype=dtype,
            delimiter=delimiter,
            usecols=usecols,
            comments=None,
            ndmin=2,
        )
    except FileFormatError:
        raise  # of what the lines come from
    except (ValueError, OverflowError) as exc:
        reason = str(exc).split(";")[0].rstrip(".")
        raise problem(
            path, f"a row that is not numbers ({reason})", "the same count of numbers in every row"
        ) from exc


def row_blocks(
    path: Path,
    lines: Iterable[str],
    rows: int,
    axes: Sequence[int],
    *,
    delimiter: str | None = None,
    usecols: Sequence[int] | None = None,
) -> Iterator[NDArray[Any]]:
    """Yield the columns `axes` (n, 3) of those parsed, so many lines at a time."""
    rest, width = iter(lines), 0
    while (first := next(rest, None)) is not None:
        some = chain([first], islice(rest, rows - 1))
        table = parse_rows(path, some, delimiter=delimiter, usecols=usecols)
        if width and table.shape[1] != width:
            raise problem(path, f"{table.shape[1]} values in a row", f"{width}, as in those above")
        width = table.shape[1]
        yield table[:, list(axes)]


def narrowed(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return parsed values in the type that a header declares, if that type can hold them.

    Where it cannot (0.5 in a byte) the parsed values stay: the rows are right, the header is not.
    """
    native = dtype.newbyteorder("=")
    with np.errstate(all="ignore"):
        cast = values.astype(native)
        if native.kind != "f" and not np.array_equal(cast.astype(np.float64), values):
            return values
    return cast
