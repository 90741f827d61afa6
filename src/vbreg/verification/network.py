"""The network of the judge: evidence in, two numbers a candidate out.

What pairs of keypoints say is pooled for each point, points hear those around them, all points of
both clouds are pooled for each candidate, and candidates hear of each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vbreg.verification.evidence import (
    PAIR_FEATURES,
    POINT_FEATURES,
    POSE_FEATURES,
    Findings,
    Landing,
)


@dataclass(frozen=True)
class JudgeConfig:
    """The size of a judge."""

    pair_width: int = 32
    width: int = 64
    pose_width: int = 128
    layers: int = 2  # in which points hear those around them


class Judgement(NamedTuple):
    """What a judge says of each candidate."""

    choice: Tensor  # (B, C) the highest is the most probable; -inf where there is no candidate
    trust: Tensor  # (B, C) the logit of its being right, before it is calibrated


def _mlp(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class JudgeNetwork(nn.Module):
    """Judges the candidate poses of pairs of clouds."""

    calibration: Tensor

    def __init__(self, config: JudgeConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or JudgeConfig()
        width, wide = config.width, config.pose_width
        self.pairs = _mlp(PAIR_FEATURES, config.pair_width, config.pair_width)
        self.points = _mlp(POINT_FEATURES + 2 * config.pair_width, width, width)
        self.hearing = nn.ModuleList(_mlp(3 * width, width, width) for _ in range(config.layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(config.layers))
        self.gate = nn.Linear(width, 4)
        self.poses = _mlp(2 * (6 * width + 4) + POSE_FEATURES, wide, wide)
        self.compare = _mlp(3 * wide, wide, wide)
        self.choice = _mlp(2 * wide, wide, 1)
        self.trust = _mlp(2 * wide + 2, wide, 1)
        self.register_buffer("calibration", torch.tensor([1.0, 0.0]))  # slope, offset of a logit

    def forward(self, evidence: Findings) -> Judgement:
        """Return what the evidence says of each candidate."""
        return self.judge(self.look(evidence), evidence.valid)

    def look(self, evidence: Findings) -> Tensor:
        """Return what the evidence says of each candidate by itself (B, C, pose_width)."""
        sides = [
            self._side(landing, around, real)
            for landing, around, real in zip(
                evidence.landings, evidence.around, evidence.real, strict=True
            )
        ]
        both = torch.cat(
            [sides[0] + sides[1], torch.maximum(sides[0], sides[1]), evidence.poses], dim=-1
        )
        return F.relu(self.poses(both))

    def judge(self, pose: Tensor, valid: Tensor) -> Judgement:
        """Let candidates (B, C, pose_width), of which some are valid (B, C), hear of each other."""
        hidden = ~valid.unsqueeze(-1)
        most = pose.masked_fill(hidden, 0.0).amax(1, keepdim=True)
        count = valid.sum(1).clamp_min(1)[:, None, None]
        mean = pose.masked_fill(hidden, 0.0).sum(1, keepdim=True) / count
        among = torch.cat([pose, most.expand_as(pose), mean.expand_as(pose)], dim=-1)
        told = torch.cat([pose, F.relu(self.compare(among))], dim=-1)
        choice = self.choice(told).squeeze(-1).masked_fill(~valid, -torch.inf)
        margin = _margins(choice.detach())
        trust = self.trust(torch.cat([told, margin], dim=-1)).squeeze(-1)
        return Judgement(choice, trust)

    def judge_again(self, pose: Tensor, valid: Tensor, chosen: Tensor, refined: Findings) -> Tensor:
        """Return the trust (B,) in the chosen candidates (B,) after they were refined.

        `pose` and `valid` are of all candidates, `refined` is the evidence on the chosen (B, 1).
        """
        row = chosen[:, None, None].expand(-1, 1, pose.shape[-1])
        again = self.judge(pose.scatter(1, row, self.look(refined)), valid)
        return again.trust.gather(1, chosen.unsqueeze(1)).squeeze(1)

    def calibrated(self, trust: Tensor) -> Tensor:
        """Return the probability of a candidate to be right."""
        return torch.sigmoid(self.calibration[0] * trust + self.calibration[1])

    def _side(self, landing: Landing, around: Tensor, real: Tensor) -> Tensor:
        """Pool what the points of one cloud say about each candidate (B, C, .)."""
        hidden = ~landing.paired.unsqueeze(-1)
        said = F.relu(self.pairs(landing.pairs)).masked_fill(hidden, 0.0)  # (B, C, S, K, w)
        x = torch.cat([landing.points, said.amax(-2), said.sum(-2)], dim=-1)
        x = F.relu(self.points(x))  # (B, C, S, width)
        B, C, S, W = x.shape
        first = S * torch.arange(B * C, device=x.device).view(B, C, 1, 1)  # of a candidate's rows
        rows = (first + around.unsqueeze(1)).flatten()
        for layer, norm in zip(self.hearing, self.norms, strict=True):
            y = norm(x)
            near = y.reshape(-1, W).index_select(0, rows).view(B, C, S, -1, W)
            x = x + F.relu(layer(torch.cat([y, near.mean(3), near.amax(3)], dim=-1)))
        kept = real[:, None, :, None]
        count = kept.sum(2).clamp_min(1)
        gate = torch.sigmoid(self.gate(x)) * kept  # (B, C, S, 4)
        weight = gate.sum(2)  # (B, C, 4)
        gated = torch.einsum("bcsg,bcsw->bcgw", gate, x) / (weight.unsqueeze(-1) + 1e-3)
        x = x * kept
        return torch.cat([x.sum(2) / count, x.amax(2), gated.flatten(2), weight / count], dim=-1)


def _margins(choice: Tensor) -> Tensor:
    """Return (B, C, 2): the share of a candidate among all, and its lead over the best other."""
    share = choice.softmax(-1).nan_to_num(0.0)
    top = share.topk(min(2, share.shape[-1]), dim=-1).values
    second = top[..., 1:] if top.shape[-1] > 1 else torch.zeros_like(top)
    rival = torch.where(share == top[..., :1], second, top[..., :1])
    return torch.stack([share, share - rival], dim=-1)
