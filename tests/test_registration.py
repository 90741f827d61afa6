import pickle
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from vbreg.memory import available_memory, most_matches

from tests.conftest import Problem, make_problem
from vbreg import VBReg, descriptors, register, registration
from vbreg.clouds import normals, voxel_downsample
from vbreg.errors import VBRegError
from vbreg.frames import LocalCloud, load_points
from vbreg.metrics import pose_error
from vbreg.network import NetworkConfig, VariationalNonLocalNetwork
from vbreg.registration import choose_device
from vbreg.voting import VotingConfig


@pytest.fixture(scope="module")
def model() -> VBReg:
    return VBReg.from_pretrained("indoor", device="cpu")


def motion(seed: int, shift: float = 3.0) -> np.ndarray:
    T = make_problem(3, seed=seed).T.copy()
    T[:3, 3] *= shift
    return T


def move(T: np.ndarray, points: np.ndarray) -> np.ndarray:
    return points @ T[:3, :3].T + T[:3, 3]


def assert_pose_close(a: np.ndarray, b: np.ndarray, degrees: float, length: float) -> None:
    error = pose_error(torch.from_numpy(a), torch.from_numpy(b))
    assert float(error.rotation) < degrees
    assert float(error.translation) < length


@pytest.mark.parametrize("inlier_ratio", [0.05, 0.1, 0.5, 1.0])
def test_estimate_finds_the_pose(model: VBReg, inlier_ratio: float) -> None:
    problem = make_problem(600, inlier_ratio)
    result = model.estimate(problem.source, problem.target)
    assert_pose_close(result.T_target_source, problem.T, 1.0, 0.05)
    assert result.determined
    assert result.T_target_source.dtype == np.float64
    assert (result.inliers & problem.inliers).sum() >= 0.95 * problem.inliers.sum()


def test_the_pose_is_exactly_rigid(model: VBReg, problem: Problem) -> None:
    T = model.estimate(problem.source, problem.target).T_target_source
    np.testing.assert_allclose(T[:3, :3] @ T[:3, :3].T, np.eye(3), atol=1e-12)
    assert np.linalg.det(T[:3, :3]) == pytest.approx(1.0)
    assert T[3].tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize("seed", range(3))
def test_moving_either_cloud_moves_the_answer(model: VBReg, problem: Problem, seed: int) -> None:
    T = model.estimate(problem.source, problem.target).T_target_source
    A, B = motion(seed + 10), motion(seed + 20)
    moved = model.estimate(move(A, problem.source), move(B, problem.target)).T_target_source
    assert_pose_close(moved, B @ T @ np.linalg.inv(A), 1e-4, 1e-5)


def test_swapping_the_clouds_inverts_the_answer(model: VBReg, problem: Problem) -> None:
    T = model.estimate(problem.source, problem.target).T_target_source
    back = model.estimate(problem.target, problem.source).T_target_source
    assert_pose_close(back, np.linalg.inv(T), 1e-4, 1e-5)


def test_order_of_correspondences_does_not_matter(model: VBReg, problem: Problem) -> None:
    order = np.random.default_rng(0).permutation(len(problem.source))
    first = model.estimate(problem.source, problem.target)
    second = model.estimate(problem.source[order], problem.target[order])
    assert_pose_close(second.T_target_source, first.T_target_source, 1e-6, 1e-7)
    assert np.array_equal(second.inliers, first.inliers[order])
    np.testing.assert_allclose(second.confidence, first.confidence[order], atol=1e-3)


def test_the_same_call_gives_the_same_answer(model: VBReg, problem: Problem) -> None:
    for seed in (None, 7):
        a, b = (model.estimate(problem.source, problem.target, seed=seed) for _ in range(2))
        assert np.array_equal(a.T_target_source, b.T_target_source)
        assert np.array_equal(a.confidence, b.confidence)


def test_a_padded_batch_equals_its_singles(model: VBReg) -> None:
    problems = [make_problem(n, 0.3, seed=n) for n in (120, 45, 3)]
    source, target = np.full((2, 3, 120, 3), np.nan)
    mask = np.zeros((3, 120), dtype=bool)
    for b, p in enumerate(problems):
        n = len(p.source)
        source[b, :n], target[b, :n], mask[b, :n] = p.source, p.target, True
    batch = model.estimate(source, target, mask=mask)
    assert batch.T_target_source.shape == (3, 4, 4)
    assert not batch.inliers[~mask].any()
    assert not batch.confidence[~mask].any()
    for b, p in enumerate(problems):
        n = len(p.source)
        single = model.estimate(p.source, p.target)
        np.testing.assert_allclose(batch.T_target_source[b], single.T_target_source, atol=1e-6)
        np.testing.assert_allclose(batch.confidence[b, :n], single.confidence, atol=1e-3)
        assert np.array_equal(batch.inliers[b, :n], single.inliers)


