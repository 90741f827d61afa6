"""This file checks paths and numbers before the work begins: a typo fails at once."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from vbreg.cli.console import complain
from vbreg.errors import FileFormatError, VBRegError
from vbreg.types import PointCloud


def check_inputs(*paths: Path) -> None:
    """Raise an error unless every path is a file with the ending of a format that is read."""
    from vbreg.io import check_readable

    for path in paths:
        check_readable(path)


def number_between(
    name: str, expected: str, above: float = 0.0, most: float = math.inf
) -> Callable[[float | None], float | None]:
    """Return what checks the number of an option when it is read, before torch is loaded."""

    def check(value: float | None) -> float | None:
        if value is None or (math.isfinite(value) and above < value <= most):
            return value
        raise VBRegError(f"{name} {value:g}: expected {expected}")

    return check


def tell_which_size_counts(voxel_size: float | None, preset: str | None) -> None:
    """Say that a voxel size goes before a preset, where both are given."""
    if voxel_size is not None and preset is not None:
        complain(
            "warning",
            f"--voxel-size {voxel_size:g} with --preset {preset}: the given voxel size counts, "
            "not that of the preset",
        )


def check_outputs(
    *,
    clouds: Sequence[Path] = (),
    poses: Sequence[Path] = (),
    picture: Path | None = None,
    figure: Path | None = None,
    report: Path | None = None,
    network: Path | None = None,
    json_path: str | None = None,
    inputs: Sequence[Path] = (),
    new_folder: Path | None = None,
) -> None:
    """Raise an error unless every result can be written and none goes over one of the inputs.

    Results may go to `new_folder` if it can be made where there is none.
    """
    from vbreg import figure as figures
    from vbreg import render

    written = [*clouds, *poses]
    for cloud in clouds:
        _check_cloud_format(cloud)
    if poses:
        from vbreg.scenes.outputs import POSE_ENDINGS

        for listed in poses:
            _check_ending(listed, POSE_ENDINGS)
    endings_of = (
        (picture, render.ENDINGS),
        (figure, figures.ENDINGS),
        (report, (".html", ".htm")),
        (network, (".onnx",)),
    )
    for path, endings in endings_of:
        if path is not None:
            _check_ending(path, endings)
            written.append(path)
    if json_path is not None and json_path != "-":
        _check_ending(Path(json_path), [".json"])
        written.append(Path(json_path))
    for path in written:
        _check_place(path, inputs, new_folder)
    places = [path.absolute() for path in written]
    twice = next((path for path in places if places.count(path) > 1), None)
    if twice is not None:
        raise FileFormatError(f"{twice}: two results would go there; give each a name of its own")


def _check_cloud_format(path: Path) -> None:
    """Raise an error unless the ending is of a format that can be written here."""
    from vbreg import io

    rows = [row for row in io.FORMATS if row.writes]
    _check_ending(path, [row.ending for row in rows])
    if any(row.extra for row in rows if row.ending == path.suffix.lower()):
        # Only writing shows whether the format's package is there, so one point is written.
        with tempfile.TemporaryDirectory() as folder:
            io.write(Path(folder) / f"probe{path.suffix}", PointCloud(np.zeros((1, 3))))


def _check_place(path: Path, inputs: Sequence[Path], new_folder: Path | None) -> None:
    """Raise an error unless a file can be put at `path` without losing an input."""
    parent = path.parent
    try:
        over = path.exists() and any(kept.exists() and path.samefile(kept) for kept in inputs)
        if parent == new_folder and not parent.exists():
            parent = parent.parent  # where the folder is made
        missing = not parent.is_dir()
    except (OSError, ValueError) as exc:  # a name of 300 characters, or with a NUL in it
        reason = getattr(exc, "strerror", None) or str(exc)
        raise FileFormatError(f"cannot write {path}: {reason}; choose another name") from exc
    if over:
        raise FileFormatError(f"{path} is an input: choose another name for the result")
    if missing:
        raise FileFormatError(f"{path}: the folder {parent} does not exist; create it")
    if path.is_dir() or not os.access(parent, os.W_OK):
        raise FileFormatError(f"cannot write {path}: choose a file in a folder of yours")


def _check_ending(path: Path, endings: Sequence[str]) -> None:
    """Raise an error unless the path has one of the endings, in capitals or not."""
    if path.suffix.lower() not in endings:
        found = f"unknown ending '{path.suffix}'" if path.suffix else "no ending"
        raise FileFormatError(f"{path}: {found}, expected one of {', '.join(endings)}")
