"""From clouds to matches: nearest descriptors, lone points, descriptors of the user's own."""

from __future__ import annotations

import subprocess
import sys
from typing import get_args

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vbreg import matching
from vbreg.descriptors import MatchingName
from vbreg.errors import VBRegError
from vbreg.frames import LocalCloud
from vbreg.matching import describe, describe_points, evenly, match, match_clouds
from vbreg.scale import Scale

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def naive_match(source: Tensor, target: Tensor) -> list[int]:
    source, target = F.normalize(source.double(), dim=1), F.normalize(target.double(), dim=1)
    return [int((target - f).square().sum(1).argmin()) for f in source]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("scores", [7, 2**22])
@settings(max_examples=20, deadline=None)
@given(n=st.integers(1, 40), m=st.integers(1, 40), seed=st.integers(0, 1000))
def test_match_equals_the_naive_search(device, scores, n, m, seed):
    g = generator(seed)
    source, target = torch.randn(n, 33, generator=g), torch.randn(m, 33, generator=g)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matching, "MAX_SIMILARITIES", scores)
        source_index, target_index = match(source.to(device), target.to(device))
        mutual_source, mutual_target = match(
            source.to(device), target.to(device), matching="mutual"
        )
        either = match(source.to(device), target.to(device), matching="either-way")
    there, back = naive_match(source, target), naive_match(target, source)
    pairs = {(i, there[i]) for i in range(n)} | {(back[j], j) for j in range(m)}
    assert list(zip(*(end.tolist() for end in either), strict=True)) == sorted(pairs)
    assert source_index.tolist() == list(range(n))
    assert target_index.tolist() == there
    assert mutual_source.tolist() == [i for i in range(n) if back[there[i]] == i]
    assert mutual_target.tolist() == [there[i] for i in mutual_source.tolist()]


def test_match_ignores_the_length_of_descriptors():
    g = generator(0)
    source, target = torch.rand(50, 33, generator=g), torch.rand(60, 33, generator=g)
    factor = torch.rand(60, 1, generator=g) + 0.1
    assert torch.equal(match(source, target)[1], match(7 * source, factor * target)[1])


def test_match_gives_ties_to_the_lowest_index():
    g = generator(0)
    target = torch.rand(37, 33, generator=g)
    source = target[torch.randperm(37, generator=g)]
    once, twice = match(source, target), match(source, torch.cat([target, target]))
    assert torch.equal(once[1], twice[1])
    assert torch.equal(match(torch.cat([source, source]), target, matching="mutual")[0], once[0])


@pytest.mark.slow
def test_match_of_many_stays_small():
    """20,000 x 20,000 similarities are 1.6 GB; a fresh process must not come near."""
    pytest.importorskip("resource", reason="peak memory is read through a Unix module")
    program = """
import resource, torch
from vbreg.matching import match
f = torch.rand(20_000, 33, generator=torch.Generator().manual_seed(0))
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = peak()
match(f, f.flip(0))
print((peak() - before) / 1024)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) / (1024 if sys.platform == "darwin" else 1) < 256  # MB


def test_match_of_nothing():
    for n, m in ((0, 3), (3, 0), (0, 0)):
        source_index, target_index = match(torch.zeros(n, 5), torch.zeros(m, 5))
        assert source_index.shape == target_index.shape == (0,)


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        (torch.zeros(3), torch.zeros(3, 4), "source_features has shape (3,)"),
        (torch.zeros(3, 5), torch.zeros(3, 4), "5 columns"),
        (torch.full((3, 4), torch.nan), torch.zeros(3, 4), "NaN"),
    ],
)
def test_match_errors_name_the_value(source, target, words):
    with pytest.raises(VBRegError) as error:
        match(source, target)
    assert words in str(error.value)


# --- the front end

SCALE = Scale(0.1)
LONE = np.array([[50.0, 0, 0], [0, 60.0, 0], [0, 0, 70.0], [80.0, 80.0, 0]])


def bumps(count: int = 3000, seed: int = 0) -> np.ndarray:
    """A bumpy sheet of 2 m."""
    rng = np.random.default_rng(seed)
    xy = rng.uniform(-1, 1, (count, 2))
    return np.c_[xy, 0.2 * np.sin(4 * xy[:, 0]) * np.cos(3 * xy[:, 1])]


def local(points: np.ndarray) -> LocalCloud:
    return LocalCloud.of(points, "a cloud")


def test_a_described_cloud_lies_in_its_own_frame():
    east = np.array([512_345.678, 5_412_345.678, 432.1])
    near, far = (describe(local(bumps() + shift), SCALE, descriptor="fpfh") for shift in (0, east))
    assert near.points.dtype == torch.float32
    assert float(far.points.abs().max()) < 3
    assert far.origin.dtype == np.float64
    np.testing.assert_allclose(far.origin - near.origin, east, atol=1e-6)
    # The same points, but for the last bits that millions of metres cost a float64.
    torch.testing.assert_close(far.points, near.points, atol=1e-6, rtol=0)
    np.testing.assert_allclose(far.in_user_frame() - east, near.in_user_frame(), atol=1e-6)
    some = torch.tensor([3, 1])
    np.testing.assert_array_equal(far.in_user_frame(some), far.in_user_frame()[[3, 1]])


def test_taken_points_keep_their_descriptors():
    cloud = describe(local(bumps()), SCALE, descriptor="fpfh")
    rows = torch.tensor([5, 2, 7])
    some = cloud.take(rows)
    assert len(some) == 3 < len(cloud)
    for name in ("points", "normals", "descriptors"):
        assert torch.equal(getattr(some, name), getattr(cloud, name)[rows])
    assert some.origin is cloud.origin


def test_a_point_is_described_by_what_lies_round_it_at_the_scale():
    """The radii are the scale's: a cloud in another unit has the same descriptors."""
    one, thousand = (
        describe(local(k * bumps()), Scale(k * 0.125), descriptor="fpfh") for k in (1, 1024)
    )
    torch.testing.assert_close(thousand.descriptors, one.descriptors, atol=1e-3, rtol=0)


