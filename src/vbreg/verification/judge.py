"""The judge as `register` uses it: candidates of matched clouds in, the chosen one out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vbreg.errors import FileFormatError
from vbreg.estimation import Limits
from vbreg.matching import DescribedCloud, MatchedClouds, evenly
from vbreg.refinement import refined, with_fewer_points
from vbreg.scale import INLIER_THRESHOLD
from vbreg.solver import Solution
from vbreg.surfaces import OrientedPoints, SurfacePair
from vbreg.verification.evidence import (
    LOOKED_AT,
    Findings,
    View,
    candidates_of,
    evidence,
    view,
)
from vbreg.verification.network import JudgeConfig, JudgeNetwork
from vbreg.weights_file import WEIGHTS_FOLDER, load_weights, save_weights

CANDIDATES = 20  # distinct poses that are judged
SHIPPED = "judge.safetensors"
MIN_COSINE = 0.8  # of normals that agree: 37 degrees


class SeenCloud(NamedTuple):
    """One cloud of a pair as a judge sees it, in voxels."""

    points: Tensor  # (1, n, 3) keypoints
    normals: Tensor  # (1, n, 3)
    descriptors: Tensor  # (1, n, D)
    surface: Tensor  # (1, M, 3)
    surface_normals: Tensor  # (1, M, 3)
    surface_real: Tensor  # (1, M)
    looked_at: Tensor  # (1, S) rows of the keypoints

    @staticmethod
    def of(cloud: DescribedCloud, surface: OrientedPoints, voxel_size: float) -> SeenCloud:
        """Return a described cloud that has a surface."""
        assert cloud.normals is not None, "a surface has normals"
        rows = evenly(len(cloud), LOOKED_AT).to(cloud.points.device)
        return SeenCloud(
            cloud.points.float()[None] / voxel_size,
            cloud.normals.float()[None],
            F.normalize(cloud.descriptors.float(), dim=-1)[None],
            surface.points,
            surface.normals,
            surface.real,
            rows[None],
        )

    @property
    def keypoints(self) -> OrientedPoints:
        """The keypoints; one that has no descriptor is not real."""
        return OrientedPoints(self.points, self.normals, self.descriptors.any(-1))

    @property
    def on_surface(self) -> OrientedPoints:
        """The points of the surface."""
        return OrientedPoints(self.surface, self.surface_normals, self.surface_real)


def _view(cloud: SeenCloud, surface: OrientedPoints, other: SeenCloud) -> View:
    rows = cloud.looked_at[0]
    return view(
        cloud.keypoints, cloud.descriptors, surface, other.keypoints, other.descriptors, rows
    )


class Question(NamedTuple):
    """All that a judge is asked about one pair, as tensors where the clouds are."""

    source: SeenCloud
    target: SeenCloud
    moved: Tensor  # (1, R, 3) points of the source that a refinement moves
    moved_normals: Tensor  # (1, R, 3)
    moved_real: Tensor  # (1, R)
    matched_source: Tensor  # (1, N, 3) in voxels
    matched_target: Tensor  # (1, N, 3)
    matched_real: Tensor  # (1, N)
    crowd: Tensor  # (1, N) weights of the matches
    confidence: Tensor  # (1, N)
    T: Tensor  # (1, C, 4, 4) float64 in voxels: the candidates
    valid: Tensor  # (1, C)

    @staticmethod
    def of(matched: MatchedClouds, surfaces: SurfacePair, solution: Solution) -> Question:
        """Ask for the best of the candidates of a solution."""
        device, size = surfaces.source.points.device, matched.scale.voxel_size
        T = solution.candidates.to(device).clone()
        T[..., :3, 3] *= INLIER_THRESHOLD
        moved = with_fewer_points(surfaces).source
        return Question(
            SeenCloud.of(matched.source, surfaces.source, size),
            SeenCloud.of(matched.target, surfaces.target, size),
            moved.points,
            moved.normals,
            moved.real,
            surfaces.matched_source,
            surfaces.matched_target,
            surfaces.matched_real,
            solution.crowd.to(device),
            solution.confidence.to(device),
            T,
            (solution.candidate_score >= 0).to(device),
        )


class Verdict(NamedTuple):
    """What a judge says, as tensors on the device."""

    T: Tensor  # (4, 4) float64 in voxels: the pose chosen, as it became
    probabilities: Tensor  # (C,) of each candidate to be right; they sum to one at most
    chosen: Tensor  # ()
    overlap: Tensor  # () share of both clouds that lands on the other, normal upon normal


@dataclass(frozen=True, eq=False)
class Judge:
    """A judge, and the checksum of its weights."""

    network: JudgeNetwork
    fingerprint: str | None = None


def give_verdict(
    network: JudgeNetwork,
    question: Question,
    *,
    refine: bool = True,
    limits: Limits | None = None,  # in inlier thresholds
) -> Verdict:
    """Choose a candidate, refine it on the clouds as far as allowed, and say how far to trust it.

    There must be at least one candidate. Nothing in between waits for the device.
    """
    source, target = question.source, question.target
    on_target = target.on_surface
    surfaces = SurfacePair(
        OrientedPoints(question.moved, question.moved_normals, question.moved_real),
        on_target,
        question.matched_source,
        question.matched_target,
        question.matched_real,
    )
    views = _view(source, source.on_surface, target), _view(target, on_target, source)
    given = surfaces, question.crowd, question.confidence
    candidates = candidates_of(question.T, *given, question.valid)
    seen = network.look(evidence(*views, candidates))
    share = network.judge(seen, question.valid).choice.softmax(-1)[0]
    chosen = share.argmax(-1, keepdim=True)  # (1,)
    T = question.T[0].index_select(0, chosen)
    if refine:
        T = refined_within(limits, surfaces, T)
    final = candidates_of(T.unsqueeze(1), *given, best=candidates.best)
    told = evidence(*views, final)
    trust = network.judge_again(seen, question.valid, chosen, told)
    probabilities = _shared_out(network.calibrated(trust), share, chosen)
    return Verdict(T[0], probabilities, chosen[0], _overlap(told))


def refined_within(limits: Limits | None, surfaces: SurfacePair, T: Tensor) -> Tensor:
    """Return poses (1, 4, 4) in voxels refined on the clouds, as far as the limits allow."""
    if limits is None:
        return refined(surfaces, T)
    limits = limits.to(T)
    found = refined(surfaces, T, None if limits.R_upright is None else limits.up)
    in_thresholds = found.clone()
    in_thresholds[:, :3, 3] /= INLIER_THRESHOLD
    return torch.where(limits.allow(in_thresholds)[:, None, None], found, T)


def _shared_out(sure: Tensor, share: Tensor, chosen: Tensor) -> Tensor:
    """Return the probability (C,) of each candidate from that of the chosen one (1,).

    What is left over goes to the others by their shares (C,), to none more than its share allows.
    """
    of_chosen = share.index_select(0, chosen)
    left = (1 - sure) * share / (1 - of_chosen).clamp_min(1e-9)
    ratio = torch.minimum(left, sure * share / of_chosen)
    return ratio.index_copy(0, chosen, sure)


def _overlap(told: Findings) -> Tensor:
    """Return the share of the points looked at that land on a surface whose normal agrees."""
    shares = []
    for side, real in zip(told.landings, told.real, strict=True):
        on = (side.points[0, 0, :, 6] > 0) & (side.points[0, 0, :, 5] > MIN_COSINE) & real[0]
        shares.append(on.sum() / real.sum().clamp_min(1))
    return torch.stack(shares).mean()


def save_judge(
    path: str | Path, network: JudgeNetwork, about: Mapping[str, Any] | None = None
) -> str:
    """Write a judge's weights and configuration; return the checksum written."""
    header = {"judge": asdict(network.config), "about": dict(about or {})}
    return save_weights(path, network, header)


def load_judge(path: str | Path) -> Judge:
    """Load the judge of a weights file: every tensor and no other."""
    path = Path(path)
    if not path.is_file():
        raise FileFormatError(f"no weights at {path}: give a .safetensors file that vbreg wrote")
    return Judge(
        *load_weights(path, "judge", lambda **settings: JudgeNetwork(JudgeConfig(**settings)))
    )


@lru_cache(maxsize=1)
def shipped_judge() -> Judge:
    """Return the judge that comes with the package."""
    return load_judge(WEIGHTS_FOLDER / SHIPPED)
