"""Laws of the model: matches in, pose out, in any frame, unit, order and batch."""

import pickle
import threading
import warnings

import numpy as np
import pytest
import torch

from tests.conftest import Problem, make_problem
from tests.helpers import EAST, assert_pose_close, motion, move, surface
from vbreg import Registration, Scale, VBReg, register
from vbreg.backends import devices
from vbreg.backends.cpu import CPUBackend
from vbreg.errors import VBRegError
from vbreg.frames import LocalCloud, Matches
from vbreg.matching import describe, match_clouds
from vbreg.network import NetworkConfig, VariationalNonLocalNetwork
from vbreg.recording import max_matches
from vbreg.solver import Solver
from vbreg.voting import VotingConfig

TAU = 0.10  # metres: the inlier threshold of `make_problem`


@pytest.fixture(scope="module")
def model() -> VBReg:
    return VBReg.from_pretrained("universal", device="cpu")


def estimate(model: VBReg, problem: Problem, **options: object) -> Registration:
    return model.estimate(problem.source, problem.target, inlier_threshold=TAU, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("inlier_ratio", [0.05, 0.1, 0.5, 1.0])
def test_estimate_finds_the_pose(model: VBReg, inlier_ratio: float) -> None:
    problem = make_problem(600, inlier_ratio)
    result = estimate(model, problem)
    assert_pose_close(result.T_target_source, problem.T, 1.0, 0.05)
    assert result.determined
    assert result.T_target_source.dtype == np.float64
    assert (result.inliers & problem.inliers).sum() >= 0.95 * problem.inliers.sum()


def test_right_seeds_vote_for_right_matches(model: VBReg) -> None:
    problem = make_problem(600, 0.3)
    result = estimate(model, problem)
    seeds, members = model.votes(result)
    np.testing.assert_array_equal(members[:, 0], seeds)
    assert len(set(seeds.tolist())) == len(seeds)
    assert members.shape[1] == model.voting.set_size
    assert members.max() < len(result.correspondences)
    right = members[problem.inliers[seeds]]
    assert problem.inliers[right[right >= 0]].mean() > 0.95
    wrong = members[~problem.inliers[seeds]]
    assert problem.inliers[wrong[wrong >= 0]].mean() < 0.9
    again = model.votes(result)
    np.testing.assert_array_equal(again.members, members)


def test_votes_need_no_descriptors(feat_network: VariationalNonLocalNetwork, fast: VBReg) -> None:
    result = estimate(fast, make_problem())
    with pytest.raises(VBRegError, match="descriptors"):
        VBReg(feat_network).votes(result)


def test_the_pose_is_exactly_rigid(model: VBReg, problem: Problem) -> None:
    T = estimate(model, problem).T_target_source
    np.testing.assert_allclose(T[:3, :3] @ T[:3, :3].T, np.eye(3), atol=1e-12)
    assert np.linalg.det(T[:3, :3]) == pytest.approx(1.0)
    assert T[3].tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize("seed", range(3))
def test_moving_either_cloud_moves_the_answer(model: VBReg, problem: Problem, seed: int) -> None:
    T = estimate(model, problem).T_target_source
    A, B = motion(seed + 10), motion(seed + 20)
    pair = move(A, problem.source), move(B, problem.target)
    moved = model.estimate(*pair, inlier_threshold=TAU).T_target_source
    assert_pose_close(moved, B @ T @ np.linalg.inv(A), 1e-4, 1e-5)


def test_swapping_the_clouds_inverts_the_answer(model: VBReg, problem: Problem) -> None:
    T = estimate(model, problem).T_target_source
    back = model.estimate(problem.target, problem.source, inlier_threshold=TAU).T_target_source
    assert_pose_close(back, np.linalg.inv(T), 1e-4, 1e-5)


def test_order_of_correspondences_does_not_matter(model: VBReg, problem: Problem) -> None:
    order = np.random.default_rng(0).permutation(len(problem.source))
    first = estimate(model, problem)
    second = model.estimate(problem.source[order], problem.target[order], inlier_threshold=TAU)
    assert_pose_close(second.T_target_source, first.T_target_source, 1e-6, 1e-7)
    assert np.array_equal(second.inliers, first.inliers[order])
    np.testing.assert_allclose(second.confidence, first.confidence[order], atol=1e-3)


def test_the_same_call_gives_the_same_answer(model: VBReg, problem: Problem) -> None:
    for seeds in ((None, None), (7, np.int64(7))):
        a, b = (estimate(model, problem, seed=seed) for seed in seeds)
        assert np.array_equal(a.T_target_source, b.T_target_source)
        assert np.array_equal(a.confidence, b.confidence)


@pytest.mark.parametrize("backend", ["auto", "plain"])
def test_a_ragged_batch_equals_its_singles(model: VBReg, backend: str) -> None:
    """Far apart, too, and with rows that are not finite in some."""
    model = VBReg(model.network, voting=model.voting, backend=backend)  # type: ignore[arg-type]
    problems = [make_problem(n, 0.3, seed=n) for n in (120, 45, 3, 200)]
    sources = [p.source + k * EAST for k, p in enumerate(problems)]
    targets = [p.target - k * EAST for k, p in enumerate(problems)]
    sources[3][7], targets[0][5, 1] = np.nan, np.inf
    batch = model.estimate_batch(sources, targets, inlier_threshold=TAU)
    assert len(batch) == 4
    for source, target, found in zip(sources, targets, batch, strict=True):
        single = model.estimate(source, target, inlier_threshold=TAU)
        np.testing.assert_allclose(
            found.T_target_source[:3, :3], single.T_target_source[:3, :3], atol=1e-9
        )
        # Of millions of metres float64 keeps 1e-9.
        np.testing.assert_allclose(
            found.T_target_source[:3, 3], single.T_target_source[:3, 3], rtol=1e-12, atol=1e-9
        )
        np.testing.assert_allclose(found.confidence, single.confidence, atol=1e-3)
        assert np.array_equal(found.inliers, single.inliers)
        assert found.score == pytest.approx(single.score, abs=1e-9)
        assert found.inlier_rmse == pytest.approx(single.inlier_rmse, abs=1e-9)
        assert found.determined == single.determined
        assert len(found.correspondences) == len(found.inliers) == len(source)


def test_a_batch_has_as_many_sources_as_targets(model: VBReg, problem: Problem) -> None:
    with pytest.raises(VBRegError, match="2 sources and 1 targets"):
        model.estimate_batch([problem.source] * 2, [problem.target], inlier_threshold=TAU)
    with pytest.raises(VBRegError, match=r"0 sources and 0 targets: .* at least one"):
        model.estimate_batch([], [], inlier_threshold=TAU)
    with pytest.raises(VBRegError, match="1 descriptors for 2 problems"):
        model.estimate_batch(
            [problem.source] * 2,
            [problem.target] * 2,
            inlier_threshold=TAU,
            descriptors=[described(300)],
        )


def test_float32_float64_and_torch_agree(problem: Problem) -> None:
    network = VBReg.from_pretrained("universal", device="cpu").network
    single = VBReg(network).estimate(
        problem.source.astype(np.float32), torch.tensor(problem.target), inlier_threshold=TAU
    )
    double = estimate(VBReg(network.double()), problem)
    assert_pose_close(single.T_target_source, double.T_target_source, 1e-3, 1e-4)


def test_coordinates_like_utm_lose_nothing(model: VBReg, problem: Problem) -> None:
    """Half a million metres east, five million north: the same pose, about a far origin."""
    T = estimate(model, problem).T_target_source
    far = model.estimate(problem.source + EAST, problem.target + EAST, inlier_threshold=TAU)
    moved = far.T_target_source[:3, :3] @ (problem.source + EAST).T
    residual = moved.T + far.T_target_source[:3, 3] - EAST - move(T, problem.source)
    assert np.abs(residual).max() < 1e-6
    np.testing.assert_array_equal(far.correspondences.source, problem.source + EAST)


def test_scaling_everything_scales_the_answer(model: VBReg, problem: Problem) -> None:
    """Millimetres instead of metres: one physical scale sets every radius."""
    metres = estimate(model, problem)
    millimetres = model.estimate(
        1000 * problem.source, 1000 * problem.target, inlier_threshold=100.0
    )
    expected = metres.T_target_source.copy()
    expected[:3, 3] *= 1000
    assert_pose_close(millimetres.T_target_source, expected, 1e-3, 1e-1)


@pytest.mark.parametrize("n", [3, 4, 10, 39, 41])
def test_small_problems(model: VBReg, n: int) -> None:
    problem = make_problem(n, inlier_ratio=1.0, noise=0.001)
    result = estimate(model, problem)
    assert_pose_close(result.T_target_source, problem.T, 1.0, 0.05)


def test_degenerate_matches_are_admitted(model: VBReg) -> None:
    line = np.linspace(0, 1, 20)[:, None] * np.array([1.0, 2.0, 3.0])
    for source, target in [(line, line + 1), (np.ones((5, 3)), np.zeros((5, 3)))]:
        result = model.estimate(source, target, inlier_threshold=TAU)
        assert not result.determined
        assert np.isfinite(result.T_target_source).all()


def test_attention_voters_are_an_option(problem: Problem) -> None:
    network = VBReg.from_pretrained("universal", device="cpu").network
    model = VBReg(network, voting=VotingConfig(attention_voters=True))
    result = estimate(model, problem)
    assert_pose_close(result.T_target_source, problem.T, 1.0, 0.05)


def test_an_untrained_network_of_any_shape_runs(small_network: VariationalNonLocalNetwork) -> None:
    problem = make_problem(200, 0.5)
    result = estimate(VBReg(small_network), problem)
    assert_pose_close(result.T_target_source, problem.T, 1.0, 0.05)


def test_non_finite_rows_are_never_inliers_and_change_nothing(
    model: VBReg, problem: Problem
) -> None:
    bad = np.array([0, 6, 152, 302, 304])
    keep = np.setdiff1d(np.arange(305), bad)
    source, target = np.full((2, 305, 3), np.nan)
    source[keep], target[keep] = problem.source, problem.target
    source[6] = source[152] = target[152] = 1.0  # one end finite, and all but one number
    target[152, 2] = np.inf
    expected = estimate(model, problem)
    result = model.estimate(source, target, inlier_threshold=TAU)
    np.testing.assert_allclose(result.T_target_source, expected.T_target_source, atol=1e-9)
    np.testing.assert_array_equal(result.inliers[keep], expected.inliers)
    np.testing.assert_allclose(result.confidence[keep], expected.confidence, atol=1e-5)
    assert not result.inliers[bad].any()
    assert not result.confidence[bad].any()
    assert result.matches_found == len(result.correspondences) == 305
    assert result.inlier_count == expected.inlier_count
    assert result.score == pytest.approx(expected.score)  # of the rows that are finite
    assert result.inlier_rmse == pytest.approx(expected.inlier_rmse)


def test_inputs_are_not_written_to(model: VBReg, problem: Problem) -> None:
    source, target = problem.source.copy(), problem.target.copy()
    model.estimate(source, target, inlier_threshold=TAU)
    assert np.array_equal(source, problem.source)
    assert np.array_equal(target, problem.target)


@pytest.mark.parametrize(
    ("source", "target", "options", "message"),
    [
        (np.zeros((5, 3)), np.zeros((4, 3)), {}, r"\(5, 3\).*\(4, 3\)"),
        (np.zeros((2, 3)), np.zeros((2, 3)), {}, "2 usable correspondences"),
        (np.zeros((0, 3)), np.zeros((0, 3)), {}, "0 usable correspondences"),
        (np.zeros((5, 2)), np.zeros((5, 2)), {}, r"shape \(5, 2\)"),
        (np.full((5, 3), np.nan), np.zeros((5, 3)), {}, "0 usable"),
        (np.zeros((2, 5, 3)), np.zeros((2, 5, 3)), {}, r"\(2, 5, 3\).*go to estimate_batch"),
        (np.zeros((5, 3)), np.zeros((5, 3)), {"inlier_threshold": -1}, "inlier_threshold -1"),
        ("cloud", np.zeros((5, 3)), {}, "source_points is a str"),
        (np.zeros((5, 3), complex), np.zeros((5, 3)), {}, "complex128"),
        (np.eye(3) * 1e300, np.eye(3), {}, "same unit"),
        (np.eye(3), np.eye(3), {"inlier_threshold": 1e-40}, "same unit"),
        (np.eye(3), np.eye(3), {"inlier_threshold": "wide"}, "inlier_threshold 'wide'"),
        (np.eye(3), np.eye(3), {"inlier_threshold": None}, "inlier_threshold None"),
        ([[1], [1, 2]], np.eye(3), {}, "source_points is a list"),
    ],
)
def test_bad_input_is_named(
    model: VBReg, source: object, target: object, options: dict[str, object], message: str
) -> None:
    with pytest.raises(VBRegError, match=message):
        model.estimate(source, target, **{"inlier_threshold": TAU, **options})  # type: ignore[arg-type]


# --- descriptors


def described(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    source, target = np.random.default_rng(seed).random((2, count, 33))
    return source, target


def test_descriptors_are_seen_by_direction(feat_network: VariationalNonLocalNetwork) -> None:
    model, p = VBReg(feat_network), make_problem(150, 0.3)
    source, target = described(150)
    first = estimate(model, p, descriptors=(source, target))
    assert_pose_close(first.T_target_source, p.T, 1.0, 0.05)
    scaled = estimate(model, p, descriptors=(torch.tensor(7 * source), target))
    np.testing.assert_allclose(scaled.confidence, first.confidence, atol=1e-6)
    other = estimate(model, p, descriptors=(target, source))
    assert not np.allclose(other.confidence, first.confidence, atol=1e-4)


def test_order_does_not_matter_with_descriptors(feat_network: VariationalNonLocalNetwork) -> None:
    model, p = VBReg(feat_network), make_problem(150, 0.3)
    source, target = described(150)
    order = np.random.default_rng(0).permutation(150)
    first = estimate(model, p, descriptors=(source, target))
    second = model.estimate(
        p.source[order],
        p.target[order],
        inlier_threshold=TAU,
        descriptors=(source[order], target[order]),
    )
    assert_pose_close(second.T_target_source, first.T_target_source, 1e-6, 1e-7)
    np.testing.assert_allclose(second.confidence, first.confidence[order], atol=1e-3)


def test_a_ragged_batch_with_descriptors_equals_its_singles(
    feat_network: VariationalNonLocalNetwork,
) -> None:
    """A row that is not finite may have any descriptor, NaN too."""
    model = VBReg(feat_network)
    problems = [make_problem(n, 0.3, seed=n) for n in (120, 45, 3)]
    rows = [described(len(p.source), seed=len(p.source)) for p in problems]
    problems[0].source[4], rows[0][1][4] = np.nan, np.nan
    batch = model.estimate_batch(
        [p.source for p in problems],
        [p.target for p in problems],
        inlier_threshold=TAU,
        descriptors=rows,
    )
    for p, ends, found in zip(problems, rows, batch, strict=True):
        single = estimate(model, p, descriptors=ends)
        np.testing.assert_allclose(found.T_target_source, single.T_target_source, atol=1e-9)
        np.testing.assert_allclose(found.confidence, single.confidence, atol=1e-3)
        assert np.array_equal(found.inliers, single.inliers)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, r"descriptors of 33 columns: give descriptors=\(source, target\)"),
        (np.zeros((5, 33)), r"give descriptors=\(source, target\)"),
        ((np.ones((5, 33)), np.ones((5, 32))), "target descriptors have 32 columns.*takes 33"),
        ((np.ones((4, 33)), np.ones((5, 33))), r"\(4, 33\): expected \(5, 33\), one row per match"),
        ((np.ones((1, 5, 33)), np.ones((5, 33))), r"expected \(5, 33\)"),
        ((np.ones((5, 33)), np.full((5, 33), np.nan)), "target descriptors hold NaN"),
        ((np.ones((5, 33)), "fpfh"), "target descriptors is a str"),
    ],
)
def test_bad_descriptors_are_named(
    feat_network: VariationalNonLocalNetwork, given: object, message: str
) -> None:
    with pytest.raises(VBRegError, match=message):
        VBReg(feat_network).estimate(
            np.eye(5, 3),
            np.eye(5, 3),
            inlier_threshold=TAU,
            descriptors=given,  # type: ignore[arg-type]
        )


