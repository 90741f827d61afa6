"""Clouds of Open3D to ours and back, with normals and colours; Open3D is loaded where needed."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vbreg.errors import MissingExtraError, VBRegError
from vbreg.io.names import COLOUR_NAMES, eight_bit_colours, has_all
from vbreg.types import NORMAL_NAMES, PointCloud


def from_open3d(cloud: Any) -> PointCloud:
    """Return a cloud of Open3D, legacy or tensor, as a PointCloud with its normals and colours."""
    legacy = cloud.to_legacy() if hasattr(cloud, "to_legacy") else cloud
    if not hasattr(legacy, "points"):
        raise VBRegError(
            f"a {type(cloud).__name__} is no cloud of Open3D: expected open3d.geometry.PointCloud "
            "or open3d.t.geometry.PointCloud"
        )
    attributes: dict[str, NDArray[Any]] = {}
    if legacy.has_normals():
        attributes |= dict(zip(NORMAL_NAMES, np.asarray(legacy.normals).T, strict=True))
    if legacy.has_colors():
        bytes_ = np.round(255 * np.asarray(legacy.colors)).clip(0, 255).astype(np.uint8)
        attributes |= dict(zip(COLOUR_NAMES, bytes_.T, strict=True))
    copies = {name: np.ascontiguousarray(column) for name, column in attributes.items()}
    return PointCloud(np.array(legacy.points, dtype=np.float64), copies)


def to_open3d(cloud: PointCloud) -> Any:
    """Return a PointCloud as `open3d.geometry.PointCloud`, with its normals and colours."""
    try:
        open3d = importlib.import_module("open3d")
    except ImportError as error:
        raise MissingExtraError("open3d", "baselines", "making a cloud of Open3D") from error
    points = open3d.utility.Vector3dVector
    made = open3d.geometry.PointCloud(points(cloud.points))
    if has_all(cloud.attributes, NORMAL_NAMES):
        normals = np.stack([cloud.attributes[name] for name in NORMAL_NAMES], axis=1)
        made.normals = points(normals.astype(np.float64))
    if has_all(cloud.attributes, COLOUR_NAMES):
        colours, _ = eight_bit_colours(cloud.attributes)
        made.colors = points(np.stack([colours[name] for name in COLOUR_NAMES], axis=1) / 255.0)
    return made
