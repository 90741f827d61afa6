"""Matches in, pose out, as tensors on one device: network, votes, hypotheses, refinement.

Sections 3.2 to 3.4 of the paper as one run. The backend computes the steps; nothing in between
waits for the device. Shapes: B problems, N correspondences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from vbreg import estimation
from vbreg.backends.plain import Backend
from vbreg.estimation import (
    CANDIDATE_ROUNDS,
    Estimate,
    Limits,
    agreement,
    best_distinct,
    best_hypothesis,
    first_of_same,
    within_limits,
)
from vbreg.frames import Matches
from vbreg.network import NetworkOutput, VariationalNonLocalNetwork
from vbreg.timing import Clock, untimed
from vbreg.voting import Electorate, HypotheticalInliers, Seeds, VotingConfig, select_seeds


class Solution(NamedTuple):
    """The pose of each problem, in local frames and inlier thresholds, and the evidence for it."""

    T: Tensor  # (B, 4, 4) float64
    determined: Tensor  # (B,)
    inliers: Tensor  # (B, N)
    score: Tensor  # (B,) float64
    rmse: Tensor  # (B,) float64: root mean square distance of the inliers
    confidence: Tensor  # (B, N) float32
    voted: Tensor  # (B,) False where the votes gave no hypothesis
    # (B, C, 4, 4) float64: T first, then distinct poses, by their scores before they were refined
    candidates: Tensor
    candidate_score: Tensor  # (B, C) weighted by crowds; -1 where there is no such candidate
    crowd: Tensor  # (B, N) these weights

    def problem(self, b: int, rows: int) -> Solution:
        """Return the solution of one problem of a batch, without the rows that were padded."""
        one = Solution(*(part[b : b + 1] for part in self))
        return one._replace(
            inliers=one.inliers[:, :rows],
            confidence=one.confidence[:, :rows],
            crowd=one.crowd[:, :rows],
        )


@dataclass(frozen=True, eq=False)
class Solver:
    """A network and the search behind it."""

    network: VariationalNonLocalNetwork
    voting: VotingConfig

    def __call__(
        self,
        matches: Matches,
        backend: Backend,
        *,
        whole: bool = False,  # every row is real
        most_seeds: int | None = None,  # where known, so that the device need not be asked
        geometry_alone: bool = False,  # votes without features
        generator: torch.Generator | None = None,  # samples latent features
        limits: Limits | None = None,  # what is known of the pose
        candidates: int = 0,  # distinct poses to return beside the best
        clock: Clock = untimed,
    ) -> Solution:
        """Return the pose that the matches of each problem agree on.

        What is limited is computed by the readable form on any device.
        """
        source, target = self.lowered(matches)
        mask, sigma = matches.mask, self.network.sigma
        with clock("network"):
            output = self.run_network(matches, backend, whole=whole, generator=generator)
        with clock("vote"):
            if geometry_alone:
                alike = torch.ones_like(output.features[-1])
                output = output._replace(features=(alike,), attention=())
            seeds, members = self.search(output, matches, backend, most_seeds)
        with clock("estimate"):
            features = output.features[-1]
            weights = backend.spectral_weights(features, source, target, members, sigma)
            crowd = backend.crowd_weights(source, target, mask)
            if limits is None:
                T, sound = backend.hypotheses(source, target, members, weights)
                sound = sound & seeds.valid
                score = backend.inlier_score(T, source, target, crowd)
            else:
                within = limits.to(source)
                T, sound = estimation.hypotheses(source, target, members, weights, within.fit)
                score = backend.inlier_score(T, source, target, crowd)
                T, sound, score = within_limits(T, sound & seeds.valid, score, within)
            found = best_hypothesis(T, sound, score)
        with clock("refine"):
            exact = matches.source, matches.target
            start = Estimate(found.T.double(), found.determined)
            if limits is None:
                best, determined = backend.refine(start, *exact, mask)
            else:
                best, determined = estimation.refine(start, *exact, mask, limits.to(start.T))
            others = best_distinct(T, sound, score, candidates) if candidates else None
            return Solution(
                best,
                determined,
                *agreement(best, *exact, mask),
                output.logits.float().sigmoid() * mask,
                found.determined,
                *self._refined(others, best, matches, crowd, backend, limits),
                crowd,
            )

    def _refined(
        self,
        others: tuple[Tensor, Tensor] | None,  # poses (B, C, 4, 4), and which are valid (B, C)
        best: Tensor,  # (B, 4, 4)
        matches: Matches,
        crowd: Tensor,
        backend: Backend,
        limits: Limits | None,
    ) -> tuple[Tensor, Tensor]:
        """Return candidates (B, C, 4, 4), refined a little, and their scores (B, C)."""
        if others is None:
            return best[:, :0, None].expand(-1, -1, 4, 4), crowd[:, :0]
        T, valid = others
        B, C = valid.shape
        source, target, mask = (
            part.unsqueeze(1).expand(B, C, *part.shape[1:]).flatten(0, 1)
            for part in (matches.source, matches.target, matches.mask)
        )
        start = Estimate(T.double().flatten(0, 1), valid.flatten())
        if limits is None:
            refined = backend.refine(start, source, target, mask, CANDIDATE_ROUNDS).T
        else:
            within = limits.to(start.T)
            refined = estimation.refine(start, source, target, mask, within, CANDIDATE_ROUNDS).T
        T = refined.unflatten(0, (B, C))
        T = torch.cat([best.unsqueeze(1), T[:, 1:]], dim=1)
        score = backend.inlier_score(T.to(crowd), *self.lowered(matches), crowd)
        return T, torch.where(valid & first_of_same(T), score, -1.0)

    def lowered(self, matches: Matches) -> tuple[Tensor, Tensor]:
        """Return both ends in the precision of the network."""
        kind = self.network.sigma.dtype
        return matches.source.to(kind), matches.target.to(kind)

    def run_network(
        self,
        matches: Matches,
        backend: Backend,
        *,
        whole: bool,
        generator: torch.Generator | None = None,
    ) -> NetworkOutput:
        """Return what the network says about the matches."""
        output: NetworkOutput = self.network(
            *self.lowered(matches),
            mask=None if whole else matches.mask,
            descriptors=matches.descriptors,
            generator=generator,
            steps=backend,
            keep_attention=self.voting.attention_voters,
        )
        return output

    def search(
        self,
        output: NetworkOutput,
        matches: Matches,
        backend: Backend,
        most_seeds: int | None = None,
    ) -> tuple[Seeds, HypotheticalInliers]:
        """Return seeds, and the matches that are voted to go with each."""
        source, target = self.lowered(matches)
        mask, voting = matches.mask, self.voting
        suppressed = backend.suppressed(output.logits, source, mask, voting.nms_radius)
        seeds = select_seeds(output.logits, suppressed, mask, voting, most_seeds)
        electorate = Electorate(output.features, self.network.sigma, output.attention)
        return seeds, backend.vote(electorate, source, target, seeds, mask, voting)
