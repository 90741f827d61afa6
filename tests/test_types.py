"""What comes out: Python numbers, short reprs, and clouds moved as the pose says."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest

from tests.conftest import make_problem
from vbreg import Correspondences, PointCloud, Registration, VBReg, VBRegError
from vbreg.network import VariationalNonLocalNetwork
from vbreg.types import FreeDirection, Uncertainty, in_percent

TAU = 0.10


def result(n: int = 200, inliers: int = 120, **changes: object) -> Registration:
    T = np.eye(4)
    T[:3, :3] = [[0, -1, 0], [1, 0, 0], [0, 0, 1]]  # a quarter turn about z
    T[:3, 3] = [10.0, 20.0, 30.0]
    values = {
        "T_target_source": T,
        "correspondences": Correspondences(np.zeros((n, 3)), np.zeros((n, 3))),
        "inliers": np.arange(n) < inliers,
        "confidence": np.zeros(n, dtype=np.float32),
        "score": 0.5,
        "inlier_rmse": 0.03,
        "fixed": True,
        "inlier_threshold": TAU,
        "matches_found": n,
        "backend": "cpu",
        **changes,
    }
    return Registration(**values)  # type: ignore[arg-type]


@pytest.fixture
def estimated(small_network: VariationalNonLocalNetwork) -> Registration:
    problem = make_problem(300, 0.5)
    source = np.concatenate([problem.source, np.full((20, 3), np.nan)])
    target = np.concatenate([problem.target, np.zeros((20, 3))])
    return VBReg(small_network).estimate(source, target, inlier_threshold=TAU)


def test_numbers_are_pythons_own(estimated: Registration) -> None:
    kinds = {
        "score": float,
        "fitness": float,
        "inlier_rmse": float,
        "inlier_threshold": float,
        "determined": bool,
        "memory_limited": bool,
        "inlier_count": int,
        "matches_found": int,
        "backend": str,
    }
    assert {name: type(getattr(estimated, name)) for name in kinds} == kinds
    assert estimated.T_target_source.shape == (4, 4)
    assert estimated.T_target_source.dtype == np.float64
    assert estimated.covariance is not None
    assert estimated.covariance.shape == (6, 6)
    assert estimated.covariance.dtype == np.float64
    assert estimated.inliers.dtype == np.bool_
    assert estimated.confidence.dtype == np.float32
    assert all(type(seconds) is float for seconds in estimated.timings.values())


def test_the_evidence_is_what_its_definition_says(estimated: Registration) -> None:
    """Distances under the pose in the user's frames, of every match, finite or not."""
    matches, T = estimated.correspondences, estimated.T_target_source
    moved = matches.source @ T[:3, :3].T + T[:3, 3]
    distance = np.linalg.norm(moved - matches.target, axis=1)
    near = distance < TAU  # False for NaN
    np.testing.assert_array_equal(estimated.inliers, near)
    assert estimated.inlier_count == near.sum()
    assert estimated.fitness == near.mean()
    assert estimated.inlier_rmse == pytest.approx(np.sqrt(np.mean(distance[near] ** 2)))
    finite = np.isfinite(distance)
    gain = np.where(near, 1 - (distance / TAU) ** 2, 0.0)
    assert estimated.score == pytest.approx(gain[finite].mean())


def test_fitness_of_nothing_is_zero() -> None:
    assert result(n=0, inliers=0).fitness == 0.0
    assert result().fitness == 0.6


def test_reprs_are_short(estimated: Registration) -> None:
    cloud = PointCloud(np.zeros((100_000, 3)), {"red": np.zeros(100_000)})
    for shown in (estimated, cloud, estimated.correspondences):
        assert len(repr(shown)) < 200
        assert "\n" not in repr(shown)
    assert repr(result()) == (
        "Registration(rotation 90.00 deg, translation 37.42, 120 of 200 matches agree, "
        "score 0.500, determined True)"
    )
    assert repr(cloud) == "PointCloud(100000 points, attributes ['red'])"
    assert repr(result().correspondences) == "Correspondences(200)"


