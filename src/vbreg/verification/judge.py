"""The judge as `register` uses it: candidates of matched clouds in, the chosen one out."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vbreg.errors import FileFormatError
from vbreg.estimation import squared_residuals
from vbreg.frames import Matches
from vbreg.matching import MatchedClouds, evenly
from vbreg.verification.evidence import (
    LOOKED_AT,
    Candidates,
    Findings,
    Points,
    View,
    evidence,
    view,
)
from vbreg.verification.network import JudgeConfig, JudgeNetwork
from vbreg.weights_file import WEIGHTS_FOLDER, do_not_fit, fill, read_weights, save_weights

CANDIDATES = 20  # distinct poses that are judged
SHIPPED = "judge.safetensors"
MIN_COSINE = 0.8  # of normals that agree: 37 degrees

_copying = Lock()


class Verdict(NamedTuple):
    """Which candidate was chosen, and how far it can be trusted."""

    chosen: int
    probabilities: tuple[float, ...]  # of each candidate to be right; they sum to one at most
    overlap: float  # share of both clouds that lands on the other, normal upon normal

    @property
    def probability(self) -> float:
        """The probability of the chosen candidate to be right."""
        return self.probabilities[self.chosen]


@dataclass(frozen=True, eq=False)
class Judge:
    """A judge, and the checksum of its weights."""

    network: JudgeNetwork
    fingerprint: str | None = None
    _copies: dict[str, JudgeNetwork] = field(default_factory=dict, repr=False)  # by device

    @torch.inference_mode()
    def __call__(
        self,
        matched: MatchedClouds,
        matches: Matches,  # of one problem, as the solver had them
        T_local: Tensor,  # (C, 4, 4) in inlier thresholds
        score: Tensor,  # (C,)
        confidence: Tensor,  # (N,)
    ) -> Verdict:
        """Choose among candidates; there must be at least one."""
        told = evidence_of(matched, matches, T_local, score, confidence)
        network = self._on(told.poses.device)
        found = network(told)
        share = found.choice[0].softmax(-1)
        chosen = share.argmax()
        sure = network.calibrated(found.trust[0, chosen])
        # What is left over goes to the others by their shares, to none more than its share allows.
        left = (1 - sure) * share / (1 - share[chosen]).clamp_min(1e-9)
        ratio = torch.minimum(left, sure * share / share[chosen])
        ratio[chosen] = sure
        overlap = _overlap(told, chosen)
        # One copy from the device for all of it.
        *probabilities, first, shared = torch.cat(
            [ratio, torch.stack([chosen.to(sure), overlap])]
        ).tolist()
        return Verdict(int(first), tuple(probabilities), shared)

    def _on(self, device: torch.device) -> JudgeNetwork:
        """Return the network on a device; a copy of it where it lies elsewhere."""
        key = str(device)
        with _copying:
            if key not in self._copies:
                with torch.inference_mode(False):
                    here = self.network.calibration.device == device
                    copy = self.network if here else deepcopy(self.network).to(device)
                self._copies[key] = copy
            return self._copies[key]


def can_judge(matched: MatchedClouds) -> bool:
    """Tell whether both clouds have the surfaces that a judge looks at."""
    return matched.source.surface is not None and matched.target.surface is not None


def evidence_of(
    matched: MatchedClouds, matches: Matches, T_local: Tensor, score: Tensor, confidence: Tensor
) -> Findings:
    """Return what the clouds say of candidates, in voxels, on the device of the clouds."""
    source, target = _views(matched)
    points = matched.source.points
    scale = matched.scale
    ends = matches.source[0].to(points.device), matches.target[0].to(points.device)
    T, score, sure = (part.to(points.device) for part in (T_local, score, confidence))
    inliers = squared_residuals(T, *ends) < 1.0  # (C, N)
    confident = (inliers * sure).sum(-1) / sure.sum().clamp_min(1e-6)
    T = T.float().clone()
    T[:, :3, 3] *= scale.inlier_threshold / scale.voxel_size
    count = torch.tensor([len(matches)], device=points.device)
    candidates = Candidates(
        T[None], score[None].float(), inliers.sum(-1)[None], confident[None].float(), count
    )
    return evidence(source, target, candidates)


def _views(matched: MatchedClouds) -> tuple[View, View]:
    size = matched.scale.voxel_size
    clouds = (matched.source, matched.target)
    surfaces, keypoints, descriptors, rows = [], [], [], []
    for cloud in clouds:
        assert cloud.surface is not None, "ask can_judge first"
        assert cloud.normals is not None, "a surface has normals"
        surfaces.append(_points(*cloud.surface, size))
        described = F.normalize(cloud.descriptors.float(), dim=-1)[None]
        descriptors.append(described)
        points = _points(cloud.points, cloud.normals, size)
        keypoints.append(points._replace(real=described.any(-1)))
        rows.append(evenly(len(cloud), LOOKED_AT).to(cloud.points.device))
    return (
        view(keypoints[0], descriptors[0], surfaces[0], keypoints[1], descriptors[1], rows[0]),
        view(keypoints[1], descriptors[1], surfaces[1], keypoints[0], descriptors[0], rows[1]),
    )


def _points(points: Tensor, normals: Tensor, size: float) -> Points:
    real = torch.ones(1, len(points), dtype=torch.bool, device=points.device)
    return Points(points.float()[None] / size, normals.float()[None], real)


def _overlap(told: Findings, chosen: Tensor) -> Tensor:
    """Return the share of the points looked at that land on a surface whose normal agrees."""
    shares = [
        ((side.points[0, chosen, :, 6] > 0) & (side.points[0, chosen, :, 5] > MIN_COSINE))
        .float()
        .mean()
        for side in told.landings
    ]
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
    header, tensors = read_weights(path)
    try:
        network = JudgeNetwork(JudgeConfig(**header["judge"]))
    except (KeyError, TypeError, ValueError) as error:
        raise do_not_fit(path, error) from error
    fill(network, tensors, header, path)
    return Judge(network.float().eval(), header["sha256"])


@lru_cache(maxsize=1)
def shipped_judge() -> Judge:
    """Return the judge that comes with the package."""
    return load_judge(WEIGHTS_FOLDER / SHIPPED)
