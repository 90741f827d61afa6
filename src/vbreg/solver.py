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
from vbreg.estimation import Estimate, Limits, best_allowed, best_hypothesis, squared_residuals
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
                score = backend.inlier_score(T, source, target, crowd)
                found = best_hypothesis(T, sound & seeds.valid, score)
            else:
                within = limits.to(source)
                T, sound = estimation.hypotheses(source, target, members, weights, within.fit)
                score = backend.inlier_score(T, source, target, crowd)
                found = best_allowed(T, sound & seeds.valid, score, within)
        with clock("refine"):
            exact = matches.source, matches.target
            start = Estimate(found.T.double(), found.determined)
            if limits is None:
                T, determined = backend.refine(start, *exact, mask)
            else:
                T, determined = estimation.refine(start, *exact, mask, limits.to(start.T))
            d2 = squared_residuals(T, *exact)
            inliers = (d2 < 1.0) & mask
            return Solution(
                T,
                determined,
                inliers,
                backend.inlier_score(T.unsqueeze(1), *exact, mask).squeeze(1),
                ((d2 * inliers).sum(-1) / inliers.sum(-1).clamp_min(1)).sqrt(),
                output.logits.float().sigmoid() * mask,
                found.determined,
            )

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
