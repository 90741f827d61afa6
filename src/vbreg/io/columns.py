"""What every format shares: named columns to a cloud and back, and how a complaint is worded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vbreg.errors import FileFormatError
from vbreg.io.names import COLOUR_NAMES, eight_bit_colours, has_all, usual_names
from vbreg.types import Float64, PointCloud

AXIS_NAMES = (
    ("x", "easting", "east"),
    ("y", "northing", "north"),
    ("z", "height", "elevation", "altitude", "up"),
)
MIN_TRANSPOSED = 64  # columns; no cloud of three or four points has so many attributes
AGAIN = "export or download the file again"
WITH_XYZ = "save it with x, y and z of every point"
INSIDE = "name a file inside it"
CLOUD = "point cloud"


def problem(path: Path, found: str, expected: str, remedy: str = AGAIN) -> FileFormatError:
    """Return the error of all readers: path, what is there, what should be, the way out."""
    return FileFormatError(f"{path}: {found}; expected {expected}; {remedy}")


def check_file(path: Path, holds: str = CLOUD) -> None:
    """Raise an error unless there is a file and something is in it."""
    if not path.exists():
        raise problem(path, "no such file", f"an existing {holds}", "check the spelling")
    if path.is_dir():
        remedy = every_scan_of(path) if holds == CLOUD else INSIDE
        raise problem(path, "a directory", f"one {holds}", remedy)
    if not path.is_file():
        raise problem(path, "not a regular file", f"a {holds}", "save it to a file first")
    if path.stat().st_size == 0:
        remedy = AGAIN if holds == CLOUD else "write it again"
        raise problem(path, "an empty file (0 bytes)", f"a {holds}", remedy)


def every_scan_of(folder: Path) -> str:
    """Return what to do with a folder in the place of one cloud."""
    return f"{INSIDE}, or `vbreg reconstruct {folder}` for all scans in it"


def read_bytes(path: Path, holds: str = CLOUD) -> bytes:
    """Read a whole file that is there and not empty."""
    check_file(path, holds)
    return path.read_bytes()


def point_blocks(
    path: Path, start: int, record: np.dtype[Any], axes: Sequence[str], count: int, rows: int
) -> Iterator[Float64]:
    """Yield the points of packed records, so many rows at a time, from a byte of a file on."""
    with path.open("rb") as file:
        file.seek(start)
        for first in range(0, count, rows):
            wanted = min(rows, count - first)
            data = file.read(wanted * record.itemsize)
            if len(data) < wanted * record.itemsize:
                present = first + len(data) // record.itemsize
                raise problem(path, f"{present} points", f"{count}")
            table = np.frombuffer(data, record)
            with np.errstate(invalid="ignore"):
                yield np.stack([table[axis].astype(np.float64) for axis in axes], axis=1)


def whole_number(word: str) -> int | None:
    """Parse a count in a header; return None where it is none, as of nineteen digits and more."""
    return int(word) if word.isascii() and word.isdecimal() and len(word) <= 18 else None


def unique_names(names: Iterable[str]) -> list[str]:
    """Return the names, a repeated one with a number behind it, so that no column is lost."""
    result: list[str] = []
    for name in names:
        candidate, number = name, 1
        while candidate in result:
            candidate, number = f"{name}_{number}", number + 1
        result.append(candidate)
    return result


def find_axes(names: Iterable[str]) -> list[str] | None:
    """Return which of the names are x, y and z, in any case or as a map calls them, if all are."""
    by_lower: dict[str, str] = {}
    given = list(names)
    for name in given:
        by_lower.setdefault(name.lower(), name)
    axes = [
        next((by_lower[alias] for alias in aliases if alias in by_lower), "")
        if (axis := aliases[0]) not in given
        else axis
        for aliases in AXIS_NAMES
    ]
    return axes if all(axes) else None


def cloud_from_columns(path: Path, columns: Mapping[str, NDArray[Any]]) -> PointCloud:
    """Find x, y and z by name; every other column becomes an attribute.

    Colours, normals and intensity get the names that they have in every cloud.
    """
    axes = find_axes(columns)
    if axes is None or any(columns[axis].ndim != 1 for axis in axes):
        found = ", ".join(columns)[:200] or "none"
        raise problem(path, f"columns {found}", "one value each of x, y and z per point", WITH_XYZ)
    points = np.empty((len(columns[axes[0]]), 3), dtype=np.float64)
    if not len(points):
        raise problem(path, "zero points", "at least one point")
    with np.errstate(invalid="ignore"):  # a signalling NaN is as welcome as any other
        for index, axis in enumerate(axes):
            points[:, index] = columns[axis]
    others = usual_names({name: v for name, v in columns.items() if name not in axes})
    return PointCloud(points, {name: native_copy(column) for name, column in others.items()})


def cloud_from_rows(path: Path, rows: NDArray[Any]) -> PointCloud:
    """Make a cloud of rows (N, 3+) without names.

    Further columns are called column_3, column_4 and so on.
    """
    if rows.ndim != 2 or rows.shape[1] < 3:
        hint = "transpose it" if rows.ndim == 2 and rows.shape[0] in (3, 4) else WITH_XYZ
        raise problem(path, f"an array of shape {rows.shape}", "the shape (N, 3) or wider", hint)
    if rows.dtype.kind not in "iuf":
        raise problem(path, f"values of type {rows.dtype}", "real numbers", "save it as float64")
    if is_transposed(rows.shape):
        found = f"an array of shape {rows.shape}, which looks like columns of points"
        raise problem(path, found, "the shape (N, 3) or wider", "transpose it")
    names = ["x", "y", "z", *(f"column_{k}" for k in range(3, rows.shape[1]))]
    return cloud_from_columns(path, dict(zip(names, rows.T, strict=True)))


def is_transposed(shape: tuple[int, ...]) -> bool:
    """Tell whether an array looks like (3, N) or (4, N): points in its columns, not in its rows."""
    return len(shape) == 2 and shape[0] in (3, 4) and shape[1] >= MIN_TRANSPOSED


def native_copy(column: NDArray[Any]) -> NDArray[Any]:
    """Copy to contiguous native byte order, so that the file's buffer is not kept alive."""
    return np.array(column, dtype=column.dtype.newbyteorder("="), order="C")


