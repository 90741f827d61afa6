"""KITTI's .bin: four little-endian float32 per point, no header."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vbreg.io.columns import (
    check_file,
    cloud_from_columns,
    point_blocks,
    problem,
    read_bytes,
)
from vbreg.types import Float64, PointCloud

_POINT_BYTES = 16
_LOOKED_AT = 4096  # points that tell whether a large file makes sense
_SMALLEST, _LARGEST = 1e-6, 1e7  # that a number of a scan usually lies between, if it is not zero
_SANE_SHARE = 0.9  # of the numbers; about half is what doubles give, read as floats


def bin_blocks(path: Path, rows: int) -> Iterator[Float64] | None:
    """Return what yields the points, so many at a time; None where reading all tells more."""
    check_file(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(_POINT_BYTES * _LOOKED_AT)
    head = head[: len(head) // _POINT_BYTES * _POINT_BYTES]
    strange = size % _POINT_BYTES or path.name.lower().endswith(".pcd.bin")
    if strange or _sane_share(np.frombuffer(head, "<f4")) < _SANE_SHARE:
        return None
    record = np.dtype([(axis, "<f4") for axis in ("x", "y", "z", "intensity")])
    return point_blocks(path, 0, record, ("x", "y", "z"), size // _POINT_BYTES, rows)


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
    if _sane_share(rows) < _SANE_SHARE < _sane_share(np.frombuffer(data, "<f8")):
        raise problem(
            path,
            "numbers that make sense as float64 alone",
            "float32 x, y, z, intensity per point",
            "save it as .npy, or with .astype('float32')",
        )
    columns = dict(zip(("x", "y", "z", "intensity"), rows.T, strict=True))
    return cloud_from_columns(path, columns)


def write_bin(path: Path, cloud: PointCloud) -> list[str]:
    """Write four floats per point; return what is lost."""
    rows = np.zeros((len(cloud), 4), dtype="<f4")
    rows[:, :3] = cloud.points
    intensity = cloud.attributes.get("intensity")
    if intensity is not None:
        rows[:, 3] = intensity if intensity.ndim == 1 else intensity[:, 0]
    rows.tofile(path)
    return [f"the attribute '{name}'" for name in cloud.attributes if name != "intensity"]


def _sane_share(values: NDArray[Any]) -> float:
    """Return the share of numbers that a scan may hold."""
    with np.errstate(all="ignore"):
        size = np.abs(values.astype(np.float64))
    return float(np.mean((size == 0) | ((size >= _SMALLEST) & (size <= _LARGEST))))
