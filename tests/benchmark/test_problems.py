"""From a pair to the problem that every method is given."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch

from tests.conftest import make_problem
from tests.methods.helpers import bumpy_clouds
from vbreg import register
from vbreg.backends import devices
from vbreg.benchmark import problems
from vbreg.benchmark.measure import measured
from vbreg.benchmark.problems import Labelled, Settings, keypoint_rows, problem_source
from vbreg.datasets import Pair
from vbreg.errors import VBRegError
from vbreg.matching import MAX_CORRESPONDENCES
from vbreg.methods import Problem

CPU = torch.device("cpu")


def bumpy_pair(name: str = "field/0-1", ids: tuple[int, int] | None = (0, 1)) -> Pair:
    source, target, T = bumpy_clouds()
    return Pair(name, source, target, T, scene="field", ids=ids)


def test_a_problem_has_the_matches_that_a_user_would_be_given() -> None:
    """With the default settings the matches are those of `register`, row by row."""
    problem = problem_source(Settings("field"), None, CPU)(bumpy_pair())
    source, target, _ = bumpy_clouds()
    users = register(source, target, preset="indoor", device="cpu").correspondences
    np.testing.assert_array_equal(problem.correspondences.source, users.source)
    np.testing.assert_array_equal(problem.correspondences.target, users.target)
    assert problem.inlier_threshold == pytest.approx(0.10)


def test_a_cloud_of_many_pairs_is_described_once(monkeypatch: pytest.MonkeyPatch) -> None:
    described = []
    original = problems.describe

    def counted(*arguments: object, **options: object) -> object:
        described.append(arguments)
        return original(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(problems, "describe", counted)
    source = problem_source(Settings("field"), None, CPU)
    for ids in ((0, 1), (1, 0), (0, 1)):
        source(bumpy_pair(f"field/{ids[0]}-{ids[1]}", ids))
    assert len(described) == 2
    source(bumpy_pair("field/other", None))  # nobody knows whose clouds these are
    assert len(described) == 4


def test_matches_are_thinned_as_the_settings_say() -> None:
    few = problem_source(Settings("field", max_matches=100), None, CPU)(bumpy_pair())
    assert len(few.correspondences) == 100
    assert few.matched is not None
    assert few.matched.matches_found > 1000
    keypoints = problem_source(Settings("field", points=80), None, CPU)(bumpy_pair())
    assert len(keypoints.correspondences) == 80


def test_keypoints_follow_from_pair_and_seed_alone() -> None:
    pair, settings = bumpy_pair(), Settings("field", points=20)
    first, again = (keypoint_rows((500, 400), pair, settings) for _ in range(2))
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)
        assert len(set(a.tolist())) == 20
    other = keypoint_rows((500, 400), bumpy_pair("field/1-2"), settings)
    assert not np.array_equal(first[0], other[0])
    reseeded = keypoint_rows((500, 400), pair, Settings("field", points=20, seed=1))
    assert not np.array_equal(first[0], reseeded[0])


def test_descriptors_of_a_file_stay_with_their_points() -> None:
    """A point that is not finite goes, and its descriptor with it."""
    points = make_problem(30).source
    features = np.eye(30, dtype=np.float32)
    spoilt = points.copy()
    spoilt[4, 1] = np.nan
    pair = Pair("a", spoilt, points[::-1].copy(), np.eye(4), descriptors=(features, features[::-1]))
    problem = problem_source(Settings("a", descriptor="npz:mine"), None, CPU)(pair)
    assert problem.matched is not None
    assert len(problem.matched.source) == 29
    np.testing.assert_allclose(
        problem.correspondences.source, problem.correspondences.target, atol=1e-6
    )
    assert Labelled.of(pair, problem).inlier_ratio == 1.0


def test_labels_follow_from_the_true_pose() -> None:
    made = make_problem(100, 0.4)
    pair = Pair("a", made.source, made.target, made.T)
    labelled = Labelled.of(pair, Problem.of_points(made.source, made.target, 0.1))
    np.testing.assert_array_equal(labelled.right, made.inliers)
    assert labelled.inlier_ratio == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("dataset", "voxel_size", "most", "bounds"),
    [
        ("3dmatch", 0.05, None, (15.0, 0.30)),
        ("3dlomatch", 0.05, None, (15.0, 0.30)),
        ("kitti", 0.30, 8000, (5.0, 0.60)),
        ("somewhere", 0.05, 8000, (15.0, 0.30)),
    ],
)
def test_a_data_set_has_the_protocol_of_the_papers(
    dataset: str, voxel_size: float, most: int | None, bounds: tuple[float, float]
) -> None:
    settings = Settings.of(dataset, points=None, seed=3)
    assert settings.voxel_size == voxel_size
    assert settings.inlier_threshold == 2 * voxel_size
    assert settings.max_matches == most
    assert (settings.rotation, settings.translation) == bounds
    assert settings.seed == 3
    assert Settings(**settings.to_dict()) == settings


@pytest.mark.parametrize(
    ("dataset", "viewpoint"), [("3dlomatch", "unknown"), ("kitti", "origin"), ("here", "unknown")]
)
def test_matches_are_made_as_register_makes_them_where_it_is_asked_for(
    dataset: str, viewpoint: str
) -> None:
    settings = Settings.of(dataset, as_register=True)
    assert settings.as_register
    assert settings.max_matches == MAX_CORRESPONDENCES
    assert settings.viewpoint == viewpoint
    by_papers = Settings.of(dataset)
    assert by_papers.as_register == (dataset == "here")
    bounds = "voxel_size", "rotation", "translation"
    assert [getattr(settings, b) for b in bounds] == [getattr(by_papers, b) for b in bounds]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"voxel_size": 0.0}, "voxel_size 0.0: expected a positive number"),
        ({"rotation": -1.0}, "rotation -1.0: expected a positive number"),
        ({"translation": float("nan")}, "translation nan: expected a positive number"),
        ({"points": 2}, "points 2: expected at least 3"),
        ({"max_matches": 0}, "max_matches 0: expected at least 3"),
    ],
)
def test_impossible_settings_are_refused(change: dict[str, float], message: str) -> None:
    with pytest.raises(VBRegError, match=message):
        Settings.of("3dmatch", **change)


def test_a_call_is_measured_in_seconds_and_megabytes() -> None:
    def work() -> int:
        time.sleep(0.01)
        return int(torch.ones(2**24).sum())  # 64 MB

    can_tell = devices.start_peak(CPU) is not None
    for give_back in (False, True):
        value, cost = measured(work, CPU, give_back=give_back)
        assert value == 2**24
        assert 0.01 <= cost.seconds < 60
        assert (cost.megabytes is not None) == can_tell
    assert cost.megabytes is None or 60 < cost.megabytes < 100  # after what was free is given back