def test_float32_float64_and_torch_agree(problem: Problem) -> None:
    network = VBReg.from_pretrained("indoor", device="cpu").network
    single = VBReg(network).estimate(
        problem.source.astype(np.float32), torch.tensor(problem.target)
    )
    double = VBReg(network.double()).estimate(problem.source, problem.target)
    assert_pose_close(single.T_target_source, double.T_target_source, 1e-3, 1e-4)


def test_coordinates_like_utm_lose_nothing(model: VBReg, problem: Problem) -> None:
    """Half a million metres east, five million north: the same pose, about a far origin."""
    T = model.estimate(problem.source, problem.target).T_target_source
    east = np.array([512_345.678, 5_412_345.678, 432.1])
    far = model.estimate(problem.source + east, problem.target + east)
    moved = far.T_target_source[:3, :3] @ (problem.source + east).T
    residual = moved.T + far.T_target_source[:3, 3] - east - move(T, problem.source)
    assert np.abs(residual).max() < 1e-6


def test_scaling_everything_scales_the_answer(model: VBReg, problem: Problem) -> None:
    """Millimetres instead of metres: one physical scale sets every radius."""
    metres = model.estimate(problem.source, problem.target)
    millimetres = model.estimate(
        1000 * problem.source, 1000 * problem.target, inlier_threshold=100.0
    )
    expected = metres.T_target_source.copy()
    expected[:3, 3] *= 1000
    assert_pose_close(millimetres.T_target_source, expected, 1e-3, 1e-1)


@pytest.mark.parametrize("n", [3, 4, 10, 39, 41])
def test_small_problems(model: VBReg, n: int) -> None:
    problem = make_problem(n, inlier_ratio=1.0, noise=0.001)
    result = model.estimate(problem.source, problem.target)
    assert_pose_close(result.T_target_source, problem.T, 1.0, 0.05)


def test_degenerate_matches_are_admitted(model: VBReg) -> None:
    line = np.linspace(0, 1, 20)[:, None] * np.array([1.0, 2.0, 3.0])
    for source, target in [(line, line + 1), (np.ones((5, 3)), np.zeros((5, 3)))]:
        result = model.estimate(source, target)
        assert not result.determined
        assert np.isfinite(result.T_target_source).all()


def test_attention_voters_are_an_option(problem: Problem) -> None:
    network = VBReg.from_pretrained("indoor", device="cpu").network
    model = VBReg(network, voting=VotingConfig(attention_voters=True))
    result = model.estimate(problem.source, problem.target)
    assert_pose_close(result.T_target_source, problem.T, 1.0, 0.05)


def test_an_untrained_network_of_any_shape_runs(small_network: VariationalNonLocalNetwork) -> None:
    problem = make_problem(200, 0.5)
    result = VBReg(small_network).estimate(problem.source, problem.target)
    assert_pose_close(result.T_target_source, problem.T, 1.0, 0.05)


def test_non_finite_rows_are_ignored(model: VBReg, problem: Problem) -> None:
    source = problem.source.copy()
    source[5] = np.nan
    result = model.estimate(source, problem.target)
    assert not result.inliers[5]
    assert_pose_close(result.T_target_source, problem.T, 1.0, 0.05)


def test_inputs_are_not_written_to(model: VBReg, problem: Problem) -> None:
    source, target = problem.source.copy(), problem.target.copy()
    model.estimate(source, target)
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
        (np.zeros((5, 3)), np.zeros((5, 3)), {"mask": np.ones(4)}, r"mask has shape \(4,\)"),
        (np.zeros((5, 3)), np.zeros((5, 3)), {"inlier_threshold": -1}, "inlier_threshold -1"),
        ("cloud", np.zeros((5, 3)), {}, "source_points is a str"),
        (np.zeros((5, 3), complex), np.zeros((5, 3)), {}, "complex128"),
        (np.eye(3) * 1e300, np.eye(3), {}, "same unit"),
        (np.eye(3), np.eye(3), {"inlier_threshold": 1e-40}, "same unit"),
        (np.eye(3), np.eye(3), {"inlier_threshold": "wide"}, "inlier_threshold 'wide'"),
        (np.eye(3), np.eye(3), {"mask": [[1], [1, 2]]}, "mask: expected"),
    ],
)
def test_bad_input_is_named(
    model: VBReg, source: object, target: object, options: dict[str, object], message: str
) -> None:
    with pytest.raises(VBRegError, match=message):
        model.estimate(source, target, **options)  # type: ignore[arg-type]


