"""Laws of overlaps: how much scans share does not see frames, and a pose nearby becomes exact."""

from __future__ import annotations

import numpy as np
import pytest

import vbreg.scenes.overlaps
from tests.scenes.villages import VOXEL_SIZE, make_village
from vbreg.matching import DescribedCloud, describe
from vbreg.motions import exponential, inverse, logarithm
from vbreg.scale import Scale
from vbreg.scenes.overlaps import ScanSurface, exact_poses, overlap, overlaps
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
    [(found, covariance)] = exact_poses(clouds[:2], start, [(0, 1)], SCALE)
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
        np.testing.assert_allclose(one[0], other[0], atol=1e-9)
        np.testing.assert_allclose(one[1], other[1], rtol=1e-6, atol=1e-12)
    assert np.abs(alone[0][0] - inverse(start[1]) @ start[0]).max() > 0.005  # it has moved


def test_no_pairs_have_no_poses() -> None:
    assert list(exact_poses([], np.zeros((0, 4, 4)), [], SCALE)) == []
