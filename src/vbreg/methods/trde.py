"""TR_DE (Chen et al., CVPR 2022, transformation decomposition): branch and bound in two stages.

A rigid motion moves every point equally far along its axis r. So r.(y - x) = d for all right
matches, whatever the angle: the axis, half a sphere of them, and the shift d are searched first, by
how many matches fit. What is left is a motion of the plane across the axis, whose translation and
angle are searched likewise, among the matches that fit the axis. Both are searches over squares: a
square is split in four while more matches might fit somewhere in it than fit at the best place
known. The innermost unknown, shift or angle, is not split but read from a table of the intervals in
which each match fits.

Nothing is drawn at random. The number of squares is bounded, and so are time and memory; what was
left aside is part of the bound that a search returns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vbreg.compatibility import row_chunks
from vbreg.estimation import Estimate, squared_residuals
from vbreg.geometry import from_rotation_translation, procrustes, rotation_of_vector
from vbreg.methods.common import Answer, LocalMethod, Task
from vbreg.methods.interface import Method

# Lengths are in inlier thresholds; a match fits where it is off by at most one (xi of the paper).
FINEST = 0.25  # how far a typical point moves within the smallest squares
SHIFT_BIN = 0.1
TURN_BIN = 0.1  # how far a typical point moves within a bin of angles
MIN_BINS, MAX_BINS = 64, 4096  # of a table
FIRST_SPLIT = 8  # squares along each side to begin with
MAX_SQUARES = 1024  # that are split, of one size


class Squares(NamedTuple):
    """Squares of one size on the faces of a cube, or all on one face."""

    face: Tensor  # (b,)
    centre: Tensor  # (b, 2)
    half: float  # of a side

    def take(self, rows: Tensor | slice) -> Squares:
        """Return some of the squares."""
        return Squares(self.face[rows], self.centre[rows], self.half)

    def split(self) -> Squares:
        """Return the four quarters of each."""
        quarter = self.half / 2
        signs = self.centre.new_tensor([[-1, -1], [-1, 1], [1, -1], [1, 1]])
        centre = (self.centre.unsqueeze(1) + quarter * signs).flatten(0, 1)
        return Squares(self.face.repeat_interleave(4), centre, quarter)


def first_squares(faces: int, half: float, like: Tensor) -> Squares:
    """Return squares that cover so many faces, each from -half to half along both sides."""
    step = half / FIRST_SPLIT
    along = torch.arange(FIRST_SPLIT, device=like.device).to(like) * 2 * step + step - half
    centre = torch.cartesian_prod(along, along)
    face = torch.arange(faces, device=like.device).repeat_interleave(len(centre))
    return Squares(face, centre.repeat(faces, 1), step)


class Bounds(NamedTuple):
    """How many matches fit, for each of b squares."""

    lower: Tensor  # (b,) at the centre
    inner: Tensor  # (b,) the innermost unknown there
    upper: Tensor  # (b,) no place within the square has more


class Found(NamedTuple):
    """The best place of a search."""

    place: Squares  # one, whose centre it is
    inner: Tensor  # ()
    fitting: int  # matches
    bound: int  # no place of all has more


def search(bounds: Callable[[Squares], Bounds], squares: Squares, finest: float) -> Found:
    """Find the place where the most matches fit, down to squares no larger than `finest`."""
    best = Found(squares.take(slice(1)), squares.centre.new_zeros(()), -1, 0)
    left_aside = 0
    while True:
        found = bounds(squares)
        k = int(found.lower.argmax())
        if int(found.lower[k]) > best.fitting:
            place = squares.take(slice(k, k + 1))
            best = Found(place, found.inner[k], int(found.lower[k]), 0)
        hopeful = (found.upper > best.fitting).nonzero().squeeze(-1)
        hopeful = hopeful[found.upper[hopeful].argsort(descending=True, stable=True)]
        done = squares.half <= finest or not len(hopeful)
        aside = hopeful if done else hopeful[MAX_SQUARES:]
        if len(aside):
            left_aside = max(left_aside, int(found.upper[aside[0]]))
        if done:
            return best._replace(bound=max(left_aside, best.fitting))
        squares = squares.take(hopeful[:MAX_SQUARES]).split()


# Tables of intervals, whose ends are in bins


def coverage(first: Tensor, last: Tensor, real: Tensor, bins: int) -> Tensor:
    """Count (b, bins) the ranges (b, n) of bins that hold a bin.

    Both ends belong to a range; one whose `last` is one below `first` is empty.
    """
    table = torch.zeros(len(first), bins + 1, dtype=torch.int32, device=first.device)
    one = real.to(torch.int32)
    table.scatter_add_(1, first.clamp(0, bins), one)
    table.scatter_add_(1, (last + 1).clamp(0, bins), -one)
    return table[:, :-1].cumsum(1, dtype=torch.int32)


def touched(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first and the last bin that intervals touch."""
    return low.floor().long(), high.floor().long()


