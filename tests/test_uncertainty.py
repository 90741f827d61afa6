"""What is known of a pose: it moves with the frames, and what a shape leaves free is named."""

from __future__ import annotations

import gc
import pickle
import weakref
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.linalg import expm

from tests.conftest import make_problem
from vbreg import attempts, demo, register
from vbreg.geometry import random_rotation
from vbreg.matching import describe, match_clouds
from vbreg.model import VBReg
from vbreg.scale import Scale
from vbreg.types import FreeDirection, Registration, Uncertainty
from vbreg.uncertainty import (
    MIN_POINTS,
    Evidence,
    adjoint,
    matched_points,
    moved_to,
    normalised_error,
    patch_shares,
    shared_planes,
    small_motion,
    uncertainty,
)

Points = NDArray[np.float64]
VOXEL = 0.1
SCALE = Scale(VOXEL)
NOISE = 0.02
EXACT = np.zeros(3)


def motion(seed: int, far: float = 1.0) -> Points:
    T = np.eye(4)
    generator = torch.Generator().manual_seed(seed)
    T[:3, :3] = random_rotation(generator=generator, dtype=torch.float64).numpy()
    T[:3, 3] = far * np.random.default_rng(seed).normal(size=3)
    return T


def moved(T: Points, points: Points) -> Points:
    return points @ T[:3, :3].T + T[:3, 3]


# --- shapes, each with its normals


def plane(rng: np.random.Generator, n: int = 6000) -> tuple[Points, Points]:
    points = np.c_[rng.uniform(-2, 2, (n, 2)), np.zeros(n)]
    return points, np.tile([0.0, 0.0, 1.0], (n, 1))


