"""Local frames: float32 holds what millions of metres would hide, and poses find the way back."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from tests.conftest import make_problem
from vbreg import clouds
from vbreg.errors import VBRegError, VBRegWarning
from vbreg.frames import (
    MAX_SAMPLE,
    NEARLY_ALL,
    LocalCloud,
    Matches,
    check_units,
    middle_and_reach,
)

EAST = np.array([512_345.678, 5_412_345.678, 432.1])  # like UTM
TAU = 0.25


def problem(n: int, seed: int, shift: float = 0.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points that a pose maps exactly, its ends far apart."""
    p = make_problem(n, inlier_ratio=1.0, noise=0.0, seed=seed)
    T = p.T.copy()
    T[:3, 3] += 2 * shift * EAST - T[:3, :3] @ (shift * EAST)
    return p.source + shift * EAST, p.target + 2 * shift * EAST, T


def test_non_finite_points_are_counted() -> None:
    points = np.random.default_rng(0).random((10, 3))
    points[[2, 5], 0] = np.nan, np.inf
    cloud = LocalCloud.of(points, "source")
    assert (cloud.count, cloud.dropped, len(cloud.points)) == (10, 2, 8)
    with pytest.raises(VBRegError, match="target has 1 finite points of 2"):
        LocalCloud.of(np.array([[0.0, 0, 0], [np.nan, 0, 0]]), "target")


def test_a_cloud_lies_about_its_own_middle() -> None:
    points = np.random.default_rng(0).random((100, 3))
    cloud = LocalCloud.of(points + EAST, "source")
    assert cloud.points.dtype == torch.float32
    assert cloud.points.device.type == "cpu"
    assert float(cloud.points.mean(0).abs().max()) < 1e-6
    back = cloud.points.double().numpy() + cloud.origin
    np.testing.assert_allclose(back, points + EAST, atol=1e-6)
    # float32 in the user's frame would have lost half a metre.
    assert np.abs((points + EAST).astype(np.float32) - (points + EAST)).max() > 0.1


def test_matches_are_in_thresholds_about_their_origins() -> None:
    source, target, _ = problem(50, 0, shift=1.0)
    matches = Matches.of_points([source], [target], TAU)
    assert (matches.problems, len(matches)) == (1, 50)
    assert matches.source.dtype == matches.target.dtype == torch.float64
    assert bool(matches.mask.all())
    torch.testing.assert_close(
        matches.source.mean(1), torch.zeros(1, 3).double(), atol=1e-6, rtol=0
    )
    np.testing.assert_allclose(matches.source[0].numpy() * TAU, source - source.mean(0), atol=1e-9)
    for end, origin, expected in zip(
        (matches.source, matches.target), matches.origins, (source, target), strict=True
    ):
        np.testing.assert_allclose(end[0].numpy() * TAU + origin[0], expected, atol=1e-8)


def test_rows_that_are_not_finite_are_masked_and_change_nothing() -> None:
    source, target, _ = problem(50, 0, shift=1.0)
    rows = np.setdiff1d(np.arange(53), [0, 20, 52])
    holed = np.full((2, 53, 3), np.nan)
    holed[0, rows], holed[1, rows] = source, target
    holed[0, 20] = 1.0  # finite at one end
    matches = Matches.of_points([holed[0]], [holed[1]], TAU)
    clean = Matches.of_points([source], [target], TAU)
    assert matches.mask[0].nonzero().squeeze(-1).tolist() == rows.tolist()
    for name in ("source", "target"):
        found, expected = getattr(matches, name)[0], getattr(clean, name)[0]
        torch.testing.assert_close(found[rows], expected, atol=1e-7, rtol=0)
        assert not found[[0, 20, 52]].any()
    np.testing.assert_allclose(matches.origins, clean.origins, rtol=1e-12)
    with pytest.raises(VBRegError, match="2 usable correspondences: at least 3"):
        Matches.of_points([source, source[:2]], [target, target[:2]], TAU)


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_a_local_pose_goes_back_to_the_users_frames(shift: float) -> None:
    source, target, T = problem(50, 1, shift)
    matches = Matches.of_points([source], [target], TAU)
    R = T[:3, :3]
    t = R @ source.mean(0) + T[:3, 3] - target.mean(0)  # between the origins
    local = np.eye(4)
    local[:3, :3], local[:3, 3] = R, t / TAU
    found = matches.to_user(torch.from_numpy(local)[None])
    assert found.shape == (1, 4, 4)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found[0, :3, :3], R, atol=1e-15)
    np.testing.assert_allclose(source @ R.T + found[0, :3, 3], target, atol=1e-7)


