"""A pair of scans that comes with the package, and the pose that is true of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from vbreg import io
from vbreg.errors import FileFormatError
from vbreg.types import Float64, PointCloud

DEMO_FOLDER = Path(__file__).parent / "data"
TITLE = "two simulated depth-camera scans of one room"


def load() -> tuple[PointCloud, PointCloud, Float64]:
    """Read the pair of scans: return source, target and the true T_target_source (4, 4)."""
    pose = DEMO_FOLDER / "demo_pose.json"
    if not pose.is_file():
        raise FileFormatError(
            f"no demo scans in {DEMO_FOLDER}: the installation is incomplete; reinstall vbreg"
        )
    T_target_source = np.array(
        json.loads(pose.read_text(encoding="utf-8"))["T_target_source"], dtype=np.float64
    )
    source, target = (io.read(DEMO_FOLDER / f"demo_{role}.ply") for role in ("source", "target"))
    return source, target, T_target_source
