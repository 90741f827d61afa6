"""Many pairs in any number of ways: errors stay with their pair, the best look wins."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.helpers import EAST, assert_pose_close, motion, move, surface
from vbreg import Registration, VBReg, demo, register
from vbreg.constraints import Constraints
from vbreg.descriptors import descriptor_named
from vbreg.errors import VBRegError, VBRegWarning
from vbreg.frames import LocalCloud
from vbreg.matching import DescribedCloud, MatchedClouds, describe
from vbreg.pair_problem import as_free_as_seen
from vbreg.registrar import Look, Registrar, Request, mirror_image, usual_viewpoint
from vbreg.scale import PresetName, Scale


def test_one_pair_of_several_fails_alone(fast: VBReg) -> None:
    """A registrar gives errors as results, and the others what `register` gives."""
    clouds = surface() + EAST, move(motion(1), surface(seed=1))
    few = np.random.default_rng(0).random((40, 3))
    requests = [
        Request.of(*(LocalCloud.of(cloud, "a cloud") for cloud in pair), voxel_size=0.1)
        for pair in (clouds, (few, few * 100), clouds)
    ]
    far = Constraints.of(max_translation=1e-3)
    requests.append(replace(requests[0], constraints=far))
    found = Registrar(fast, descriptor_named("learned"))(requests)
    assert [isinstance(each, VBRegError) for each in found] == [False, True, False, True]
    alone = register(*clouds, voxel_size=0.1, model=fast)
    for k in (0, 2):
        result = found[k]
        assert isinstance(result, Registration)
        np.testing.assert_allclose(result.T_target_source, alone.T_target_source, atol=1e-6)
        assert result.points_read == alone.points_read == (2000, 2000)


@pytest.mark.parametrize(
    ("preset", "shift", "expected"),
    [("outdoor", 0.0, "origin"), ("outdoor", 1e6, "unknown"), ("indoor", 0.0, "unknown")],
)
def test_scans_of_streets_are_seen_from_their_origin(
    preset: PresetName, shift: float, expected: str
) -> None:
    """A scan in UTM coordinates has its origin far away, where no sensor was."""
    points = np.random.default_rng(0).uniform(-20, 20, (500, 3)) + shift
    assert usual_viewpoint(preset, LocalCloud.of(points, "a scan")) == expected


def test_other_voxel_sizes_are_tried_where_a_pose_is_not_trusted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A smaller one; half and twice where it was estimated; without a retry none."""
    source, target, _ = demo.load()
    tried: list[float] = []
    solve = VBReg.solve_batch
    trust = {0: 0.2, 1: 0.1, 2: 0.4}

    def solved(self: VBReg, matched: list[MatchedClouds], **options: Any) -> list[Registration]:
        tried.append(matched[0].scale.voxel_size)
        found = solve(self, matched, **options)
        given = {"success_probability": trust[len(tried) - 1], "lone_shares": None}
        return [replace(found[0], **given)]

    monkeypatch.setattr(VBReg, "solve_batch", solved)
    some = source.points[::8], target.points[::8]
    found = register(*some, device="cpu")
    first = tried[0]
    assert tried == pytest.approx([first, 2 * first, first / 2])
    assert found.voxel_size == tried[2]
    assert found.first_voxel_size == first
    assert found.success_probability == 0.4
    assert found.voxel_size_estimated
    tried.clear()
    found = register(*some, voxel_size=0.1, device="cpu")
    assert tried == pytest.approx([0.1, 0.0707], rel=1e-3)
    assert (found.voxel_size, found.voxel_size_estimated) == (0.1, False)
    assert found.first_voxel_size == 0.1
    tried.clear()
    for given in (None, 0.1):
        register(*some, voxel_size=given, retry=False, device="cpu")
    assert tried == [first, 0.1]
    tried.clear()
    trust[0] = 0.98
    register(*some, device="cpu")
    assert tried == [first]