def test_descriptors_for_a_network_without_are_refused(model: VBReg, problem: Problem) -> None:
    with pytest.raises(VBRegError, match="sees points alone"):
        estimate(model, problem, descriptors=described(300))


def test_solve_is_the_end_of_register(fast: VBReg) -> None:
    """What examples/02 shows: the same from clouds that are matched already."""
    clouds = surface() + EAST, move(motion(1), surface(seed=1))
    whole = register(*clouds, voxel_size=0.1, model=fast)
    scale = Scale(0.1)
    described_clouds = [describe(LocalCloud.of(cloud, "a cloud"), scale) for cloud in clouds]
    parts = fast.solve(match_clouds(*described_clouds, scale))
    np.testing.assert_array_equal(parts.T_target_source, whole.T_target_source)
    np.testing.assert_array_equal(parts.inliers, whole.inliers)
    assert parts.voxel_size == whole.voxel_size == 0.1
    assert parts.points_read is None


@pytest.mark.parametrize("together", [1, 2, 16])
def test_a_batch_gives_what_each_pair_gives(
    fast: VBReg, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    """Of any sizes and voxel sizes, in the order given, whatever is solved together."""
    monkeypatch.setattr("vbreg.model.SOLVED_TOGETHER_CPU", together)
    pairs = []
    for seed, (count, size) in enumerate([(900, 0.1), (2000, 0.1), (1500, 0.14)]):
        clouds = surface(count, seed) + EAST, move(motion(seed), surface(count, seed + 7))
        ends = [describe(cloud, Scale(size)) for cloud in clouds]
        pairs.append(match_clouds(*ends, Scale(size)))
    for found, alone in zip(fast.solve_batch(pairs), map(fast.solve, pairs), strict=True):
        np.testing.assert_allclose(found.T_target_source, alone.T_target_source, atol=1e-5)
        np.testing.assert_array_equal(found.inliers, alone.inliers)
        np.testing.assert_allclose(found.confidence, alone.confidence, atol=1e-4)
        assert found.success_probability == pytest.approx(alone.success_probability, abs=1e-3)
        assert found.voxel_size == alone.voxel_size
        assert found.covariance == pytest.approx(alone.covariance, rel=1e-2, abs=1e-9)
    assert fast.solve_batch([]) == []
    with pytest.raises(VBRegError, match="1 constraints for 3 pairs"):
        fast.solve_batch(pairs, constraints=[None])


# --- weights and devices


def test_unknown_device_is_named() -> None:
    with pytest.raises(VBRegError, match="runs on 'cpu' and 'cuda'"):
        VBReg.from_pretrained("fast", device="meta")
    with pytest.raises(VBRegError, match="tpu9"):
        VBReg.from_pretrained("fast", device="tpu9")
    if not torch.cuda.is_available():
        with pytest.raises(VBRegError, match="sees 0 GPUs"):
            VBReg.from_pretrained("fast", device="cuda")


def test_an_unknown_backend_is_named(small_network: VariationalNonLocalNetwork) -> None:
    with pytest.raises(VBRegError, match="backend 'opengl': expected one of auto, plain"):
        VBReg(small_network, backend="opengl")  # type: ignore[arg-type]


@pytest.mark.parametrize(("backend", "name"), [("auto", "cpu"), ("plain", "plain")])
def test_the_result_says_which_backend_computed_it(
    small_network: VariationalNonLocalNetwork, problem: Problem, backend: str, name: str
) -> None:
    model = VBReg(small_network, backend=backend)  # type: ignore[arg-type]
    assert estimate(model, problem).backend == name


# --- memory


def test_more_matches_than_memory_holds_are_thinned(
    small_network: VariationalNonLocalNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = make_problem(600, 0.5, seed=1)
    model = VBReg(small_network)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not estimate(model, problem).memory_limited
    monkeypatch.setattr(VBReg, "_max_matches", lambda model: 200)
    with pytest.warns(UserWarning, match="600 matches .* 200 of them .*give fewer matches"):
        result = estimate(model, problem)
    assert result.memory_limited
    assert result.matches_found == 600
    assert len(result.correspondences) == len(result.inliers) == len(result.confidence) == 200
    rows = result.correspondences.source_index
    assert rows is not None
    assert (np.diff(rows) > 0).all()
    np.testing.assert_array_equal(result.correspondences.target_index, rows)
    np.testing.assert_array_equal(result.correspondences.source, problem.source[rows])
    np.testing.assert_array_equal(result.correspondences.target, problem.target[rows])
    assert abs(result.T_target_source - problem.T).max() < 0.05


def test_free_memory_sets_the_limit(
    small_network: VariationalNonLocalNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "free_memory", lambda device: 0)
    problem = make_problem(2500, 0.5, seed=1)
    with pytest.warns(UserWarning, match="2500 matches .* 2000 of them"):
        result = estimate(VBReg(small_network), problem)
    assert result.memory_limited
    assert len(result.correspondences) == 2000  # however little is free


def test_a_batch_beyond_memory_is_solved_in_parts(
    small_network: VariationalNonLocalNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems = [make_problem(120, 0.5, seed=k) for k in range(5)]
    ends = [p.source for p in problems], [p.target for p in problems]
    whole = VBReg(small_network).estimate_batch(*ends, inlier_threshold=TAU)
    monkeypatch.setattr(VBReg, "_max_matches", lambda model: 250)  # two problems at a time
    parts = VBReg(small_network).estimate_batch(*ends, inlier_threshold=TAU)
    assert len(parts) == 5
    for part, expected in zip(parts, whole, strict=True):
        np.testing.assert_allclose(part.T_target_source, expected.T_target_source, atol=1e-9)
        assert not part.memory_limited


def test_a_cpu_takes_some_problems_of_a_batch_at_a_time(
    small_network: VariationalNonLocalNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems = [make_problem(120, 0.5, seed=k) for k in range(5)]
    sizes: list[tuple[int, ...]] = []
    solve = Solver.__call__

    def spy(solver: Solver, matches: Matches, *rest: object, **options: object) -> object:
        sizes.append(tuple(matches.mask.shape))
        return solve(solver, matches, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Solver, "__call__", spy)
    monkeypatch.setattr(CPUBackend, "max_rows", 250)
    found = VBReg(small_network).estimate_batch(
        [p.source for p in problems], [p.target for p in problems], inlier_threshold=TAU
    )
    assert sizes == [(2, 120), (2, 120), (1, 120)]
    assert len(found) == 5


def test_memory_sets_the_number_of_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, config = torch.device("cpu"), NetworkConfig()
    assert devices.free_memory(cpu) > 2**20
    counts = []
    for free in (0, 2 * 2**30, 100 * 2**30):
        monkeypatch.setattr(devices, "free_memory", lambda device, free=free: free)
        counts.append(max_matches(config, cpu))
    none, few, many = counts
    assert none == 2000 <= few < 50_000 < 500_000 < many


def test_thinning_keeps_rows_that_are_real(
    small_network: VariationalNonLocalNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are not finite count for nothing, and there is no reason to warn of memory."""
    problem = make_problem(400, 0.9, seed=1)
    real = np.arange(0, 400, 40)
    source = np.full((400, 3), np.nan)
    source[real] = problem.source[real]
    monkeypatch.setattr(VBReg, "_max_matches", lambda model: 50)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = VBReg(small_network).estimate(source, problem.target, inlier_threshold=TAU)
    assert found.matches_found == 400
    assert not found.memory_limited
    assert found.correspondences.source_index is not None
    assert found.correspondences.source_index.tolist() == real.tolist()
    assert np.isfinite(found.T_target_source).all()


def test_a_model_can_be_copied(small_network: VariationalNonLocalNetwork) -> None:
    model = VBReg(small_network)
    problem = make_problem(60, 0.5, seed=2)
    expected = estimate(model, problem)
    held = threading.Lock()  # as a recording has, which cannot be pickled
    model._on_device.recorded["triton", "cpu"] = held  # type: ignore[assignment]
    copied = pickle.loads(pickle.dumps(model))
    assert np.array_equal(estimate(copied, problem).T_target_source, expected.T_target_source)
    assert copied._on_device.recorded == {}


@pytest.mark.parametrize("weights", [3, [], object()])
def test_weights_are_a_name_or_a_path(weights: object) -> None:
    with pytest.raises(VBRegError, match="expected one of universal, fast, or the path"):
        VBReg.from_pretrained(weights)  # type: ignore[arg-type]
    with pytest.raises(VBRegError, match="expected a VariationalNonLocalNetwork"):
        VBReg(weights)  # type: ignore[arg-type]


def test_the_bad_problem_of_a_batch_is_named(
    small_network: VariationalNonLocalNetwork, problem: Problem
) -> None:
    model, ends = VBReg(small_network), (problem.source, problem.target)
    for bad, message in (
        (ends[0][:, :2], "problem 1 of the batch: source_points has shape"),
        (ends[0] * np.nan, "problem 1 of the batch: 0 usable correspondences"),
        (None, "problem 1 of the batch: source_points is a NoneType"),
    ):
        with pytest.raises(VBRegError, match=message):
            model.estimate_batch([ends[0], bad], [ends[1]] * 2, inlier_threshold=TAU)  # type: ignore[list-item]
    for sources in (3, (end for end in ends)):
        with pytest.raises(VBRegError, match="expected a list of points"):
            model.estimate_batch(sources, [ends[1]], inlier_threshold=TAU)  # type: ignore[arg-type]
