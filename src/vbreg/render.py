"""Pictures of point clouds from numpy and Pillow alone: no window, no GPU, no 3D library.

Points are drawn as small balls into a depth buffer, orthographically, and the buffer is shaded
where its neighbourhood lies nearer to the eye (eye-dome lighting), which shows form without
normals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import cKDTree

from vbreg.errors import VBRegError
from vbreg.io import atomic_path
from vbreg.types import Float32, Float64

Colour: TypeAlias = tuple[int, int, int]
Pixels: TypeAlias = NDArray[np.uint8]  # (H, W, 3)

SOURCE: Colour = (242, 155, 10)  # orange
TARGET: Colour = (44, 110, 200)  # blue; the pair stays apart for colour-blind eyes
BACKGROUND: Colour = (250, 250, 248)
INK: Colour = (38, 42, 48)
FAINT: Colour = (128, 134, 142)

SIZE = (1600, 800)  # of the whole picture
HEADER = 84  # rows for the title and the captions
ENDINGS = (".png", ".jpg", ".jpeg")
SUPERSAMPLE = 2
MAX_DRAWN_POINTS = 400_000  # per cloud
EYE_DOME = ((2, 0.45), (6, 0.3), (14, 0.25))  # distance in fine pixels, weight
MAX_BALL_RADIUS = 12  # radius in fine pixels
LONG_TAIL = 0.3  # of the extent of 96 % of a cloud: what lies further out is not shown
ROUNDNESS = 0.4  # of the balls: 1 is a sphere, 0 a disc


@dataclass(frozen=True, eq=False)
class Camera:
    """An orthographic view: the rows of `axes` point right, up and towards the eye."""

    axes: Float64  # (3, 3)
    centre: Float64  # (3,) the point in the middle of the picture
    pixels_per_unit: float

    @staticmethod
    def facing(points: Float64) -> Camera:
        """Return the 3/4 view that shows most of `points`; `framing` then sets the scale."""
        centre = points.mean(axis=0)
        offsets = points - centre
        up, from_camera = up_direction(points)
        if from_camera:  # look the way the sensor looked, a little from one side
            forward, elevation, turns = np.array([0.0, 0.0, 1.0]), 25.0, [-20, 20]
        else:
            (forward, elevation), turns = _heading(offsets, up), [25, -25, 155, -155]
        views = [_view(_turn(forward, up, degrees), up, elevation) for degrees in turns]
        sample = offsets[:: max(1, len(offsets) // 20_000)]
        return Camera(max(views, key=lambda axes: _visible(sample @ axes.T)), centre, 1.0)

    def framing(self, points: Float64, width: int, height: int, *more: Float64) -> Camera:
        """Return the view moved and scaled so that nearly all `points` fill the picture.

        Of `more` clouds, each is shown as well, however few its points are.
        """
        extents = [_extent(cloud @ self.axes.T) for cloud in (points, *more)]
        low = np.min([low for low, _ in extents], axis=0)
        high = np.max([high for _, high in extents], axis=0)
        span = np.maximum(high - low, 1e-9)
        scale = 0.94 * min(width / span[0], height / span[1])
        return replace(self, centre=(low + high) / 2 @ self.axes, pixels_per_unit=float(scale))

    def project(self, points: Float64, width: int, height: int) -> Float64:
        """Return column, row and depth away from the eye (N, 3), all in pixels."""
        seen = (points - self.centre) @ self.axes.T * self.pixels_per_unit
        return np.stack([seen[:, 0] + width / 2, height / 2 - seen[:, 1], -seen[:, 2]], axis=1)


def before_after(
    source: ArrayLike,  # (N, 3)
    target: ArrayLike,  # (M, 3)
    T_target_source: ArrayLike,  # (4, 4)
    path: str | PathLike[str],
    title: str = "vbreg",
    verdict: str = "",
) -> None:
    """Write a picture of the two clouds as given (left) and under the pose (right).

    A verdict is written above the right one: a wrong pose does not always look wrong.
    """
    from PIL import Image

    T = np.asarray(T_target_source, dtype=np.float64)
    given, fixed = drawable(source), drawable(target)
    moved = given @ T[:3, :3].T + T[:3, 3]
    shift = shift_beside(given, fixed)
    shown, beside = given + shift, bool(shift.any())

    width, height = SIZE[0] // 2, SIZE[1] - HEADER
    view = Camera.facing(fixed)
    panels = [
        render_clouds(
            [(cloud, SOURCE), (fixed, TARGET)],
            camera=view.framing(fixed, width, height, cloud),
            size=(width, height),
        )
        for cloud in (shown, moved)
    ]
    canvas = np.full((SIZE[1], SIZE[0], 3), BACKGROUND, dtype=np.uint8)
    canvas[HEADER:] = np.concatenate(panels, axis=1)
    image = Image.fromarray(canvas)
    before = "before, drawn side by side" if beside else "before"
    _write_captions(image, title, before, verdict)
    with atomic_path(path) as temporary:
        image.save(temporary)


def render_clouds(
    clouds: Sequence[tuple[ArrayLike, Colour]],
    *,
    camera: Camera | None = None,
    size: tuple[int, int] = (800, 800),
    background: Colour = BACKGROUND,
) -> Pixels:
    """Draw the clouds in one view (H, W, 3); where two lie at one pixel the nearer is seen."""
    arrays = [drawable(points) for points, _ in clouds]
    if not all(len(points) for points in arrays):
        raise VBRegError("a cloud without finite points cannot be drawn; leave it out")
    if camera is None:
        everything = np.concatenate(arrays)
        camera = Camera.facing(everything).framing(arrays[0], *size, *arrays[1:])
    width, height = (SUPERSAMPLE * n + 2 * MAX_BALL_RADIUS for n in size)  # cut off again below
    fine = replace(camera, pixels_per_unit=SUPERSAMPLE * camera.pixels_per_unit)
    depth = np.full((height, width), np.inf, dtype=np.float32)
    owner = np.full((height, width), -1, dtype=np.int8)
    for index, points in enumerate(arrays):
        radius = ball_radius(points) * fine.pixels_per_unit
        radius = float(np.clip(radius, 1.5, MAX_BALL_RADIUS))
        _draw_balls(depth, owner, fine.project(points, width, height), radius, index)
    middle = slice(MAX_BALL_RADIUS, -MAX_BALL_RADIUS)
    palette = np.array([colour for _, colour in clouds], dtype=np.float32)
    return _shrink(_shade(depth[middle, middle], owner[middle, middle], palette, background))


def drawable(points: ArrayLike) -> Float64:
    """Return the finite points, of a large cloud a fixed random subset."""
    array = np.asarray(points, dtype=np.float64)
    array = array[np.isfinite(array).all(axis=1)]
    if len(array) > MAX_DRAWN_POINTS:
        array = array[np.random.default_rng(0).choice(len(array), MAX_DRAWN_POINTS, replace=False)]
    return array


def shift_beside(source: Float64, target: Float64) -> Float64:
    """Return the shift (3,) that brings a source to the target's side; zero where it is near."""
    sizes = [np.ptp(np.percentile(c, [1, 99], axis=0), axis=0).max() for c in (source, target)]
    gap = np.median(source, axis=0) - np.median(target, axis=0)
    if np.linalg.norm(gap) <= 1.5 * max(sizes):
        return np.zeros(3)
    right = Camera.facing(target).axes[0]
    return np.asarray(-gap + right * 0.6 * sum(sizes))


