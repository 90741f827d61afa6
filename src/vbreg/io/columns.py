"""What every format shares: named columns to a cloud and back, and how a complaint is worded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vbreg.errors import FileFormatError
from vbreg.types import Float64, PointCloud

AGAIN = "export or download the file again"


def problem(path: Path, found: str, expected: str, remedy: str = AGAIN) -> FileFormatError:
    """Return the error of all readers: path, what is there, what should be, the way out."""
    return FileFormatError(f"{path}: {found}; expected {expected}; {remedy}")


def check_file(path: Path) -> None:
    """Raise an error unless there is a file and something is in it."""
    if not path.exists():
        raise problem(path, "no such file", "an existing point cloud", "check the spelling")
    if path.is_dir():
        raise problem(path, "a directory", "one point cloud", "name a file inside it")
    if not path.is_file():
        raise problem(path, "not a regular file", "a point cloud", "save it to a file first")
    if path.stat().st_size == 0:
        raise problem(path, "an empty file (0 bytes)", "a point cloud")


def read_bytes(path: Path) -> bytes:
    """Read a whole file that is there and not empty."""
    check_file(path)
    return path.read_bytes()


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


def cloud_from_columns(path: Path, columns: Mapping[str, NDArray[Any]]) -> PointCloud:
    """Find x, y and z by name (any case); every other column becomes an attribute."""
    by_lower: dict[str, str] = {}
    for name in columns:
        by_lower.setdefault(name.lower(), name)
    axes = [axis if axis in columns else by_lower.get(axis, "") for axis in "xyz"]
    if "" in axes or any(columns[axis].ndim != 1 for axis in axes):
        found = ", ".join(columns) or "none"
        raise problem(path, f"columns {found}", "one value each of x, y and z per point")
    points = np.empty((len(columns[axes[0]]), 3), dtype=np.float64)
    if not len(points):
        raise problem(path, "zero points", "at least one point")
    with np.errstate(invalid="ignore"):  # a signalling NaN is as welcome as any other
        for index, axis in enumerate(axes):
            points[:, index] = columns[axis]
    attributes = {name: native_copy(column) for name, column in columns.items() if name not in axes}
    return PointCloud(points, attributes)


def cloud_from_rows(path: Path, rows: NDArray[Any]) -> PointCloud:
    """Make a cloud of rows (N, 3+) without names.

    Further columns are called column_3, column_4 and so on.
    """
    if rows.ndim != 2 or rows.shape[1] < 3:
        hint = "transpose it" if rows.ndim == 2 and rows.shape[0] == 3 else AGAIN
        raise problem(path, f"an array of shape {rows.shape}", "the shape (N, 3) or wider", hint)
    if rows.dtype.kind not in "iuf":
        raise problem(path, f"values of type {rows.dtype}", "real numbers")
    names = ["x", "y", "z", *(f"column_{k}" for k in range(3, rows.shape[1]))]
    return cloud_from_columns(path, dict(zip(names, rows.T, strict=True)))


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
    return PointCloud(points.astype(np.float64, copy=False), attributes)


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


def records(cloud: PointCloud, integer_bytes: int) -> NDArray[Any]:
    """Return a packed little-endian record per point: x, y, z, then the attributes."""
    coordinate = coordinate_type(cloud.points)
    columns = {axis: cloud.points[:, k].astype(coordinate) for k, axis in enumerate("xyz")}
    for name, values in flat_attributes(cloud).items():
        columns[name] = storable(name, values, integer_bytes)
    dtype = np.dtype([(name, values.dtype.newbyteorder("<")) for name, values in columns.items()])
    table = np.empty(len(cloud), dtype=dtype)
    for name, values in columns.items():
        table[name] = values
    return table
