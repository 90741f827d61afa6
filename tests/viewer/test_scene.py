"""What the page draws is what the clouds and the result hold, thinned and rounded."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial import cKDTree

from tests.viewer.helpers import (
    POSE,
    planted_clouds,
    planted_pair,
    planted_result,
    planted_votes,
    unpacked,
)
from vbreg.errors import VBRegError
from vbreg.io.names import COLOUR_NAMES
from vbreg.types import PointCloud, Uncertainty
from vbreg.viewer import ShownPair
from vbreg.viewer.scene import MAX_SHOWN_SEEDS, near_points


def points_of(header: dict, arrays: dict, role: str) -> np.ndarray:
    cloud = header["clouds"][role]
    return np.array(cloud["low"]) + arrays[role] / 65535 * np.array(cloud["span"])


def test_points_and_colours_come_back_up_to_rounding() -> None:
    pair = planted_pair()
    header, arrays = unpacked(pair.packed())
    for role in ("source", "target"):
        cloud = getattr(pair, role)
        shown = points_of(header, arrays, role)
        assert header["clouds"][role]["shown"] == header["clouds"][role]["points"] == len(cloud)
        # Each point is shown once, with its colours, in an order that is not the cloud's.
        distance, rows = cKDTree(cloud.points).query(shown)
        assert distance.max() < 1e-4
        np.testing.assert_array_equal(np.sort(rows), np.arange(len(cloud)))
        assert (rows != np.arange(len(cloud))).mean() > 0.99
        colours = [cloud.attributes[name][rows] for name in COLOUR_NAMES]
        np.testing.assert_array_equal(arrays[f"{role}_rgb"], np.stack(colours, axis=1))


def test_large_coordinates_lose_nothing() -> None:
    """A survey in UTM, 500 km from the origin, is as exact as one at the origin."""
    shift = np.array([500_000.0, 5_400_000.0, 300.0])
    source, target = planted_clouds()
    far = ShownPair(PointCloud(source.points + shift), PointCloud(target.points + shift))
    header, arrays = unpacked(far.packed())
    shown = points_of(header, arrays, "source") - shift
    distance = np.abs(shown[:50, None] - source.points[None]).max(-1).min(1)
    assert distance.max() < 1e-4


def test_any_first_part_is_an_even_sample() -> None:
    _, arrays = unpacked(planted_pair().packed())
    first, whole = arrays["source"][:400].mean(0), arrays["source"].mean(0)
    np.testing.assert_allclose(first, whole, atol=0.08 * 65535)


def test_thinning_keeps_the_shares_and_the_limit() -> None:
    header, arrays = unpacked(planted_pair().packed(max_points=1000))
    shown = [header["clouds"][role]["shown"] for role in ("source", "target")]
    read = [header["clouds"][role]["points"] for role in ("source", "target")]
    assert 990 <= sum(shown) <= 1000
    assert shown[0] / shown[1] == pytest.approx(read[0] / read[1], rel=0.02)
    assert len(arrays["source"]) == shown[0]


def test_the_points_of_a_sparse_cloud_do_not_hide_a_dense_one() -> None:
    dense, _ = planted_clouds(20_000)
    sparse = PointCloud(np.random.default_rng(0).uniform(-4, 4, (1000, 3)))
    sizes = [
        {role: cloud["radius"] for role, cloud in unpacked(pair.packed())[0]["clouds"].items()}
        for pair in (ShownPair(dense, sparse), ShownPair(dense, None), ShownPair(None, sparse))
    ]
    pair, alone = sizes[0], sizes[1] | sizes[2]
    assert pair["source"] == alone["source"]
    assert alone["target"] > 10 * alone["source"]
    assert pair["target"] < 4 * pair["source"]


def test_the_same_pair_gives_the_same_bytes() -> None:
    assert planted_pair().packed() == planted_pair().packed()


def test_matches_and_votes_are_those_of_the_result() -> None:
    pair = planted_pair(command="vbreg register a.ply b.ply")
    header, arrays = unpacked(pair.packed())
    result = pair.result
    assert result is not None
    middle, origin = header["clouds"]["source"]["middle"], header["view"]["origin"]
    source = arrays["match_source"] + middle
    target = arrays["match_target"] + origin
    np.testing.assert_allclose(source, result.correspondences.source, atol=1e-5)
    distance = np.linalg.norm(result.apply_to(source) - target, axis=1)
    assert ((distance < result.inlier_threshold) == arrays["inlier"].astype(bool)).all()
    np.testing.assert_array_equal(arrays["members"], planted_votes().members)
    np.testing.assert_array_equal(arrays["seeds"], planted_votes().seeds)
    np.testing.assert_allclose(header["result"]["T_target_source"], POSE)
    assert header["result"]["deviation"] is not None
    assert header["command"] == "vbreg register a.ply b.ply"


def test_votes_are_cut_to_those_that_are_shown() -> None:
    pair = planted_pair()
    many = planted_votes()._replace(
        seeds=np.zeros(MAX_SHOWN_SEEDS + 5, dtype=np.int64),
        members=np.zeros((MAX_SHOWN_SEEDS + 5, 5), dtype=np.int64),
    )
    _, arrays = unpacked(replace(pair, votes=many).packed())
    assert len(arrays["seeds"]) == len(arrays["members"]) == MAX_SHOWN_SEEDS


def test_one_cloud_or_none_can_be_shown() -> None:
    source, _ = planted_clouds()
    header, arrays = unpacked(ShownPair(source, None).packed())
    assert set(header["clouds"]) == {"source"}
    assert header["result"] is None
    assert set(arrays) == {"source", "source_rgb"}
    header, arrays = unpacked(ShownPair(None, None).packed())
    assert header["view"] is None
    assert not arrays


def test_clouds_far_apart_are_shown_beside_each_other() -> None:
    source, target = planted_clouds()
    away = PointCloud(source.points + 1000.0)
    header, _ = unpacked(ShownPair(away, target).packed())
    assert header["beside"]
    moved = away.points + np.array(header["before"])[:3, 3]
    assert np.linalg.norm(np.median(moved, 0) - np.median(target.points, 0)) < 15
    header, _ = unpacked(ShownPair(target, target).packed())
    assert not header["beside"]
    np.testing.assert_array_equal(header["before"], np.eye(4))


def test_strays_and_gaps_do_not_spoil_the_picture() -> None:
    points = np.concatenate([planted_clouds()[0].points, [[1e9, 0, 0], [np.nan] * 3, [np.inf] * 3]])
    near = near_points(points)
    assert near[:-3].all()
    assert not near[-3:].any()
    header, _ = unpacked(ShownPair(PointCloud(points), None).packed())
    assert max(header["clouds"]["source"]["span"]) < 5
    assert header["clouds"]["source"]["points"] == len(points)


def test_a_cloud_without_finite_points_is_an_error() -> None:
    with pytest.raises(VBRegError, match="source has no finite point"):
        ShownPair(PointCloud(np.full((5, 3), np.nan)), None).packed()


@pytest.mark.parametrize("points", [np.zeros((1, 3)), np.zeros((40, 3)), np.eye(3)])
def test_tiny_clouds_can_be_shown(points: np.ndarray) -> None:
    header, _ = unpacked(ShownPair(PointCloud(points), PointCloud(points)).packed())
    assert header["view"]["radius"] > 0


@pytest.mark.filterwarnings("ignore:invalid value")
def test_numbers_that_json_does_not_have_become_null() -> None:
    source, target = planted_clouds()
    endless = np.full((6, 6), np.inf)
    result = replace(planted_result(source), uncertainty_given=Uncertainty(endless, ()))
    pair = ShownPair(source, target, result, None, {"covariance": endless.tolist()})
    header, _ = unpacked(pair.packed())
    assert header["result"]["covariance"][0][0] is None
    json.dumps(header, allow_nan=False)
