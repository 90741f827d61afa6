"""The training of DGR's network: right matches are to weigh, and their pose is to be right.

Its loss is the sum of the cross-entropy of the labels, the angle and the translation by which the
weighted least squares is off. The pose aimed at is that of the right matches themselves.
Shapes: B problems of N matches, lengths in inlier thresholds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from vbreg.datasets.matches import MatchSet
from vbreg.geometry import procrustes, rotation_angle
from vbreg.methods.dgr import (
    DeepGlobalRegistration,
    Dgr,
    DgrConfig,
    DgrNetwork,
    clipped,
    load_dgr,
    save_dgr,
)
from vbreg.methods.interface import Problem
from vbreg.training.batches import Batch, Sampler
from vbreg.training.checkpoint import State, check_same_network
from vbreg.training.config import MatchesPlan, read_matches_plan, read_toml
from vbreg.training.loop import MatchesRun
from vbreg.training.validation import Validation, judged
from vbreg.training.workers import Workers

MIN_RIGHT = 10  # right matches of a problem whose pose is asked for
MIN_TOTAL = 1.0  # sum of the weights, below which they give no pose
LENGTH = 10.0  # inlier thresholds that weigh as much as a radian: a metre in a room
TINY = 1e-9


@dataclass(frozen=True)
class DgrTrainConfig(MatchesPlan):
    """The plan of DGR's training."""

    pose_weight: float = 1.0  # of the terms of the pose, beside that of the labels
    dgr: DgrConfig = field(default_factory=DgrConfig)


def is_dgr_config(path: Path) -> bool:
    """Tell whether a TOML file plans the training of DGR: it has a table of that name."""
    return "dgr" in read_toml(path)


def read_dgr_config(path: Path) -> DgrTrainConfig:
    """Read the configuration in a TOML file; its folders are taken relative to the file."""
    return read_matches_plan(DgrTrainConfig, path)


class DgrLoss(NamedTuple):
    """Terms of the loss: labels over all matches, poses over the problems that have one."""

    labels: Tensor
    rotation: Tensor  # radians
    translation: Tensor  # in LENGTH
    posed: Tensor  # share of the problems whose pose is asked for


def dgr_loss(logits: Tensor, batch: Batch) -> DgrLoss:
    """Return the terms for logits (B, N)."""
    right = batch.labels.to(logits.dtype)
    labels = F.binary_cross_entropy_with_logits(logits, right)
    weights = clipped(logits.sigmoid())
    asked = (right.sum(-1) >= MIN_RIGHT) & (weights.sum(-1) >= MIN_TOTAL)  # (B,)
    middle = batch.source.mean(1, keepdim=True)
    source, target = batch.source - middle, batch.target
    truth, sound = procrustes(source, target, right)
    R, t = weighted_pose(source, target, weights)
    counts = (asked & sound).to(logits.dtype)
    count = counts.sum().clamp_min(1)
    angle = rotation_angle(R.transpose(-1, -2) @ truth[:, :3, :3])
    off = torch.linalg.vector_norm(t - truth[:, :3, 3], dim=-1) / LENGTH
    return DgrLoss(
        labels, (angle * counts).sum() / count, (off * counts).sum() / count, counts.mean()
    )


def weighted_pose(source: Tensor, target: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return R (B, 3, 3), t (B, 3) of the weighted least squares, with a gradient to the weights.

    It is what `geometry.procrustes` gives, whose singular vectors have no gradient where two
    singular values are the same.
    """
    w = (weights / weights.sum(-1, keepdim=True).clamp_min(TINY)).unsqueeze(-1)
    x, y = (w * source).sum(1, keepdim=True), (w * target).sum(1, keepdim=True)
    spread = (target - y).transpose(1, 2) @ (w * (source - x))  # (B, 3, 3)
    R: Tensor = _NearestRotation.apply(spread)
    return R, (y - x @ R.transpose(1, 2)).squeeze(1)


class _NearestRotation(torch.autograd.Function):
    """The rotation R (B, 3, 3) nearest to a matrix M: M = R P with P symmetric.

    A change dM turns R by the skew matrix W that solves W P + P W = R' dM - dM' R.
    """

    @staticmethod
    def forward(ctx: Any, M: Tensor) -> Tensor:
        U, S, Vh = torch.linalg.svd(M)
        S = torch.cat([S[:, :2], S[:, 2:] * torch.linalg.det(U @ Vh).sign().unsqueeze(-1)], dim=-1)
        signs = torch.where(S < 0, -1.0, 1.0).to(M.dtype)
        R = U @ (signs.unsqueeze(-1) * Vh)
        ctx.save_for_backward(R, S, Vh)
        return R

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        R, S, Vh = ctx.saved_tensors
        turn = R.transpose(1, 2) @ gradient
        turn = Vh @ (turn - turn.transpose(1, 2)) @ Vh.transpose(1, 2)
        stiff = S.unsqueeze(1) + S.unsqueeze(2)  # 0 only where a motion leaves the fit as it is
        turn = torch.where(stiff > TINY, turn / stiff.clamp_min(TINY), 0.0)
        return R @ Vh.transpose(1, 2) @ turn @ Vh


class DgrRun(MatchesRun[DgrNetwork]):
    """A training run of DGR's network."""

    terms = (*DgrLoss._fields, "total")

    def __init__(
        self,
        config: DgrTrainConfig,
        workers: Workers,
        sampler: Sampler,
        held_out: Sequence[MatchSet] = (),
    ) -> None:
        state = State.of(_first_network(config), config.optimizer, workers.device)
        super().__init__(config, state, workers, sampler, held_out)
        self.pose_weight = config.pose_weight

    def accumulate(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Take in a micro-batch's share of the gradient -> its terms."""
        loss = dgr_loss(self.state.network(batch.source, batch.target), batch)
        total = loss.labels + self.pose_weight * (loss.rotation + loss.translation)
        (total / self.config.micro_batches).backward()
        return torch.stack([*loss, total]).detach()

    def validate(self) -> Validation:
        """Return how good the averaged weights are on match sets that are not trained on."""
        method = Dgr(DeepGlobalRegistration(self.state.averaged), self.workers.device)
        return judged(
            self.held_out,
            lambda s: method(Problem.of_points(s.source, s.target, s.inlier_threshold)),
        )

    def write_weights(self, path: Path, about: Mapping[str, Any]) -> object:
        """Write the averaged weights."""
        return save_dgr(path, self.state.averaged, about)


def _first_network(config: DgrTrainConfig) -> DgrNetwork:
    """Return the network before the first step: drawn by chance, or that of a weights file."""
    if config.start_from is None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            return DgrNetwork(config.dgr)
    network = load_dgr(config.start_from).network.train()
    check_same_network(config.start_from, network.config, config.dgr)
    return network
