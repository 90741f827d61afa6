"""TR_DE (Chen et al., CVPR 2022, transformation decomposition): branch and bound in two stages.

A rigid motion moves every point equally far along its axis r. So r.(y - x) = d for all right
matches, whatever the angle: the axis, half a sphere of them, and the shift d are searched first, by
how many matches fit. What is left is a motion of the plane across the axis, whose translation and
angle are searched likewise. Both are searches over squares: a square is split in four while more
matches might fit somewhere in it than fit at the best place known. The innermost unknown, shift or
angle, is not split but read from a table of intervals, one of each match.

Nothing is drawn at random. The number of squares is bounded, and so are time and memory; what was
dropped is part of the bound that a search returns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from vbreg.compatibility import row_chunks
from vbreg.estimation import Estimate, squared_residuals
from vbreg.geometry import from_rotation_translation, procrustes, rotation_of_vector
from vbreg.methods.common import Answer, LocalMethod, Task
from vbreg.methods.interface import Method

TOLERANCE = 1.0  # xi of the paper, in inlier thresholds
AXES = 32  # that the second stage starts from
AXIS_SPACING = math.radians(5.0)  # between two of them
FINEST = 0.25  # inlier thresholds: how far a typical point moves within the smallest squares
MAX_SQUARES = 1024  # that are split, of one size
SHIFT_BIN = 0.1  # inlier thresholds
TURN_BIN = 0.1  # inlier thresholds that a typical point moves
MIN_BINS, MAX_BINS = 64, 4096  # of a table
FIRST_SPLIT = 8  # squares along each side to begin with


class Squares(NamedTuple):
    """Squares of one size on several sheets, each with a plane of its own."""

    sheet: Tensor  # (b,)
    centre: Tensor  # (b, 2)
    half: float  # of a side

    def take(self, rows: Tensor | slice) -> Squares:
        """Return some of the squares."""
        return Squares(self.sheet[rows], self.centre[rows], self.half)

    def split(self) -> Squares:
        """Return the four quarters of each."""
        quarter = self.half / 2
        signs = self.centre.new_tensor([[-1, -1], [-1, 1], [1, -1], [1, 1]])
        centre = (self.centre.unsqueeze(1) + quarter * signs).flatten(0, 1)
        return Squares(self.sheet.repeat_interleave(4), centre, quarter)


def sheets(count: int, half: float, like: Tensor) -> Squares:
    """Return squares that cover as many sheets, each from -half to half along both sides."""
    step = half / FIRST_SPLIT
    along = torch.arange(FIRST_SPLIT, device=like.device).to(like) * 2 * step + step - half
    centre = torch.cartesian_prod(along, along)
    sheet = torch.arange(count, device=like.device).repeat_interleave(len(centre))
    return Squares(sheet, centre.repeat(count, 1), step)


class Bounds(NamedTuple):
    """How many matches fit, for each of b squares."""

    lower: Tensor  # (b,) at the centre
    inner: Tensor  # (b,) the innermost unknown there
    upper: Tensor  # (b,) no place within the square has more


class Found(NamedTuple):
    """The best places of a search, the best first."""

    squares: Squares  # whose centres they are
    inner: Tensor  # (k,)
    fitting: Tensor  # (k,) matches
    bound: int  # no place of all has more


def most_covered(first: Tensor, last: Tensor, real: Tensor, bins: int) -> tuple[Tensor, Tensor]:
    """Return how many of the ranges (b, n) of bins hold the fullest bin, and which it is, (b,) each.

    Both ends belong to a range; `last` may be one below `first`, where it is empty.
    """
    return _fullest(_coverage(first, last, real, bins))


def _coverage(first: Tensor, last: Tensor, real: Tensor, bins: int) -> Tensor:
    table = torch.zeros(len(first), bins + 1, dtype=torch.int32, device=first.device)
    one = real.to(torch.int32)
    table.scatter_add_(1, first.clamp(0, bins), one)
    table.scatter_add_(1, (last + 1).clamp(0, bins), -one)
    return table[:, :-1].cumsum(1, dtype=torch.int32)


def _fullest(table: Tensor) -> tuple[Tensor, Tensor]:
    count, where = table.max(1)
    return count, where


def touched(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first and the last bin that intervals touch; ends are in bins."""
    return low.floor().long(), high.floor().long()


