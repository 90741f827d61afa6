"""Branch and bound: no bound lies below the truth, and what is found is the best there is."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tests.conftest import make_problem
from tests.methods.helpers import error, posed, random_pose
from vbreg.backends.cpu import CPUBackend
from vbreg.estimation import squared_residuals
from vbreg.geometry import rotation_of_vector
from vbreg.methods import trde
from vbreg.methods.common import Task
from vbreg.methods.trde import Squares

SMALL = 60  # matches


def small_problem(seed: int, inlier_ratio: float = 0.3) -> tuple[torch.Tensor, torch.Tensor]:
    """Matches (n, 3) in inlier thresholds, about the origin."""
    problem = make_problem(SMALL, inlier_ratio, noise=0.02, seed=seed)
    task = Task.of(posed(problem.source, problem.target), torch.device("cpu"), CPUBackend())
    return task.source[0].double(), task.target[0].double()


def random_squares(faces: int, count: int, reach: float, seed: int) -> Squares:
    generator = torch.Generator().manual_seed(seed)
    half = reach * 2.0 ** -float(torch.randint(1, 8, (1,), generator=generator))
    face = torch.randint(faces, (count,), generator=generator)
    centre = (2 * torch.rand(count, 2, generator=generator).double() - 1) * (reach - half)
    return Squares(face, centre, half)


def places_within(squares: Squares, seed: int) -> Squares:
    """A random place in each square, as a square without extent."""
    generator = torch.Generator().manual_seed(seed)
    off = 2 * torch.rand(squares.centre.shape, generator=generator).double() - 1
    return Squares(squares.face, squares.centre + squares.half * off, 0.0)


def most_stabbed(low: np.ndarray, high: np.ndarray) -> int:
    """The most intervals that share a point: one of their lower ends is such a point."""
    return int(max(((low <= x) & (x <= high)).sum() for x in low)) if len(low) else 0


def fitting_axis(way: torch.Tensor, axis: torch.Tensor) -> int:
    """Naively: how many matches move equally far along an axis, at the best shift."""
    along = (way @ axis).numpy()
    return most_stabbed(along - 1, along + 1)


def fitting_translation(x: torch.Tensor, y: torch.Tensor, t: torch.Tensor) -> int:
    """Naively: how many matches of a plane fit a translation, at the best of many angles."""
    angles = torch.linspace(-math.pi, math.pi, 2001).double()
    turned = torch.stack(
        [
            angles.cos()[:, None] * x[:, 0] - angles.sin()[:, None] * x[:, 1],
            angles.sin()[:, None] * x[:, 0] + angles.cos()[:, None] * x[:, 1],
        ],
        dim=-1,
    )  # (2001, n, 2)
    return int(((turned + t - y).norm(dim=-1) <= 1).sum(-1).max())


def test_directions_cover_half_a_sphere_and_chords_their_squares() -> None:
    generator = torch.Generator().manual_seed(0)
    wanted = torch.nn.functional.normalize(
        torch.randn(500, 3, generator=generator).double(), dim=-1
    )
    squares = trde.first_squares(3, 1.0, wanted)
    for _ in range(3):
        squares = squares.split()
    apart = (trde.directions(squares) @ wanted.T).abs().max(0).values  # either end of an axis
    assert float(apart.min()) > math.cos(squares.half * math.sqrt(2))
    some = random_squares(3, 300, 1.0, seed=1)
    for seed in range(20):
        away = trde.directions(places_within(some, seed)) - trde.directions(some)
        assert (away.norm(dim=-1) <= trde.chords(some) + 1e-12).all()


@pytest.mark.parametrize("seed", range(4))
def test_no_axis_of_a_square_fits_more_than_its_bound(seed: int) -> None:
    source, target = small_problem(seed)
    way = target - source
    squares = random_squares(3, 40, 1.0, seed)
    bounds = trde.axis_bounds(way, squares)
    for draw in range(5):
        axes = trde.directions(places_within(squares, draw))
        for upper, axis in zip(bounds.upper, axes, strict=True):
            assert fitting_axis(way, axis) <= int(upper)
    for k, axis in enumerate(trde.directions(squares)):  # the lower bound is reached
        at = ((way @ axis - bounds.inner[k]).abs() <= 1 + 1e-9).sum()
        assert int(at) == int(bounds.lower[k]) <= fitting_axis(way, axis)


@pytest.mark.parametrize("seed", range(4))
def test_no_translation_of_a_square_fits_more_than_its_bound(seed: int) -> None:
    source, target = small_problem(seed)
    x, y = source[:, :2], target[:, :2]
    squares = random_squares(1, 25, 30.0, seed)
    bounds = trde.plane_bounds(x, y, squares, bins=300)
    for draw in range(3):
        for upper, t in zip(bounds.upper, places_within(squares, draw).centre, strict=True):
            assert fitting_translation(x, y, t) <= int(upper)
    for k, t in enumerate(squares.centre):  # the lower bound is reached
        turn = rotation_of_vector(torch.tensor([0.0, 0.0, 1.0]).double() * bounds.inner[k])[:2, :2]
        at = ((x @ turn.T + t - y).norm(dim=-1) <= 1 + 1e-9).sum()
        assert int(at) == int(bounds.lower[k])


@pytest.mark.parametrize("seed", range(6))
def test_matches_that_fit_at_a_corner_alone_are_all_within_the_bound(seed: int) -> None:
    """The tightest case: as far from the centre as can be, and off by the whole threshold."""
    generator = torch.Generator().manual_seed(seed)

    def between(*shape: int) -> torch.Tensor:
        return 2 * torch.rand(*shape, generator=generator).double() - 1

    square = random_squares(3, 1, 1.0, seed)
    for corner in ((-1.0, -1.0), (-1.0, 1.0), (1.0, -1.0), (1.0, 1.0)):
        axis = trde.directions(square, corner)[0]
        way = 30 * between(SMALL, 3)
        way += (0.999 * between(SMALL).sign() - way @ axis)[:, None] * axis
        bounds = trde.axis_bounds(way, square)
        assert int(bounds.upper) == SMALL
        assert int(bounds.lower) < SMALL or square.half < 0.05
        flat = random_squares(1, 1, 30.0, seed)
        t = flat.centre[0] + flat.half * torch.tensor(corner)
        x = 20 * between(SMALL, 2)
        turn = rotation_of_vector(torch.tensor([0.0, 0.0, 3.0]).double() * between(1))[:2, :2]
        off = torch.nn.functional.normalize(t - flat.centre[0], dim=-1)
        y = x @ turn.T + t + 0.999 * off  # so that the centre is as far off as can be
        assert int(trde.plane_bounds(x, y, flat, bins=300).upper) == SMALL


@pytest.mark.parametrize("seed", range(3))
def test_both_stages_find_what_brute_force_finds(seed: int) -> None:
    source, target = small_problem(seed, inlier_ratio=0.5)
    way = target - source
    axis, shift, found = trde.axis_and_shift(source, target)
    fits = (way @ axis - shift).abs() <= 1 + 1e-9
    assert int(fits.sum()) == found.fitting <= found.bound
    generator = torch.Generator().manual_seed(seed)
    tried = torch.nn.functional.normalize(
        torch.randn(1000, 3, generator=generator).double(), dim=-1
    )
    brute = max(fitting_axis(way, one) for one in tried)
    assert brute <= found.bound
    assert found.fitting >= brute - 1  # the smallest squares are not points
    T, across = trde.pose_about(axis, shift, source, target)
    frame = trde.across(axis)
    x, y = source[fits] @ frame.T, target[fits] @ frame.T
    shifts = 3 * (2 * torch.rand(40, 2, generator=generator).double() - 1)
    centre = frame @ T[:3, 3]
    brute = max(fitting_translation(x, y, centre + off) for off in shifts)
    assert brute <= across.bound
    assert across.fitting >= 0.95 * brute
    assert int((squared_residuals(T, source, target) <= 2.0 + 1e-6).sum()) >= across.fitting


def test_a_bound_tells_of_squares_that_were_left_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten squares at a time may miss the best; what it could have been is not forgotten."""
    source, target = small_problem(5)
    _, _, whole = trde.axis_and_shift(source, target)
    monkeypatch.setattr(trde, "MAX_SQUARES", 10)
    _, _, hurried = trde.axis_and_shift(source, target)
    assert hurried.fitting <= whole.fitting <= hurried.bound


def test_a_frame_across_an_axis_is_right_handed() -> None:
    for seed in range(10):
        axis = torch.from_numpy(random_pose(seed)[0, :3].copy())
        R = torch.cat([trde.across(axis), axis[None]])
        torch.testing.assert_close(R @ R.T, torch.eye(3).double())
        assert float(torch.linalg.det(R)) > 0


def test_the_two_stages_alone_come_near_the_pose() -> None:
    problem = make_problem(300, inlier_ratio=0.3, noise=0.01)
    task = Task.of(posed(problem.source, problem.target), torch.device("cpu"), CPUBackend())
    axis, shift, _ = trde.axis_and_shift(task.source[0], task.target[0])
    T, _ = trde.pose_about(axis, shift, task.source[0], task.target[0])
    rotation, translation = error(task.matches.to_user(T[None])[0], problem.T)
    assert rotation < 5.0
    assert translation < 0.1
