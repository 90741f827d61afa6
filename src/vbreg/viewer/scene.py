"""What the viewer draws, as bytes: a header in JSON, then arrays.

Points are thinned and shuffled once, so that any first part of them is an even sample, and stored
as 16-bit numbers within the box of their cloud. Poses are in the user's frames, in float64.

    "VBREG-1" and a line feed, length of the header (4 bytes), header, arrays; padded to 8 bytes
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vbreg import __version__
from vbreg.errors import VBRegError
from vbreg.io.names import COLOUR_NAMES, eight_bit_colours, has_all
from vbreg.render import Camera, ball_radius, shift_beside, up_direction
from vbreg.summary import standard_deviation
from vbreg.types import Bool, Float64, PointCloud, Registration, Votes

MAGIC = b"VBREG-1\n"
MAX_SHOWN = 2_000_000  # points of both clouds together
MAX_SHOWN_SEEDS = 1000
MAX_SAMPLE = 20_000  # points that views and boxes are computed from
STEPS = 65535  # along each side of a cloud's box
MAX_BALL_RATIO = 2.0  # of the radius of a sparse cloud's balls to that of a dense one's
MIN_BALL_SHARE = 0.01  # of what there is to see: smaller balls hide nothing
FAR = 5.0  # times the extent of nearly all points: those beyond are not shown


@dataclass(frozen=True)
class ShownPair:
    """Two clouds, or one of them so far, and what is known of their pose."""

    source: PointCloud | None
    target: PointCloud | None
    result: Registration | None = None
    votes: Votes | None = None
    said: Mapping[str, Any] = field(default_factory=dict)  # of `summary.as_json`
    names: tuple[str, str] = ("source", "target")  # to call the clouds by
    command: str | None = None  # that made it

    def packed(self, max_points: int = MAX_SHOWN) -> bytes:
        """Return all that the page needs to show it, with at most so many points."""
        arrays: dict[str, NDArray[Any]] = {}
        shown = self._shown(max_points)
        header: dict[str, Any] = {
            "version": __version__,
            "names": list(self.names),
            "command": self.command,
            "clouds": {role: _add_cloud(arrays, role, *part) for role, part in shown.items()},
            "view": None,
            "result": None,
        }
        if shown:
            points = {role: cloud.points[rows] for role, (cloud, rows) in shown.items()}
            header |= _view(points, self.result)
            _cap_radii(header["clouds"], header["view"]["radius"])
        if self.result is not None:
            header["result"] = {**self.said, "deviation": standard_deviation(self.result)}
            _add_matches(arrays, header, self.result, self.votes)
        return _bytes(header, arrays)

    def _shown(self, max_points: int) -> dict[str, tuple[PointCloud, NDArray[np.int64]]]:
        """Return each cloud with the rows to show, in a random order that is always the same."""
        given = {"source": self.source, "target": self.target}
        clouds = {role: cloud for role, cloud in given.items() if cloud is not None}
        rows = {role: np.flatnonzero(near_points(c.points)) for role, c in clouds.items()}
        for role, found in rows.items():
            if not len(found):
                raise VBRegError(f"{role} has no finite point: there is nothing to show")
        total = sum(map(len, rows.values()))
        share = min(1.0, max_points / max(1, total))
        chosen = {}
        for role, found in rows.items():
            count = max(1, int(share * len(found)))
            order = np.random.default_rng(0).permutation(len(found))[:count]
            chosen[role] = clouds[role], found[order]
        return chosen


def votes_of(result: Registration, weights: str | Path | None, device: str) -> Votes | None:
    """Return the votes of the search for a pose; None where it cannot be run again."""
    from vbreg import pretrained
    from vbreg.model import VBReg

    model = VBReg.from_pretrained(weights or pretrained.DEFAULT, device=device)
    return None if model.network.config.descriptor_width else model.votes(result)


def _cap_radii(clouds: dict[str, Any], reach: float) -> None:
    """Let the balls of a sparse cloud be so small that they do not hide a denser one."""
    radii = {role: cloud["radius"] for role, cloud in clouds.items()}
    for role, cloud in clouds.items():
        others = [radius for other, radius in radii.items() if other != role]
        if others:
            least = max(MAX_BALL_RATIO * min(others), MIN_BALL_SHARE * reach)
            cloud["radius"] = min(cloud["radius"], least)


def near_points(points: Float64) -> Bool:
    """Tell (N,) which points are finite and not very far from nearly all others."""
    finite = np.asarray(np.isfinite(points).all(axis=1))
    some = points[finite]
    if not len(some):
        return finite
    low, high = np.percentile(some[:: max(1, len(some) // MAX_SAMPLE)], [0.5, 99.5], axis=0)
    reach = FAR * max(float((high - low).max()), 1e-9)
    with np.errstate(invalid="ignore", over="ignore"):
        return finite & ((points >= low - reach) & (points <= high + reach)).all(axis=1)


def _add_cloud(
    arrays: dict[str, NDArray[Any]], role: str, cloud: PointCloud, rows: NDArray[np.int64]
) -> dict[str, Any]:
    """Add the points of a cloud as 16-bit numbers, and its colours; return what describes them."""
    points = cloud.points[rows]
    low = points.min(axis=0)
    span = np.maximum(points.max(axis=0) - low, 1e-9)
    arrays[role] = np.round((points - low) / span * STEPS).astype(np.uint16)
    coloured = has_all(cloud.attributes, COLOUR_NAMES)
    if coloured:
        colours = eight_bit_colours({n: cloud.attributes[n][rows] for n in COLOUR_NAMES})[0]
        arrays[f"{role}_rgb"] = np.stack([colours[name] for name in COLOUR_NAMES], axis=1)
    return {
        "points": len(cloud),
        "shown": len(rows),
        "low": low.tolist(),
        "span": span.tolist(),
        "middle": np.median(points[:MAX_SAMPLE], axis=0).tolist(),
        "radius": ball_radius(points - low),
        "coloured": coloured,
    }


def _view(points: Mapping[str, Float64], result: Registration | None) -> dict[str, Any]:
    """Return where the clouds lie before, and from where to look at them before and after."""
    some = {role: rows[:MAX_SAMPLE] for role, rows in points.items()}
    fixed = some.get("target", some.get("source", np.zeros((1, 3))))
    before = np.eye(4)
    scenes = [fixed]
    if "source" in some and "target" in some:
        before[:3, 3] = shift_beside(some["source"], fixed)
        scenes.append(some["source"] + before[:3, 3])
    if "source" in some and result is not None:
        scenes.append(result.apply_to(some["source"]))
    corners = [np.percentile(scene, [1, 99], axis=0) for scene in scenes]
    low, high = np.min(corners, axis=(0, 1)), np.max(corners, axis=(0, 1))
    middle = fixed.mean(axis=0)
    return {
        "before": before.tolist(),
        "beside": bool(before[:3, 3].any()),
        "view": {
            "axes": Camera.facing(fixed).axes.tolist(),  # right, up, towards the eye
            "up": up_direction(fixed)[0].tolist(),
            "origin": middle.tolist(),  # of what is drawn: numbers stay small
            "radius": float(np.linalg.norm(high - low) / 2) or 1.0,  # of all that is ever seen
        },
    }


def _add_matches(
    arrays: dict[str, NDArray[Any]],
    header: dict[str, Any],
    result: Registration,
    votes: Votes | None,
) -> None:
    """Add both ends of the matches, as small numbers, and what is known of them."""
    matches = result.correspondences
    middle = header["clouds"]["source"]["middle"]
    arrays["match_source"] = (matches.source - middle).astype(np.float32)
    arrays["match_target"] = (matches.target - header["view"]["origin"]).astype(np.float32)
    arrays["confidence"] = result.confidence.astype(np.float32)
    arrays["inlier"] = result.inliers.astype(np.uint8)
    if votes is not None:
        arrays["seeds"] = votes.seeds[:MAX_SHOWN_SEEDS].astype(np.int32)
        arrays["members"] = votes.members[:MAX_SHOWN_SEEDS].astype(np.int32)


def _bytes(header: dict[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Lay header and arrays one behind the other, little-endian."""
    listed, parts, offset = [], [], 0
    for name, values in arrays.items():
        content = _padded(values.astype(values.dtype.newbyteorder("<")).tobytes())
        listed.append(
            {"name": name, "kind": values.dtype.name, "shape": values.shape, "offset": offset}
        )
        parts.append(content)
        offset += len(content)
    text = json.dumps(without_infinity({**header, "arrays": listed}), allow_nan=False).encode()
    head = MAGIC + struct.pack("<I", len(text)) + text
    return b"".join([_padded(head), *parts])


def without_infinity(value: Any) -> Any:
    """Return JSON's types with None for numbers that JSON does not have."""
    if isinstance(value, Mapping):
        return {key: without_infinity(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [without_infinity(held) for held in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % 8)