def centres_within(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first and the last bin whose centre lies in the intervals."""
    return (low - 0.5).ceil().long(), (high - 0.5).floor().long()


def bins_for(extent: float, size: float) -> int:
    """Return how many bins of about that size an extent has, within bounds."""
    return min(MAX_BINS, max(MIN_BINS, math.ceil(extent / size)))


# The first stage: axis and shift


def directions(squares: Squares, corner: tuple[float, float] = (0.0, 0.0)) -> Tensor:
    """Return the unit vectors (b, 3) at the centres, or at corners, of squares on a cube.

    Three of its faces are half a sphere.
    """
    flat = squares.centre + squares.half * squares.centre.new_tensor(corner)
    face = torch.cat([torch.ones_like(flat[:, :1]), flat], dim=-1)  # (b, 3)
    order = (torch.arange(3, device=flat.device) - squares.face[:, None]) % 3
    return F.normalize(face.gather(1, order), dim=-1)


def chords(squares: Squares) -> Tensor:
    """Return (b,) the largest distance between the centre's direction and any other of a square.

    A cone about the centre is convex: where it holds the four corners, it holds the square.
    """
    centre = directions(squares)
    corners = [directions(squares, (u, v)) for u in (-1.0, 1.0) for v in (-1.0, 1.0)]
    return torch.stack([(corner - centre).norm(dim=-1) for corner in corners]).amax(0)


def axis_bounds(way: Tensor, squares: Squares) -> Bounds:
    """Return how many matches move equally far along axes of squares; way (n, 3) is y - x.

    From the centre to another axis a projection changes by at most the chord times the way.
    """
    length = way.norm(dim=-1)  # (n,)
    reach = float(length.max()) + 1.0
    bins = bins_for(2 * reach, SHIFT_BIN)
    size = 2 * reach / bins
    parts = []
    for rows in row_chunks(len(squares.face), len(way), maps=24):
        some = squares.take(rows)
        along = directions(some) @ way.T  # (b, n)
        slack = chords(some).unsqueeze(-1) * length
        real = torch.ones_like(along, dtype=torch.bool)
        low, high = (along - 1.0 + reach) / size, (along + 1.0 + reach) / size
        lower, where = coverage(*centres_within(low, high), real, bins).max(1)
        upper = coverage(*touched(low - slack / size, high + slack / size), real, bins).amax(1)
        parts.append(Bounds(lower, (where + 0.5) * size - reach, upper))
    return Bounds(*(torch.cat(part) for part in zip(*parts, strict=True)))


def axis_and_shift(source: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Found]:
    """Find the axis (3,) and the shift () that most matches (n, 3) fit, and the search for them."""
    way = target - source
    middle = way.mean(0)
    way = way - middle  # the shift takes it up, and a short way bounds better
    typical = max(1.0, float(way.norm(dim=-1).median()))
    found = search(
        lambda squares: axis_bounds(way, squares),
        first_squares(3, 1.0, way),
        FINEST / (math.sqrt(2) * typical),
    )
    axis = directions(found.place)[0]
    return axis, found.inner + axis @ middle, found


# The second stage: the plane across the axis


def across(axis: Tensor) -> Tensor:
    """Return two unit vectors (2, 3) that make a right-handed frame with the axis (3,)."""
    least = F.one_hot(axis.abs().argmin(), 3).to(axis)
    first = F.normalize(torch.linalg.cross(axis, least), dim=-1)
    return torch.stack([first, torch.linalg.cross(axis, first)])


def polar(points: Tensor) -> tuple[Tensor, Tensor]:
    """Return the length and the angle (...) of points (..., 2)."""
    x, y = points.unbind(-1)
    return torch.hypot(x, y), torch.atan2(y, x)


def plane_bounds(source: Tensor, target: Tensor, squares: Squares, bins: int) -> Bounds:
    """Return how many matches (s, 2) of a plane fit translations of squares, each at some angle.

    Where the translation is off by at most half a diagonal, a match that fits lies within the
    inlier threshold and that much more of where the centre puts it, at an angle of an interval.
    """
    size = 2 * math.pi / bins
    a, angle = polar(source)  # (s,)
    parts = []
    for rows in row_chunks(len(squares.face), len(source), maps=32):
        some = squares.take(rows)
        b, phase = polar(target - some.centre.unsqueeze(1))  # (b, s)
        phase = (phase - angle).remainder(2 * math.pi)
        ends = []
        for within, edges in ((1.0, centres_within), (1.0 + math.sqrt(2) * some.half, touched)):
            cosine = (a * a + b * b - within**2) / (2 * a * b).clamp_min(1e-12)
            spread = torch.acos(cosine.clamp(-1.0, 1.0))
            # From -pi to 3 pi, so that no interval is cut; the second turn is added to the first.
            low, high = phase - spread + math.pi, phase + spread + math.pi
            first, last = edges(low / size, high / size)
            last = torch.minimum(last, first + bins - 1)
            table = coverage(first, last, (a - b).abs() <= within, 2 * bins)
            ends.append((table[:, :bins] + table[:, bins:]).max(1))
        (lower, where), (upper, _) = ends
        parts.append(Bounds(lower, (where + 0.5) * size - math.pi, upper))
    return Bounds(*(torch.cat(part) for part in zip(*parts, strict=True)))


def pose_about(axis: Tensor, shift: Tensor, source: Tensor, target: Tensor) -> tuple[Tensor, Found]:
    """Find the pose (4, 4) with that axis and shift that most matches (n, 3) fit."""
    fits = ((target - source) @ axis - shift).abs() <= 1.0
    frame = across(axis)
    x, y = source[fits] @ frame.T, target[fits] @ frame.T  # (s, 2)
    reach = float(x.norm(dim=-1).max()) + float(y.norm(dim=-1).max()) + 1.0
    typical = max(1.0, float(x.norm(dim=-1).median()))
    bins = bins_for(2 * math.pi * typical, TURN_BIN)
    found = search(
        lambda squares: plane_bounds(x, y, squares, bins),
        first_squares(1, reach, axis),
        FINEST / math.sqrt(2),
    )
    t = found.place.centre[0] @ frame + axis * shift
    return from_rotation_translation(rotation_of_vector(axis * found.inner), t), found


def solve(task: Task) -> Answer:
    """Find the axis that most matches fit, then the pose about it, and fit it to its matches."""
    axis, shift, _ = axis_and_shift(task.source[0], task.target[0])
    T, _ = pose_about(axis, shift, task.source[0], task.target[0])
    source, target, _ = task.exact()
    # A match that fits may be off by as much along the axis as across it.
    fits = squared_residuals(T.to(source), source, target) <= 2.0
    return Answer(task.refined(Estimate(*procrustes(source, target, fits.to(source.dtype)))))


def open_(device: torch.device) -> Method:
    """Open TR_DE on a device."""
    return LocalMethod(solve, device)
