"""Poses of many scans into files: TUM's lines, and graphs as g2o and gtsam read them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.spatial.transform import Rotation

from vbreg.io.atomic import atomic_path
from vbreg.types import Float64


class MeasuredPose(NamedTuple):
    """An edge of a graph: the pose between two scans, and how sure it is."""

    source: int
    target: int
    T_target_source: Float64  # (4, 4)
    information: Float64  # (6, 6) of (omega, v) to the left of the pose, in the target's frame


def write_tum(
    path: str | os.PathLike[str],
    poses: Sequence[tuple[int, Float64]],  # number of a scan, T_world_scan (4, 4)
    comments: Iterable[str] = (),
) -> None:
    """Write `number tx ty tz qx qy qz qw`, a scan a line, after comments with a # before each."""
    lines = [f"# {' '.join(text.split())}" for text in comments]
    lines += [f"{number} {_numbers(T)}" for number, T in poses]
    _write(path, lines)


def write_g2o(
    path: str | os.PathLike[str],
    poses: Sequence[tuple[int, Float64]],
    edges: Iterable[MeasuredPose],
) -> None:
    """Write scans as VERTEX_SE3:QUAT and edges as EDGE_SE3:QUAT, target before source.

    The information is that of a motion to the right of the pose, shift before turn, turns in
    radians, as gtsam reads it.
    """
    lines = [f"VERTEX_SE3:QUAT {number} {_numbers(T)}" for number, T in poses]
    for edge in edges:
        W = _information_to_the_right(edge.T_target_source, edge.information)
        upper = " ".join(f"{value:.9g}" for value in W[np.triu_indices(6)])
        pose = _numbers(edge.T_target_source)
        lines.append(f"EDGE_SE3:QUAT {edge.target} {edge.source} {pose} {upper}")
    _write(path, lines)


def _numbers(T: Float64) -> str:
    """Return a pose as shift and quaternion, its scalar last and not negative."""
    q = Rotation.from_matrix(T[:3, :3]).as_quat(canonical=True)
    return " ".join(f"{value:.12g}" for value in [*T[:3, 3], *q])


def _information_to_the_right(T: Float64, information: Float64) -> Float64:
    """Return the information (6, 6) in the source's frame, shift before turn."""
    R, t = T[:3, :3], T[:3, 3]
    cross = np.array([[0, -t[2], t[1]], [t[2], 0, -t[0]], [-t[1], t[0], 0]])
    A = np.zeros((6, 6))  # the adjoint: motions of the source's frame into the target's
    A[:3, :3] = A[3:, 3:] = R
    A[3:, :3] = cross @ R
    order = [3, 4, 5, 0, 1, 2]
    return np.asarray((A.T @ information @ A)[np.ix_(order, order)])


def _write(path: str | os.PathLike[str], lines: Sequence[str]) -> None:
    with atomic_path(Path(path)) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