def up_direction(points: Float64) -> tuple[Float64, bool]:
    """Tell which way is up, and whether the frame is a camera's (x right, y down, z forward).

    Up is -y there, else the thin axis of a flat cloud, else z.
    """
    distance = np.linalg.norm(points, axis=1)
    if np.mean(points[:, 2] > 0.5 * distance) > 0.8:  # within 60 degrees of the optical axis
        return np.array([0.0, -1.0, 0.0]), True
    offsets = points - points.mean(axis=0)
    spread, axes = np.linalg.eigh(offsets.T @ offsets)
    thin = axes[:, 0]
    if spread[0] < 0.1 * spread[1]:
        return (thin if thin[2] >= 0 else -thin), False
    return np.array([0.0, 0.0, 1.0]), False


def _heading(offsets: Float64, up: Float64) -> tuple[Float64, float]:
    """Look across the widest level direction, from higher above (degrees) if all is flat."""
    level = np.linalg.svd(up[None])[2][1:]  # two horizontal axes
    flat = offsets @ level.T
    widest = np.linalg.eigh(flat.T @ flat)[1][:, 1] @ level
    height, width = (np.ptp(np.percentile(offsets @ axis, [1, 99])) for axis in (up, widest))
    return np.cross(up, widest), 55.0 if height < 0.25 * width else 30.0


