"""Poses (4, 4) in files: the JSON of `vbreg register`, or sixteen numbers as text or .npy."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np

from vbreg.errors import FileFormatError
from vbreg.io.columns import problem, read_bytes
from vbreg.types import Float64

POSE_KEY = "T_target_source"
MAX_POSE_BYTES = 1 << 24  # of a file that holds a pose; the JSON of many sources is smaller
_MAX_SKEW = 1e-3  # of R R^T from the identity: three digits are few, but a rotation still
_EXPECTED = f"a rigid pose: JSON with {POSE_KEY}, or four rows of four numbers as text or .npy"


def read_pose(path: str | os.PathLike[str]) -> Float64:
    """Read T (4, 4) from JSON with `T_target_source`, from four lines of text, or from .npy.

    It is rigid, but for the `scale` that the JSON of a registration with unknown scale has.
    """
    path = Path(path)
    data = read_bytes(path, "file with a pose")
    hint = "write it with `vbreg register --json`"
    if len(data) > MAX_POSE_BYTES:
        raise problem(path, f"{len(data)} bytes", _EXPECTED, hint)
    try:
        numbers, scale = _numbers(path, data)
        T = np.asarray(numbers, dtype=np.float64)
    except FileFormatError:
        raise
    except Exception as exc:  # each of the three parsers has errors of its own
        reason = str(exc).split("\n")[0][:100]
        raise problem(path, f"no pose ({reason})", _EXPECTED, hint) from exc
    if T.shape != (4, 4):
        raise problem(path, f"numbers of shape {T.shape}", _EXPECTED, hint)
    check_pose(T, str(path))
    if not (np.isfinite(scale) and scale > 0):
        raise problem(path, f"scale {scale}", "a positive number", hint)
    return T @ np.diag([scale] * 3 + [1.0])


def check_pose(T: Float64, name: str) -> None:
    """Raise an error unless T (4, 4) is a rotation and a translation."""
    R = T[:3, :3]
    if not np.isfinite(T).all() or not np.array_equal(T[3], [0, 0, 0, 1]):
        raise FileFormatError(
            f"{name}: its last row is {T[3].tolist()}; expected finite numbers and 0 0 0 1 below; "
            "transpose it if the translation stands there"
        )
    if np.abs(R @ R.T - np.eye(3)).max() > _MAX_SKEW or np.linalg.det(R) < 0:
        raise FileFormatError(
            f"{name}: the upper left 3 x 3 is no rotation (determinant {np.linalg.det(R):.4g}); "
            "expected a pose that neither scales nor mirrors"
        )


def _numbers(path: Path, data: bytes) -> tuple[Any, float]:
    """Return the numbers of a pose, and what the source is multiplied by before it."""
    if data.startswith(np.lib.format.MAGIC_PREFIX):
        return np.load(path, mmap_mode="r", allow_pickle=False), 1.0
    text = data.decode("utf-8-sig")
    if text.lstrip()[:1] not in ("{", "["):
        rows = [
            [float(word) for word in re.split(r"[\s,;]+", line.strip())]
            for line in text.splitlines()
            if line.strip() and not line.lstrip().startswith("#")
        ]
        return rows, 1.0
    held = json.loads(text)
    if isinstance(held, list) and held and isinstance(held[0], dict):
        raise FileFormatError(
            f"{path}: it holds {len(held)} poses; expected one; register one source at a time"
        )
    if not isinstance(held, dict):
        return held, 1.0
    return held[POSE_KEY], float(held.get("scale", 1.0))