def test_lone_points_are_matched_to_nothing():
    """At both ends: their rows of zeros are equally near to everything."""
    source, target = (
        describe(local(p), SCALE, descriptor="fpfh")
        for p in (np.r_[LONE, bumps()], np.r_[bumps(), LONE])
    )
    lone = [(~cloud.descriptors.any(-1)).nonzero().squeeze(-1) for cloud in (source, target)]
    assert [len(rows) for rows in lone] == [4, 4]
    for way in get_args(MatchingName):
        matched = match_clouds(source, target, SCALE, matching=way, max_matches=None)
        assert not torch.isin(matched.source_index, lone[0]).any()
        assert not torch.isin(matched.target_index, lone[1]).any()
    everything = match_clouds(source, target, SCALE, max_matches=None)
    assert everything.matches_found == len(source) - 4
    # And they change nothing for the others.
    kept = [
        cloud.take(cloud.descriptors.any(-1).nonzero().squeeze(-1)) for cloud in (source, target)
    ]
    alone = match_clouds(kept[0], kept[1], SCALE, max_matches=None)
    found, expected = everything.correspondences, alone.correspondences
    np.testing.assert_array_equal(found.source, expected.source)
    np.testing.assert_array_equal(found.target, expected.target)


def test_indices_point_into_the_described_clouds():
    clouds = [describe(local(bumps(seed=k) + 10.0 * k), SCALE, descriptor="fpfh") for k in (0, 1)]
    matched = match_clouds(clouds[0], clouds[1], SCALE)
    found = matched.correspondences
    np.testing.assert_array_equal(found.source, clouds[0].in_user_frame()[found.source_index])
    np.testing.assert_array_equal(found.target, clouds[1].in_user_frame()[found.target_index])


def test_matches_are_in_local_frames_and_thresholds():
    clouds = [
        describe(local(bumps(seed=k) + 1e6 * (k + 1)), SCALE, descriptor="fpfh") for k in (0, 1)
    ]
    matched = match_clouds(clouds[0], clouds[1], SCALE)
    matches = matched.matches()
    assert matches.unit == SCALE.inlier_threshold
    assert matches.source.dtype == torch.float64
    assert matches.descriptors is None
    torch.testing.assert_close(
        matches.target[0], clouds[1].points[matched.target_index].double() / matches.unit
    )
    found = matched.correspondences
    for end, origin, expected in zip(
        (matches.source, matches.target), matches.origins, (found.source, found.target), strict=True
    ):
        np.testing.assert_allclose(end[0].numpy() * matches.unit + origin[0], expected, atol=1e-8)
    described = matched.matches(with_descriptors=True).descriptors
    assert described.shape == (1, len(matches), 66)
    torch.testing.assert_close(
        described[..., :33].norm(dim=-1), torch.ones(1, len(matches)).double()
    )