def test_a_batch_is_padded_and_keeps_each_way_back() -> None:
    given = [problem(n, n, shift) for n, shift in ((7, 0.0), (20, 1.0), (3, -1.0))]
    described = [np.full((len(s), 4), float(k)) for k, (s, _, _) in enumerate(given)]
    singles = [
        Matches.of_points([s], [t], TAU, [d]) for (s, t, _), d in zip(given, described, strict=True)
    ]
    batch = Matches.of_points([g[0] for g in given], [g[1] for g in given], TAU, described)
    assert (batch.problems, len(batch)) == (3, 20)
    assert batch.mask.sum(-1).tolist() == [7, 20, 3]
    for b, single in enumerate(singles):
        n = len(single)
        assert batch.mask[b].tolist() == [True] * n + [False] * (20 - n)
        torch.testing.assert_close(batch.source[b, :n], single.source[0], atol=1e-7, rtol=0)
        torch.testing.assert_close(batch.target[b, :n], single.target[0], atol=1e-7, rtol=0)
        assert not batch.source[b, n:].any()
        assert batch.descriptors is not None
        assert batch.descriptors[b, :n].eq(b).all()
        assert not batch.descriptors[b, n:].any()
    poses = torch.eye(4).double().expand(3, 4, 4)
    alone = np.concatenate([m.to_user(poses[:1]) for m in singles])
    np.testing.assert_allclose(batch.to_user(poses), alone, atol=1e-8)


def test_every_tensor_changes_together() -> None:
    given = [problem(n, n) for n in (20, 12, 5)]
    rows = [np.full((len(s), 2), float(k)) for k, (s, _, _) in enumerate(given)]
    matches = Matches.of_points([g[0] for g in given], [g[1] for g in given], TAU, rows)
    some = matches.map(lambda part: part[:, :7])
    assert len(some) == 7
    part = matches.problems_from(1, 2)
    assert part.problems == 2
    assert len(part) == 20
    for name in ("source", "target", "mask", "descriptors"):
        assert torch.equal(getattr(some, name), getattr(matches, name)[:, :7])
        assert torch.equal(getattr(part, name), getattr(matches, name)[1:3])
    assert some.unit == part.unit == TAU
    bare = Matches.of_points([given[0][0]], [given[0][1]], TAU).map(lambda part: part[:, :2])
    assert bare.descriptors is None
    assert len(bare) == 2


@pytest.mark.parametrize(("reach", "unit"), [(1e300, 0.1), (1.0, 1e-40), (2e6, 0.1)])
def test_points_and_threshold_of_different_units_are_named(reach: float, unit: float) -> None:
    with pytest.raises(VBRegError, match=r"from their middle, .* same unit"):
        Matches.of_points([reach * np.eye(3)], [np.eye(3)], unit)


def test_strays_are_left_out_and_said() -> None:
    """Two zeros of a scanner among points at UTM would make the cloud 5000 km wide."""
    points = np.random.default_rng(0).normal(size=(1000, 3)) + EAST
    points[[3, 700]] = 0
    with pytest.warns(VBRegWarning, match="2 of 1000 points of source lie more than 1000 times"):
        cloud = LocalCloud.of(points, "source")
    assert (cloud.count, cloud.dropped, len(cloud.points)) == (1000, 2, 998)
    assert float(cloud.points.abs().max()) < 6
    expected = np.delete(points, [3, 700], axis=0)
    np.testing.assert_allclose(cloud.points.numpy() + cloud.origin, expected, atol=1e-5)


