"""SC2-PCR++ (Chen et al., TPAMI 2023): SC2-PCR, and the descriptors choose among its poses.

A pose that brings 50 of 5000 nearest descriptors together may be wrong or right: the right partner
of a point is often not the nearest in descriptor space, but among the nearest hundred. So the best
poses are compared by all points of the source (FS-TCD): one counts if any of its hundred candidates
lies where the pose puts it, and only with others that keep their distances.
Where there are matches but no described clouds, the choice is SC2-PCR's own.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vbreg.compatibility import row_chunks
from vbreg.estimation import Estimate
from vbreg.geometry import apply
from vbreg.matching import MAX_CORRESPONDENCES, MAX_SIMILARITIES, MatchedClouds, evenly
from vbreg.methods import sc2pcr
from vbreg.methods.common import Answer, LocalMethod, Task
from vbreg.methods.interface import Method

NOMINEES = 50  # poses with the most inliers, among which the descriptors choose
CANDIDATES = 100  # targets that a source point keeps
PARTNER_RADIUS = 1.5  # inlier thresholds, within which the most similar candidate is the partner
LENGTH_TOLERANCE = 0.5  # inlier thresholds, by which distances between partners may differ
MAX_POINTS = MAX_CORRESPONDENCES  # of the source that are asked; more are thinned


def nearest_descriptors(source: Tensor, target: Tensor, count: int) -> Tensor:
    """Return (N, k) the rows of the most similar descriptors of target (M, D), the best first."""
    source, target = (F.normalize(end.float(), dim=-1) for end in (source, target))
    rows = max(1, MAX_SIMILARITIES // len(target))
    k = min(count, len(target))
    parts = [(chunk @ target.T).topk(k, dim=-1).indices for chunk in source.split(rows)]
    return torch.cat(parts)


def relaxed_matches(matched: MatchedClouds, unit: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return points (N, 3) of the source and their candidates (N, k, 3), in inlier thresholds.

    Points that have no descriptor are left out.
    """
    points, descriptors = [], []
    for cloud, most in ((matched.source, MAX_POINTS), (matched.target, len(matched.target))):
        described = cloud.descriptors.any(-1).nonzero().squeeze(-1)
        kept = described[evenly(len(described), most).to(described.device)]
        points.append(cloud.points[kept].to(like) / unit)
        descriptors.append(cloud.descriptors[kept].to(like))
    return points[0], points[1][nearest_descriptors(descriptors[0], descriptors[1], CANDIDATES)]


def partners(T: Tensor, points: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
    """Return the m points that T (4, 4) puts on a candidate, and their partners, (m, 3) each.

    The partner is the most similar of the candidates nearby, which may not be the nearest.
    """
    d2 = (apply(T, points).unsqueeze(1) - candidates).square().sum(-1)  # (N, k)
    landed = (d2 <= 1.0).any(-1)
    rank = torch.arange(d2.shape[1], device=d2.device)
    first = torch.where(d2[landed] <= PARTNER_RADIUS**2, rank, len(rank)).amin(-1)  # (m,)
    partner = candidates[landed].gather(1, first[:, None, None].expand(-1, 1, 3)).squeeze(1)
    return points[landed], partner


def consistency(task: Task, x: Tensor, y: Tensor) -> Tensor:
    """Return the most pairs (m, 3) that keep their distance to one of them."""
    if not len(x):
        return x.new_zeros(())
    x, y = x / LENGTH_TOLERANCE, y / LENGTH_TOLERANCE
    company = [
        (task.backend.compatibility(x[rows], y[rows], x, y) > 0).sum(-1).amax()
        for rows in row_chunks(len(x), len(x), maps=4)
    ]
    return torch.stack(company).amax().to(x.dtype)


def solve(task: Task) -> Answer:
    """Find the pose that the descriptors prefer among those with the most inliers."""
    matched = task.problem.matched
    if matched is None:
        return sc2pcr.solve(task)
    found = sc2pcr.hypotheses(task)
    ranked = torch.where(found.sound, found.score, found.score - 2.0)[0]  # scores lie in 0..1
    nominees = ranked.topk(min(NOMINEES, len(ranked))).indices
    T, sound = found.T[0, nominees], found.sound[0, nominees]
    source, target = (end.double().expand(len(T), -1, -1) for end in (task.source, task.target))
    mask = task.mask.expand(len(T), -1)
    # Backends refine in double precision.
    T, sound = task.backend.refine(Estimate(T.double(), sound), source, target, mask, rounds=1)
    T = T.to(task.source)
    points, candidates = relaxed_matches(matched, task.problem.inlier_threshold, task.source)
    votes = [consistency(task, *partners(pose, points, candidates)) for pose in T]
    best = torch.where(sound, torch.stack(votes), -1.0).argmax()
    chosen = Estimate(T[best].unsqueeze(0), sound[best].unsqueeze(0))
    return Answer(task.refined(chosen), found.confidence)


def open_(device: torch.device) -> Method:
    """Open SC2-PCR++ on a device."""
    return LocalMethod(solve, device)
