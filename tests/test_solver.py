"""From matches to a pose in one run, with every backend that computes its steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.conftest import SMALL, Form, Problem, form_of, fresh, make_problem
from vbreg.estimation import first_of_same, squared_residuals
from vbreg.frames import Matches
from vbreg.geometry import random_rotation
from vbreg.solver import Solution, Solver
from vbreg.voting import VotingConfig

VOTING = VotingConfig(min_seeds=6, set_size=10)  # each seed is a program to interpret
CLOSE = 1e-5  # of poses, in the unit of the points


def solver_of(form: Form, voting: VotingConfig = VOTING) -> Solver:
    """Untrained, in single precision as weights are."""
    return Solver(fresh(SMALL).to(form.device), voting)


def matches_of(*problems: Problem) -> Matches:
    return Matches.of_points([p.source for p in problems], [p.target for p in problems], 0.1)


@torch.inference_mode()
def solved(form: Form, matches: Matches, solver: Solver | None = None, **rest: object) -> Solution:
    solver = solver or solver_of(form)
    given = matches.map(lambda part: part.to(form.device))
    found = solver(given, form.backend, **rest)  # type: ignore[arg-type]
    return Solution(*(part.cpu() for part in found))


def pose_of(matches: Matches, solution: Solution, problem: int = 0) -> np.ndarray:
    return matches.to_user(solution.T)[problem]


# One tile of every kernel: the tests of the kernels have several.
EASY = make_problem(60, 0.6, seed=3)


@pytest.fixture
def easy() -> Problem:
    return EASY


@pytest.fixture(scope="session")
def plainly_solved(form: Form) -> Solution:
    """The easy problem without any option, solved once by every backend."""
    return solved(form, matches_of(EASY))


def test_the_pose_is_found_and_its_evidence_fits(plainly_solved: Solution, easy: Problem) -> None:
    matches, found = matches_of(easy), plainly_solved
    assert abs(pose_of(matches, found) - easy.T).max() < 0.02
    assert found.determined.tolist() == found.voted.tolist() == [True]
    assert (found.inliers[0].numpy() == easy.inliers).mean() > 0.98
    d2 = squared_residuals(found.T, matches.source, matches.target)
    assert torch.equal(found.inliers, d2 < 1.0)
    torch.testing.assert_close(found.rmse[0], d2[found.inliers].mean().sqrt())
    torch.testing.assert_close(found.score[0], (1 - d2).clamp_min(0).mean())
    assert 0.0 <= float(found.confidence.min()) <= float(found.confidence.max()) <= 1.0
    assert found.T.dtype == found.score.dtype == found.rmse.dtype == torch.float64


def test_the_pose_moves_with_the_points(
    form: Form, plainly_solved: Solution, easy: Problem
) -> None:
    """Either cloud is moved by a rigid motion of its own: the answer is the one expected of it."""
    expected = pose_of(matches_of(easy), plainly_solved)
    generator = torch.Generator().manual_seed(0)
    A, B = np.eye(4), np.eye(4)
    for M, shift in ((A, 3.0), (B, -7.0)):
        M[:3, :3] = random_rotation(generator=generator, dtype=torch.float64).numpy()
        M[:3, 3] = shift
    moved = Matches.of_points(
        [easy.source @ A[:3, :3].T + A[:3, 3]], [easy.target @ B[:3, :3].T + B[:3, 3]], 0.1
    )
    found = pose_of(moved, solved(form, moved))
    assert abs(found - B @ expected @ np.linalg.inv(A)).max() < 10 * CLOSE


def test_the_order_of_matches_does_not_matter(
    form: Form, plainly_solved: Solution, easy: Problem
) -> None:
    matches, expected = matches_of(easy), plainly_solved
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0))
    shuffled = solved(form, matches.map(lambda part: part[:, order]))
    assert abs(pose_of(matches, shuffled) - pose_of(matches, expected)).max() < CLOSE
    assert torch.equal(shuffled.inliers, expected.inliers[:, order])


def test_a_padded_batch_gives_the_poses_of_its_problems(form: Form) -> None:
    problems = [make_problem(n, 0.6, seed=n) for n in (60, 40)]
    batch = matches_of(*problems)
    together = solved(form, batch)
    for b, alone in enumerate(map(matches_of, problems)):
        found = solved(form, alone, whole=True)
        assert abs(pose_of(batch, together, b) - pose_of(alone, found)).max() < CLOSE
        assert torch.equal(together.inliers[b, : len(alone)], found.inliers[0])
        assert not together.inliers[b, len(alone) :].any()
        assert not together.confidence[b, len(alone) :].any()
        torch.testing.assert_close(together.score[b], found.score[0])
        torch.testing.assert_close(together.rmse[b], found.rmse[0])


def test_more_seeds_than_needed_change_nothing(
    form: Form, plainly_solved: Solution, easy: Problem
) -> None:
    """A recording is made for the largest number that a bucket may need."""
    matches, asked = matches_of(easy), plainly_solved
    known = solved(form, matches, most_seeds=8)
    assert abs(pose_of(matches, asked) - pose_of(matches, known)).max() < CLOSE


def test_features_that_say_nothing_leave_the_votes_to_geometry(form: Form, easy: Problem) -> None:
    matches = matches_of(easy)
    found = solved(form, matches, geometry_alone=True)
    assert abs(pose_of(matches, found) - easy.T).max() < 0.02
    assert found.voted.all()


def test_attention_may_vote_in_the_whole_run(form: Form, easy: Problem) -> None:
    voting = replace(VOTING, attention_voters=True)
    matches = matches_of(easy)
    found = solved(form, matches, solver_of(form, voting))
    assert abs(pose_of(matches, found) - easy.T).max() < 0.02


def test_every_backend_finds_the_readable_forms_pose(
    plainly_solved: Solution, easy: Problem
) -> None:
    matches, found = matches_of(easy), plainly_solved
    expected = solved(form_of("plain"), matches)
    assert abs(pose_of(matches, found) - pose_of(matches, expected)).max() < CLOSE
    assert torch.equal(found.inliers, expected.inliers)
    torch.testing.assert_close(found.confidence, expected.confidence, atol=5e-3, rtol=0)


def test_samples_come_from_the_generator(form: Form, easy: Problem) -> None:
    matches = matches_of(easy)

    def drawn(seed: int) -> torch.Tensor:
        generator = torch.Generator(form.device).manual_seed(seed)
        return solved(form, matches, generator=generator).confidence

    first = drawn(1)
    assert torch.equal(drawn(1), first)
    assert not torch.equal(drawn(2), first)


def test_stages_are_named_in_their_order(easy: Problem) -> None:
    stages = []

    @contextmanager
    def clock(stage: str) -> Iterator[None]:
        stages.append(stage)
        yield

    solved(form_of("plain"), matches_of(easy), clock=clock)
    assert stages == ["network", "vote", "estimate", "refine"]


def test_candidates_begin_with_the_best_and_differ(
    form: Form, plainly_solved: Solution, easy: Problem
) -> None:
    found = solved(form, matches_of(easy), candidates=4)
    torch.testing.assert_close(found.T, plainly_solved.T)
    assert found.candidates.shape == (1, 4, 4, 4)
    torch.testing.assert_close(found.candidates[:, 0], found.T)
    there = found.candidate_score[0] >= 0
    assert bool(there[0])
    assert bool(first_of_same(found.candidates[:, there]).all())
    assert float(found.candidate_score[0, 0]) == float(found.candidate_score.max())
    assert plainly_solved.candidates.shape == (1, 0, 4, 4)
