"""A shift beside a file: large coordinates such as UTM in a format that holds float32 alone.

`scan.pcd` then holds points minus the shift, and `scan.pcd.shift.json` says what was subtracted.
The checksum in it tells whether it still belongs to the file.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from vbreg.errors import FileFormatError
from vbreg.io.atomic import atomic_path
from vbreg.types import Float64

SHIFT_ENDING = ".shift.json"
_ROUND = 100.0  # metres: a shift of whole hundreds is easy to type elsewhere
_MAX_BYTES = 4096
_BLOCK = 1 << 20


def shift_path(path: Path) -> Path:
    """Return where the shift of a file lies."""
    return path.with_name(path.name + SHIFT_ENDING)


def choose_shift(points: Float64) -> Float64:
    """Return the middle of the finite points, rounded."""
    finite = points[np.isfinite(points).all(axis=1)]
    return np.zeros(3) if not len(finite) else np.round(np.median(finite, axis=0) / _ROUND) * _ROUND


def write_shift(path: Path, shift: Float64, content: Path) -> None:
    """Write the shift of `path`, whose content lies at another place still."""
    held = {"file": path.name, "crc32": _checksum(content), "shift": shift.tolist()}
    with atomic_path(shift_path(path)) as temporary:
        temporary.write_text(json.dumps(held, indent=2) + "\n", encoding="utf-8")


def read_shift(path: Path) -> Float64 | None:
    """Read what to add to the points of a file, None where nothing lies beside it."""
    beside = shift_path(path)
    if not beside.is_file():
        return None
    try:
        if beside.stat().st_size > _MAX_BYTES:
            raise ValueError(f"{beside.stat().st_size} bytes")
        held: Any = json.loads(beside.read_text(encoding="utf-8"))
        shift = np.array([float(value) for value in held["shift"]])
        checksum = held["crc32"]
        if shift.shape != (3,) or not np.isfinite(shift).all():
            raise ValueError(f"the shift {held['shift']}")
    except (ValueError, TypeError, LookupError, RecursionError) as exc:
        reason = f"{type(exc).__name__} {exc}".split("\n")[0][:100]
        raise FileFormatError(
            f"{beside}: no shift of three numbers ({reason}); write {path.name} again"
        ) from exc
    if checksum != _checksum(path):
        raise FileFormatError(
            f"{beside}: it belongs to another content of {path.name}; delete it if the points of "
            f"{path.name} need no shift, or write {path.name} again"
        )
    return shift


def _checksum(path: Path) -> str:
    value = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            value = zlib.crc32(block, value)
    return f"{value:08x}"
