"""What is tried where one attempt at a pose does not settle it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import vbreg
from tests.conftest import make_problem
from vbreg import VBRegError, demo
from vbreg.attempts import (
    MIRRORED_ODDS,
    SCALE_STEP,
    _made_exact,
    at_unknown_scale,
    may_be_mirrored,
    more_probable,
    scale_of_matches,
    scales_within,
    spoilt_by_lone_points,
    unless_mirrored,
    worth_another_size,
)
from vbreg.geometry import procrustes
from vbreg.timing import Stopwatch
from vbreg.types import (
    FREE_ODDS,
    Alternative,
    Correspondences,
    FreeDirection,
    Registration,
    Uncertainty,
    in_percent,
    odds_times,
)


def judged(p: float | None, size: float | None = 0.05) -> Registration:
    """A result with a probability, and a rival with a tenth of it."""
    ends = np.zeros((4, 3))
    rivals = () if p is None else (Alternative(np.eye(4), p / 10),)
    return Registration(
        T_target_source=np.eye(4),
        correspondences=Correspondences(ends, ends),
        inliers=np.ones(4, dtype=bool),
        confidence=np.ones(4, dtype=np.float32),
        score=1.0,
        inlier_rmse=0.0,
        fixed=True,
        inlier_threshold=0.1,
        matches_found=4,
        backend="plain",
        voxel_size=size,
        success_probability=p,
        alternatives=rivals,
    )


@pytest.mark.parametrize(
    ("p", "shares", "expected"),
    [
        (0.3, (0.0, 0.2), True),
        (0.8, (0.2, 0.0), True),  # the wrong pose may be the trusted one
        (0.98, (0.5, 0.5), False),
        (0.3, (0.01, 0.03), False),
        (0.3, None, False),
        (None, (0.5, 0.5), False),
    ],
)
def test_clouds_are_cleaned_where_a_doubtful_pose_may_come_from_lone_points(
    p: float | None, shares: tuple[float, float] | None, expected: bool
) -> None:
    assert spoilt_by_lone_points(replace(judged(p), lone_shares=shares)) is expected
    assert not spoilt_by_lone_points(VBRegError("too few matches"))


@pytest.mark.parametrize("p", [None, 0.3, 0.98])
def test_only_what_might_be_wrong_is_looked_at_in_a_mirror(p: float | None) -> None:
    assert not may_be_mirrored(judged(p))
    assert not may_be_mirrored(VBRegError("too few matches"))
    assert may_be_mirrored(judged(0.8))


@pytest.mark.parametrize(("in_mirror", "trusted"), [(0.99, False), (0.02, True)])
def test_a_pose_is_doubted_where_the_mirror_image_fits_better(
    in_mirror: float, trusted: bool
) -> None:
    found = unless_mirrored(judged(0.8), judged(in_mirror))
    assert isinstance(found, Registration)
    p, q = found.success_probability, found.mirrored_probability
    assert p is not None
    assert q is not None
    assert (p > 0.75) == trusted
    odds = 0.8 / 0.2, MIRRORED_ODDS * in_mirror / (1 - in_mirror)
    assert p / q == pytest.approx(odds[0] / odds[1])
    assert found.alternatives[0].probability == pytest.approx(p / 10)
    said = f"the mirror image of the source is possible, too ({in_percent(q)})"
    assert any(reason.startswith(said) for reason in found.reasons) != trusted


def test_another_voxel_size_is_tried_for_what_is_not_trusted() -> None:
    assert [worth_another_size(judged(p)) for p in (None, 0.2, 0.7)] == [False, True, False]
    assert not worth_another_size(VBRegError("too few points"))
    low, high, error = judged(0.1), judged(0.3), VBRegError("too few points")
    assert more_probable(low, high) is more_probable(high, low) is high
    assert more_probable(low, error) is low
    assert more_probable(error, high) is error


def test_a_pose_with_which_hardly_any_match_agrees_does_not_win() -> None:
    """A judge may find few points on few others probable."""
    points = np.zeros((40, 3))
    low = judged(0.1)
    high = replace(
        judged(0.9),
        correspondences=Correspondences(points, points),
        inliers=np.arange(40) < 3,
    )
    assert more_probable(low, high) is low
    better = replace(high, inliers=np.arange(40) < 20)
    assert more_probable(low, better) is better


def test_clouds_that_fill_a_volume_are_looked_at_at_another_size() -> None:
    """Whatever the probability: the voxels may be too large for surfaces to be seen."""
    thick = replace(judged(0.99), volume_shares=(0.2, 0.9))
    assert worth_another_size(thick)
    assert not worth_another_size(replace(thick, volume_shares=(0.2, 0.4)))


def test_what_lowers_a_probability_lowers_that_of_its_mirror_image_alike() -> None:
    free = Uncertainty(np.eye(6), (FreeDirection("slides", (1.0, 0.0, 0.0)),))
    found = replace(judged(0.8), uncertainty_given=free)
    by_hand = unless_mirrored(judged(0.8), judged(odds_times(0.9, FREE_ODDS)))
    mirrored = unless_mirrored(found, judged(0.9))
    both_free = unless_mirrored(found, replace(judged(0.9), uncertainty_given=free))
    for result in (by_hand, mirrored, both_free):
        assert isinstance(result, Registration)
    assert mirrored.success_probability == pytest.approx(by_hand.success_probability)
    assert both_free.success_probability < mirrored.success_probability  # lowered already


@pytest.mark.parametrize("most", [1.05, 2.0, 7.0])
def test_scales_reach_from_the_smallest_to_the_largest_in_small_steps(most: float) -> None:
    factors = scales_within(most)
    assert factors[0] == 1.0
    ordered = np.sort(factors)
    assert ordered[[0, -1]] == pytest.approx([1 / most, most])
    assert (ordered[1:] / ordered[:-1] <= SCALE_STEP + 1e-12).all()


@pytest.mark.parametrize("scale", [0.95, 1.0, 1.08])
def test_matches_tell_a_scale(scale: float) -> None:
    problem = make_problem(n=2000, noise=0.01)
    here = problem.source @ problem.T[:3, :3].T + problem.T[:3, 3]
    inliers = np.linalg.norm(here - problem.target, axis=1) < 0.1
    # The source is too small by `scale`; of its matches, those about the middle still agree.
    found = replace(
        judged(0.9),
        T_target_source=problem.T,
        correspondences=Correspondences(problem.source / scale, problem.target),
        inliers=inliers & (np.linalg.norm(problem.source / scale - problem.source, axis=1) < 0.1),
    )
    assert scale_of_matches(found) == pytest.approx(scale, abs=0.003)


def test_the_same_matches_are_fitted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    points = np.random.default_rng(0).uniform(-1, 1, (400, 3))
    fitted: list[torch.Tensor] = []

    def noted(source: torch.Tensor, target: torch.Tensor, weights: torch.Tensor) -> Any:
        fitted.append(weights)
        return procrustes(source, target, weights)

    monkeypatch.setattr("vbreg.attempts.procrustes", noted)
    found = replace(
        judged(0.9),
        correspondences=Correspondences(points, 1.2 * points),
        inliers=np.linalg.norm(0.2 * points, axis=1) < 0.1,
    )
    assert scale_of_matches(found) == pytest.approx(1.2)
    assert len(fitted) > 1
    assert not any(torch.equal(a, b) for a, b in itertools.pairwise(fitted))


@pytest.mark.parametrize(("p", "taken"), [(0.51, True), (0.49, False)])
def test_an_exact_scale_need_not_be_more_probable(p: float, taken: bool) -> None:
    """A pose that fits less well at its true scale is taken as long as it is trusted."""
    points = np.random.default_rng(0).uniform(-1, 1, (400, 3))
    found = replace(
        judged(0.96),
        correspondences=Correspondences(points, 1.02 * points),
        inliers=np.ones(400, dtype=bool),
    )

    def at(factor: float) -> Registration | VBRegError:
        ends = Correspondences(points, 1.02 / factor * points)
        return replace(found, correspondences=ends, success_probability=p, scale=factor)

    settled = _made_exact(found, 2.0, at)
    assert settled.scale == pytest.approx(1.02 if taken else 1.0)


def test_few_matches_tell_no_scale() -> None:
    assert scale_of_matches(judged(0.9)) == 1.0


def test_the_most_probable_scale_is_taken_and_made_exact() -> None:
    true_scale, tried = 1.7, []

    def at(factor: float) -> Registration | VBRegError:
        tried.append(factor)
        if factor < 0.6:
            return VBRegError("too few points")
        off = abs(np.log(factor / true_scale))
        points = np.random.default_rng(0).uniform(-1, 1, (400, 3))
        result = judged(float(np.clip(0.9 - 5 * off, 0, 1)))
        near = np.linalg.norm(points * (true_scale / factor - 1), axis=1) < 0.1
        ends = Correspondences(points, points * true_scale / factor)
        return replace(result, correspondences=ends, inliers=near, scale=factor)

    found = at_unknown_scale(2.0, at)
    assert isinstance(found, Registration)
    assert found.scale == pytest.approx(true_scale, rel=0.003)
    assert min(tried) == pytest.approx(0.5)


def test_what_fails_at_every_scale_is_an_error() -> None:
    error = VBRegError("too few points")
    assert at_unknown_scale(1.5, lambda factor: error) is error


def test_the_scale_of_a_real_pair_is_found() -> None:
    scans = demo.load()
    source, target, T_truth = scans[0].points, scans[1].points, scans[2]
    found = vbreg.register(source / 1.25, target, voxel_size=0.05, max_scale=1.3, device="cpu")
    assert found.scale == pytest.approx(1.25, rel=0.03)
    np.testing.assert_allclose(found.T_target_source[:3, :3], T_truth[:3, :3], atol=0.1)
    landed = found.apply_to(source / 1.25)
    np.testing.assert_allclose(
        landed, (source / 1.25) @ found.similarity[:3, :3].T + found.similarity[:3, 3], atol=1e-9
    )
    ends = found.correspondences  # their source is in the unit of the target
    there = ends.source @ found.T_target_source[:3, :3].T + found.T_target_source[:3, 3]
    near = np.linalg.norm(there - ends.target, axis=1) < found.inlier_threshold
    assert (near == found.inliers).mean() > 0.999
    assert "scale 1.2" in repr(found)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_scale": 1.0}, "above 1"),
        ({"max_scale": "two"}, "positive number"),
        ({"max_scale": 2.0, "verify": False}, "verify=False"),
        ({"max_scale": 2.0, "max_translation": 1.0}, "max_translation"),
        ({"max_scale": 2.0, "guess": np.eye(4), "max_rotation": 10.0}, "guess"),
    ],
)
def test_an_unknown_scale_that_could_not_be_found_is_an_error(
    options: dict[str, object], said: str
) -> None:
    cloud = np.random.default_rng(0).random((200, 3))
    with pytest.raises(VBRegError, match=said):
        vbreg.register(cloud, cloud, voxel_size=0.1, **options)  # type: ignore[arg-type]


def test_a_clock_is_told_which_scale_is_tried() -> None:
    told: list[str] = []
    clock = Stopwatch(told.append)

    def at(factor: float) -> Registration | VBRegError:
        with clock("match"):
            return VBRegError("too few points")

    at_unknown_scale(1.1, at, clock.go_to)
    assert told == ["match, scale 1 of 3", "match, scale 2 of 3", "match, scale 3 of 3"]