def _view(forward: Float64, up: Float64, elevation: float) -> Float64:
    """Return the axes of a camera that looks along `forward` from so many degrees above."""
    angle = np.radians(elevation)
    towards = np.sin(angle) * up - np.cos(angle) * forward
    right = np.cross(forward, up)
    return np.stack([right, np.cross(towards, right), towards])


def _extent(seen: Float64) -> tuple[Float64, Float64]:
    """Return the lowest and highest values (3,) of a cloud as it is seen, without long tails.

    The corners of a box, seen aslant, are short tails: these are kept whole.
    """
    low, high = np.percentile(seen, [2, 98], axis=0)
    tail = LONG_TAIL * (high - low)
    return np.maximum(seen.min(axis=0), low - tail), np.minimum(seen.max(axis=0), high + tail)


def _turn(direction: Float64, axis: Float64, degrees: float) -> Float64:
    """Turn `direction`, which is normal to `axis`, about it."""
    angle = np.radians(degrees)
    return np.cos(angle) * direction + np.sin(angle) * np.cross(axis, direction)


def _visible(seen: Float64, cells: int = 100) -> int:
    """Count the points that no other hides, on a coarse grid; columns are right, up, towards."""
    low, high = np.percentile(seen, [1, 99], axis=0)
    size = max(float((high - low).max()), 1e-9)
    column, row = np.clip((seen[:, :2] - low[:2]) / size * cells, 0, cells).astype(np.int64).T
    front = np.full((cells + 1, cells + 1), -np.inf)
    np.maximum.at(front, (row, column), seen[:, 2])
    return int((seen[:, 2] > front[row, column] - 0.05 * size).sum())


