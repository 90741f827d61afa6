"""Poses (4, 4) in files: JSON of `vbreg register` or `vbreg reconstruct`, or numbers alone."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vbreg.errors import FileFormatError, warn
from vbreg.io.columns import problem, read_bytes
from vbreg.motions import is_rigid
from vbreg.types import Float64

POSE_KEY = "T_target_source"
SCENE_POSE_KEY = "T_world_scan"
MAX_POSE_BYTES = 1 << 24  # of a file that holds a pose; the JSON of many sources is smaller
MAX_CHOICES = 10  # that an error lists
_EXPECTED = (
    f"a rigid pose: JSON with {POSE_KEY}, or 4 x 4 or 3 x 4 numbers, in rows or in one, as text or "
    ".npy"
)


def read_pose(path: str | os.PathLike[str], which: str | None = None) -> Float64:
    """Read T (4, 4) from JSON, text or .npy; of several in a file, that of a scan.

    JSON is that of `vbreg register` or `vbreg reconstruct`. Numbers are four or three rows of four,
    or all of a pose in a row; several such rows, as KITTI has them, are several poses. `which` is
    the name of a scan, or its number from 0. The pose is rigid, but for the `scale` that the JSON
    of a registration with unknown scale has. A scan that `vbreg reconstruct` did not connect to
    the largest component is in a frame of its own, which is a warning.
    """
    path = Path(path)
    data = read_bytes(path, "file with a pose")
    hint = "write it with `vbreg register --json`"
    if len(data) > MAX_POSE_BYTES:
        raise problem(path, f"{len(data)} bytes", _EXPECTED, hint)
    try:
        pose = _chosen(path, _named_poses(path, data), which)
        component = int(pose.component)
        T, scale = np.asarray(pose.numbers, dtype=np.float64), float(pose.scale)
    except FileFormatError:
        raise
    except Exception as exc:  # each of the three parsers has errors of its own
        reason = str(exc).split("\n")[0][:100]
        raise problem(path, f"no pose ({reason})", _EXPECTED, hint) from exc
    if T.shape == (3, 4):
        T = np.vstack([T, [0.0, 0.0, 0.0, 1.0]])
    if T.shape != (4, 4):
        raise problem(path, f"numbers of shape {T.shape}", _EXPECTED, hint)
    check_pose(T, str(path))
    if not (np.isfinite(scale) and scale > 0):
        raise problem(path, f"scale {scale}", "a positive number", hint)
    if component:
        text = (
            f"{path}: {pose.name} does not connect to the largest component, 0: its pose is in the "
            f"frame of component {component}"
        )
        warn(text)
    return T @ np.diag([scale] * 3 + [1.0])


def check_pose(T: Float64, name: str) -> None:
    """Raise an error unless T (4, 4) is a rotation and a translation."""
    if is_rigid(T):
        return
    if not np.isfinite(T).all() or is_rigid(np.vstack([T[:3], [0.0, 0.0, 0.0, 1.0]])):
        raise FileFormatError(
            f"{name}: its last row is {T[3].tolist()}; expected finite numbers and 0 0 0 1 below; "
            "transpose it if the translation stands there"
        )
    raise FileFormatError(
        f"{name}: the upper left 3 x 3 is no rotation (determinant "
        f"{np.linalg.det(T[:3, :3]):.4g}); expected a pose that neither scales nor mirrors"
    )


class _NamedPose(NamedTuple):
    name: str  # of its scan, or its number
    numbers: Any
    scale: float = 1.0  # what the source is multiplied by before
    component: int = 0  # of a reconstruction; 0 is the largest


def _named_poses(path: Path, data: bytes) -> list[_NamedPose]:
    """Return the poses that a file holds."""
    if data.startswith(np.lib.format.MAGIC_PREFIX):
        return _split(np.load(path, mmap_mode="r", allow_pickle=False))
    text = data.decode("utf-8-sig")
    if text.lstrip()[:1] not in ("{", "["):
        rows = [
            [float(word) for word in re.split(r"[\s,;]+", line.strip())]
            for line in text.splitlines()
            if line.strip() and not line.lstrip().startswith("#")
        ]
        return _split(rows)
    held = json.loads(text)
    if isinstance(held, dict) and "scans" in held:
        return [
            _NamedPose(str(scan["name"]), scan[SCENE_POSE_KEY], component=scan.get("component", 0))
            for scan in held["scans"]
        ]
    if isinstance(held, dict):
        held = [held]
    elif not held or not isinstance(held[0], dict):
        return _split(held)
    return [
        _NamedPose(str(each.get("source", k)), each[POSE_KEY], each.get("scale", 1.0))
        for k, each in enumerate(held)
    ]


def _split(numbers: Any) -> list[_NamedPose]:
    """Return the poses of an array: one of 3 x 4 or 4 x 4, or several, a row each."""
    given = np.asarray(numbers, dtype=np.float64)
    if given.ndim and given.shape[-1] in (12, 16):
        given = given.reshape(-1, given.shape[-1] // 4, 4)
    poses = given if given.ndim == 3 else given[None]
    return [_NamedPose(str(k), pose) for k, pose in enumerate(poses)]


def _chosen(path: Path, poses: Sequence[_NamedPose], which: str | None) -> _NamedPose:
    """Return the pose that is meant; the error lists what there is."""
    if which is None and len(poses) == 1:
        return poses[0]
    named = [pose for pose in poses if which in (pose.name, Path(pose.name).name)]
    if len(named) == 1:
        return named[0]
    if which is not None and which.isdecimal() and int(which) < len(poses):
        return poses[int(which)]
    listed = [f"{k} {pose.name}" if pose.name != str(k) else pose.name
              for k, pose in enumerate(poses[:MAX_CHOICES])]  # fmt: skip
    listed += ["..."] if len(poses) > MAX_CHOICES else []
    wanted = "expected one" if which is None else f"{len(named) or 'none'} of them called {which!r}"
    raise FileFormatError(
        f"{path}: it holds {len(poses)} poses; {wanted}; choose a scan by name or number (--scan, "
        f"which=): {', '.join(listed)}"
    )