def test_a_mirror_turns_left_to_right_and_keeps_distances() -> None:
    points = np.random.default_rng(0).normal(loc=[5.0, 0, 0], size=(50, 3))
    cloud = LocalCloud.of(points, "a cloud")
    image, sensor = mirror_image(cloud, (1.0, 2.0, 3.0))
    there = image.points.double().numpy() + image.origin
    np.testing.assert_allclose(there, points * [-1, 1, 1], atol=1e-5)
    np.testing.assert_allclose(sensor, [-1.0, 2.0, 3.0])
    assert mirror_image(cloud, "origin")[1] == "origin"


def strewn(points: np.ndarray, share: float, seed: int) -> np.ndarray:
    """A cloud with points strewn evenly over its box, which are so large a share of it."""
    count = int(len(points) * share / (1 - share))
    box = points.min(0), points.max(0)
    return np.concatenate([points, np.random.default_rng(seed).uniform(*box, (count, 3))])


def test_stray_points_are_left_out_where_they_spoil_a_pose(
    fast: VBReg, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A third of each cloud is strewn over its box; the pose is found without it."""
    source, target, T = demo.load()
    spoilt = [strewn(cloud.points, 0.33, seed) for seed, cloud in enumerate((source, target))]
    pair = [LocalCloud.of(points, "a cloud") for points in spoilt]
    request = Request.of(*pair, voxel_size=0.05)
    registrar = Registrar(fast, descriptor_named("learned"))
    found = registrar([request])[0]
    assert isinstance(found, Registration)
    assert_pose_close(found.T_target_source, T, 2.0, 0.1)
    assert found.success_probability is not None
    assert found.success_probability > 0.9
    added = len(pair[0].points) - len(source.points)
    assert 0.9 * added < found.points_dropped[0] < 1.2 * added
    assert min(found.lone_shares or ()) > 0.3  # of the clouds as they were given
    monkeypatch.setattr("vbreg.registrar.spoilt_by_lone_points", lambda result: False)
    before = registrar([request])[0]
    assert isinstance(before, Registration)
    assert before.points_dropped == (0, 0)
    assert before.lone_shares is not None
    assert min(before.lone_shares) > 0.3
    assert (before.success_probability or 0.0) < found.success_probability


def test_a_cloud_of_nothing_but_strays_is_not_cleaned() -> None:
    points = np.random.default_rng(0).random((200, 3))
    request = Request.of(*(LocalCloud.of(points, "a cloud") for _ in range(2)), voxel_size=0.01)
    assert request.without_lone_points((1.0, 1.0)) is None


def test_a_wrong_constraint_is_not_forgiven_at_a_larger_voxel_size() -> None:
    """There a pose counts as right that is farther off."""
    points = surface()
    clouds = LocalCloud.of(points, "a cloud"), LocalCloud.of(points, "a cloud")
    known = Constraints.of(gravity="z")
    assert Request.of(*clouds).other_sizes() == (2.0, 0.5)
    assert Request.of(*clouds, constraints=known).other_sizes() == (0.5,)
    for constraints in (None, known):
        given = Request.of(*clouds, voxel_size=0.1, constraints=constraints)
        assert given.other_sizes() == pytest.approx((0.7071,), rel=1e-3)
    assert Request.of(*clouds, max_scale=2.0).other_sizes() == ()


def test_the_clouds_of_a_pair_are_described_once_at_each_voxel_size(
    fast: VBReg, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mirror image of the source is laid upon what the first look found there."""
    monkeypatch.setattr("vbreg.registrar.may_be_mirrored", lambda result: True)
    described: list[LocalCloud] = []

    def noted(cloud: LocalCloud, *given: Any, **options: Any) -> DescribedCloud:
        described.append(cloud)
        return describe(cloud, *given, **options)

    clouds = [LocalCloud.of(points, "a cloud") for points in (surface(), surface(seed=1))]
    registrar = Registrar(fast, descriptor_named("learned"), describe=noted)
    request = Request.of(*clouds, voxel_size=0.1)
    found = registrar([request])[0]
    assert isinstance(found, Registration)
    assert found.mirrored_probability is not None  # so that there were two looks
    assert [cloud is clouds[1] for cloud in described].count(True) == 1
    assert [cloud is clouds[0] for cloud in described].count(True) == 1
    assert len(described) == 3
    described.clear()
    registrar([request, request])
    assert len(described) == 8  # descriptions of many pairs are not kept


@pytest.mark.parametrize(("cleaned", "kept"), [(0.3, False), (0.8, True)])
def test_further_looks_leave_points_out_only_where_that_gave_a_trusted_pose(
    monkeypatch: pytest.MonkeyPatch, cleaned: float, kept: bool
) -> None:
    """A pose that is hardly more probable without them does not cost the points."""
    source, target, _ = demo.load()
    trust, looks = [0.2, cleaned, 0.1, 0.1], []
    solve = VBReg.solve_batch

    def solved(self: VBReg, matched: list[MatchedClouds], **options: Any) -> list[Registration]:
        found = solve(self, matched, **options)
        given = {"success_probability": trust[len(looks)], "lone_shares": (0.5, 0.5)}
        looks.append(matched[0])
        return [replace(found[0], **given)]

    monkeypatch.setattr(VBReg, "solve_batch", solved)
    monkeypatch.setattr("vbreg.registrar.may_be_mirrored", lambda result: False)
    spoilt = [strewn(each.points[::4], 0.3, seed) for seed, each in enumerate((source, target))]
    found = register(*spoilt, voxel_size=0.05, device="cpu")
    assert found.success_probability == max(0.2, cleaned)
    assert len(looks) == (2 if kept else 3)
    assert found.points_dropped[0] > 0


@pytest.mark.parametrize("problem", [MemoryError("no memory"), RuntimeError("too many points")])
def test_a_further_look_that_fails_leaves_the_first_result(fast: VBReg, problem: Exception) -> None:
    """A descriptor, or memory, may not take as many points as smaller voxels give."""
    source, target, _ = demo.load()

    def described(cloud: LocalCloud, scale: Scale, **options: Any) -> DescribedCloud:
        if scale.voxel_size < 0.3:
            raise problem
        return describe(cloud, scale, **options)

    registrar = Registrar(fast, descriptor_named("learned"), describe=described)
    clouds = [LocalCloud.of(each.points[::4], "a cloud") for each in (source, target)]
    request = Request.of(*clouds, voxel_size=0.4)  # too large for a pose to be trusted
    with pytest.warns(VBRegWarning, match=r"voxel size 0\.28.* failed and is left out"):
        found = registrar([request])[0]
    assert isinstance(found, Registration)
    assert found.voxel_size == 0.4


def test_what_is_free_already_is_not_doubted_twice(fast: VBReg) -> None:
    """A bare plane, at any voxel size: what its own look sees as free counts once."""
    rng = np.random.default_rng(0)
    plane = np.c_[rng.uniform(-1, 1, (4000, 2)), rng.normal(0, 0.003, 4000)]
    clouds = [LocalCloud.of(plane, "a cloud")] * 2
    registrar = Registrar(fast, descriptor_named("learned"), retry=False)
    first, smaller = (registrar([Request.of(*clouds, voxel_size=size)])[0] for size in (0.1, 0.07))
    assert isinstance(first, Registration)
    assert isinstance(smaller, Registration)
    assert first.free_directions
    assert smaller.free_directions
    matched = registrar._matched(Look(Request.of(*clouds, voxel_size=0.1), Scale(0.1)))
    assert as_free_as_seen(smaller, matched) is smaller


@pytest.mark.parametrize("seed", [0, 1])
def test_a_volume_of_points_is_never_trusted(seed: int) -> None:
    """Any pose lays one box of points upon another, and a smaller voxel size hides none of it."""
    rng = np.random.default_rng(seed)
    boxes = [rng.random((3000, 3)) for _ in range(2)]
    found = register(*boxes, device="cpu")
    assert found.success_probability is not None
    assert found.success_probability < 0.5
    assert found.fills_volume
    assert "fill a volume" in found.verdict
