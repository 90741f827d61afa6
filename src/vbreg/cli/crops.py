"""This file leaves parts of clouds out before these are registered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from vbreg.errors import VBRegError
from vbreg.types import Bool, Float64, PointCloud

ROLES = ("source", "target")


@dataclass(frozen=True)
class Crop:
    """A part of space in the frame of each cloud that it is for: a ball or a box."""

    roles: tuple[str, ...]
    radius: float | None  # about the origin
    box: tuple[Float64, Float64] | None  # two corners

    def holds(self, points: Float64) -> Bool:
        """Tell (N,) which of the points (N, 3) lie within; one that is not finite does not."""
        with np.errstate(invalid="ignore", over="ignore"):
            if self.box is None:
                inside = np.linalg.norm(points, axis=1) <= self.radius
            else:
                low, high = self.box
                inside = ((points >= low) & (points <= high)).all(axis=1)
        return np.asarray(inside)


def parse_crop(text: str) -> Crop:
    """Parse `[source:|target:]RADIUS` or `[source:|target:]X0,Y0,Z0,X1,Y1,Z1`."""
    head, colon, numbers = text.partition(":")
    roles = (head,) if colon else ROLES
    try:
        values = [float(word) for word in (numbers if colon else text).split(",")]
    except ValueError:
        values = []
    fine = np.isfinite(values).all() and set(roles) <= set(ROLES)
    if fine and len(values) == 1 and values[0] > 0:
        return Crop(roles, values[0], None)
    low, high = np.array(values[:3]), np.array(values[3:])
    if fine and len(values) == 6 and (low < high).all():
        return Crop(roles, None, (low, high))
    raise VBRegError(
        f"--crop {text}: expected a radius about the origin such as 40, or a box from its least to "
        "its greatest corner such as -5,-5,0,5,5,3; source: or target: before it for one cloud"
    )


def cropped(
    cloud: PointCloud, role: Literal["source", "target"], crops: Sequence[Crop]
) -> PointCloud:
    """Return the part of a cloud that lies within all crops that are for it."""
    inside = np.ones(len(cloud), dtype=bool)
    for crop in crops:
        if role in crop.roles:
            inside &= crop.holds(cloud.points)
    if inside.all():
        return cloud
    if not inside.any():
        low, high = np.nanmin(cloud.points, axis=0), np.nanmax(cloud.points, axis=0)
        corners = " to ".join(",".join(f"{value:g}" for value in c) for c in (low, high))
        raise VBRegError(f"--crop leaves nothing of {role}, which lies from {corners}")
    return cloud.selected(inside)


def without_outliers(cloud: PointCloud) -> PointCloud:
    """Return a cloud without points that are not finite or lie apart from all others."""
    from vbreg.clouds import isolated_points

    return cloud.selected(~isolated_points(cloud.points))
