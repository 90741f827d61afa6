"""What users hand in, checked and made into arrays; an error names the value and the way out."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from vbreg import io
from vbreg.errors import VBRegError
from vbreg.types import Bool, Float64, PointCloud

MIN_MATCHES = 3  # that fix a pose

Points: TypeAlias = "ArrayLike | Tensor"
Descriptors: TypeAlias = "tuple[ArrayLike | Tensor, ArrayLike | Tensor]"  # of source and target


@runtime_checkable
class HasPoints(Protocol):
    """Anything with points (N, 3), such as Open3D's point clouds."""

    @property
    def points(self) -> ArrayLike: ...


Ignore: TypeAlias = "Callable[[Float64], ArrayLike | Tensor] | ArrayLike | Tensor"
Cloud: TypeAlias = "str | os.PathLike[str] | PointCloud | HasPoints | ArrayLike | Tensor"


def load_points(cloud: Cloud, role: str) -> Float64:
    """Return (N, 3) float64 of a path, an array, a tensor, a PointCloud or what has `.points`.

    Open3D's tensor clouds have `.point` instead, which holds the positions.
    """
    if isinstance(cloud, str | os.PathLike):
        return io.read(cloud).points
    held = getattr(cloud, "point", None)
    if held is not None and "positions" in held:
        points = as_points(held["positions"].cpu().numpy(), role)
    else:
        points = as_points(cloud.points if isinstance(cloud, HasPoints) else cloud, role)
    if points.ndim != 2:
        raise VBRegError(f"{role} has shape {points.shape}: expected (N, 3){_shape_hint(points)}")
    return points


def ignored_points(ignore: Ignore, points: Float64, role: str) -> Bool:
    """Tell (N,) which points (N, 3) a user wants to leave out, by a function or a mask of them."""
    given = ignore(points) if callable(ignore) else ignore
    try:
        mask = as_array(given)
    except ValueError:  # rows of several lengths
        raise VBRegError(
            f"ignore for {role} is a {type(given).__name__} of parts of several lengths: expected "
            "a mask of its points or a function; give those of both clouds as a tuple (source, "
            "target)"
        ) from None
    if mask.shape != (len(points),) or mask.dtype != np.bool_:
        what = "a function that returns" if callable(ignore) else "a mask:"
        raise VBRegError(
            f"ignore for {role} is {what} {mask.dtype} of shape {mask.shape}: expected True or "
            f"False for each of its {len(points)} points, True for those to leave out"
        )
    return mask


def as_points(points: Points, name: str) -> Float64:
    """Return points (..., N, 3) as float64; the caller's array is never written to.

    A structured array, as ROS gives it, has them in its fields x, y and z.
    """
    if isinstance(points, np.ndarray) and {"x", "y", "z"} <= set(points.dtype.names or ()):
        points = np.stack([points[axis] for axis in "xyz"], axis=-1)
    array = _as_numbers(
        points, name, "points (N, 3) as an array, a tensor, a path, or an object with .points"
    )
    if array.ndim not in (2, 3) or array.shape[-1] != 3:
        raise VBRegError(f"{name} has shape {array.shape}: expected (N, 3){_shape_hint(array)}")
    return array


def _shape_hint(array: Float64) -> str:
    """Return how an array of another shape becomes points (N, 3), where that is plain."""
    if array.ndim == 2 and array.shape[0] == 3:
        return "; transpose it"
    if array.ndim == 2 and array.shape[1] > 3:
        return "; if x, y, z are its first columns, give points[:, :3]"
    if array.ndim > 2 and array.shape[-1] == 3:
        return "; give points.reshape(-1, 3)"
    return ""


def as_matches(source: Points, target: Points) -> tuple[Float64, Float64]:
    """Return both ends (N, 3) of matches, row by row."""
    ends = as_points(source, "source_points"), as_points(target, "target_points")
    for name, end in zip(("source_points", "target_points"), ends, strict=True):
        if end.ndim != 2:
            raise VBRegError(
                f"{name} has shape {end.shape}: expected (N, 3), one problem; several problems go "
                "to estimate_batch"
            )
    if ends[0].shape != ends[1].shape:
        raise VBRegError(
            f"source_points {ends[0].shape} and target_points {ends[1].shape} differ in shape: row "
            "n of one is matched to row n of the other"
        )
    return ends


def finite_rows(source: Float64, target: Float64) -> Bool:
    """Tell (N,) which matches are finite at both ends."""
    return finite_points(source) & finite_points(target)


def finite_points(points: Float64) -> Bool:
    """Tell (..., N) which points (..., N, 3) have three finite coordinates."""
    finite = np.isfinite(points)
    # `all` along so short an axis would take ten times as long.
    return np.asarray(finite[..., 0] & finite[..., 1] & finite[..., 2])


