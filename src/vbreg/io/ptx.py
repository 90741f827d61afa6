"""PTX, Leica's text format: scans one after the other, each with its pose."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from vbreg.io.columns import problem, read_bytes, whole_number
from vbreg.io.names import usual_names
from vbreg.io.rows import TextLines, parse_rows
from vbreg.types import Float64, PointCloud

_HEAD = 10  # lines before the points: columns, rows, scanner (4 lines), pose (4 lines)
_NAMES = {3: (), 4: ("intensity",), 7: ("intensity", "red", "green", "blue")}  # by columns


def read_ptx(path: Path) -> PointCloud:
    """Read all scans in the file's frame; a point that the scanner did not see is NaN."""
    data = read_bytes(path)
    if b"\0" in data[: 1 << 16]:
        raise problem(path, "binary data (or UTF-16)", "plain text", "save it as UTF-8 text")
    scans = list(_scans(path, iter(TextLines(data))))
    if not scans:
        raise problem(path, "no scan", "two lines with the numbers of columns and rows")
    common = [name for name in scans[0].attributes if all(name in s.attributes for s in scans)]
    return PointCloud(
        np.concatenate([scan.points for scan in scans]),
        {name: np.concatenate([scan.attributes[name] for scan in scans]) for name in common},
    )


def _scans(path: Path, lines: Iterator[str]) -> Iterator[PointCloud]:
    while head := list(islice(lines, _HEAD)):
        sizes = [whole_number(line.strip()) for line in head[:2]]
        columns, rows = sizes if len(sizes) == 2 else (None, None)
        if not columns or not rows:
            shown = " ".join(head[:2])[:60]
            raise problem(path, f"the lines {shown!r}", "the numbers of columns and rows of a scan")
        pose = parse_rows(path, head[6:])
        if pose.shape != (4, 4):
            raise problem(path, f"a pose of shape {pose.shape}", "four lines of four numbers")
        table = parse_rows(path, islice(lines, min(columns * rows, sys.maxsize)))
        if len(table) < columns * rows:
            raise problem(path, f"{len(table)} points in a scan", f"{columns} x {rows}")
        yield _scan(path, table, pose)


def _scan(path: Path, table: Float64, pose: Float64) -> PointCloud:
    """Return the points of one scan; its pose is written with the translation in the last row."""
    names = _NAMES.get(table.shape[1])
    if names is None:
        raise problem(path, f"{table.shape[1]} numbers per point", "3, 4 or 7")
    points = table[:, :3].copy()
    points[(points == 0).all(axis=1)] = np.nan  # nothing was hit
    points = points @ pose[:3, :3] + pose[3, :3]
    return PointCloud(points, usual_names(dict(zip(names, table.T[3:], strict=True))))
