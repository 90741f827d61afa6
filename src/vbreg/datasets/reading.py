"""The data sets share how clouds, arrays and poses are read, and how a complaint is worded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from vbreg import io
from vbreg.errors import FileFormatError
from vbreg.io import StoredCloud, read_arrays, read_descriptors
from vbreg.motions import is_rigid
from vbreg.types import Float64

MAX_SKEW = 0.01  # of R R^T from the identity: some trajectories have three digits


def must_exist(path: Path, what: str) -> Path:
    """Return the path if it exists, and complain by saying `what` was looked for where."""
    if not path.exists():
        raise FileFormatError(f"{what} not found: looked for {path.absolute()}")
    return path


def unrecognised_layout(
    what: str, root: Path, found: str, layouts: Iterable[str]
) -> FileFormatError:
    """Return the error for a folder that is there but holds none of the layouts."""
    tried = ";\n".join(f"  ({n}) {layout}" for n, layout in enumerate(layouts, 1))
    return FileFormatError(f"no {what} in {root.absolute()} ({found}); tried:\n{tried}")


@lru_cache(maxsize=72)  # the pairs of a scene share its fragments, 66 at most in 3DMatch
def read_points(path: Path) -> Float64:
    """Read the finite points of a cloud in any format of `vbreg.io`, or of a `.pth`; read-only."""
    must_exist(path, "a cloud")
    points = read_pth(path) if path.suffix.lower() in (".pth", ".pt") else io.read(path).points
    points = points[np.isfinite(points).all(-1)]
    points.flags.writeable = False
    return points


def read_pth(path: Path) -> Float64:
    """Read a cloud that torch.save wrote: one array or tensor (N, 3)."""
    (points,) = take_arrays(path, read_arrays(path), "points")
    if points.ndim != 2 or points.shape[1] != 3:
        raise FileFormatError(f"{path}: points have shape {points.shape}, expected (N, 3)")
    return points.astype(np.float64)


@lru_cache(maxsize=72)
def read_described(path: Path) -> StoredCloud:
    """Read described points; they are read-only, since pairs share them."""
    described = read_descriptors(must_exist(path, "descriptors"))
    described.points.flags.writeable = False
    described.features.flags.writeable = False
    return described


def take_arrays(path: Path, held: Mapping[str, NDArray[Any]], *keys: str) -> list[NDArray[Any]]:
    """Return the arrays of these names, and complain where the file does not hold one."""
    if missing := [key for key in keys if key not in held]:
        raise FileFormatError(
            f"{path.absolute()}: no array {', '.join(missing)}; it holds {sorted(held)}"
        )
    return [np.asarray(held[key]) for key in keys]


def read_poses(path: Path) -> Float64:
    """Read T_world_cloud (K, 4, 4), a row each.

    A row has 16 numbers, 12 (without the last row), or 8 as in a TUM trajectory (time, x y z,
    quaternion with the scalar last).
    """
    if not path.is_file():
        raise FileFormatError(
            f"{path.absolute()}: no such file; expected the poses of the clouds: for each cloud a "
            "row of 16 or 12 numbers, its T_world_cloud, in the order of the numbers in the names "
            "of the clouds"
        )
    try:
        rows = np.loadtxt(path, ndmin=2, dtype=np.float64)
    except ValueError as error:
        raise FileFormatError(
            f"{path.absolute()}: no table of numbers ({error}); expected a row of 16 or 12 numbers "
            "for each cloud"
        ) from error
    T = np.tile(np.eye(4), (len(rows), 1, 1))
    if rows.shape[1] == 16:
        T = rows.reshape(-1, 4, 4)
    elif rows.shape[1] == 12:
        T[:, :3] = rows.reshape(-1, 3, 4)
    elif rows.shape[1] == 8 and rows[:, 4:].any(-1).all():
        T[:, :3, 3] = rows[:, 1:4]
        T[:, :3, :3] = Rotation.from_quat(rows[:, 4:]).as_matrix()
    else:
        raise FileFormatError(
            f"{path.absolute()}: {rows.shape[1]} numbers a row, expected 16 or 12 of a matrix, "
            "or time, x, y, z and a quaternion"
        )
    rigid = is_rigid(T, MAX_SKEW)
    if not rigid.all():
        raise FileFormatError(
            f"{path.absolute()}: row {int(rigid.argmin()) + 1} is not a rotation and a translation"
        )
    return T