def as_descriptors(descriptors: Descriptors | None, valid: Bool, width: int) -> Float64 | None:
    """Return (N, 2 * width): source then target, each of length 1, zero where a row is not valid.

    `width` is what the network takes for each cloud: 0 is none.
    """
    if width == 0 and descriptors is not None:
        raise VBRegError(
            "descriptors given, but this network sees points alone: leave them out, or use weights "
            "that were trained with input = 'feat'"
        )
    if width == 0:
        return None
    try:
        source, target = descriptors  # type: ignore[misc]  # what is not a pair is named below
    except (TypeError, ValueError) as error:
        raise VBRegError(
            f"this network sees descriptors of {width} columns: give descriptors=(source, target), "
            "row by row with the matches"
        ) from error
    ends = (("source descriptors", source), ("target descriptors", target))
    return np.concatenate([_unit_rows(rows, name, valid, width) for name, rows in ends], axis=-1)


def _unit_rows(rows: Points, name: str, valid: Bool, width: int) -> Float64:
    array = _as_numbers(rows, name, "numbers (N, D) as an array or a tensor")
    if array.shape[:-1] != valid.shape:
        expected = (*valid.shape, width)
        raise VBRegError(f"{name} have shape {array.shape}: expected {expected}, one row per match")
    if array.shape[-1] != width:
        raise VBRegError(f"{name} have {array.shape[-1]} columns: this network takes {width}")
    array = np.where(valid[..., None], array, 0.0)
    if not np.isfinite(array).all():
        raise VBRegError(f"{name} hold NaN or infinity: drop these matches")
    return array / np.linalg.norm(array, axis=-1, keepdims=True).clip(1e-12)


def _as_numbers(values: Points, name: str, expected: str) -> Float64:
    """Return float64 of any shape, never the caller's own array."""
    if isinstance(values, Tensor):
        values = values.detach().to("cpu", torch.float64).numpy()
    try:
        masked = np.ma.isMaskedArray(values)
        array = np.asarray(np.ma.getdata(values) if masked else values)
        if array.dtype.kind not in "biuf":
            raise TypeError(f"its values are {array.dtype}")
    except (TypeError, ValueError) as error:
        raise VBRegError(
            f"{name} is a {type(values).__name__}: expected {expected} ({error})"
        ) from error
    numbers = array.astype(np.float64)
    if masked:
        numbers[np.ma.getmaskarray(values)] = np.nan  # type: ignore[arg-type]  # it is one
    return numbers


def as_array(value: object) -> np.ndarray:
    """Return what a user gave as an array; a tensor may be on any device and need a gradient."""
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)


def as_number(value: object) -> float:
    """Return the value as a float; NaN where it is no number, such as a text or True."""
    if isinstance(value, str | bytes | bytearray | bool | np.bool_):
        return math.nan
    try:
        return float(value)  # type: ignore[arg-type]  # else NaN
    except (TypeError, ValueError, OverflowError):
        return math.nan


def positive_number(value: object, name: str) -> float:
    """Return the value as a float if it is a finite number above zero."""
    number = as_number(value)
    if not (math.isfinite(number) and number > 0):
        raise VBRegError(f"{name} {value!r}: expected a positive number in the unit of the points")
    return number


def check_whole_number(value: object, name: str, least: int) -> None:
    """Raise unless the value is a whole number that is not below the least."""
    if not isinstance(value, Integral) or isinstance(value, bool) or int(value) < least:
        raise VBRegError(f"{name} {value!r}: expected a whole number from {least} up")


def check_seed(seed: object) -> None:
    """Raise unless the seed is None or a whole number that torch takes."""
    if seed is None:
        return
    whole = isinstance(seed, Integral) and not isinstance(seed, bool)
    if not whole or not -(2**63) <= int(seed) < 2**64:  # type: ignore[call-overload]
        raise VBRegError(f"seed {seed!r}: expected a whole number of 64 bits, or None")


def check_choice(value: object, name: str, choices: Sequence[str]) -> None:
    """Raise unless the value is one of the words."""
    if not isinstance(value, str) or value not in choices:
        raise VBRegError(f"{name} {value!r}: expected one of {', '.join(choices)}")


def check_flag(value: object, name: str) -> None:
    """Raise unless the value is True or False."""
    if not isinstance(value, bool | np.bool_):
        raise VBRegError(f"{name} {value!r}: expected True or False")


def check_points(name: str, points: Tensor) -> None:
    """Raise unless `points` is a finite float32 or float64 tensor (N, 3)."""
    if points.ndim != 2 or points.shape[1] != 3:
        raise VBRegError(f"{name} has shape {tuple(points.shape)}: expected (N, 3)")
    if points.dtype not in (torch.float32, torch.float64):
        raise VBRegError(f"{name} is {points.dtype}: convert it to float32 or float64")
    if not bool(torch.isfinite(points).all()):
        bad = int((~torch.isfinite(points)).any(1).sum())
        raise VBRegError(f"{name} holds {bad} points with NaN or infinity: drop them first")
