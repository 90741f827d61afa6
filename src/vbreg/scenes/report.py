"""The page about a reconstruction: scene, graph, matrix of pairs and doubts in one file of HTML.

It opens from disk without a network. Whatever comes from users (names, the command) lies in JSON
that a script shows as text; only the title is text of the page, and that is escaped.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vbreg import io
from vbreg.scenes.outputs import scene_as_json
from vbreg.scenes.results import Reconstruction, counted
from vbreg.streaming import local_cloud
from vbreg.types import Float64, PointCloud
from vbreg.web_page import web_page

STATIC = Path(__file__).parent / "static"
MAX_POINTS = 600_000  # of all scans together: 5 MB
STEPS = 65535  # along each side of a component's box


def write_scene_report(
    path: str | os.PathLike[str],
    found: Reconstruction,
    clouds: Sequence[str | os.PathLike[str] | PointCloud],
    command: str | None = None,
) -> None:
    """Write the page about a reconstruction of these clouds, all or nothing."""
    content = scene_report_html(found, clouds, command)
    with io.atomic_path(path) as temporary:
        temporary.write_bytes(content)


def scene_report_html(
    found: Reconstruction,
    clouds: Sequence[str | os.PathLike[str] | PointCloud],
    command: str | None = None,
    max_points: int = MAX_POINTS,
) -> bytes:
    """Return the page, with at most so many points of all scans."""
    page, style, script = (
        (STATIC / f"report.{ending}").read_text(encoding="utf-8")
        for ending in ("html", "css", "js")
    )
    content, points = _content(found, clouds, command, max_points)
    # "<" within JSON is written as an escape, so that no name ends the script element.
    text = json.dumps(content, allow_nan=False).replace("<", "\\u003c")
    packed = base64.b64encode(points.astype("<u2").tobytes()).decode()
    data = {"data": ("json", text), "points": ("base64", packed)}
    return web_page(page, content["title"], style, script, data, style_attributes=True)


def _content(
    found: Reconstruction,
    clouds: Sequence[str | os.PathLike[str] | PointCloud],
    command: str | None,
    max_points: int,
) -> tuple[dict[str, Any], NDArray[np.uint16]]:
    """Return what the page tells, and points (N, 3) of all scans as 16-bit numbers."""
    said = scene_as_json(found)
    samples = [_sample(cloud, max_points // len(found)) for cloud in clouds]
    start, parts, boxes = 0, [], []
    for members in found.components:
        T = found.T_world_scan[members]
        placed = [
            samples[k] @ R.T + t for k, R, t in zip(members, T[:, :3, :3], T[:, :3, 3], strict=True)
        ]
        axes, middle = _view(np.concatenate(placed), T[:, :3, 3])
        placed = [(points - middle) @ axes.T for points in placed]
        places = _layout(np.stack([_middle(points) for points in placed]))
        low, step, radius = _box(np.concatenate(placed))
        boxes.append({"low": low.tolist(), "step": step.tolist(), "radius": radius})
        for k, points, place in zip(members, placed, places, strict=True):
            said["scans"][k] |= {"start": start, "count": len(points), "place": place.tolist()}
            parts.append(np.round((points - low) / step).astype(np.uint16))
            start += len(points)
    said |= {
        "title": f"{counted(len(found), 'scan')} in "
        f"{counted(len(found.components), 'component')} - vbreg",
        "about": f"Edges: {found.edges_in_words}. "
        f"Pairs: {found.pairs_in_words}. Voxel size: {found.voxel_size:g}.",
        "command": command,
        "boxes": boxes,
        "tried": [list(pair) for pair in found.tried],
    }
    return said, np.concatenate(parts)


def _sample(cloud: str | os.PathLike[str] | PointCloud, most: int) -> Float64:
    """Return some of the finite points of a scan, the same in every call."""
    local = local_cloud(cloud, "a scan")
    rows = np.random.default_rng(0).permutation(len(local.points))[: max(1, most)]
    return np.asarray(local.points.numpy()[rows] + local.origin)


def _view(points: Float64, origins: Float64) -> tuple[Float64, Float64]:
    """Return axes (3, 3), the last one up, and the middle: rooms and streets are flat.

    Up is the side of the scans' origins (K, 3): sensors lie there, and most look down.
    """
    middle = np.median(points, axis=0)
    some = points[:: max(1, len(points) // 20_000)] - middle
    near = some[np.linalg.norm(some, axis=1) <= np.quantile(np.linalg.norm(some, axis=1), 0.95)]
    axes = _principal_axes(near)
    if (origins.mean(axis=0) - middle) @ axes[2] < 0:
        axes = axes * np.array([[-1.0], [1.0], [-1.0]])
    return axes, middle


def _layout(middles: Float64) -> Float64:
    """Return where scans lie (K, 2), seen along the direction in which their middles spread least.

    Which way is up is not known, and a first scan need not be upright; this shows most of the
    distances between scans.
    """
    offsets = middles - middles.mean(axis=0)
    return (offsets @ _principal_axes(offsets).T)[:, :2]


def _middle(points: Float64) -> Float64:
    """Return the middle of points, or the origin where there are none."""
    return points.mean(axis=0) if len(points) else np.zeros(3)


def _principal_axes(offsets: Float64) -> Float64:
    """Return right-handed axes (3, 3): from that in which offsets spread most to the least."""
    axes = np.linalg.eigh(offsets.T @ offsets)[1].T[::-1]
    return axes * np.sign(np.linalg.det(axes))


def _box(points: Float64) -> tuple[Float64, Float64, float]:
    """Return the corner and the step (3,) of 16-bit numbers, and a radius that shows nearly all."""
    low, high = points.min(axis=0), points.max(axis=0)
    step = np.maximum(high - low, 1e-9) / STEPS
    radius = float(np.quantile(np.linalg.norm(points, axis=1), 0.99))
    return low, step, max(radius, 1e-9)
