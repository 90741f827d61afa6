"""What lands on what: two clouds laid upon each other under every candidate pose.

Some keypoints of each cloud are looked at. For each it is told where it lands: how far from the
surface of the other cloud, normal upon normal, and how alike the keypoints are next to which it
lands, compared with all those that it might have been matched to. All lengths are in voxels.
Shapes: B pairs, C candidates, S keypoints that are looked at, n keypoints, M points of a surface.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from vbreg.estimation import inlier_score, squared_residuals
from vbreg.geometry import apply, inverse, take_rows
from vbreg.scale import INLIER_THRESHOLD
from vbreg.surfaces import OrientedPoints, SurfacePair

LOOKED_AT = 512  # keypoints of a cloud
AROUND = 6  # of them next to each, whose evidence it hears
REACH = 6.0  # voxels, beyond which a surface says nothing
NEIGHBORS, NEAR = 3, 3.0  # keypoints within so many voxels that are compared
SPREADS = 4.0  # of similarities; divides what is told in them

POINT_FEATURES, PAIR_FEATURES, POSE_FEATURES = 12, 6, 8


class View(NamedTuple):
    """What is seen of one cloud of each pair, whatever the pose."""

    looked_at: OrientedPoints  # (B, S)
    around: Tensor  # (B, S, A) rows of the points looked at that lie next to each
    keypoints: OrientedPoints  # (B, n)
    surface: OrientedPoints  # (B, M)
    similarity: Tensor  # (B, S, n) with the keypoints of the other cloud
    about: Tensor  # (B, S, 3) highest similarity, mean, spread
    partner: Tensor  # (B, S, 3) the keypoint of the other cloud that is most alike


class Landing(NamedTuple):
    """Where the points looked at land under each candidate."""

    points: Tensor  # (B, C, S, POINT_FEATURES)
    pairs: Tensor  # (B, C, S, K, PAIR_FEATURES) with keypoints that lie next to it
    paired: Tensor  # (B, C, S, K) whether there is such a keypoint


class Findings(NamedTuple):
    """All that a judge is told of candidates."""

    landings: tuple[Landing, Landing]  # of the source on the target, and back
    around: tuple[Tensor, Tensor]  # (B, S, A)
    real: tuple[Tensor, Tensor]  # (B, S)
    poses: Tensor  # (B, C, POSE_FEATURES)
    valid: Tensor  # (B, C) where there is a candidate


class Candidates(NamedTuple):
    """Poses, and how far the matches agree with each."""

    T_target_source: Tensor  # (B, C, 4, 4) in voxels
    score: Tensor  # (B, C) -1 where there is no candidate
    inliers: Tensor  # (B, C) their number
    confident: Tensor  # (B, C) their share of the network's confidence
    matches: Tensor  # (B, 1) their number
    best: Tensor  # (B, 1) the highest score of all
    refined: bool = False  # on the clouds


def candidates_of(
    T: Tensor,  # (B, C, 4, 4) in voxels
    pair: SurfacePair,
    crowd: Tensor,  # (B, N) weights of the matches
    confidence: Tensor,  # (B, N)
    valid: Tensor | None = None,  # (B, C) where there is a candidate
    best: Tensor | None = None,  # (B, 1) the highest score, if other candidates have it
) -> Candidates:
    """Tell how far matches agree with candidates; those refined on the clouds know the best."""
    low = T.float()
    in_thresholds = low.clone()
    in_thresholds[..., :3, 3] /= INLIER_THRESHOLD
    source, target = (
        (end / INLIER_THRESHOLD).float() for end in (pair.matched_source, pair.matched_target)
    )
    score = inlier_score(in_thresholds, source, target, crowd)
    score = score if valid is None else torch.where(valid, score, -1.0)
    d2 = squared_residuals(in_thresholds, source.unsqueeze(1), target.unsqueeze(1))
    inliers = (d2 < 1.0) & pair.matched_real.unsqueeze(1)  # (B, C, N)
    sure = (inliers * confidence.unsqueeze(1)).sum(-1)
    return Candidates(
        low,
        score,
        inliers.sum(-1),
        sure / confidence.sum(-1, keepdim=True).clamp_min(1e-6),
        pair.matched_real.sum(-1, keepdim=True),
        score.amax(-1, keepdim=True) if best is None else best,
        best is not None,
    )


def view(
    keypoints: OrientedPoints,
    descriptors: Tensor,  # (B, n, D) of length 1
    surface: OrientedPoints,
    other: OrientedPoints,
    other_descriptors: Tensor,  # (B, m, D)
    rows: Tensor,  # (S,) of the keypoints, that are looked at
) -> View:
    """Return what is seen of a cloud beside another."""
    looked_at = keypoints.take(rows)
    similarity = descriptors[:, rows] @ other_descriptors.transpose(1, 2)
    hidden = ~other.real.unsqueeze(1)
    best, partner = similarity.masked_fill(hidden, -torch.inf).max(-1)
    count = other.real.sum(-1).clamp_min(1).unsqueeze(-1)
    mean = similarity.masked_fill(hidden, 0.0).sum(-1) / count
    centred = (similarity - mean.unsqueeze(-1)).masked_fill(hidden, 0.0)
    spread = (centred.square().sum(-1) / count).sqrt().clamp_min(1e-3)
    points = other.points.gather(1, partner.unsqueeze(-1).expand(-1, -1, 3))
    index, _, found = looked_at.searchable.nearest(looked_at.points, torch.inf, AROUND + 1)
    itself = torch.arange(index.shape[1], device=index.device)[:, None].expand_as(index)
    around = torch.where(found, index, itself)[..., 1:]
    about = torch.stack([best, mean, spread], dim=-1)
    return View(looked_at, around, keypoints, surface, similarity, about, points)


def land(here: View, there: View, T_there_here: Tensor) -> Landing:
    """Tell where the points of one cloud land on another, under poses (B, C, 4, 4)."""
    B, C = T_there_here.shape[:2]
    S = here.looked_at.points.shape[1]
    R = T_there_here[..., :3, :3]
    points = apply(T_there_here, here.looked_at.points.unsqueeze(1)).flatten(1, 2)  # (B, C S, 3)
    normals = (here.looked_at.normals.unsqueeze(1) @ R.transpose(-1, -2)).flatten(1, 2)
    surface = _on_surface(points, normals, there.surface)
    index, distance2, paired = there.keypoints.searchable.nearest(points, NEAR, NEIGHBORS)
    K = index.shape[-1]
    beside = take_rows(there.keypoints.normals, index.flatten(1)).unflatten(1, (C * S, K))
    cosine = (normals.unsqueeze(2) * beside).sum(-1)
    alike = here.similarity.unsqueeze(1).expand(B, C, S, -1).gather(-1, index.view(B, C, S, K))
    best, mean, spread = (part.unsqueeze(-1) for part in here.about.unsqueeze(1).unbind(-1))
    pairs = torch.stack(
        [
            (distance2.clamp_max(NEAR**2).sqrt() / NEAR).view(B, C, S, K),
            alike,
            (alike - mean) / (SPREADS * spread),
            (best - alike) / (SPREADS * spread),
            cosine.view(B, C, S, K),
            cosine.abs().view(B, C, S, K),
        ],
        dim=-1,
    )
    paired = paired.view(B, C, S, K)
    apart = (points.view(B, C, S, 3) - here.partner.unsqueeze(1)).norm(dim=-1)
    own = torch.cat(
        [
            (apart / REACH).clamp_max(2.0).unsqueeze(-1) / 2,
            (apart < INLIER_THRESHOLD).to(apart).unsqueeze(-1),
            best.expand(B, C, S, 1),
            ((best - mean) / (SPREADS * spread)).expand(B, C, S, 1),
            (SPREADS * spread).expand(B, C, S, 1),
        ],
        dim=-1,
    )
    told = torch.cat([surface.view(B, C, S, -1), own], dim=-1)
    return Landing(told, pairs * paired.unsqueeze(-1), paired)


def _on_surface(points: Tensor, normals: Tensor, surface: OrientedPoints) -> Tensor:
    """Return how points (B, Q, 3) lie to the surface next to them (B, Q, 7)."""
    index, distance2, valid = surface.searchable.nearest(points, REACH, 1)
    index, distance2, near = index[..., 0], distance2[..., 0], valid[..., 0]
    apart = points - take_rows(surface.points, index)
    other = take_rows(surface.normals, index)
    cosine = (normals * other).sum(-1)
    distance = distance2.clamp_max(REACH**2).sqrt()
    told = torch.stack(
        [
            torch.ones_like(distance),
            distance / REACH,
            (apart * other).sum(-1).abs() / REACH,
            (apart * normals).sum(-1).abs() / REACH,
            cosine,
            cosine.abs(),
            (distance < 1.0).to(distance),
        ],
        dim=-1,
    )
    return told * near.unsqueeze(-1)


def evidence(source: View, target: View, candidates: Candidates) -> Findings:
    """Return all that a judge is told about candidate poses of pairs of clouds."""
    T = candidates.T_target_source
    valid = candidates.score >= 0
    score = candidates.score.clamp_min(0.0)
    total = candidates.matches.clamp_min(1).to(score)
    sizes = [view.surface.real.sum(-1, keepdim=True).to(score) for view in (source, target)]
    poses = [
        score,
        score / candidates.best.clamp_min(1e-6),
        candidates.inliers.to(score).log1p() / 8,
        candidates.inliers / total,
        candidates.confident,
        (total.log1p() / 10).expand_as(score),
        ((sizes[0] * sizes[1]).log1p() / 20).expand_as(score),
        torch.full_like(score, float(candidates.refined)),
    ]
    return Findings(
        (land(source, target, T), land(target, source, inverse(T))),
        (source.around, target.around),
        (source.looked_at.real, target.looked_at.real),
        torch.stack(poses, dim=-1),
        valid,
    )