def ball_radius(points: Float64) -> float:
    """Return the radius of balls that just close the gaps between neighbours.

    A random sample of a surface has larger gaps than a regular one of the same density; the
    distances to the first and to the fifth neighbour tell them apart.
    """
    sample = points[:: max(1, len(points) // 2000)]
    tree = cKDTree(points, balanced_tree=False)
    neighbours = [min(n, len(points)) for n in (2, 6)]
    first, fifth = np.median(np.asarray(tree.query(sample, k=neighbours)[0]), axis=0)
    share = np.clip(1.2 - 1.15 * first / max(fifth, 1e-12), 0.52, 0.8)
    return float(share * fifth)


def _draw_balls(
    depth: Float32, owner: NDArray[np.int8], seen: Float64, radius: float, index: int
) -> None:
    """Draw every point of one cloud into the buffers, in place."""
    height, width = depth.shape
    reach = int(radius)
    column, row = np.floor(seen[:, :2]).T
    inside = (column >= reach) & (column < width - reach) & (row >= reach) & (row < height - reach)
    order = np.flatnonzero(inside)
    order = order[np.argsort(-seen[order, 2])]  # the nearest last: on one pixel it wins
    pixel = (row[order] * width + column[order]).astype(np.int64)
    away = seen[order, 2].astype(np.float32)
    depth, owner = depth.reshape(-1), owner.reshape(-1)  # views
    for dy in range(-reach, reach + 1):
        for dx in range(-reach, reach + 1):
            bulge = radius**2 - dx**2 - dy**2
            if bulge < 0:
                continue
            at, z = pixel + (dy * width + dx), away - np.float32(ROUNDNESS * np.sqrt(bulge))
            nearer = z < depth[at]
            depth[at[nearer]] = z[nearer]
            owner[at[nearer]] = index


def _shade(depth: Float32, owner: NDArray[np.int8], palette: Float32, behind: Colour) -> Float32:
    """Return colours (H, W, 3), darker in hollows and behind edges, paler with distance."""
    background = np.array(behind, dtype=np.float32)
    filled = owner >= 0
    if not filled.any():
        return np.broadcast_to(background, (*depth.shape, 3)).copy()
    near, far = (float(d) for d in np.percentile(depth[filled], [1, 99]))
    reach = max(far - near, 0.2 * depth.shape[1])  # a plane is no relief
    light = np.exp(-2.2 * _eye_dome(depth, reach))
    fog = np.where(filled, 0.35 * np.clip((depth - near) / reach, 0, 1), np.float32(1.0))
    colour = palette[np.maximum(owner, 0)] * light[..., None]
    return colour + (background - colour) * fog[..., None]


def _eye_dome(depth: Float32, reach: float) -> Float32:
    """Return how far each pixel lies behind its neighbours, 0 where it is before them all."""
    height, width = depth.shape
    beyond = np.float32(1e30)  # the background: behind everything, and finite
    depth = np.minimum(depth, beyond)
    padded = np.pad(depth, EYE_DOME[-1][0], constant_values=beyond)
    total = np.zeros_like(depth)
    for step, weight in EYE_DOME:
        saturation = np.float32(0.012 * reach * step**0.5)
        for dy, dx in ((0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1), (-1, 0), (-1, 1)):
            y, x = (EYE_DOME[-1][0] + step * d for d in (dy, dx))
            behind = depth - padded[y : y + height, x : x + width]
            np.clip(behind, 0, saturation, out=behind)
            total += np.float32(weight / 8 / saturation) * behind
    return total


def _shrink(fine: Float32) -> Pixels:
    height, width = (n // SUPERSAMPLE for n in fine.shape[:2])
    blocks = fine.reshape(height, SUPERSAMPLE, width, SUPERSAMPLE, 3)
    return np.clip(blocks.mean(axis=(1, 3)) + 0.5, 0, 255).astype(np.uint8)


def _write_captions(image: Any, title: str, before: str, verdict: str) -> None:
    from PIL import ImageDraw, ImageFont

    draw = ImageDraw.Draw(image)
    large, small = ImageFont.load_default(size=26), ImageFont.load_default(size=20)
    middle = SIZE[0] // 2
    title = _shortened(draw, title, large, SIZE[0] - 320)
    draw.text((28, 16), title, fill=INK, font=large)
    draw.text((28, 52), before, fill=FAINT, font=small)
    draw.text((middle + 28, 52), "after", fill=FAINT, font=small)
    start = middle + 28 + draw.textlength("after   ", font=small)
    verdict = _shortened(draw, verdict, small, SIZE[0] - 28 - start)
    draw.text((start, 52), verdict, fill=INK, font=small)
    draw.line([(middle, HEADER), (middle, SIZE[1] - 24)], fill=(224, 224, 220), width=1)
    right = SIZE[0] - 28
    for label, colour in (("target", TARGET), ("source", SOURCE)):
        right -= int(draw.textlength(label, font=small))
        draw.text((right, 18), label, fill=INK, font=small)
        right -= 22
        draw.ellipse([(right, 24), (right + 13, 37)], fill=colour)
        right -= 26


def _shortened(draw: Any, text: str, font: Any, width: float) -> str:
    """Return a text, or the beginning of it that has room in a width (pixels)."""
    while draw.textlength(text, font=font) > width:
        text = text.rstrip(".")[:-1] + "..."
    return text