def test_what_is_merely_far_is_no_stray() -> None:
    rng = np.random.default_rng(0)
    distance = rng.exponential(size=(5000, 1)) ** 2  # a scan that thins out
    directions = rng.normal(size=(5000, 3))
    points = distance * directions / np.linalg.norm(directions, axis=1, keepdims=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert LocalCloud.of(points, "source").dropped == 0
        few = np.concatenate([np.zeros((10, 3)), np.eye(3) * 1000])
        assert LocalCloud.of(few, "source").dropped == 0


@pytest.mark.parametrize("count", [1, 2, 199, 12_000])
def test_the_middle_is_the_median_and_the_reach_a_quantile(count: int) -> None:
    points = np.random.default_rng(count).standard_cauchy((count, 3)) + EAST
    sample = points[:: max(1, count // MAX_SAMPLE)]
    median = np.median(sample, axis=0)
    expected = np.quantile(np.linalg.norm(sample - median, axis=1), NEARLY_ALL)
    middle, reach = middle_and_reach(points)
    np.testing.assert_allclose(middle, median, rtol=1e-15)
    assert reach == pytest.approx(expected, rel=1e-9)


def test_millimetres_against_metres_are_a_question() -> None:
    points = np.random.default_rng(0).normal(size=(1000, 3))
    metres, part = LocalCloud.of(points, "source"), LocalCloud.of(points[:500] / 2, "target")
    check_units(metres, part)
    millimetres = LocalCloud.of(points * 1000, "target")
    with pytest.raises(VBRegError, match="is target in millimetres and the other in metres"):
        check_units(part, millimetres)
    with pytest.raises(VBRegError, match="is source in millimetres"):
        check_units(millimetres, metres)


def test_voxels_are_told_once_where_lone_points_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(0)
    sheet = np.c_[rng.uniform(-1, 1, (4000, 2)), np.zeros(4000)]
    cloud = LocalCloud.of(np.concatenate([sheet, rng.uniform(1, 3, (50, 3))]), "source")
    told: list[torch.Tensor] = []
    keys = clouds._voxel_keys
    monkeypatch.setattr(
        clouds, "_voxel_keys", lambda points, *rest: told.append(points) or keys(points, *rest)
    )
    kept = cloud.without_lone_points(0.1, 0.2)
    assert len(told) == 1
    assert kept.dropped == len(cloud.points) - len(kept.points) > 40
    assert len(kept.points) > 3900


def test_a_pose_in_the_users_unit_is_between_the_local_frames() -> None:
    source, target, _ = problem(20, 0, 1.0)
    matches = Matches.of_points([source], [target], TAU)
    back = Matches.of_points([source], [target], 1.0)
    local = torch.eye(4, dtype=torch.float64)[None].clone()
    local[0, :3, 3] = torch.tensor([1.0, 2.0, 3.0])
    np.testing.assert_allclose(matches.to_user(local), back.to_user(matches.in_unit(local)))
    assert local[0, 0, 3] == 1.0  # the caller's is as it was


def test_ignored_points_are_counted_as_read_and_not_as_dropped() -> None:
    points = np.random.default_rng(0).random((10, 3))
    points[2, 0] = np.nan
    mask = np.zeros(10, dtype=bool)
    mask[[2, 3]] = True
    cloud = LocalCloud.of(points, "source", mask)
    assert (cloud.count, cloud.dropped, len(cloud.points)) == (10, 1, 8)
    np.testing.assert_allclose(cloud.origin, np.delete(points, [2, 3], axis=0).mean(0))


def test_strays_and_ignored_points_are_told_apart() -> None:
    """A stray that is ignored is no longer worth a word."""
    points = np.random.default_rng(0).normal(size=(1000, 3)) + EAST
    points[[3, 700]], points[5] = 0, np.nan
    mask = np.zeros(1000, dtype=bool)
    mask[[3, 5, 6]] = True
    with pytest.warns(VBRegWarning, match="1 of 1000 points of source lie more than 1000 times"):
        cloud = LocalCloud.of(points, "source", mask)
    assert (cloud.count, cloud.dropped, len(cloud.points)) == (1000, 2, 996)
    expected = np.delete(points, [3, 5, 6, 700], axis=0)
    np.testing.assert_allclose(cloud.points.numpy() + cloud.origin, expected, atol=1e-5)


def test_points_that_were_rounded_far_from_their_origin_are_told() -> None:
    """In float32 a northing of five million lies on steps of half a metre."""
    points = np.array([5e5, 5e6, 100]) + np.random.default_rng(0).uniform(0, 20, (300, 3))
    with pytest.warns(VBRegWarning, match=r"of source lie on steps of 0\.5: .* give float64"):
        LocalCloud.of(points.astype(np.float32), "source")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LocalCloud.of(points, "source")
        LocalCloud.of((points - points.mean(0)).astype(np.float32), "source")
        LocalCloud.of(np.arange(900.0).reshape(300, 3), "source")  # whole numbers
        LocalCloud.of(np.ones((300, 3)), "source")