def test_a_half_turn_has_a_repr() -> None:
    """Rounding may put the cosine beyond -1."""
    T = np.diag([-1.0, -1.0, 1.0, 1.0]) * (1 + 1e-12)
    assert "rotation 180.00 deg" in repr(result(T_target_source=T))


def test_uncertainty_is_told_once_and_only_to_those_who_ask() -> None:
    asked = []

    def tell(about: Registration) -> Uncertainty:
        asked.append(about)
        return Uncertainty(np.eye(6), (FreeDirection("slides", (1.0, 0.0, 0.0)),))

    found = result(uncertainty_given=tell)
    assert found.fitness == 0.6
    assert not asked
    assert not found.determined
    assert [free.motion for free in found.free_directions] == ["slides"]
    assert found.covariance is found.covariance is not None
    assert asked == [found]


def test_without_uncertainty_the_matches_have_the_say() -> None:
    for fixed in (False, True):
        found = result(fixed=fixed)
        assert (found.determined, found.covariance, found.free_directions) == (fixed, None, ())


def test_results_can_be_sent_elsewhere(estimated: Registration) -> None:
    """Asked there or here, they say the same."""
    there = pickle.loads(pickle.dumps(estimated))
    np.testing.assert_array_equal(there.covariance, estimated.covariance)


def test_results_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        result().score = 1.0  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        PointCloud(np.zeros((1, 3))).points = np.ones((1, 3))  # type: ignore[misc]


@pytest.mark.parametrize(
    "points", [[[1.0, 2.0, 3.0]], np.array([[1, 2, 3]]), np.array([[1, 2, 3]], np.float32)]
)
def test_points_are_moved_in_float64(points: object) -> None:
    moved = result().apply_to(points)  # type: ignore[call-overload]
    assert moved.dtype == np.float64
    np.testing.assert_allclose(moved, [[8.0, 21.0, 33.0]])


def test_no_points_are_moved_to_no_points() -> None:
    assert result().apply_to(np.zeros((0, 3))).shape == (0, 3)


def test_millions_of_metres_lose_nothing() -> None:
    T = np.eye(4)
    T[:3, 3] = [512_345.678, 5_412_345.678, 432.1]
    points = np.random.default_rng(0).random((50, 3))
    moved = result(T_target_source=T).apply_to(points)
    np.testing.assert_allclose(moved - T[:3, 3], points, atol=1e-8)


@pytest.mark.parametrize("names", [("nx", "ny", "nz"), ("NX", "NY", "NZ")])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_normals_turn_with_a_cloud(names: tuple[str, ...], dtype: type) -> None:
    rng = np.random.default_rng(0)
    points, normals = rng.random((20, 3)), rng.normal(size=(20, 3)).astype(dtype)
    points[7] = np.nan
    points[8, 1] = np.inf
    attributes = {name: normals[:, k] for k, name in enumerate(names)}
    attributes["red"] = rng.integers(0, 255, 20)
    cloud = PointCloud(points.copy(), attributes)
    moved = result().apply_to(cloud)
    finite = np.isfinite(points).all(axis=1)
    np.testing.assert_allclose(moved.points[finite], result().apply_to(points[finite]))
    np.testing.assert_array_equal(moved.points[~finite], points[~finite])  # as they were
    # A quarter turn about z: x becomes y, y becomes -x; a translation does not move a direction.
    np.testing.assert_allclose(moved.attributes[names[0]], -normals[:, 1], atol=1e-6)
    np.testing.assert_allclose(moved.attributes[names[1]], normals[:, 0], atol=1e-6)
    np.testing.assert_allclose(moved.attributes[names[2]], normals[:, 2], atol=1e-6)
    assert moved.attributes[names[0]].dtype == dtype
    np.testing.assert_array_equal(moved.attributes["red"], attributes["red"])
    assert list(moved.attributes) == list(attributes)
    np.testing.assert_array_equal(cloud.points, points)  # the caller's is as it was
    np.testing.assert_array_equal(cloud.attributes[names[0]], normals[:, 0])