def test_thinning_is_even_and_the_same_in_every_call():
    clouds = [describe(local(bumps(seed=k)), SCALE, descriptor="fpfh") for k in (0, 1)]
    whole = match_clouds(clouds[0], clouds[1], SCALE, max_matches=None)
    some = match_clouds(clouds[0], clouds[1], SCALE, max_matches=100)
    assert len(some.source_index) == 100
    assert some.matches_found == whole.matches_found == len(whole.source_index)
    assert torch.equal(some.source_index, whole.thinned(100).source_index)
    assert torch.equal(some.target_index, whole.thinned(100).target_index)
    assert whole.thinned(10**6) is whole
    pairs = set(zip(whole.source_index.tolist(), whole.target_index.tolist(), strict=True))
    assert set(zip(some.source_index.tolist(), some.target_index.tolist(), strict=True)) <= pairs


def test_evenly_drawn_rows():
    rows = evenly(10_000, 1000)
    assert torch.equal(rows, evenly(10_000, 1000))
    assert len(rows) == len(rows.unique()) == 1000
    assert (rows.diff() > 0).all()
    assert 4500 < rows.double().mean() < 5500
    assert torch.equal(evenly(5, 9), torch.arange(5))


def test_too_few_matches_say_what_to_try():
    clouds = [describe(local(LONE[:3]), SCALE, descriptor="fpfh") for _ in range(2)]
    with pytest.raises(VBRegError, match=r"0 matches .* of 3 and 3 points .* a larger one"):
        match_clouds(clouds[0], clouds[1], SCALE)
    with pytest.raises(VBRegError, match="need not be mutual"):
        match_clouds(clouds[0], clouds[1], SCALE, matching="mutual")


def test_an_unknown_way_of_matching_is_named():
    message = "matching 'both': expected one of one-way, either-way, mutual, ratio, two-nearest"
    for features in (torch.eye(4), torch.zeros(0, 4)):
        with pytest.raises(VBRegError, match=message):
            match(features, features, matching="both")
    clouds = [describe(local(bumps(seed=k)), SCALE, descriptor="fpfh") for k in (0, 1)]
    with pytest.raises(VBRegError, match=message):
        match_clouds(*clouds, SCALE, matching="both")


def test_a_cloud_that_is_too_large_is_told_a_voxel_size(monkeypatch):
    monkeypatch.setattr(matching, "MAX_POINTS", 100)
    with pytest.raises(VBRegError, match=r"at most 100 .* larger voxel size \(about 0\.\d+ would"):
        describe(local(bumps()), SCALE, descriptor="fpfh")


# --- a descriptor of the user's own


def test_a_function_is_given_points_unit_normals_and_the_scale():
    given = []

    def mine(points, normals, scale):
        given.append((points, normals, scale))
        return points.new_ones(len(points), 2)

    described = describe(local(bumps() + 1e6), SCALE, descriptor=mine)
    ((points, normals, scale),) = given
    assert scale == SCALE
    assert torch.equal(points, described.points)
    assert float(points.abs().max()) < 3  # in the local frame
    assert normals.shape == points.shape
    torch.testing.assert_close(normals.norm(dim=-1), torch.ones(len(points)))


@pytest.mark.parametrize("convert", [lambda rows: rows, np.asarray, lambda rows: rows.tolist()])
def test_what_a_function_gives_may_be_a_tensor_an_array_or_a_list(convert):
    cloud = local(bumps(500))

    def mine(points, normals, scale):
        return convert(points.double()[:, :2] + 1)

    found = describe(cloud, SCALE, descriptor=mine)
    assert found.descriptors.dtype == torch.float32
    torch.testing.assert_close(found.descriptors, found.points[:, :2] + 1)


class Strange:
    """Something that no array is made of."""


@pytest.mark.parametrize(
    ("gives", "words"),
    [
        (
            lambda points: points[:-1],
            r"gave shape \(\d+, 3\): expected \(\d+, D\), one row per point",
        ),
        (lambda points: points[:, 0], r"gave shape \(\d+,\): expected"),
        (lambda points: points[None], r"gave shape \(1, \d+, 3\): expected"),
        (lambda points: points * torch.nan, "gave NaN or infinity: give a row of zeros"),
        (lambda points: points / 0, "gave NaN or infinity: give a row of zeros"),
        (lambda points: "fpfh", "gave a str: expected numbers"),
        (lambda points: None, "gave a NoneType: expected numbers"),
        (lambda points: Strange(), "gave a Strange: expected numbers"),
        (lambda points: [[1.0], [1.0, 2.0]], "gave a list: expected numbers"),
    ],
)
def test_what_a_function_gives_wrong_is_named(gives, words):
    def mine(points, normals, scale):
        return gives(points)

    with pytest.raises(VBRegError, match=f"descriptor 'mine' {words}"):
        describe(local(bumps(500)), SCALE, descriptor=mine)


