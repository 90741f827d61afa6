"""Descriptors from the user's disk, in the layouts that other projects write.

| ending | holds |
|---|---|
| `.npz` | `points` or `xyz` with `feature` or `features` (PointDSC, FCGF), or two unnamed arrays |
| `.npy` | one array (N, 3 + D): the point, then its descriptor |
| `.pth` | the same names as tensors or arrays, or a sequence of the two |
| pair `.npz` | `xyz0`, `xyz1`, `features0`, `features1` (PointDSC on KITTI) |
| pair `.pth` | `pcd`, `feats` of both clouds in a row and `len_src` (Predator) |

A `.pth` is a pickle, and a pickle is a program: it is read by an unpickler that can build tensors,
numeric arrays and plain containers and can call nothing else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vbreg.errors import FileFormatError
from vbreg.io.arrays import open_archive
from vbreg.types import Float32, Float64

POINT_NAMES = (
    "xyz",
    "points",
    "pcd",
)  # PointDSC keeps the described points in xyz, the scan in points
FEATURE_NAMES = ("features", "feature", "feats", "descriptors")


@dataclass(frozen=True, eq=False)
class StoredCloud:
    """Points from a file, and one descriptor for each."""

    points: Float64  # (N, 3)
    features: Float32  # (N, D)

    def __len__(self) -> int:
        return len(self.points)


def read_descriptors(path: str | Path) -> StoredCloud:
    """Read one described cloud from an `.npz`, `.npy` or `.pth` file."""
    path = Path(path)
    held = read_arrays(path)
    features = next((held[name] for name in FEATURE_NAMES if name in held), None)
    candidates = [held[name] for name in POINT_NAMES if name in held]
    if features is None or not candidates:
        raise FileFormatError(
            f"{path}: expected points ({', '.join(POINT_NAMES)}) and features "
            f"({', '.join(FEATURE_NAMES)}), but the file holds {_names(held)}{_pair_hint(held)}"
        )
    # The scan itself may lie beside the described points: the lengths tell them apart.
    fitting = [points for points in candidates if points.shape[:1] == features.shape[:1]]
    points = (fitting or candidates)[0]
    return _described(path, points, features)


def read_described_pair(path: str | Path) -> tuple[StoredCloud, StoredCloud]:
    """Read source and target from one pair file: PointDSC's KITTI `.npz` or Predator's `.pth`."""
    path = Path(path)
    return described_pair(path, read_arrays(path))


def described_pair(
    path: str | Path, held: Mapping[str, NDArray[Any]]
) -> tuple[StoredCloud, StoredCloud]:
    """Find source and target among the arrays that `read_arrays` gave for a pair file."""
    path = Path(path)
    if {"xyz0", "xyz1", "features0", "features1"} <= held.keys():
        return (
            _described(path, held["xyz0"], held["features0"]),
            _described(path, held["xyz1"], held["features1"]),
        )
    if {"pcd", "feats", "len_src"} <= held.keys():
        both = _described(path, held["pcd"], held["feats"])
        cut = int(np.asarray(held["len_src"]).reshape(-1)[0]) if held["len_src"].size else -1
        if not 0 <= cut <= len(both):
            raise FileFormatError(
                f"{path}: len_src is {cut}, expected 0 to {len(both)}, the points in pcd"
            )
        return (
            StoredCloud(both.points[:cut], both.features[:cut]),
            StoredCloud(both.points[cut:], both.features[cut:]),
        )
    raise FileFormatError(
        f"{path}: expected xyz0, xyz1, features0, features1 or pcd, feats, len_src, but the file "
        f"holds {_names(held)}; read a file of one cloud with read_descriptors"
    )


def read_arrays(path: str | Path) -> Mapping[str, NDArray[Any]]:
    """Read the numeric arrays of an `.npz`, `.npy` or `.pth` by name; a lone one is `points`."""
    path = Path(path)
    readers = {".npz": _read_npz, ".npy": _read_npy, ".pth": _read_pth, ".pt": _read_pth}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise FileFormatError(
            f"{path}: the ending '{path.suffix}' is unknown here, expected {', '.join(readers)}"
        )
    if not path.is_file():
        raise FileFormatError(f"{path}: no such file; check the path")
    try:
        return reader(path)
    except FileFormatError:
        raise
    except Exception as error:  # the loaders raise a dozen kinds on a broken or hostile file
        reason = " ".join(str(error).split())[:200]
        raise FileFormatError(
            f"{path}: cannot be read as {path.suffix} of plain numeric arrays ({reason}); "
            "save it again with numpy.savez or torch.save, arrays and tensors only "
            "(numpy arrays in a .pth need a torch of 2025 or later)"
        ) from error


def _read_npz(path: Path) -> Mapping[str, NDArray[Any]]:
    with open_archive(path) as archive:
        held = {name: archive.array(name) for name in archive.names}
    if held.keys() == {"arr_0", "arr_1"}:  # numpy.savez(path, points, features)
        return {"points": held["arr_0"], "features": held["arr_1"]}
    return held


def _read_npy(path: Path) -> Mapping[str, NDArray[Any]]:
    array = np.load(path, mmap_mode="r", allow_pickle=False)  # checks the size against the file
    if array.ndim != 2 or array.shape[1] < 4:
        raise FileFormatError(
            f"{path}: has shape {array.shape}, expected (N, 3 + D): x, y, z and the descriptor"
        )
    return {"points": array[:, :3], "features": array[:, 3:]}


def _read_pth(path: Path) -> Mapping[str, NDArray[Any]]:
    import torch

    with numpy_allowed():
        held = torch.load(path, map_location="cpu", weights_only=True)
    if isinstance(held, (list, tuple)) and len(held) == 2:
        held = dict(zip(("points", "features"), held, strict=True))
    if not isinstance(held, Mapping):
        held = {"points": held}
    return {str(name): _numeric(value) for name, value in held.items() if _is_numeric(value)}


def numpy_allowed(*more: tuple[Any, str]) -> contextlib.AbstractContextManager[Any]:
    """Let the weights-only unpickler build numeric arrays, under numpy's old and new names.

    `more` are classes of ours, each with the name that a file calls it by.
    """
    import torch

    if not hasattr(torch.serialization, "safe_globals"):  # torch < 2.5 reads tensors only
        return contextlib.nullcontext()
    rebuild = np.zeros(1).__reduce__()[0]
    scalar = np.float64(0).__reduce__()[0]
    allowed: list[Any] = [np.ndarray, np.dtype, *more]
    for module in ("numpy.core.multiarray", "numpy._core.multiarray"):
        allowed += [(rebuild, f"{module}._reconstruct"), (scalar, f"{module}.scalar")]
    allowed += {type(np.dtype(code)) for code in "?bhilqBHILQefd"}
    return torch.serialization.safe_globals(allowed)


def _is_numeric(value: object) -> bool:
    return hasattr(value, "detach") or isinstance(value, (np.ndarray, np.generic, int, float))


def _numeric(value: Any) -> NDArray[Any]:
    return np.asarray(value.detach().numpy() if hasattr(value, "detach") else value)


def _described(path: Path, points: NDArray[Any], features: NDArray[Any]) -> StoredCloud:
    for name, array in (("points", points), ("features", features)):
        if array.dtype.kind not in "fiu":
            raise FileFormatError(f"{path}: {name} are {array.dtype}, expected numbers")
    if points.ndim != 2 or points.shape[1] != 3:
        raise FileFormatError(f"{path}: points have shape {points.shape}, expected (N, 3)")
    if features.ndim != 2 or len(features) != len(points):
        raise FileFormatError(
            f"{path}: features have shape {features.shape}, expected ({len(points)}, D): "
            "one row per point"
        )
    return StoredCloud(points.astype(np.float64), features.astype(np.float32))


def _names(held: Mapping[str, NDArray[Any]]) -> str:
    return ", ".join(sorted(held)) or "no arrays"


def _pair_hint(held: Mapping[str, NDArray[Any]]) -> str:
    return "; read a pair file with read_described_pair" if "xyz0" in held else ""