def test_one_normal_alone_is_an_attribute_like_others() -> None:
    cloud = PointCloud(np.zeros((2, 3)), {"nx": np.ones(2), "ny": np.zeros(2)})
    moved = result().apply_to(cloud)
    np.testing.assert_array_equal(moved.attributes["nx"], np.ones(2))


def test_a_cloud_knows_its_length() -> None:
    assert len(PointCloud(np.zeros((5, 3)))) == 5
    assert len(Correspondences(np.zeros((4, 3)), np.zeros((4, 3)))) == 4


@pytest.mark.parametrize("wrong", [np.zeros((4, 2)), np.zeros(3), "cloud.ply", object()])
def test_only_points_can_be_moved(wrong: object) -> None:
    with pytest.raises(VBRegError, match=r"expected (\(M, 3\)|points)"):
        result().apply_to(wrong)  # type: ignore[call-overload]


def test_a_limit_that_holds_a_pose_back_is_told_whatever_the_probability() -> None:
    free = result(success_probability=0.99, overlap=0.5)
    assert free.verdict == "aligned, 99 %"
    assert free.reasons == ()
    held = dataclasses.replace(free, limits_reached=("max_translation",))
    assert held.verdict.startswith("probably aligned, 99 %: the pose lies at the limit of max_tr")
    assert free.settled
    assert not held.settled


def test_a_pose_that_is_not_trusted_always_has_a_reason() -> None:
    for p in (0.02, 0.3, 0.7):
        doubted = result(success_probability=p, overlap=0.5)
        assert len(doubted.reasons) == 1
        assert doubted.verdict.endswith(doubted.reasons[0])
    assert result(success_probability=0.95, overlap=0.5).reasons == ()
    assert result(overlap=None).reasons == ()  # nobody looked


def test_where_hardly_any_match_agrees_nothing_is_said_of_free_directions() -> None:
    free = Uncertainty(np.eye(6), (FreeDirection("slides", (1.0, 0.0, 0.0)),))
    few = result(inliers=4, success_probability=0.01, uncertainty_given=free)
    assert few.reasons[0].startswith("hardly any match agrees with this pose (4 of 200)")
    assert not any("slides" in reason for reason in few.reasons)
    many = result(inliers=150, success_probability=0.01, uncertainty_given=free)
    assert "slides along" in many.reasons[0]


@pytest.mark.parametrize(("inliers", "matches", "said"), [(4, 8, "only 4 of 8"), (3, 8, "hardly")])
def test_half_of_a_handful_of_matches_is_not_hardly_any(
    inliers: int, matches: int, said: str
) -> None:
    assert result(matches, inliers, overlap=0.5).reasons[0].startswith(said)


@pytest.mark.parametrize(("p", "told"), [(0.02, True), (0.6, False), (None, False)])
def test_strays_are_told_where_a_pose_is_not_trusted(p: float | None, told: bool) -> None:
    spoilt = result(success_probability=p, overlap=0.5, lone_shares=(0.02, 0.31))
    said = [reason for reason in spoilt.reasons if "no surface" in reason]
    assert (len(said) == 1) == told
    assert not told or said[0].startswith("31 % of target")


def test_points_that_fill_a_volume_are_told_whatever_the_probability() -> None:
    thick = result(success_probability=0.95, overlap=0.5, volume_shares=(0.3, 0.82))
    assert thick.fills_volume
    assert "30 % of source, 82 % of target" in thick.reasons[0]
    assert not result(success_probability=0.95, volume_shares=(0.3, 0.4)).fills_volume


@pytest.mark.parametrize(
    ("p", "said"),
    [(0.0, "under 1 %"), (0.01, "1 %"), (0.5, "50 %"), (0.994, "99 %"), (1.0, "over 99 %")],
)
def test_no_probability_is_told_as_certain(p: float, said: str) -> None:
    assert in_percent(p) == said
    assert said in repr(result(success_probability=p))