def corridor(rng: np.random.Generator, n: int = 8000) -> tuple[Points, Points]:
    """Two walls, floor and ceiling along x."""
    side = rng.integers(0, 4, n)
    normals = np.array([[0.0, 1, 0], [0, -1, 0], [0, 0, 1], [0, 0, -1]])[side]
    along_the_wall = np.array([[0.0, 0, 1], [0, 1, 0]])[side // 2]
    points = rng.uniform(-1, 1, (n, 1)) * along_the_wall - normals
    points[:, 0] = rng.uniform(-4, 4, n)
    return points, normals


def cylinder(rng: np.random.Generator, n: int = 6000) -> tuple[Points, Points]:
    angle = rng.uniform(0, 2 * np.pi, n)
    normals = np.c_[np.cos(angle), np.sin(angle), np.zeros(n)]
    return np.c_[normals[:, :2], rng.uniform(-2, 2, n)], normals


def sphere(rng: np.random.Generator, n: int = 6000) -> tuple[Points, Points]:
    normals = rng.normal(size=(n, 3))
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    return 1.5 * normals, normals


def corner(rng: np.random.Generator, n: int = 6000) -> tuple[Points, Points]:
    """Three walls of a room, and half a sphere on the floor, so that no turn gives the same."""
    normals = np.eye(3)[rng.integers(0, 3, n)]
    points = rng.uniform(0, [4, 3, 2.5], (n, 3)) * (1 - normals)
    ball, ball_normals = sphere(rng, n // 4)
    up = ball[:, 2] > 0
    return (
        np.concatenate([points, 0.5 * ball[up] + [2, 1, 0]]),
        np.concatenate([normals, ball_normals[up]]),
    )


Shape = Callable[[np.random.Generator], tuple[Points, Points]]
FREE: dict[Shape, list[tuple[str, Points | None]]] = {  # the motion, and its line where it has one
    plane: [("slides", None), ("slides", None), ("turns", np.array([0, 0, 1.0]))],
    corridor: [("slides", np.array([1.0, 0, 0]))],
    cylinder: [("slides", np.array([0, 0, 1.0])), ("turns", np.array([0, 0, 1.0]))],
    sphere: [("turns", None)] * 3,
    corner: [],
}


def assert_free(found: tuple[FreeDirection, ...], shape: Shape, T_target_shape: Points) -> None:
    """The motions of a shape, as they are in a frame."""
    expected = FREE[shape]
    assert [each.motion for each in found] == [name for name, _ in expected]
    for each, (_, line) in zip(found, expected, strict=True):
        if line is not None:
            turned = T_target_shape[:3, :3] @ line
            assert abs(np.dot(each.direction, turned)) > 0.99
        if each.motion == "turns" and shape in (cylinder, sphere):
            # The axis goes through the middle, wherever along it the point is.
            back = moved(np.linalg.inv(T_target_shape), np.array([each.through]))[0]
            away = back if line is None else back - line * (line @ back)
            assert np.linalg.norm(np.cross(away, T_target_shape[:3, :3].T @ each.direction)) < 0.1


def evidence_of(shape: Shape, T: Points, seed: int = 0, noise: float = NOISE) -> Evidence:
    """Two scans of a shape, which T brings together, with the noise of points and normals."""
    rng = np.random.default_rng(seed)
    ends = []
    for pose in (np.linalg.inv(T), np.eye(4)):
        points, normals = shape(rng)
        normals = normals + rng.normal(0, 0.1, normals.shape)
        normals /= np.linalg.norm(normals, axis=1, keepdims=True)
        points = moved(pose, points + rng.normal(0, noise, points.shape))
        ends.append((torch.from_numpy(points), torch.from_numpy(normals @ pose[:3, :3].T)))
    return shared_planes(ends[0], ends[1], torch.from_numpy(T), SCALE.inlier_threshold)


@pytest.mark.parametrize("shape", FREE)
@pytest.mark.parametrize("seed", [0, 1])
def test_what_a_shape_leaves_free_is_named(shape: Shape, seed: int) -> None:
    found = uncertainty(evidence_of(shape, motion(seed), seed), SCALE, EXACT)
    assert_free(found.free_directions, shape, np.eye(4))


@pytest.mark.parametrize("smaller", [attempts.SMALLER_SIZE, 0.5])
@pytest.mark.parametrize("shape", FREE)
def test_clouds_of_a_shape_are_determined_or_not(
    shape: Shape, smaller: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole way, from two noisy scans: the law for users.

    At half of the voxel size noise looks like relief, which must not hide that the pose is free.
    """
    monkeypatch.setattr(attempts, "SMALLER_SIZE", smaller)
    rng, A, B = np.random.default_rng(0), motion(1), motion(2)
    source, target = (
        moved(T, points + rng.normal(0, NOISE, points.shape))
        for T, points in ((A, shape(rng)[0]), (B, shape(rng)[0]))
    )
    result = register(source, target, voxel_size=VOXEL, device="cpu")
    assert result.determined == (not FREE[shape])
    assert_free(result.free_directions, shape, B)
    assert result.covariance is not None
    spread = np.linalg.eigvalsh(moved_to(result.covariance, B[:3, 3]))
    assert (spread > 0.5).sum() == len(FREE[shape])  # square metres and radians


def test_the_demo_pair_is_determined() -> None:
    source, target, _ = demo.load()
    result = register(source, target, voxel_size=0.05, device="cpu")
    assert result.determined
    assert result.free_directions == ()


def test_a_pose_that_nobody_judges_is_doubted_by_the_same_surfaces_once_that_is_asked() -> None:
    source, target, _ = demo.load()
    judged = register(source, target, voxel_size=0.05, device="cpu")
    lazy = register(source, target, voxel_size=0.05, device="cpu", verify=False, refine="icp")
    assert "uncertainty" in judged.timings
    assert "uncertainty" not in lazy.timings
    sent: Registration = pickle.loads(pickle.dumps(lazy))
    assert isinstance(sent.uncertainty_given, Uncertainty)  # and not the clouds
    for result in (lazy, sent):
        assert result.covariance is not None
        assert judged.covariance is not None
        np.testing.assert_allclose(result.covariance, judged.covariance, rtol=0.02, atol=1e-9)
        assert result.free_directions == ()


def test_a_result_holds_the_clouds_until_it_has_told_its_uncertainty(fast: VBReg) -> None:
    source, target, _ = demo.load()
    ends = [describe(cloud, Scale(0.05), descriptor="fpfh") for cloud in (source, target)]
    matched = match_clouds(*ends, Scale(0.05))
    result = fast.solve(matched, verify=False)
    clouds = [weakref.ref(part) for end in ends for part in (end.points, end.normals)]
    del ends, matched
    gc.collect()
    assert all(cloud() is not None for cloud in clouds)
    told = result.covariance
    gc.collect()
    assert not any(cloud() is not None for cloud in clouds)
    assert replace(result).covariance is told is not None  # a copy remembers it, too


# --- the covariance


def of_matches(source: Points, target: Points, T: Points, origin: Points = EXACT) -> Uncertainty:
    ends = torch.from_numpy(source), torch.from_numpy(target)
    return uncertainty(matched_points(*ends, torch.from_numpy(T)), SCALE, origin)


@pytest.mark.parametrize("seed", range(3))
def test_the_covariance_moves_with_the_target_and_not_with_the_source(seed: int) -> None:
    A, B = motion(10 + seed), motion(20 + seed)
    for shape in (corner, plane):
        points, T = shape(np.random.default_rng(seed))[0][:500], motion(seed)
        source = moved(np.linalg.inv(T), points)
        target = points + np.random.default_rng(1).normal(0, NOISE, points.shape)
        before = of_matches(source, target, T)
        after = of_matches(moved(A, source), moved(B, target), B @ T @ np.linalg.inv(A))
        expected = adjoint(B) @ before.covariance @ adjoint(B).T
        np.testing.assert_allclose(after.covariance, expected, rtol=1e-6, atol=1e-12)


def test_estimates_of_moved_matches_have_moved_covariances() -> None:
    model, problem = VBReg.from_pretrained("fast", device="cpu"), make_problem(300, 0.5)
    A, B = motion(3), motion(4)
    before = model.estimate(problem.source, problem.target, inlier_threshold=0.1)
    ends = moved(A, problem.source), moved(B, problem.target)
    after = model.estimate(*ends, inlier_threshold=0.1)
    assert before.covariance is not None
    assert after.covariance is not None
    expected = adjoint(B) @ before.covariance @ adjoint(B).T
    scale = np.abs(expected).max()
    np.testing.assert_allclose(after.covariance, expected, atol=1e-4 * scale)


@pytest.mark.parametrize("shape", [corner, cylinder])
def test_planes_move_alike(shape: Shape) -> None:
    evidence, B = evidence_of(shape, motion(0)), motion(5)
    R, t = torch.from_numpy(B[:3, :3]), torch.from_numpy(B[:3, 3])
    turned = Evidence(
        evidence.points @ R.T + t,
        evidence.directions @ R.T,
        evidence.directions_again @ R.T,
        evidence.residuals,
        evidence.extent,
    )
    before, after = (uncertainty(e, SCALE, EXACT) for e in (evidence, turned))
    expected = adjoint(B) @ before.covariance @ adjoint(B).T
    np.testing.assert_allclose(after.covariance, expected, rtol=1e-6, atol=1e-9)
    assert_free(after.free_directions, shape, B)


def test_a_local_frame_changes_nothing() -> None:
    """Points about an origin far away, and the same points as the user has them."""
    origin, T = np.array([300.0, -200.0, 40.0]), np.eye(4)
    points = corner(np.random.default_rng(0))[0][:400]
    target = points + np.random.default_rng(1).normal(0, NOISE, points.shape)
    local = of_matches(points, target, T, origin)
    users = of_matches(points + origin, target + origin, T)
    np.testing.assert_allclose(local.covariance, users.covariance, rtol=1e-6, atol=1e-9)


def test_about_a_point_is_what_the_motions_do_there() -> None:
    rng, point = np.random.default_rng(0), np.array([1.0, 2.0, 3.0])
    factor = rng.normal(size=(6, 6))
    drawn = rng.normal(size=(100_000, 6)) @ factor.T
    there = drawn[:, 3:] + np.cross(drawn[:, :3], point)
    expected = np.cov(np.c_[drawn[:, :3], there].T)
    found = moved_to(factor @ factor.T, point)
    np.testing.assert_allclose(found, expected, rtol=0.05, atol=0.5)
    np.testing.assert_allclose(moved_to(found, -point), factor @ factor.T, atol=1e-9)


def test_more_noise_is_more_doubt_and_more_scene_is_less() -> None:
    def volume(evidence: Evidence) -> float:
        return float(np.linalg.slogdet(uncertainty(evidence, SCALE, EXACT).covariance)[1])

    quiet, noisy = (evidence_of(corner, motion(0), noise=noise) for noise in (0.01, 0.04))
    assert volume(quiet) < volume(noisy)
    near = quiet.points[:, 0] < 1.5
    part = Evidence(*(x[near] for x in quiet[:4]), quiet.extent)
    assert volume(quiet) < volume(part)


def test_a_denser_scan_of_the_same_patches_knows_no_more() -> None:
    """Points of one patch err together, so that a copy of all points changes nothing."""
    some = evidence_of(corner, motion(0))
    twice = Evidence(*(torch.cat([x, x]) for x in some[:4]), some.extent)
    a, b = (uncertainty(e, SCALE, EXACT).covariance for e in (some, twice))
    np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.parametrize("count", [0, 1, 300])
def test_the_share_of_a_point_is_one_over_those_within_the_radius(count: int) -> None:
    points = torch.from_numpy(np.random.default_rng(0).uniform(0, 1, (count, 3)))
    points[count // 2 :] = points[: count - count // 2].clone()  # some lie at one place
    near = (points[:, None] - points).norm(dim=-1) <= 0.3
    torch.testing.assert_close(patch_shares(points, 0.3), 1.0 / near.sum(-1).double())


def test_errors_of_simulated_matches_are_as_large_as_said() -> None:
    """Matches a patch apart, with independent errors: chi-square up to the scale for real scans."""
    grid = 0.6 * np.stack(np.meshgrid(*[np.arange(4.0)] * 3), -1).reshape(-1, 3)
    model, nees = VBReg.from_pretrained("fast", device="cpu"), []
    for seed in range(40):
        noise = np.random.default_rng(seed).normal(0, 0.03, grid.shape)
        found = model.estimate(grid, grid + noise, inlier_threshold=0.2)
        assert found.covariance is not None
        nees.append(normalised_error(np.eye(4), found.T_target_source, found.covariance))
    assert 1.0 < np.mean(nees) < 6.0


def exponential(xi: Points) -> Points:
    """The motion of (omega, v), by the exponential of matrices."""
    x, y, z = xi[:3]
    wedge = np.zeros((4, 4))
    wedge[:3] = np.c_[[[0, -z, y], [z, 0, -x], [-y, x, 0]], xi[3:]]
    return np.asarray(expm(wedge))


@pytest.mark.parametrize("size", [1e-9, 1e-3, 0.5, 2.5])
def test_an_error_is_the_motion_that_mends_it(size: float) -> None:
    for seed in range(5):
        xi, T = np.random.default_rng(seed).normal(size=6), motion(seed)
        xi[:3] *= size / np.linalg.norm(xi[:3])
        np.testing.assert_allclose(small_motion(exponential(xi) @ T, T), xi, atol=1e-9)


def test_the_adjoint_takes_motions_from_the_right_to_the_left() -> None:
    """As a pose graph needs it whose motions stand to the right of the pose."""
    for seed in range(5):
        xi, T = 0.3 * np.random.default_rng(seed).normal(size=6), motion(seed)
        np.testing.assert_allclose(
            exponential(adjoint(T) @ xi) @ T, T @ exponential(xi), atol=1e-12
        )


def test_the_normalised_error_does_not_see_frames() -> None:
    factor = np.random.default_rng(0).normal(size=(6, 6))
    covariance, B, A = factor @ factor.T, motion(7), motion(8)
    truth, estimate = motion(1), motion(2)
    first = normalised_error(truth, estimate, covariance)
    there = adjoint(B) @ covariance @ adjoint(B).T
    second = normalised_error(B @ truth @ A, B @ estimate @ A, there)
    assert second == pytest.approx(first, rel=1e-6)
    assert normalised_error(truth, estimate, 4 * covariance) == pytest.approx(first / 4)


# --- little, or nothing


@pytest.mark.parametrize("count", [0, 1, 3, MIN_POINTS - 1])
def test_a_handful_of_points_fixes_nothing(count: int) -> None:
    points = np.random.default_rng(0).uniform(0, 4, (count, 3))
    found = of_matches(points, points, np.eye(4))
    assert len(found.free_directions) == 6
    assert np.isfinite(found.covariance).all()
    assert (np.linalg.eigvalsh(found.covariance) > 0).all()


def test_matches_on_a_line_may_turn_about_it() -> None:
    line = np.linspace(0, 3, 40)[:, None] * np.array([1.0, 0.0, 0.0]) + [0.0, 1.0, 2.0]
    (free,) = of_matches(line, line, np.eye(4)).free_directions
    assert free.motion == "turns"
    np.testing.assert_allclose(free.direction, [1, 0, 0], atol=1e-6)
    assert free.through is not None
    np.testing.assert_allclose(free.through[1:], [1, 2], atol=1e-6)


def test_clouds_that_do_not_touch_fix_nothing() -> None:
    rng = np.random.default_rng(0)
    points, normals = (torch.from_numpy(x) for x in corner(rng))
    far = torch.eye(4, dtype=torch.float64)
    far[0, 3] = 100.0
    evidence = shared_planes((points, normals), (points, normals), far, SCALE.inlier_threshold)
    found = uncertainty(evidence, SCALE, EXACT)
    assert len(found.free_directions) == 6
    assert np.sqrt(found.covariance[3, 3]) == pytest.approx(evidence.extent, rel=1e-6)


def test_which_side_a_normal_shows_does_not_matter() -> None:
    rng = np.random.default_rng(0)
    points, normals = (torch.from_numpy(x) for x in corner(rng))
    flip = torch.from_numpy(rng.choice([-1.0, 1.0], (len(points), 1)))
    still = torch.eye(4, dtype=torch.float64)
    a, b = (
        uncertainty(shared_planes((points, n), (points, normals), still, 0.2), SCALE, EXACT)
        for n in (normals, normals * flip)
    )
    np.testing.assert_allclose(a.covariance, b.covariance)


def test_a_direction_reads_as_a_sentence() -> None:
    assert str(FreeDirection("slides", (1.0, 0.0, -0.001))) == "slides along (1.00, 0.00, 0.00)"
    turn = FreeDirection("turns", (0.0, 0.0, 1.0), (1.25, 2.0, 30.0))
    assert str(turn) == "turns about (0.00, 0.00, 1.00) through (1.25, 2, 30)"
