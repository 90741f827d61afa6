"""The training of a judge: pairs are matched and searched, and their candidates judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vbreg.metrics import auroc, calibration_error
from vbreg.model import VBReg
from vbreg.training.config import from_dict, read_toml
from vbreg.training.judge_batches import KEYPOINTS, JudgeBatch, JudgeBatches, draw_pairs
from vbreg.training.places_run import PlacesPlan, PlacesRun
from vbreg.training.ready_places import DescribedScan, ReadyPlace, described
from vbreg.verification.judge import CANDIDATES, save_judge
from vbreg.verification.network import JudgeConfig, Judgement, JudgeNetwork

ALL_CANDIDATES = 0.3  # weight of the trust in all candidates, beside that in the chosen one
VALIDATION_BATCHES = 48
NEWTON_STEPS = 30


@dataclass(frozen=True)
class JudgeTrainConfig(PlacesPlan):
    """The plan of a judge's training."""

    weights: str = "fast"  # of the network that makes the candidates
    candidates: int = CANDIDATES
    looked_at: int = 256  # keypoints of a cloud
    judge: JudgeConfig = field(default_factory=JudgeConfig)


def is_judge_config(path: Path) -> bool:
    """Tell whether a TOML file plans the training of a judge: it has a table of that name."""
    return "judge" in read_toml(path)


def read_judge_config(path: Path) -> JudgeTrainConfig:
    """Read the configuration in a TOML file; its folders are taken relative to the file."""
    config = from_dict(JudgeTrainConfig, read_toml(path), str(path))
    return replace(config, places=config.places.below(path.parent))


class JudgeRun(PlacesRun[DescribedScan, JudgeNetwork]):
    """A training run of a judge."""

    make_ready = staticmethod(partial(described, max_learned=max(KEYPOINTS["learned"])))

    def __init__(self, plan: JudgeTrainConfig, device: torch.device) -> None:
        super().__init__(plan, lambda: JudgeNetwork(plan.judge), device)
        model = VBReg.from_pretrained(plan.weights, device=device)
        self.batches = JudgeBatches(model, plan.candidates, plan.looked_at)

    def terms(self, network: JudgeNetwork) -> tuple[dict[str, Tensor], int]:
        """Return the terms of a step."""
        drawn = draw_pairs(self.places.held, self.plan.pairs, self.choice)
        batch = self.batches(drawn, self.choice, self.generator)
        return judge_loss(judged(network, batch), batch), len(drawn)

    def write_weights(self, path: Path, about: Mapping[str, Any]) -> object:
        """Write the averaged weights."""
        return save_judge(path, self.state.averaged, about)

    @torch.no_grad()
    def validate(self, held_out: list[ReadyPlace[DescribedScan]]) -> dict[str, float]:
        """Return how well pairs of places are judged that are not trained on.

        The judge is calibrated by those of them that are as users have them.
        """
        choice = np.random.default_rng(0)
        generator = torch.Generator(self.device).manual_seed(0)
        places = [place for place in held_out if place.pairs]
        found = []
        for _ in range(VALIDATION_BATCHES):
            drawn = draw_pairs(places, self.plan.pairs, choice)
            batch = self.batches(drawn, choice, generator)
            usual = torch.tensor([pair.usual for pair in drawn], device=self.device)
            found.append(_outcome(judged(self.state.averaged, batch), batch, usual, ~batch.shown))
        outcome = Outcome(*(torch.cat(parts) for parts in zip(*found, strict=True)))
        usual = outcome.usual
        slope, offset = fit_logits(outcome.trust[usual], outcome.chosen[usual])
        self.state.averaged.calibration.copy_(torch.stack([slope, offset]))
        probability = self.state.averaged.calibrated(outcome.trust)
        return {
            "first_right": float(outcome.first.float().mean()),
            "recall": float(outcome.chosen.float().mean()),
            "best_right": float(outcome.best.float().mean()),
            "auroc": auroc(probability, outcome.chosen),
            "calibration_error": calibration_error(probability[usual], outcome.chosen[usual]),
            "slope": float(slope),
            "offset": float(offset),
        }