def centres_within(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first and the last bin whose centre lies in the intervals."""
    return (low - 0.5).ceil().long(), (high - 0.5).floor().long()


def search(
    bounds: Callable[[Squares], Bounds],
    squares: Squares,
    finest: float,
    alike: Callable[[Squares, int], Tensor],
    wanted: int = 1,
) -> Found:
    """Find the places where the most matches fit, no two of them `alike`.

    Squares are split until they are no larger than `finest`, as long as their upper bound is above
    what fits at the last of the wanted places.
    """
    pool, inner, count = squares.take(slice(0)), squares.centre[:0, 0], squares.sheet[:0].int()
    dropped = 0
    while True:
        found = bounds(squares)
        pool = Squares(
            torch.cat([pool.sheet, squares.sheet]), torch.cat([pool.centre, squares.centre]), 0.0
        )
        inner, count = torch.cat([inner, found.inner]), torch.cat([count, found.lower])
        best = distinct(pool, count, alike, wanted)
        pool, inner, count = pool.take(best), inner[best], count[best]
        bar = int(count[-1]) if len(count) == wanted else 0
        upper = found.upper
        hopeful = (upper > bar).nonzero().squeeze(-1)
        hopeful = hopeful[upper[hopeful].argsort(descending=True, stable=True)]
        done = squares.half <= finest or not len(hopeful)
        left = hopeful if done else hopeful[MAX_SQUARES:]
        if len(left):
            dropped = max(dropped, int(upper[left[0]]))
        if done:
            return Found(pool, inner, count, max(dropped, int(count[0])))
        squares = squares.take(hopeful[:MAX_SQUARES]).split()


def distinct(
    squares: Squares, count: Tensor, alike: Callable[[Squares, int], Tensor], wanted: int
) -> Tensor:
    """Return at most so many squares by their count, each unlike all before."""
    left, chosen = count.clone(), []
    for _ in range(min(wanted, len(count))):
        best = int(left.argmax())
        if left[best] < 0:
            break
        chosen.append(best)
        left[alike(squares, best)] = -1
    return torch.tensor(chosen, device=count.device)


# The first stage: axis and shift


def directions(squares: Squares, corner: tuple[float, float] = (0.0, 0.0)) -> Tensor:
    """Return the unit vectors (b, 3) at the centres, or at corners, of squares on a cube.

    Three of its faces, the sheets, are half a sphere.
    """
    flat = squares.centre + squares.half * squares.centre.new_tensor(corner)
    face = torch.cat([torch.ones_like(flat[:, :1]), flat], dim=-1)  # (b, 3)
    order = (torch.arange(3, device=flat.device) - squares.sheet[:, None]) % 3
    return torch.nn.functional.normalize(face.gather(1, order), dim=-1)


def angular_radius(squares: Squares) -> Tensor:
    """Return (b,) the largest angle between the centre and any direction of a square.

    A cone about the centre is convex: where it holds the four corners, it holds the square.
    """
    centre = directions(squares)
    corners = [directions(squares, (u, v)) for u in (-1.0, 1.0) for v in (-1.0, 1.0)]
    chord = torch.stack([(corner - centre).norm(dim=-1) for corner in corners]).amax(0)
    return 2 * torch.asin((chord / 2).clamp_max(1.0))


def axis_bounds(way: Tensor, squares: Squares) -> Bounds:
    """Bound how many matches move equally far along an axis; way (n, 3) is y - x.

    Any axis of the square is at most the angular radius from the centre, which moves a projection
    by at most the chord times the length of the way.
    """
    reach = float(way.norm(dim=-1).max()) + 1.0
    bins = min(MAX_BINS, max(MIN_BINS, math.ceil(2 * reach / SHIFT_BIN)))
    size = 2 * reach / bins
    length = way.norm(dim=-1)
    parts = []
    for rows in row_chunks(len(squares.sheet), len(way), maps=24):
        some = squares.take(rows)
        along = directions(some) @ way.T  # (b, n)
        slack = (2 * torch.sin(angular_radius(some) / 2))[:, None] * length
        real = torch.ones_like(along, dtype=torch.bool)
        low, high = (((along + end + reach) / size) for end in (-TOLERANCE, TOLERANCE))
        lower, where = most_covered(*centres_within(low, high), real, bins)
        upper, _ = most_covered(*touched(low - slack / size, high + slack / size), real, bins)
        parts.append(Bounds(lower, (where + 0.5) * size - reach, upper))
    return Bounds(*(torch.cat(part) for part in zip(*parts, strict=True)))


def axes(source: Tensor, target: Tensor, wanted: int) -> tuple[Tensor, Tensor, Found]:
    """Find axes (k, 3) and shifts (k,) that the most matches (n, 3) fit, and the search for them."""
    way = target - source
    middle = way.mean(0)
    way = way - middle  # the shift takes it up: a short way bounds better
    typical = float(way.norm(dim=-1).median())

    def alike(squares: Squares, place: int) -> Tensor:
        unit = directions(squares)
        return (unit @ unit[place]).abs() > math.cos(AXIS_SPACING)

    found = search(
        lambda squares: axis_bounds(way, squares),
        sheets(3, 1.0, way),
        FINEST / (math.sqrt(2) * max(typical, 1.0)),
        alike,
        wanted,
    )
    axis = directions(found.squares)
    return axis, found.inner + axis @ middle, found


# The second stage: the plane across the axis


class Planes(NamedTuple):
    """Matches that fit an axis and its shift, seen along the axis, for each of k axes."""

    source: Tensor  # (k, s, 2)
    target: Tensor  # (k, s, 2)
    real: Tensor  # (k, s) False for padding


def across(axis: Tensor) -> Tensor:
    """Return two unit vectors (k, 2, 3) that make a right-handed frame with each axis (k, 3)."""
    least = torch.nn.functional.one_hot(axis.abs().argmin(-1), 3).to(axis)
    first = torch.nn.functional.normalize(torch.linalg.cross(axis, least), dim=-1)
    return torch.stack([first, torch.linalg.cross(axis, first)], dim=1)


def seen_along(axis: Tensor, shift: Tensor, source: Tensor, target: Tensor) -> Planes:
    """Project the matches that fit each axis (k, 3) and shift (k,) to the plane across it."""
    off = axis @ (target - source).T - shift[:, None]  # (k, n)
    fits = off.abs() <= TOLERANCE
    most = max(1, int(fits.sum(-1).max()))
    order = fits.int().argsort(dim=-1, descending=True, stable=True)[:, :most]  # (k, s)
    frame = across(axis).transpose(-1, -2)  # (k, 3, 2)
    return Planes(source[order] @ frame, target[order] @ frame, fits.gather(1, order))


def polar(points: Tensor) -> tuple[Tensor, Tensor]:
    """Return the length and the angle (...) of points (..., 2)."""
    return torch.hypot(*points.unbind(-1)), torch.atan2(points[..., 1], points[..., 0])


def plane_bounds(planes: Planes, squares: Squares, bins: int) -> Bounds:
    """Bound how many matches of its plane fit a translation of a square and some angle.

    With a translation that is off by at most half a diagonal, a match that fits lies within the
    inlier threshold and that much more of where the centre puts it, at an angle of an interval.
    """
    size = 2 * math.pi / bins
    length, angle = polar(planes.source)  # (k, s)
    parts = []
    for rows in row_chunks(len(squares.sheet), length.shape[1], maps=32):
        some = squares.take(rows)
        a, (b, phase) = length[some.sheet], polar(
            planes.target[some.sheet] - some.centre.unsqueeze(1)
        )
        phase = (phase - angle[some.sheet]).remainder(2 * math.pi)
        real = planes.real[some.sheet]
        ends = []
        for within, edges in ((TOLERANCE, centres_within), (TOLERANCE + math.sqrt(2) * some.half, touched)):
            cosine = (a * a + b * b - within**2) / (2 * a * b).clamp_min(1e-12)
            spread = torch.acos(cosine.clamp(-1.0, 1.0))
            # From -pi to 3 pi, so that no interval is cut; the second turn is added to the first.
            first, last = edges((phase - spread + math.pi) / size, (phase + spread + math.pi) / size)
            last = torch.minimum(last, first + bins - 1)
            table = _coverage(first, last, real & ((a - b).abs() <= within), 2 * bins)
            ends.append(_fullest(table[:, :bins] + table[:, bins:]))
        (lower, where), (upper, _) = ends
        parts.append(Bounds(lower, (where + 0.5) * size - math.pi, upper))
    return Bounds(*(torch.cat(part) for part in zip(*parts, strict=True)))


def pose_about(
    axis: Tensor, shift: Tensor, source: Tensor, target: Tensor
) -> tuple[Tensor, Found]:
    """Find the pose (4, 4) that the most matches (n, 3) fit, about one of the axes."""
    planes = seen_along(axis, shift, source, target)
    reach = max(float(end.norm(dim=-1).max()) for end in planes[:2])
    typical = max(1.0, float(planes.source.norm(dim=-1).median()))
    bins = min(MAX_BINS, max(MIN_BINS, math.ceil(2 * math.pi * typical / TURN_BIN)))
    found = search(
        lambda squares: plane_bounds(planes, squares, bins),
        sheets(len(axis), 2 * reach + 1.0, axis),
        FINEST / math.sqrt(2),
        lambda squares, _: torch.ones_like(squares.sheet, dtype=torch.bool),
    )
    k = int(found.squares.sheet[0])
    R = rotation_of_vector(axis[k] * found.inner[0])
    t = found.squares.centre[0] @ across(axis)[k] + axis[k] * shift[k]
    return from_rotation_translation(R, t), found


def solve(task: Task) -> Answer:
    """Find the axes that most matches fit, then the pose about one of them."""
    axis, shift, _ = axes(task.source[0], task.target[0], AXES)
    T, _ = pose_about(axis, shift, task.source[0], task.target[0])
    source, target, _ = task.exact()
    # Along the axis and across it a match may be off by as much.
    fits = squared_residuals(T.to(source), source, target) <= 2 * TOLERANCE**2
    return Answer(task.refined(Estimate(*procrustes(source, target, fits.to(source.dtype)))))


def open_(device: torch.device) -> Method:
    """Open TR_DE on a device."""
    return LocalMethod(solve, device)
