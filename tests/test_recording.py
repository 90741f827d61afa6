"""A solver on its device: how much at once, which sizes are recorded, and what a replay gives."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from tests.conftest import DEVICE, GPU, SMALL, fresh, make_problem
from vbreg import demo, recording, register
from vbreg.backends import devices
from vbreg.backends.cpu import CPUBackend
from vbreg.frames import Matches
from vbreg.matching import describe, match_clouds
from vbreg.model import VBReg
from vbreg.network import NetworkConfig
from vbreg.recording import (
    MAX_RECORDED_MATCHES,
    MAX_RECORDED_ROWS,
    MIN_SOLVED_MATCHES,
    DeviceSolver,
    RecordedSolver,
    _fill_question,
    _flat,
    _longer,
    bucket,
    max_matches,
)
from vbreg.scale import Scale
from vbreg.solver import Solution, Solver
from vbreg.surfaces import SurfacePair
from vbreg.timing import Stopwatch, untimed
from vbreg.verification import CANDIDATES, Question, give_verdict, shipped_judge
from vbreg.verification.network import JudgeNetwork
from vbreg.voting import VotingConfig

needs_gpu = pytest.mark.skipif(not GPU, reason="needs a GPU")
CLOSE = 1e-5  # of poses, in metres


# --- without a GPU --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "rows"),
    [
        (1, 128),
        (128, 128),
        (129, 256),
        (1024, 1024),
        (1025, 1280),
        (4096, 4096),
        (4097, 4608),
        (8192, 8192),
    ],
)
def test_sizes_are_padded_to_buckets(n: int, rows: int) -> None:
    assert bucket(n) == rows


def test_a_bucket_holds_its_rows_and_wastes_little() -> None:
    sizes = range(1, MAX_RECORDED_MATCHES + 1)
    assert all(n <= bucket(n) <= MAX_RECORDED_MATCHES for n in sizes)
    assert all(bucket(n) <= 1.25 * n for n in sizes if n >= 1024)
    assert all(bucket(bucket(n)) == bucket(n) for n in sizes)
    assert len({bucket(n) for n in sizes}) <= recording.MAX_RECORDINGS


def matches(problems: int, n: int) -> Matches:
    ends = torch.zeros(problems, n, 3, dtype=torch.float64)
    origins = np.zeros((problems, 3)), np.zeros((problems, 3))
    mask = torch.ones(problems, n, dtype=torch.bool)
    return Matches(ends, ends, mask, None, origins, 0.1)


@pytest.mark.parametrize(
    ("problems", "n", "taken"),
    [
        (1, 3, True),
        (1, MAX_RECORDED_MATCHES, True),
        (1, MAX_RECORDED_MATCHES + 1, False),
        (16, MAX_RECORDED_ROWS // 16, True),
        (17, MAX_RECORDED_ROWS // 16, False),
    ],
)
def test_large_problems_and_batches_are_not_recorded(problems: int, n: int, taken: bool) -> None:
    assert RecordedSolver.takes(matches(problems, n)) is taken


def test_matches_are_copied_into_longer_ones_and_the_rest_is_no_match() -> None:
    p = make_problem(20)
    given = Matches.of_points([p.source], [p.target], 0.1, [np.ones((20, 66))])
    held = given.map(lambda part: torch.full((1, 128, *part.shape[2:]), 1, dtype=part.dtype))
    recording._fill(held, given)
    assert torch.equal(held.source[:, :20], given.source)
    assert torch.equal(held.target[:, :20], given.target)
    assert held.descriptors is not None
    assert torch.equal(held.descriptors[:, :20], given.descriptors)
    assert held.mask.sum() == 20


def test_memory_bounds_the_number_of_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    def most(config: NetworkConfig, free: int) -> int:
        monkeypatch.setattr(devices, "free_memory", lambda device: free)
        return max_matches(config, torch.device("cpu"))

    config = NetworkConfig()
    sizes = [most(config, free) for free in (0, 2**32, 2**34, 2**36)]
    assert sizes[0] == most(config, recording.FIXED_BYTES) == MIN_SOLVED_MATCHES
    assert sizes == sorted(sizes)
    assert sizes[3] > 3 * sizes[2]
    small = NetworkConfig(iterations=4, width=64, latent_width=64, hidden_width=128)
    assert most(small, 2**34) > 1.5 * sizes[2]  # a smaller network needs less of each


def on_the_cpu(voting: VotingConfig | None = None) -> DeviceSolver:
    voting = voting or VotingConfig(min_seeds=30, set_size=10)
    return DeviceSolver(Solver(fresh(SMALL), voting), "auto")


def test_problems_solved_some_at_a_time_have_the_same_poses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    solver, given = on_the_cpu(), problems_of(90, 120, 100)
    whole, backend = solver(given, None, untimed, most=10_000)
    assert backend == "cpu"
    memory, _ = solver(given, None, untimed, most=240)  # two problems at a time
    monkeypatch.setattr(CPUBackend, "max_rows", 130)  # one at a time
    cache, _ = solver(given, None, untimed, most=10_000)
    for parts in (memory, cache):
        assert abs(given.to_user(parts.T) - given.to_user(whole.T)).max() < CLOSE
        assert torch.equal(parts.inliers, whole.inliers)
    assert whole.determined.all()


def test_a_problem_longer_than_all_bounds_is_solved_by_itself() -> None:
    solver, given = on_the_cpu(), problems_of(90, 120)
    whole, _ = solver(given, None, untimed, most=10_000)
    alone, _ = solver(given, None, untimed, most=1)
    assert abs(given.to_user(alone.T) - given.to_user(whole.T)).max() < CLOSE


@torch.inference_mode()
def test_where_features_leave_no_hypothesis_the_geometry_votes() -> None:
    """So small a sigma that no feature is compatible with another, unless they are the same."""
    solver, given = on_the_cpu(), problems_of(90)
    solver.solver.network.sigma.fill_(3e-3)
    assert not solver.solver(given, CPUBackend()).voted.any()
    clock = Stopwatch()
    found, _ = solver(given, None, clock, most=10_000)
    assert abs(given.to_user(found.T)[0] - make_problem(90, 0.3, seed=90).T).max() < 0.05
    assert found.voted.all() == found.determined.all()
    assert list(clock.seconds) == ["network", "vote", "estimate", "refine"]


def test_a_copy_has_no_recordings() -> None:
    solver = on_the_cpu()
    solver.recorded["triton"] = None  # type: ignore[assignment]
    assert copy.deepcopy(solver).recorded == {}
    assert "triton" in solver.recorded


# --- on a GPU -------------------------------------------------------------------------------------


@pytest.fixture
def model() -> VBReg:
    """A model of the test's own: what it has recorded goes with it."""
    return VBReg.from_pretrained("fast", device=DEVICE)


