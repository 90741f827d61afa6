"""A figure for papers: two clouds before, the matches between them, and after, on white.

In a .svg the clouds are pictures; lines and letters are drawn and can be changed.
"""

from __future__ import annotations

import base64
import io as streams
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from vbreg.io import atomic_path
from vbreg.render import (
    INK,
    SOURCE,
    TARGET,
    Camera,
    Colour,
    Pixels,
    drawable,
    render_clouds,
    shift_beside,
)
from vbreg.types import Float64, Registration

ENDINGS = (".png", ".svg")
WHITE: Colour = (255, 255, 255)
INLIER: Colour = (0, 102, 78)  # dark and whole, outliers light and faint: told apart without colour
OUTLIER: Colour = (214, 69, 127)
INLIER_OPACITY, OUTLIER_OPACITY = 0.6, 0.25
GAP = 1.08  # of two clouds beside each other: the room that they take, for what they need
PALE = 0.55  # how white the clouds are where matches lie upon them
PANEL = (1000, 760)  # pixels
DOTS_PER_INCH = 300
LABEL = 118  # rows below the panels, for a label each and the legend of all
FONT = 32  # pixels
LEGEND_FONT = 28
LEGEND_BASE = 96  # rows from the panels to the foot of the legend's letters
LEGEND = (
    ("orange: source", SOURCE),
    ("blue: target", TARGET),
    ("green: match agrees", INLIER),
    ("pink: does not", OUTLIER),
)
SQUARE = 20  # pixels, of the colour before a word of the legend
APART = 48  # pixels between words of the legend
MAX_LINES = 150  # inliers, and as many outliers
FINE = 2  # pixels that a line is drawn with for one of the figure


class Line(NamedTuple):
    """A match as it is drawn, in pixels of the figure."""

    start: tuple[float, float]
    end: tuple[float, float]
    agrees: bool


