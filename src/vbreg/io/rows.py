"""Numbers in text, shared by the ASCII variants of every format."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from vbreg.io.columns import problem

# How C libraries of Windows print a missing value.
_ODD_NAN = re.compile(r"[-+]?(?:nan\(\w*\)|1\.#(?:ind|qnan|snan)\d*)", re.IGNORECASE)


def text_lines(data: bytes) -> list[str]:
    """Decode lines, without their ends; as Latin-1, which cannot fail, where UTF-8 does."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text.split("\n")


def parse_rows(
    path: Path,
    lines: list[str],
    *,
    delimiter: str | None = None,
    usecols: Sequence[int] | None = None,
    dtype: DTypeLike = np.float64,
) -> NDArray[Any]:
    """Parse lines to numbers (rows, columns); blank lines are passed over."""

    def parse(rows: list[str]) -> NDArray[Any]:
        return np.loadtxt(
            rows, dtype=dtype, delimiter=delimiter, usecols=usecols, comments=None, ndmin=2
        )

    if not any(line and not line.isspace() for line in lines):
        raise problem(path, "no rows of numbers", "one row per point")
    try:
        try:
            return parse(lines)
        except ValueError:
            if not any(_ODD_NAN.search(line) for line in lines):
                raise
            return parse([_ODD_NAN.sub("nan", line) for line in lines])
    except (ValueError, OverflowError) as exc:
        reason = str(exc).split(";")[0].rstrip(".")
        raise problem(
            path, f"a row that is not numbers ({reason})", "the same count of numbers in every row"
        ) from exc


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