@pytest.fixture
def recorded(model: VBReg) -> RecordedSolver:
    from vbreg.backends.triton import TritonBackend

    return RecordedSolver(model.solver, TritonBackend(), DEVICE)


def problems_of(*sizes: int) -> Matches:
    """Problems whose size is their seed, too."""
    made = [make_problem(n, 0.3, seed=n) for n in sizes]
    return Matches.of_points([p.source for p in made], [p.target for p in made], 0.1)


@torch.inference_mode()
def replayed(recorded: RecordedSolver, given: Matches) -> Solution:
    return recorded(given)


@torch.inference_mode()
def step_by_step(recorded: RecordedSolver, given: Matches) -> Solution:
    there = given.map(lambda part: part.to(DEVICE))
    return Solution(*devices.to_cpu(recorded.solver(there, recorded.backend)))


def assert_same(found: Solution, expected: Solution, given: Matches) -> None:
    assert abs(given.to_user(found.T) - given.to_user(expected.T)).max() < CLOSE
    assert found.inliers.shape == found.confidence.shape == given.mask.shape
    assert (found.inliers == expected.inliers).float().mean() > 0.99
    assert torch.equal(found.determined, expected.determined)
    assert torch.equal(found.voted, expected.voted)
    torch.testing.assert_close(found.score, expected.score, atol=1e-5, rtol=0)
    torch.testing.assert_close(found.rmse, expected.rmse, atol=1e-4, rtol=0)
    torch.testing.assert_close(found.confidence, expected.confidence, atol=2e-2, rtol=0)


