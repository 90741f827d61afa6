"""What users know of a pose before it is looked for: which way is up, and about where it is.

Matches that contradict it are dropped, and the search keeps to what is left. Frames and unit are
the user's; `Limits` are the same for the solver.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from vbreg.errors import VBRegError
from vbreg.estimation import Limits
from vbreg.frames import Matches
from vbreg.geometry import turn_between, upright_procrustes
from vbreg.inputs import MIN_MATCHES, as_array, as_number, positive_number
from vbreg.matching import MatchedClouds
from vbreg.types import Float64

Gravity: TypeAlias = bool | Literal["x", "y", "z"] | Sequence[float] | Sequence[Sequence[float]]

MAX_SLOPE_DIFFERENCE = math.radians(30.0)  # of a surface against up, in its two scans
ROTATION_TOLERANCE = 1e-3  # of the rows of a guess: what is written with four digits passes


@dataclass(frozen=True, eq=False)
class Constraints:
    """What is known of T_target_source; built by `Constraints.of`."""

    up: tuple[Float64, Float64] | None  # (3,) unit each: in the source's frame, in the target's
    T_guess: Float64  # (4, 4), from which the limits are counted
    max_translation: float  # of the middle of the source; infinite where it is not limited
    max_rotation: float  # radians; infinite where it is not limited

    @property
    def names(self) -> tuple[str, ...]:
        """The names of what was given."""
        given = {
            "gravity": self.up is not None,
            "guess": not np.array_equal(self.T_guess, np.eye(4)),
            "max_translation": self.max_translation < math.inf,
            "max_rotation": self.max_rotation < math.inf,
        }
        return tuple(name for name, is_given in given.items() if is_given)

    @staticmethod
    def of(
        gravity: Gravity | None = None,
        guess: ArrayLike | None = None,
        max_translation: float | None = None,
        max_rotation: float | None = None,
    ) -> Constraints | None:
        """Check what a user says; None where nothing is said."""
        up = None if gravity is None else _directions(gravity)
        limited = max_translation is not None or max_rotation is not None
        if guess is not None and not limited:
            raise VBRegError(
                "a guess says nothing without how far off it may be: give max_translation, "
                "max_rotation (degrees) or both"
            )
        if up is None and not limited:
            return None
        length, angle = math.inf, math.inf
        if max_translation is not None:
            length = positive_number(max_translation, "max_translation")
        if max_rotation is not None:
            angle = math.radians(_degrees(max_rotation))
        return Constraints(up, np.eye(4) if guess is None else _pose(guess), length, angle)

    def narrow(self, matched: MatchedClouds) -> MatchedClouds:
        """Return the matched clouds without the matches that contradict what is known."""
        i, j = matched.source_index, matched.target_index
        kept = torch.ones_like(i, dtype=torch.bool)
        if self.max_translation < math.inf:
            kept &= self._within_reach(matched)
        slopes = self._slopes(matched)
        if slopes is not None:
            kept &= (slopes[0][i] - slopes[1][j]).abs() <= MAX_SLOPE_DIFFERENCE
        left = int(kept.sum())
        if left < MIN_MATCHES:
            raise VBRegError(
                f"{left} of {len(i)} matches agree with {' and '.join(self.names)}: at least "
                f"{MIN_MATCHES} are needed; check the frames, or allow more"
            )
        return replace(matched, source_index=i[kept], target_index=j[kept])

    def limits(self, matches: Matches) -> Limits:
        """Return the same for a problem in its local frames, in inlier thresholds."""
        T = torch.from_numpy(self._local_guess(matches.origins[0][0], matches.origins[1][0]))
        T[:3, 3] /= matches.unit
        length = self.max_translation / matches.unit
        if self.up is None:
            return Limits(T, self.max_rotation, length)
        ups = [torch.from_numpy(up) for up in self.up]
        R_upright = turn_between(*ups)
        # The upright turn that is nearest to the guess; its shift stays.
        axes, ones = torch.eye(3).to(T), torch.ones(6).to(T)
        ends = torch.cat([axes, -axes]), torch.cat([axes, -axes]) @ T[:3, :3].T
        T[:3, :3] = upright_procrustes(*ends, ones, R_upright, ups[1])[0][:3, :3]
        return Limits(T, self.max_rotation, length, R_upright, ups[1])

    def _local_guess(self, source_origin: Float64, target_origin: Float64) -> Float64:
        T = self.T_guess.copy()
        T[:3, 3] += T[:3, :3] @ source_origin - target_origin
        return T

    def _within_reach(self, matched: MatchedClouds) -> Tensor:
        """Tell (K,) which matches some pose within the limits can bring together."""
        source = matched.source.points[matched.source_index].double()
        target = matched.target.points[matched.target_index].double()
        T = torch.from_numpy(self._local_guess(matched.source.origin, matched.target.origin))
        T = T.to(source)
        apart = torch.linalg.vector_norm(source @ T[:3, :3].T + T[:3, 3] - target, dim=-1)
        tilt = 0.0 if self.up is None else self._tilt()
        turn = min(self.max_rotation + tilt, math.pi)
        swing = 2 * math.sin(turn / 2) * torch.linalg.vector_norm(source, dim=-1)
        return apart <= self.max_translation + swing + matched.scale.inlier_threshold

    def _tilt(self) -> float:
        """Return how far the guess is from upright, in radians."""
        assert self.up is not None
        cosine = float(self.up[1] @ self.T_guess[:3, :3] @ self.up[0])
        return math.acos(min(1.0, max(-1.0, cosine)))

    def _slopes(self, matched: MatchedClouds) -> tuple[Tensor, Tensor] | None:
        """Return how steep the surface is at each point, in radians; either side may be up."""
        normals = matched.source.normals, matched.target.normals
        if self.up is None or normals[0] is None or normals[1] is None:
            return None
        source, target = (
            (n @ torch.from_numpy(up).to(n)).abs().clamp(max=1.0).acos()
            for n, up in zip((normals[0], normals[1]), self.up, strict=True)
        )
        return source, target


def _directions(gravity: Gravity) -> tuple[Float64, Float64] | None:
    """Return up in the frames of source and target, of length 1; None where it is False."""
    if isinstance(gravity, bool | np.bool_):
        if not gravity:
            return None
        gravity = "z"
    if isinstance(gravity, str) and gravity in ("x", "y", "z"):
        gravity = [float(axis == gravity) for axis in "xyz"]
    try:
        given = as_array(gravity).astype(np.float64)
    except (TypeError, ValueError):
        given = np.empty(0)
    given = np.stack([given, given]) if given.shape == (3,) else given
    length = np.linalg.norm(given, axis=1) if given.shape == (2, 3) else np.zeros(2)
    if not (np.isfinite(length) & (length > 0)).all():
        raise VBRegError(
            f"gravity {gravity!r}: expected True (z is up), 'x', 'y', 'z', the direction of up as "
            "three numbers, or two such directions, in the frames of source and target"
        )
    up = given / length[:, None]
    return up[0], up[1]


def _degrees(value: float) -> float:
    """Return an angle that limits something."""
    angle = as_number(value)
    if not 0 < angle <= 180:
        raise VBRegError(f"max_rotation {value!r}: expected degrees, above 0 and at most 180")
    return angle


def _pose(guess: ArrayLike) -> Float64:
    """Return a user's pose, its rotation made exact."""
    try:
        T = as_array(guess).astype(np.float64)
    except (TypeError, ValueError):
        raise VBRegError(
            f"a guess that is a {type(guess).__name__}: expected a pose (4, 4), T_target_source, "
            "as an array; `vbreg.io.read_pose` reads one from a file"
        ) from None
    if not np.isfinite(T).all():
        raise VBRegError(
            f"the guess has a value that is not finite, {T[~np.isfinite(T)][0]}: expected a pose "
            "(4, 4), T_target_source, of finite numbers"
        )
    if T.shape != (4, 4) or not np.allclose(T[3], [0, 0, 0, 1]):
        raise VBRegError(
            f"a guess of shape {T.shape}: expected a pose (4, 4), T_target_source, whose last row "
            "is 0 0 0 1"
        )
    U, size, Vh = np.linalg.svd(T[:3, :3])
    if np.abs(size - 1).max() > ROTATION_TOLERANCE or np.linalg.det(U @ Vh) < 0:
        raise VBRegError(
            f"the guess scales by {size.round(4).tolist()} with determinant "
            f"{np.linalg.det(T[:3, :3]):.4f}: expected a rotation, neither scaled nor mirrored"
        )
    T[:3, :3] = U @ Vh
    return T
