"""A pair of scans that comes with the package, and the pose that is true of it."""

from __future__ import annotations

import filecmp
import json
import os
import shutil
from pathlib import Path

import numpy as np

from vbreg import io
from vbreg.errors import FileFormatError
from vbreg.types import Float64, PointCloud

DEMO_FOLDER = Path(__file__).parent / "data"
ROLES = ("source", "target")
TITLE = "two simulated depth-camera scans of one room"


def load() -> tuple[PointCloud, PointCloud, Float64]:
    """Read the pair of scans: return source, target and the true T_target_source (4, 4)."""
    T_target_source = np.array(
        json.loads(_shipped("demo_pose.json").read_text(encoding="utf-8"))["T_target_source"],
        dtype=np.float64,
    )
    source, target = (io.read(_shipped(f"demo_{role}.ply")) for role in ROLES)
    return source, target, T_target_source


def copy_to(folder: str | os.PathLike[str]) -> list[Path]:
    """Copy the scans into a folder, made where there is none: return source.ply and target.ply.

    A file of yours that has one of these names stays, which is an error.
    """
    folder = Path(folder)
    content = {f"{role}.ply": _shipped(f"demo_{role}.ply") for role in ROLES}
    for name, shipped in content.items():
        path = folder / name
        if path.is_file() and not filecmp.cmp(path, shipped, shallow=False):
            raise FileFormatError(f"{path}: there is another file already; choose another folder")
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise FileFormatError(
            f"{folder}: no folder can be made there ({error.strerror}); choose another place"
        ) from error
    for name, shipped in content.items():
        with io.atomic_path(folder / name) as temporary:
            shutil.copyfile(shipped, temporary)
    return [folder / name for name in content]


def _shipped(name: str) -> Path:
    """Return a file that comes with the package."""
    path = DEMO_FOLDER / name
    if not path.is_file():
        raise FileFormatError(
            f"no demo scans in {DEMO_FOLDER}: the installation is incomplete; reinstall vbreg"
        )
    return path