@needs_gpu
def test_a_replay_gives_the_poses_of_the_same_solver_step_by_step(recorded: RecordedSolver) -> None:
    for n in (700, 300, 640, 700, 1500, 128):  # new buckets, old ones, whole ones and padded
        given = problems_of(n)
        assert_same(replayed(recorded, given), step_by_step(recorded, given), given)
    assert sorted(key[1] for key in recorded.recordings) == [128, 384, 640, 768, 1536]


@needs_gpu
def test_what_a_longer_problem_left_behind_is_not_seen(recorded: RecordedSolver) -> None:
    """The rows of a bucket that a shorter problem does not fill hold those of the one before."""
    short = problems_of(520)
    first = replayed(recorded, short)
    replayed(recorded, problems_of(640))
    again = replayed(recorded, short)
    assert len(recorded.recordings) == 1
    for mine, theirs in zip(again, first, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=0)


@needs_gpu
def test_a_solution_is_not_overwritten_by_the_next_replay(recorded: RecordedSolver) -> None:
    found = replayed(recorded, problems_of(500))
    before = [part.clone() for part in found]
    replayed(recorded, problems_of(501))
    assert all(torch.equal(a, b) for a, b in zip(found, before, strict=True))


@needs_gpu
def test_a_batch_is_replayed_as_a_whole(recorded: RecordedSolver) -> None:
    given = problems_of(300, 520, 410)
    found = replayed(recorded, given)
    assert_same(found, step_by_step(recorded, given), given)
    for b, n in enumerate((300, 520, 410)):
        alone = problems_of(n)
        expected = replayed(recorded, alone)
        assert abs(given.to_user(found.T)[b] - alone.to_user(expected.T)[0]).max() < CLOSE
        assert not found.inliers[b, n:].any()


@needs_gpu
def test_weights_that_change_are_recorded_anew(recorded: RecordedSolver) -> None:
    given = problems_of(500)
    before = replayed(recorded, given)
    with torch.no_grad():
        for parameter in recorded.solver.network.parameters():
            parameter.mul_(1.05)
    after = replayed(recorded, given)
    assert len(recorded.recordings) == 2
    assert_same(after, step_by_step(recorded, given), given)
    assert (after.confidence - before.confidence).abs().max() > 1e-3


@needs_gpu
def test_the_oldest_recording_makes_room(
    recorded: RecordedSolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "MAX_RECORDINGS", 2)
    sizes = (100, 200, 300, 100, 400)
    for n in sizes:
        given = problems_of(n)
        assert_same(replayed(recorded, given), step_by_step(recorded, given), given)
        assert len(recorded.recordings) <= 2
    assert sorted(key[1] for key in recorded.recordings) == [128, 512]


@needs_gpu
def test_two_threads_get_their_own_answers(recorded: RecordedSolver) -> None:
    problems = [problems_of(n) for n in (300, 301, 500, 501)] * 4
    expected = [step_by_step(recorded, given) for given in problems[:4]] * 4
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda given: replayed(recorded, given), problems))
    for mine, theirs, given in zip(found, expected, problems, strict=True):
        assert_same(mine, theirs, given)


@needs_gpu
def test_a_replay_uses_the_solver_it_was_made_for(recorded: RecordedSolver) -> None:
    other = VBReg.from_pretrained("universal", device=DEVICE)
    second = RecordedSolver(Solver(other.network, other.voting), recorded.backend, DEVICE)
    given = problems_of(500)
    first = replayed(recorded, given)
    assert_same(replayed(second, given), step_by_step(second, given), given)
    assert_same(replayed(recorded, given), first, given)


