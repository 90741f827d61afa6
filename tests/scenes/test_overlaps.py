"""Laws of overlaps: how much scans share does not see frames, and a pose nearby becomes exact."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

import vbreg.scenes.overlaps
from tests.scenes.villages import VOXEL_SIZE, make_village
from vbreg.matching import DescribedCloud, describe
from vbreg.model import VBReg
from vbreg.motions import exponential, inverse, logarithm
from vbreg.scale import Scale
from vbreg.scenes.overlaps import ScanSurface, exact_poses, overlap, overlaps
from vbreg.scenes.pairs import PairResult, PairStore
from vbreg.scenes.search import SceneSearch
from vbreg.types import Float64

SCALE = Scale(VOXEL_SIZE)


@pytest.fixture(scope="module")
def scans() -> tuple[list[DescribedCloud], Float64]:
    village = make_village()
    # FPFH takes a fraction of the time, and matches play a small part here.
    clouds = [describe(points, SCALE, descriptor="fpfh") for points in village.scans[:3]]
    return clouds, village.T_world_scan[:3]


def test_neighbours_share_more_than_others(scans: tuple[list[DescribedCloud], Float64]) -> None:
    surfaces = [ScanSurface.of(scan, SCALE) for scan in scans[0]]
    shared = overlaps(surfaces, scans[1], [(0, 1), (1, 2), (0, 2), (1, 0)], SCALE)
    assert shared[0, 1] > 0.6
    assert shared[1, 2] > 0.6
    assert 0.2 < shared[0, 2] < 0.5
    assert shared[0, 1] == pytest.approx(shared[1, 0], abs=1e-6)
    assert overlap(surfaces[0], surfaces[0], np.eye(4), SCALE) == 1.0
    far = exponential(np.array([0, 0, 0, 100.0, 0, 0]))
    assert overlap(surfaces[0], surfaces[1], far, SCALE) == 0.0


def test_a_pose_nearby_becomes_exact(scans: tuple[list[DescribedCloud], Float64]) -> None:
    clouds, T = scans
    truth = inverse(T[1]) @ T[0]
    # A motion about the middle of the scan, in its own frame.
    middle = exponential(np.concatenate([np.zeros(3), clouds[0].in_user_frame().mean(0)]))
    off = middle @ exponential(np.array([0.02, -0.02, 0.02, 0.08, -0.08, 0.05])) @ inverse(middle)
    start = np.stack([T[0] @ off, T[1]])
    [laid] = exact_poses(clouds[:2], start, [(0, 1)], SCALE)
    assert laid is not None
    found, covariance = laid
    left = logarithm(inverse(middle) @ inverse(truth) @ found @ middle)
    assert np.abs(left).max() < 0.015
    assert np.linalg.eigvalsh(covariance).min() > 0


def test_pairs_refined_together_end_where_each_alone_ends(
    scans: tuple[list[DescribedCloud], Float64], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the clouds and the matches of the pairs differ in number."""
    clouds, T = scans
    start = T.copy()
    start[1] = start[1] @ exponential(np.array([0.01, 0.01, -0.01, 0.03, 0.02, -0.02]))
    pairs = [(0, 1), (2, 1), (1, 0)]
    assert len({len(cloud) for cloud in clouds}) > 1
    alone = list(exact_poses(clouds, start, pairs, SCALE))
    monkeypatch.setattr(vbreg.scenes.overlaps, "TOGETHER_CPU", 2)  # and one is left over
    together = list(exact_poses(clouds, start, pairs, SCALE))
    for one, other in zip(alone, together, strict=True):
        assert one is not None
        assert other is not None
        np.testing.assert_allclose(one[0], other[0], atol=1e-9)
        np.testing.assert_allclose(one[1], other[1], rtol=1e-6, atol=1e-12)
    assert alone[0] is not None
    assert np.abs(alone[0][0] - inverse(start[1]) @ start[0]).max() > 0.005  # it has moved


@pytest.mark.parametrize("together", [1, 4])
def test_a_pair_with_too_few_matches_keeps_its_rough_pose(
    scans: tuple[list[DescribedCloud], Float64],
    fast: VBReg,
    monkeypatch: pytest.MonkeyPatch,
    together: int,
) -> None:
    """And the others of its group become exact."""
    monkeypatch.setattr(vbreg.scenes.overlaps, "TOGETHER_CPU", together)
    clouds, T = scans
    none = dataclasses.replace(clouds[1], descriptors=torch.zeros_like(clouds[1].descriptors))
    given = [clouds[0], none, clouds[2]]
    found = list(exact_poses(given, T, [(0, 1), (0, 2), (2, 1)], SCALE))
    assert [laid is None for laid in found] == [True, False, True]
    rough = [
        PairResult(s, t, inverse(T[t]) @ T[s], 1e-4 * np.eye(6), 0.99, 0.5, True)
        for s, t in ((0, 1), (1, 2), (0, 2))
    ]
    store = PairStore(None, {}, ["a", "b", "c"])
    for result in rough:
        store.add(result)
    search = SceneSearch(given, SCALE, fast, store, 1 - np.eye(3))  # every pair is known
    search.run(3)
    result = search.result(["a", "b", "c"], refine=True)
    assert result.component.tolist() == [0, 0, 0]
    for edge in result.edges:
        assert edge.kept
        assert edge.error < 3.0


def test_no_pairs_have_no_poses() -> None:
    assert list(exact_poses([], np.zeros((0, 4, 4)), [], SCALE)) == []
