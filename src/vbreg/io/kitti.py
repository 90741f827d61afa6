"""KITTI's .bin: four little-endian float32 per point, no header."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from vbreg.errors import FileFormatError
from vbreg.io.columns import cloud_from_columns, problem, read_bytes
from vbreg.types import PointCloud

_POINT_BYTES = 16
_TOLERANCE = 1e-3  # metres that float32 may cost before a write is refused


def read_bin(path: Path) -> PointCloud:
    """Read KITTI's four floats per point: x, y, z and intensity."""
    if path.name.lower().endswith(".pcd.bin"):
        # Every fourth such file has a size that fits, and would be read as nonsense.
        raise problem(
            path,
            "a nuScenes name (.pcd.bin: five floats per point)",
            "a KITTI .bin of four floats per point",
            "convert it to .npy first",
        )
    data = read_bytes(path)
    if len(data) % _POINT_BYTES:
        raise problem(
            path,
            f"{len(data)} bytes",
            f"a multiple of {_POINT_BYTES} (float32 x, y, z, intensity per point)",
            "export it again or rename it to what it is",
        )
    rows = np.frombuffer(data, "<f4").reshape(-1, 4)
    columns = dict(zip(("x", "y", "z", "intensity"), rows.T, strict=True))
    return cloud_from_columns(path, columns)


def write_bin(path: Path, cloud: PointCloud) -> None:
    """Write four floats per point, if float32 holds the points."""
    rows = np.zeros((len(cloud), 4), dtype="<f4")
    with np.errstate(over="ignore", invalid="ignore"):
        rows[:, :3] = cloud.points
        lost = np.abs(rows[:, :3].astype(np.float64) - cloud.points)
    worst = float(lost.max(initial=0.0, where=~np.isnan(lost)))
    if worst > _TOLERANCE:
        raise FileFormatError(
            f"float32, all that .bin can hold, would move points by up to {worst:.3g} m; "
            f"expected at most {_TOLERANCE:g} m; subtract an offset first or write .ply"
        )
    intensity = cloud.attributes.get("intensity")
    if intensity is not None:
        rows[:, 3] = intensity if intensity.ndim == 1 else intensity[:, 0]
    rows.tofile(path)
