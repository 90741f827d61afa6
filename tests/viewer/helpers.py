"""A pair of clouds with a known pose, so that nothing of the viewer's tests waits for a search."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np

from vbreg.summary import as_json
from vbreg.types import (
    Alternative,
    Correspondences,
    PointCloud,
    Registration,
    Uncertainty,
    Votes,
)
from vbreg.viewer import ShownPair
from vbreg.viewer.scene import MAGIC


def turned(degrees: float, shift: tuple[float, float, float]) -> np.ndarray:
    """A pose: a turn about z, then a shift."""
    c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    T = np.eye(4)
    T[:2, :2] = [[c, -s], [s, c]]
    T[:3, 3] = shift
    return T


def planted_clouds(n: int = 3000, *, coloured: bool = True) -> tuple[PointCloud, PointCloud]:
    """Two halves of a box of 4 x 3 x 2; the target is moved by `POSE`."""
    rng = np.random.default_rng(0)
    points = rng.random((2 * n, 3)) * [4, 3, 2]
    for axis, rows in enumerate(np.array_split(np.arange(2 * n), 3)):
        points[rows, axis] = 0
    rgb = rng.integers(0, 256, (3, 2 * n)).astype(np.uint8)
    colours = dict(zip(("red", "green", "blue"), rgb, strict=True)) if coloured else {}
    whole = PointCloud(points, colours)
    return whole.selected(points[:, 1] < 2), whole.selected(points[:, 1] > 1).transformed(POSE)


POSE = turned(70.0, (6.0, -2.0, 0.5))


def planted_result(source: PointCloud, n: int = 60) -> Registration:
    """A result that knows the pose: two of three matches are right."""
    rng = np.random.default_rng(1)
    shared = source.points[source.points[:, 1] > 1]
    ends = shared[rng.integers(0, len(shared), n)]
    inliers = np.arange(n) % 3 > 0
    target = np.where(inliers[:, None], ends, np.roll(ends, 1, axis=0))
    target = PointCloud(target).transformed(POSE).points
    return Registration(
        T_target_source=POSE,
        correspondences=Correspondences(ends, target),
        inliers=inliers,
        confidence=np.where(inliers, 0.9, 0.1).astype(np.float32),
        score=0.6,
        inlier_rmse=0.01,
        fixed=True,
        inlier_threshold=0.1,
        matches_found=n,
        backend="cpu",
        voxel_size=0.05,
        timings={"prepare": 0.1, "network": 0.2},
        uncertainty_given=Uncertainty(np.diag([1e-4] * 3 + [4e-4] * 3), ()),
        success_probability=0.97,
        overlap=0.4,
        alternatives=(Alternative(turned(-110.0, (1.0, 0.0, 0.0)), 0.02),),
    )


def planted_votes(n: int = 60) -> Votes:
    """Three seeds, and five members of each but the last, which has two."""
    members = np.array([[0, 1, 2, 4, 5], [7, 8, 10, 11, 13], [3, 6, -1, -1, -1]])
    assert members.max() < n
    return Votes(np.array([0, 7, 3]), members)


def planted_pair(*, coloured: bool = True, command: str | None = None) -> ShownPair:
    """The clouds with their result."""
    from pathlib import Path

    source, target = planted_clouds(coloured=coloured)
    result = planted_result(source)
    said = as_json(result, result.timings, Path("a.ply"), Path("b.ply"))
    return ShownPair(source, target, result, planted_votes(), said, ("a.ply", "b.ply"), command)


KINDS = {"uint8": "<u1", "uint16": "<u2", "int32": "<i4", "float32": "<f4"}


def unpacked(data: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The header and the arrays of a packed pair, as the page reads them."""
    assert data.startswith(MAGIC)
    (length,) = struct.unpack_from("<I", data, 8)
    header = json.loads(data[12 : 12 + length])
    start = -(-(12 + length) // 8) * 8
    arrays = {}
    for row in header["arrays"]:
        count = int(np.prod(row["shape"]))
        held = np.frombuffer(data, KINDS[row["kind"]], count, start + row["offset"])
        arrays[row["name"]] = held.reshape(row["shape"])
    return header, arrays
