"""What lands on what does not depend on frames, on padding, or on the order of candidates."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.verification.conftest import SCALE, pose, surfaces
from vbreg.geometry import inverse
from vbreg.matching import MatchedClouds
from vbreg.surfaces import OrientedPoints
from vbreg.verification.evidence import (
    REACH,
    Candidates,
    View,
    candidates_of,
    evidence,
    land,
    view,
)
from vbreg.verification.judge import SeenCloud, _view


def views(matched: MatchedClouds) -> tuple[View, View]:
    """What is seen of the source beside the target, and back."""
    both = surfaces(matched)
    source, target = (
        SeenCloud.of(cloud, surface, SCALE.voxel_size)
        for cloud, surface in ((matched.source, both.source), (matched.target, both.target))
    )
    return _view(source, source.on_surface, target), _view(target, target.on_surface, source)


def in_voxels(T: Tensor) -> Tensor:
    found = T.clone().float()
    found[..., :3, 3] /= SCALE.voxel_size
    return found


def moved(points: OrientedPoints, T: Tensor) -> OrientedPoints:
    R = T[:3, :3].to(points.points)
    return OrientedPoints(
        points.points @ R.T + T[:3, 3].to(points.points), points.normals @ R.T, points.real
    )


def moved_view(given: View, T: Tensor, other: Tensor) -> View:
    R = other[:3, :3].float()
    return given._replace(
        looked_at=moved(given.looked_at, T),
        keypoints=moved(given.keypoints, T),
        surface=moved(given.surface, T),
        partner=given.partner @ R.T + other[:3, 3].float(),
    )


def candidates(T: Tensor) -> Candidates:
    C = len(T)
    one = torch.ones(1, C)
    best, count = torch.tensor([[0.2]]), torch.tensor([[100]])
    return Candidates(T[None], 0.2 * one, 30 * one, 0.4 * one, count, best)


def test_under_the_true_pose_points_land_on_the_surface(pair: tuple[MatchedClouds, Tensor]) -> None:
    matched, T = pair
    source, target = views(matched)
    right, wrong = in_voxels(T), in_voxels(pose(7) @ T)
    landing = land(source, target, torch.stack([right, wrong])[None])
    near, distance, cosine = (landing.points[0, ..., k] for k in (0, 1, 5))
    assert float(near[0].mean()) > 0.99
    assert float((REACH * distance[0]).median()) < 0.7
    assert float((cosine[0] > 0.9).float().mean()) > 0.8
    assert float((near[1] * (cosine[1] > 0.9)).mean()) < 0.4


def test_far_away_nothing_is_told_but_of_the_point_itself(
    pair: tuple[MatchedClouds, Tensor],
) -> None:
    matched, T = pair
    source, target = views(matched)
    away = in_voxels(T)
    away[0, 3] += 1e4
    landing = land(source, target, away[None, None])
    assert not landing.points[..., :7].any()
    assert not landing.paired.any()
    assert not landing.pairs.any()
    assert landing.points.isfinite().all()


def test_frames_do_not_matter(pair: tuple[MatchedClouds, Tensor]) -> None:
    matched, T = pair
    source, target = views(matched)
    A, B = (in_voxels(pose(k, far=0.5)) for k in (3, 4))
    T_all = torch.stack([in_voxels(T), in_voxels(pose(9, far=0.1) @ T)])
    before = evidence(source, target, candidates(T_all))
    after = evidence(
        moved_view(source, A, B),
        moved_view(target, B, A),
        candidates(B @ T_all @ inverse(A)),
    )
    for a, b in zip(before.landings, after.landings, strict=True):
        # A point between two others may land on either.
        assert float(((a.points - b.points).abs().amax(-1) < 1e-2).float().mean()) > 0.98
        same = (a.pairs - b.pairs).abs().amax((-1, -2)) < 1e-2
        assert float(same.float().mean()) > 0.98
    torch.testing.assert_close(before.poses, after.poses)


def test_rows_that_are_not_real_do_not_matter(pair: tuple[MatchedClouds, Tensor]) -> None:
    matched, T = pair
    source, target = views(matched)
    descriptors = [
        torch.nn.functional.normalize(end.descriptors.float(), dim=-1)[None]
        for end in (matched.source, matched.target)
    ]

    def longer(points: OrientedPoints) -> OrientedPoints:
        far = torch.zeros(1, 50, 3)
        none = torch.zeros(1, 50, dtype=torch.bool)
        return OrientedPoints(
            torch.cat([points.points, far], 1),
            torch.cat([points.normals, far], 1),
            torch.cat([points.real, none], 1),
        )

    rows = torch.arange(0, len(matched.source), 7)
    plain = view(
        source.keypoints, descriptors[0], source.surface, target.keypoints, descriptors[1], rows
    )
    padded = view(
        source.keypoints,
        descriptors[0],
        longer(source.surface),
        longer(target.keypoints),
        torch.cat([descriptors[1], torch.zeros(1, 50, descriptors[1].shape[-1])], 1),
        rows,
    )
    torch.testing.assert_close(plain.about, padded.about)
    torch.testing.assert_close(plain.partner, padded.partner)
    pose_ = in_voxels(T)[None, None]
    padded_target = target._replace(
        surface=longer(target.surface), keypoints=longer(target.keypoints)
    )
    one, other = land(plain, target, pose_), land(padded, padded_target, pose_)
    torch.testing.assert_close(one.points, other.points)
    torch.testing.assert_close(one.pairs, other.pairs)


def test_matches_speak_for_the_true_pose(pair: tuple[MatchedClouds, Tensor]) -> None:
    matched, T = pair
    both, N = surfaces(matched), len(matched.source_index)
    poses = in_voxels(torch.stack([T, pose(7) @ T, T]))[None]
    crowd, confidence = torch.ones(1, N), torch.linspace(0, 1, N)[None]
    valid = torch.tensor([[True, True, False]])
    found = candidates_of(poses, both, crowd, confidence, valid)
    assert found.score[0, 0] > 5 * found.score[0, 1] >= 0
    assert found.score[0, 2] == -1
    assert found.inliers[0, 0] > 5 * found.inliers[0, 1]
    assert float(found.best) == float(found.score[0, 0])
    assert int(found.matches) == N
    torch.testing.assert_close(found.T_target_source[0, 0], in_voxels(T))
    again = candidates_of(poses[:, :1], both, crowd, confidence, best=found.best)
    assert again.refined
    assert not found.refined
    torch.testing.assert_close(again.score[0], found.score[0, :1])