@dataclass(frozen=True)
class Layout:
    """A figure before it becomes a file."""

    panels: Sequence[Pixels]  # from left to right
    lines: Sequence[Line]
    labels: Sequence[str]  # below each panel

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels."""
        return PANEL[0] * len(self.panels), PANEL[1] + LABEL


def draw_figure(
    source: ArrayLike,  # (N, 3)
    target: ArrayLike,  # (M, 3)
    result: Registration,
    path: str | PathLike[str],
) -> None:
    """Write the figure of a registration as .png or .svg."""
    layout = _layout(drawable(source), drawable(target), result)
    with atomic_path(path) as temporary:
        if fspath(path).lower().endswith(".svg"):
            temporary.write_text(_svg(layout), encoding="utf-8")
        else:
            _image(layout).save(temporary, dpi=(DOTS_PER_INCH, DOTS_PER_INCH))


def _layout(source: Float64, target: Float64, result: Registration) -> Layout:
    view = Camera.facing(target)
    moved = result.apply_to(source)
    shift = shift_beside(source, target)
    apart = _apart(source, target, view)
    panels, cameras = [], []
    for cloud, whiteness in ((source + shift, 0.0), (source + apart, PALE), (moved, 0.0)):
        camera = view.framing(target, *PANEL, cloud)
        colours = [_paler(colour, whiteness) for colour in (SOURCE, TARGET)]
        clouds = list(zip((cloud, target), colours, strict=True))
        panels.append(render_clouds(clouds, camera=camera, size=PANEL, background=WHITE))
        cameras.append(camera)
    inliers, matches = result.inlier_count, len(result.correspondences)
    labels = (
        "(a) before" + (", side by side" if shift.any() else ""),
        f"(b) matches: {inliers} of {matches} agree",
        "(c) after",
    )
    return Layout(panels, _lines(result, apart, cameras[1]), labels)


def _apart(source: Float64, target: Float64, view: Camera) -> Float64:
    """Return the shift (3,) that puts the source at the right of the target, or above wide ones."""
    seen = [cloud @ view.axes.T for cloud in (source, target)]
    (low, high), (fixed_low, fixed_high) = (np.percentile(c, [1, 99], axis=0) for c in seen)
    sizes = np.stack([high - low, fixed_high - fixed_low])[:, :2]  # (2, 2) width and height
    shift = (fixed_low + fixed_high - low - high) / 2  # middle upon middle
    room = np.array(PANEL) / sizes.max(axis=0), np.array(PANEL) / (GAP * sizes.sum(axis=0))
    beside, above = min(room[1][0], room[0][1]), min(room[0][0], room[1][1])
    axis = 0 if beside >= above else 1
    shift[axis] += GAP * sizes[:, axis].sum() / 2
    return np.asarray(shift @ view.axes)


def _lines(result: Registration, shift: Float64, camera: Camera) -> list[Line]:
    """Return some matches as lines, outliers first, so that inliers lie upon them."""
    matches, generator = result.correspondences, np.random.default_rng(0)
    ends = [
        camera.project(points, *PANEL)[:, :2] for points in (matches.source + shift, matches.target)
    ]
    within = np.all([(end >= 0) & (end <= PANEL) for end in ends], axis=(0, 2))
    lines = []
    for agrees in (False, True):
        rows = generator.permutation(np.flatnonzero((result.inliers == agrees) & within))
        for start, end in zip(*(points[rows[:MAX_LINES]] for points in ends), strict=True):
            a, b = ((float(x) + PANEL[0], float(y)) for x, y in (start, end))  # the second panel
            lines.append(Line(a, b, agrees))
    return lines


def _paler(colour: Colour, whiteness: float) -> Colour:
    r, g, b = (round(value + whiteness * (255 - value)) for value in colour)
    return r, g, b


def _style(line: Line) -> tuple[Colour, float]:
    return (INLIER, INLIER_OPACITY) if line.agrees else (OUTLIER, OUTLIER_OPACITY)


def _image(layout: Layout) -> Any:
    """Return the figure as pixels."""
    from PIL import Image, ImageDraw, ImageFont

    width, height = layout.size
    canvas = np.full((height, width, 3), 255, dtype=np.uint8)
    canvas[: PANEL[1]] = np.concatenate(layout.panels, axis=1)
    image = Image.fromarray(canvas).convert("RGBA")
    for agrees in (False, True):  # a layer each: lines of one kind do not add up
        layer = Image.new("RGBA", (FINE * width, FINE * height), (255, 255, 255, 0))
        draw = ImageDraw.Draw(layer)
        for line in layout.lines:
            if line.agrees == agrees:
                colour, opacity = _style(line)
                ends = [tuple(FINE * value for value in end) for end in (line.start, line.end)]
                draw.line(ends, fill=(*colour, round(255 * opacity)), width=2 * FINE)
        image.alpha_composite(layer.resize((width, height), Image.Resampling.BOX))
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(size=FONT)
    for k, label in enumerate(layout.labels):
        left = (k + 0.5) * PANEL[0] - draw.textlength(label, font=font) / 2
        draw.text((left, PANEL[1] + 12), label, fill=INK, font=font)
    _draw_legend(draw, width)
    return image.convert("RGB")


def _draw_legend(draw: Any, width: int) -> None:
    """Draw the legend in the middle of a width (pixels), below the labels."""
    from PIL import ImageFont

    font = ImageFont.load_default(size=LEGEND_FONT)
    lengths = [SQUARE * 1.5 + draw.textlength(word, font=font) for word, _ in LEGEND]
    left, foot = (width - sum(lengths) - APART * (len(LEGEND) - 1)) / 2, PANEL[1] + LEGEND_BASE
    for (word, colour), length in zip(LEGEND, lengths, strict=True):
        draw.rectangle([(left, foot - SQUARE), (left + SQUARE, foot)], fill=colour)
        draw.text((left + SQUARE * 1.5, foot), word, fill=INK, font=font, anchor="ls")
        left += length + APART


def _svg(layout: Layout) -> str:
    """Return the figure as SVG; its letters are ours and need no escape."""
    from PIL import Image

    width, height = layout.size
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width / DOTS_PER_INCH}in" height="{height / DOTS_PER_INCH}in">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for k, panel in enumerate(layout.panels):
        stream = streams.BytesIO()
        Image.fromarray(panel).save(stream, "PNG", optimize=True)
        data = base64.b64encode(stream.getvalue()).decode()
        parts.append(
            f'<image x="{k * PANEL[0]}" y="0" width="{PANEL[0]}" height="{PANEL[1]}" '
            f'href="data:image/png;base64,{data}"/>'
        )
    for line in layout.lines:
        (x1, y1), (x2, y2) = line.start, line.end
        (r, g, b), opacity = _style(line)
        parts.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
            f'stroke="rgb({r},{g},{b})" stroke-opacity="{opacity}" stroke-width="2"/>'
        )
    for k, label in enumerate(layout.labels):
        parts.append(
            f'<text x="{(k + 0.5) * PANEL[0]}" y="{PANEL[1] + 12 + FONT}" text-anchor="middle" '
            f'font-family="Helvetica, Arial, sans-serif" font-size="{FONT}">{label}</text>'
        )
    words = "".join(
        f'<tspan fill="rgb({r},{g},{b})" dx="{APART if k else 0}">\u25a0</tspan> {word}'
        for k, (word, (r, g, b)) in enumerate(LEGEND)
    )
    parts.append(
        f'<text x="{width / 2}" y="{PANEL[1] + LEGEND_BASE}" text-anchor="middle" '
        f'font-family="Helvetica, Arial, sans-serif" font-size="{LEGEND_FONT}">{words}</text>'
    )
    return "\n".join([*parts, "</svg>", ""])