def as_cloud(cloud: PointCloud | ArrayLike) -> PointCloud:
    """Check what a caller wants written; an error names no path, which `write` puts in front."""
    if not isinstance(cloud, PointCloud):
        cloud = PointCloud(np.asarray(cloud))
    points = np.asarray(cloud.points)
    if points.ndim != 2 or points.shape[1] != 3 or points.dtype.kind not in "iuf":
        found = f"an array of shape {points.shape} and type {points.dtype}"
        raise FileFormatError(f"the points are {found}; expected (N, 3) real numbers")
    if not len(points):
        raise FileFormatError("the cloud has zero points; expected at least one")
    attributes = {name: np.asarray(values) for name, values in cloud.attributes.items()}
    for name, values in attributes.items():
        if (
            values.ndim not in (1, 2)
            or len(values) != len(points)
            or values.dtype.kind not in "biuf"
        ):
            raise FileFormatError(
                f"the attribute '{name}' has shape {values.shape} and type {values.dtype}; "
                f"expected ({len(points)},) or ({len(points)}, k) numbers"
            )
    return replace(cloud, points=points.astype(np.float64, copy=False), attributes=attributes)


def flat_attributes(cloud: PointCloud) -> dict[str, NDArray[Any]]:
    """Return one (N,) column per attribute; (N, k) becomes name_0 ... name_{k-1}.

    Names lose white space and separators, which no text header survives.
    """
    flat: dict[str, NDArray[Any]] = {}
    for given, values in cloud.attributes.items():
        name = re.sub(r"[\s,;\"']+", "_", given.strip()) or "attribute"
        if values.ndim == 1:
            parts = {name: values}
        else:
            parts = {f"{name}_{k}": values[:, k] for k in range(values.shape[1])}
        for part, column in parts.items():
            if part in flat or part.lower() in ("x", "y", "z"):
                raise FileFormatError(
                    f"the attribute '{given}' would be a second column '{part}'; rename it"
                )
            flat[part] = column
    return flat


def coordinate_type(points: Float64) -> np.dtype[Any]:
    """Return float32 where it reproduces every coordinate exactly, else float64."""
    with np.errstate(over="ignore", under="ignore"):
        small = points.astype(np.float32)
    exact = np.array_equal(small.astype(np.float64), points, equal_nan=True)
    return np.dtype(np.float32 if exact else np.float64)


def storable(name: str, values: NDArray[Any], integer_bytes: int) -> NDArray[Any]:
    """Return values in a type that the format knows: float32/64, integers to `integer_bytes`."""
    kind, size = values.dtype.kind, values.dtype.itemsize
    if kind == "b":
        return values.astype(np.uint8)
    if kind == "f":
        return values.astype(np.float32 if size <= 4 else np.float64, copy=False)
    if size <= integer_bytes:
        return values
    for dtype in (np.int32, np.uint32, np.float64):
        with np.errstate(invalid="ignore"):
            narrow = values.astype(dtype)
            if np.array_equal(narrow.astype(values.dtype), values):
                return narrow
    raise FileFormatError(
        f"the attribute '{name}' holds integers that this format cannot keep exactly; "
        "drop it or write .npz"
    )


def coordinate_columns(cloud: PointCloud) -> dict[str, NDArray[Any]]:
    """Return x, y and z, as float32 if the cloud holds them so."""
    return {axis: cloud.points[:, k] for k, axis in enumerate("xyz")}


def with_eight_bit_colours(
    columns: Mapping[str, NDArray[Any]],
) -> tuple[dict[str, NDArray[Any]], list[str]]:
    """Return the columns with colours as bytes, and what is lost by that."""
    if not has_all(columns, COLOUR_NAMES):
        return dict(columns), []
    colours, exact = eight_bit_colours(columns)
    return {**columns, **colours}, [] if exact else ["colours beyond 8 bits"]


def records(columns: Mapping[str, NDArray[Any]], integer_bytes: int) -> NDArray[Any]:
    """Return a packed little-endian record per point, in the order of the columns."""
    held = {name: storable(name, values, integer_bytes) for name, values in columns.items()}
    dtype = np.dtype([(name, values.dtype.newbyteorder("<")) for name, values in held.items()])
    table = np.empty(len(columns["x"]), dtype=dtype)
    for name, values in held.items():
        table[name] = values
    return table