def test_an_unknown_descriptor_lists_the_known():
    points = torch.rand(50, 3)
    with pytest.raises(
        VBRegError, match=r"'shot': expected 'learned', 'fpfh', 'fcgf', a file .*, or a function of"
    ):
        describe_points(points, np.zeros(3), SCALE, descriptor="shot")
    with pytest.raises(VBRegError, match="descriptor 33"):
        describe_points(points, np.zeros(3), SCALE, descriptor=33)


@pytest.mark.parametrize(
    ("points", "words"),
    [
        (torch.full((50, 3), torch.nan), "points holds 50 points with NaN"),
        (torch.rand(50, 4), r"points has shape \(50, 4\)"),
        (torch.ones(50, 3, dtype=torch.int32), "points is torch.int32"),
        (torch.tensor([[0.0, 0, 0], [1e6, 0, 0]]), "such voxels wide"),
    ],
)
@pytest.mark.parametrize("descriptor", ["fpfh", "learned"])
def test_points_that_cannot_be_described_are_told(points, words, descriptor):
    with pytest.raises(VBRegError, match=words):
        describe_points(points, np.zeros(3), SCALE, descriptor=descriptor)
    sound = torch.rand(50, 3)
    with pytest.raises(VBRegError, match=words.replace("points", "detail", 1)):
        describe_points(sound, np.zeros(3), SCALE, descriptor=descriptor, detail=points)


def test_normals_point_to_the_viewpoint_in_the_frame_of_the_cloud():
    rng = np.random.default_rng(0)
    plane = np.stack([*rng.uniform(0, 1.5, (2, 5000)), np.full(5000, 100.0)], axis=-1)
    scale = Scale(0.1)
    for viewpoint, up in (((0.5, 0.5, 105.0), 1), ("origin", -1), (np.array([0, 0, 90.0]), -1)):
        found = describe(plane, scale, descriptor="fpfh", viewpoint=viewpoint).normals
        assert bool((up * found[:, 2] > 0.9).all())


@pytest.mark.parametrize("bad", ["sensor", (1, 2), (0, 0, np.nan), None])
def test_a_wrong_viewpoint_is_named(bad):
    with pytest.raises(VBRegError, match=r"viewpoint .*expected 'origin', 'unknown' or three"):
        describe(np.random.default_rng(0).random((50, 3)), Scale(0.1), viewpoint=bad)


def test_the_ratio_test_keeps_what_is_clearly_nearest() -> None:
    target = torch.eye(4)
    near, between = torch.tensor([1.0, 0.1, 0, 0]), torch.tensor([1.0, 0.98, 0, 0])
    i, j = match(torch.stack([between, near]), target, matching="ratio")
    assert (i.tolist(), j.tolist()) == ([1], [0])
    i, j = match(torch.stack([between, near]), target[:1], matching="ratio")
    assert len(i) == 0  # of one alone nobody knows


@pytest.mark.parametrize("most", [None, 7])  # all at once, and a row at a time
def test_two_nearest_are_those_of_all_similarities(
    most: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if most is not None:
        monkeypatch.setattr("vbreg.matching.MAX_SIMILARITIES", most)
    generator = torch.Generator().manual_seed(0)
    source, target = (torch.randn(n, 5, generator=generator) for n in (12, 9))
    i, j = match(source, target, matching="two-nearest")
    unit = [torch.nn.functional.normalize(end, dim=-1) for end in (source, target)]
    best = (unit[0] @ unit[1].T).argsort(dim=1, descending=True)[:, :2]
    assert i.tolist() == [row for row in range(12) for _ in range(2)]
    assert j.view(-1, 2).tolist() == best.sort(1).values.tolist()
    once, nearest = match(source, target)
    assert torch.equal(once.repeat_interleave(2), i)
    assert bool((j.view(-1, 2) == nearest[:, None]).any(1).all())
    assert match(source, target[:1], matching="two-nearest")[0].tolist() == list(range(12))