@needs_gpu
@pytest.mark.filterwarnings("error:vbreg's backend")
def test_an_estimate_on_a_gpu_is_made_by_kernels_and_the_same_twice(model: VBReg) -> None:
    problem = make_problem(900, 0.3, seed=1)
    first, again = (
        model.estimate(problem.source, problem.target, inlier_threshold=0.1) for _ in range(2)
    )
    assert first.backend == again.backend == "triton"
    assert np.array_equal(first.T_target_source, again.T_target_source)
    assert np.array_equal(first.inliers, again.inliers)
    assert np.array_equal(first.confidence, again.confidence)
    assert abs(first.T_target_source - problem.T).max() < 0.02


@needs_gpu
@pytest.mark.filterwarnings("error:vbreg's backend")
@pytest.mark.parametrize("weights", ["fast", "universal"])
def test_plain_torch_and_kernels_agree_on_the_pose(weights: str) -> None:
    model = VBReg.from_pretrained(weights, device=DEVICE)
    plain = VBReg(model.network, voting=model.voting, backend="plain")
    for n in (700, 300, 700, 1500, 10_000):  # buckets anew and again, and one that is not recorded
        problem = make_problem(n, 0.3, seed=n)
        expected = plain.estimate(problem.source, problem.target, inlier_threshold=0.1)
        found = model.estimate(problem.source, problem.target, inlier_threshold=0.1)
        assert (found.backend, expected.backend) == ("triton", "plain")
        assert abs(found.T_target_source - expected.T_target_source).max() < CLOSE
        assert (found.inliers == expected.inliers).mean() > 0.99


@needs_gpu
@pytest.mark.filterwarnings("error:vbreg's backend")
def test_a_batch_of_estimates_is_that_of_its_problems(model: VBReg) -> None:
    problems = [make_problem(n, 0.3, seed=n) for n in (300, 900, 520)]
    together = model.estimate_batch(
        [p.source for p in problems], [p.target for p in problems], inlier_threshold=0.1
    )
    for found, p in zip(together, problems, strict=True):
        alone = model.estimate(p.source, p.target, inlier_threshold=0.1)
        assert found.backend == "triton"
        assert abs(found.T_target_source - alone.T_target_source).max() < CLOSE
        assert len(found.inliers) == len(p.source)


def question_of_demo() -> tuple[Question, JudgeNetwork]:
    """A judge, and all that it is asked about the pair that ships."""
    source, target, _ = demo.load()
    ends = [describe(cloud, Scale(0.05), keypoints=300) for cloud in (source, target)]
    matched = match_clouds(*ends, Scale(0.05))
    model = VBReg.from_pretrained("fast", device="cpu")
    surfaces = SurfacePair.of(matched)
    assert surfaces is not None
    solution, _ = model._on_device(matched.matches(), None, untimed, 9999, None, CANDIDATES)
    return Question.of(matched, surfaces, solution), shipped_judge().network


@torch.inference_mode()
def test_rows_that_a_recording_adds_change_no_verdict() -> None:
    question, network = question_of_demo()
    longer = _longer(question, 512, 8192, 1024)
    for part in _flat(longer):  # what an earlier pair has left there
        part.fill_(1)
    _fill_question(longer, question)
    alone, padded = give_verdict(network, question), give_verdict(network, longer)
    torch.testing.assert_close(padded.T, alone.T, atol=1e-6, rtol=0)
    torch.testing.assert_close(padded.probabilities, alone.probabilities, atol=1e-4, rtol=0)
    torch.testing.assert_close(padded.overlap, alone.overlap)
    assert int(padded.chosen) == int(alone.chosen)
    assert float(alone.probabilities.max()) > 0.9


@needs_gpu
def test_a_recorded_verdict_is_that_of_the_steps() -> None:
    source, target, _ = demo.load()
    recorded, plain = (VBReg.from_pretrained("fast", backend=b) for b in ("auto", "plain"))
    for size in (0.05, 0.06, 0.05):
        found, expected = (
            register(source, target, voxel_size=size, model=model) for model in (recorded, plain)
        )
        assert found.success_probability == pytest.approx(expected.success_probability, abs=0.02)
        np.testing.assert_allclose(found.T_target_source, expected.T_target_source, atol=5e-3)
    assert 1 <= len(next(iter(recorded._asks.recorded.values())).recordings) <= 2