# --- descriptors


def described(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    source, target = np.random.default_rng(seed).random((2, count, 33))
    return source, target


def test_descriptors_are_seen_by_direction(feat_network: VariationalNonLocalNetwork) -> None:
    model, p = VBReg(feat_network), make_problem(150, 0.3)
    source, target = described(150)
    first = model.estimate(p.source, p.target, descriptors=(source, target))
    assert_pose_close(first.T_target_source, p.T, 1.0, 0.05)
    scaled = model.estimate(p.source, p.target, descriptors=(torch.tensor(7 * source), target))
    np.testing.assert_allclose(scaled.confidence, first.confidence, atol=1e-6)
    other = model.estimate(p.source, p.target, descriptors=(target, source))
    assert not np.allclose(other.confidence, first.confidence, atol=1e-4)


def test_order_does_not_matter_with_descriptors(feat_network: VariationalNonLocalNetwork) -> None:
    model, p = VBReg(feat_network), make_problem(150, 0.3)
    source, target = described(150)
    order = np.random.default_rng(0).permutation(150)
    first = model.estimate(p.source, p.target, descriptors=(source, target))
    second = model.estimate(
        p.source[order], p.target[order], descriptors=(source[order], target[order])
    )
    assert_pose_close(second.T_target_source, first.T_target_source, 1e-6, 1e-7)
    np.testing.assert_allclose(second.confidence, first.confidence[order], atol=1e-3)


def test_a_padded_batch_with_descriptors_equals_its_singles(
    feat_network: VariationalNonLocalNetwork,
) -> None:
    """Padding may be anything, NaN too, in points and in descriptors."""
    model = VBReg(feat_network)
    problems = [make_problem(n, 0.3, seed=n) for n in (120, 45, 3)]
    points, rows = np.full((2, 3, 120, 3), np.nan), np.full((2, 3, 120, 33), np.nan)
    for b, p in enumerate(problems):
        n = len(p.source)
        points[:, b, :n], rows[:, b, :n] = p[:2], described(n, seed=n)
    batch = model.estimate(points[0], points[1], descriptors=(rows[0], rows[1]))
    for b, p in enumerate(problems):
        n = len(p.source)
        single = model.estimate(p.source, p.target, descriptors=described(n, seed=n))
        np.testing.assert_allclose(batch.T_target_source[b], single.T_target_source, atol=1e-6)
        np.testing.assert_allclose(batch.confidence[b, :n], single.confidence, atol=1e-3)
        assert np.array_equal(batch.inliers[b, :n], single.inliers)


def test_register_gives_the_network_its_fpfh(feat_network: VariationalNonLocalNetwork) -> None:
    model = VBReg(feat_network)
    cloud = np.random.default_rng(0).random((2000, 3))
    result = register(cloud, cloud[::-1] + 3.0, voxel_size=0.1, model=model, max_correspondences=80)
    fpfh, matches = [], result.correspondences
    for points, index in (
        (cloud, matches.source_index),
        (cloud[::-1] + 3.0, matches.target_index),
    ):
        local = voxel_downsample(LocalCloud.of(points, "cloud").points, 0.1)
        fpfh.append(descriptors.fpfh(local, normals(local, 0.2), 0.5)[index])
    again = model.estimate(
        matches.source, matches.target, descriptors=(fpfh[0], fpfh[1]), inlier_threshold=0.2
    )
    np.testing.assert_array_equal(result.confidence, again.confidence)


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
        VBReg(feat_network).estimate(np.eye(5, 3), np.eye(5, 3), descriptors=given)  # type: ignore[arg-type]


def test_descriptors_for_a_network_without_are_refused(model: VBReg, problem: Problem) -> None:
    with pytest.raises(VBRegError, match="sees points alone"):
        model.estimate(problem.source, problem.target, descriptors=described(300))


# --- clouds


def test_clouds_come_in_many_forms() -> None:
    points = np.random.default_rng(0).random((10, 3))
    for cloud in (
        points,
        points.tolist(),
        torch.from_numpy(points),
        SimpleNamespace(points=points),
    ):
        np.testing.assert_array_equal(load_points(cloud, "source"), points)
    with pytest.raises(VBRegError, match="source"):
        load_points(object(), "source")


def test_non_finite_points_are_counted() -> None:
    points = np.random.default_rng(0).random((10, 3))
    points[[2, 5], 0] = np.nan, np.inf
    cloud = LocalCloud.of(points, "source")
    assert (cloud.count, cloud.dropped, len(cloud.points)) == (10, 2, 8)
    with pytest.raises(VBRegError, match="target has 1 finite points of 2"):
        LocalCloud.of(np.array([[0.0, 0, 0], [np.nan, 0, 0]]), "target")


def test_reduced_precision_tensors_are_read() -> None:
    points = torch.rand(10, 3).bfloat16()
    np.testing.assert_array_equal(load_points(points, "source"), points.double().numpy())


def test_unknown_device_is_named() -> None:
    with pytest.raises(VBRegError, match="runs on 'cpu' and 'cuda'"):
        choose_device("meta")
    with pytest.raises(VBRegError, match="tpu9"):
        choose_device("tpu9")
    if not torch.cuda.is_available():
        with pytest.raises(VBRegError, match="sees 0 GPUs"):
            choose_device("cuda")


def test_more_matches_than_memory_holds_are_thinned(
    small_network: VariationalNonLocalNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = make_problem(600, 0.5, seed=1)
    monkeypatch.setattr(VBReg, "most_matches", 200)
    result = VBReg(small_network).estimate(problem.source, problem.target, inlier_threshold=0.1)
    assert result.matches_found == 600
    assert len(result.correspondences) == len(result.inliers) == len(result.confidence) == 200
    rows = result.correspondences.source_index
    assert rows is not None
    assert (np.diff(rows) > 0).all()
    np.testing.assert_array_equal(result.correspondences.target, problem.target[rows])
    assert abs(result.T_target_source - problem.T).max() < 0.05
    cloud = np.random.default_rng(0).random((3000, 3))
    aligned = register(cloud, cloud, voxel_size=0.05, model=VBReg(small_network))
    assert len(aligned.correspondences) == 200 < aligned.matches_found


def test_a_batch_beyond_memory_is_solved_in_parts(
    small_network: VariationalNonLocalNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems = [make_problem(120, 0.5, seed=k) for k in range(5)]
    source, target = (np.stack([p[k] for p in problems]) for k in (0, 1))
    whole = VBReg(small_network).estimate(source, target, inlier_threshold=0.1)
    monkeypatch.setattr(VBReg, "most_matches", 250)  # two problems at a time
    parts = VBReg(small_network).estimate(source, target, inlier_threshold=0.1)
    np.testing.assert_allclose(parts.T_target_source, whole.T_target_source, atol=1e-9)
    assert parts.inliers.shape == (5, 120)


def test_a_cpu_takes_some_problems_of_a_batch_at_a_time(
    small_network: VariationalNonLocalNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems = [make_problem(120, 0.5, seed=k) for k in range(5)]
    source, target = (np.stack([p[k] for p in problems]) for k in (0, 1))
    sizes = []
    solve = VBReg._solve
    monkeypatch.setattr(
        VBReg,
        "_solve",
        lambda model, problem, *rest: (
            sizes.append(problem.local.mask.shape) or solve(model, problem, *rest)
        ),
    )
    monkeypatch.setattr(registration, "AT_ONCE_ON_CPU", 250)
    found = VBReg(small_network).estimate(source, target, inlier_threshold=0.1)
    assert sizes == [(2, 120), (2, 120), (1, 120)]
    assert found.T_target_source.shape == (5, 4, 4)


def test_memory_sets_the_number_of_matches() -> None:
    config = NetworkConfig()
    few, many = (most_matches(config, free) for free in (2 * 2**30, 100 * 2**30))
    assert 2000 <= few < 50_000 < 500_000 < many
    assert available_memory(torch.device("cpu")) > 2**20


def test_thinning_keeps_rows_that_are_real(
    small_network: VariationalNonLocalNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few of many rows they are."""
    problem = make_problem(400, 0.9, seed=1)
    mask = np.zeros(400, dtype=bool)
    mask[::40] = True
    monkeypatch.setattr(VBReg, "most_matches", 50)
    model = VBReg(small_network)
    found = model.estimate(problem.source, problem.target, mask=mask, inlier_threshold=0.1)
    assert found.matches_found == 400
    assert found.correspondences.source_index is not None
    assert found.correspondences.source_index.tolist() == np.flatnonzero(mask).tolist()
    assert np.isfinite(found.T_target_source).all()


def test_a_model_can_be_copied(small_network: VariationalNonLocalNetwork) -> None:
    model = VBReg(small_network)
    problem = make_problem(60, 0.5, seed=2)
    expected = model.estimate(problem.source, problem.target, inlier_threshold=0.1)
    held = threading.Lock()  # as a recording has, which cannot be pickled
    model.__dict__["_recorded"], model.network._frozen = held, held  # type: ignore[assignment]
    copied = pickle.loads(pickle.dumps(model))
    found = copied.estimate(problem.source, problem.target, inlier_threshold=0.1)
    assert np.array_equal(found.T_target_source, expected.T_target_source)