class Judged(NamedTuple):
    """What a judge says of a batch: of all candidates, and of the chosen ones once refined."""

    first: Judgement
    chosen: Tensor  # (B,)
    trust: Tensor  # (B,) in the chosen candidates, refined
    right: Tensor  # (B,) whether these are right


def judged(network: JudgeNetwork, batch: JudgeBatch) -> Judged:
    """Let a judge choose, refine what it chose, and ask it again how far to trust that."""
    seen, valid = network.look(batch.evidence), batch.evidence.valid
    first = network.judge(seen, valid)
    chosen = first.choice.detach().argmax(-1)
    refined, right = batch.refined(chosen)
    return Judged(first, chosen, network.judge_again(seen, valid, chosen, refined), right)


class Outcome(NamedTuple):
    """What came of pairs: whether a pose is right, and the trust in it."""

    first: Tensor  # (n,) the candidate of the best score
    chosen: Tensor  # (n,) once refined
    best: Tensor  # (n,) any
    trust: Tensor  # (n,) in the chosen one
    usual: Tensor  # (n,) pairs such as users have


def _outcome(said: Judged, batch: JudgeBatch, usual: Tensor, kept: Tensor) -> Outcome:
    return Outcome(
        batch.right[kept, 0],
        said.right[kept],
        (batch.right.any(-1) | said.right)[kept],
        said.trust[kept],
        usual[kept],
    )


def judge_loss(said: Judged, batch: JudgeBatch) -> dict[str, Tensor]:
    """Return the loss of a batch and its terms.

    Of the pairs that have a right candidate, it is to be chosen. The trust in the chosen one, once
    refined, is to tell whether it is right; where the truth was put among the candidates, nothing
    is asked of it.
    """
    right, valid = batch.right, batch.evidence.valid
    has = right.any(-1)
    log_share = said.first.choice.masked_fill(~valid, -1e4).log_softmax(-1)
    hit = log_share.masked_fill(~right, -1e4).logsumexp(-1)
    choice = -(hit * has).sum() / has.sum().clamp_min(1)
    asked = ~batch.shown & valid.any(-1)
    count = asked.sum().clamp_min(1)
    bce = F.binary_cross_entropy_with_logits
    trust = (bce(said.trust, said.right.float(), reduction="none") * asked).sum() / count
    each = bce(said.first.trust, right.float(), reduction="none")
    mean = (each * valid).sum(-1) / valid.sum(-1).clamp_min(1)
    every = (mean * asked).sum() / count
    chosen_right = right.gather(1, said.chosen.unsqueeze(1)).squeeze(1)
    return {
        "choice": choice,
        "trust": trust,
        "every": every,
        "chosen_right": (chosen_right & has).sum() / has.sum().clamp_min(1),
        "first_right": (right[:, 0] & has).sum() / has.sum().clamp_min(1),
        "has_right": has.float().mean(),
        "total": choice + trust + ALL_CANDIDATES * every,
    }


def fit_logits(logit: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Fit slope and offset of logits (n,), so that they tell how often one is right (Newton)."""
    x = torch.stack([logit, torch.ones_like(logit)], dim=-1).double()
    y = right.double()
    w = torch.tensor([1.0, 0.0], dtype=torch.float64, device=logit.device)
    prior = 1e-3 * torch.eye(2, dtype=torch.float64, device=logit.device)
    start = w.clone()
    for _ in range(NEWTON_STEPS):
        p = torch.sigmoid(x @ w)
        slope = x.T @ (p - y) + prior @ (w - start)
        bend = (x * (p * (1 - p)).unsqueeze(-1)).T @ x + prior
        w = w - torch.linalg.solve(bend, slope).clamp(-1.0, 1.0)
    return w[0].to(logit), w[1].to(logit)
