"""Plain torch on any device: the science as it stands, and the list of what a backend computes."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

from vbreg import alignment, estimation, voting
from vbreg.alignment import Surfaces
from vbreg.backends.gathered import gathered_outer, gathered_product
from vbreg.backends.neighbors import nearest_by_distances
from vbreg.compatibility import spatial_compatibility
from vbreg.estimation import Estimate
from vbreg.network import NetworkSteps, VariationalNonLocalNetwork
from vbreg.types import BackendUsed
from vbreg.voting import Electorate, HypotheticalInliers, Seeds, VotingConfig


class Backend(NetworkSteps):
    """Every step that has more than one form, each in its readable form.

    Other backends override some of them. A tensor's letters are those of the function called.
    """

    name: BackendUsed = "plain"
    records = False  # whether a run can be recorded once and replayed by the device alone
    max_rows = 2**31  # matches of a batch that are solved at once; more would be no faster

    def weights_state(self, network: VariationalNonLocalNetwork) -> tuple[int, ...]:
        """Return numbers that change when weights do which a recording has read."""
        return ()

    def kept_alive(self, network: VariationalNonLocalNetwork) -> object:
        """Return what a recording reads and nobody else may hold by then."""
        return None

    def compatibility(
        self, source_rows: Tensor, target_rows: Tensor, source: Tensor, target: Tensor
    ) -> Tensor:
        """Return beta (..., K, N) of Eq. 2 between K rows and all N correspondences."""
        return spatial_compatibility(source_rows, target_rows, source, target)

    def triangle_weights(self, graph: Tensor) -> Tensor:
        """Weigh each edge of a graph (n, n) by the paths of two edges between its ends."""
        return graph * (graph @ graph)

    def suppressed(self, confidence: Tensor, source: Tensor, mask: Tensor, radius: float) -> Tensor:
        """Tell (B, N) which correspondences have a more confident one within the radius."""
        return voting.suppressed_by_neighbors(confidence, source, mask, radius)

    def vote(
        self,
        electorate: Electorate,
        source: Tensor,
        target: Tensor,
        seeds: Seeds,
        mask: Tensor,
        config: VotingConfig,
    ) -> HypotheticalInliers:
        """Return the hypothetical inliers (B, K, kappa) of each seed."""
        return voting.vote(electorate, source, target, seeds, mask, config)

    def spectral_weights(
        self,
        features: Tensor,
        source: Tensor,
        target: Tensor,
        members: HypotheticalInliers,
        sigma: Tensor | float,
    ) -> Tensor:
        """Return the weight (B, K, kappa) of each member in its set."""
        return estimation.spectral_weights(features, source, target, members, sigma)

    def hypotheses(
        self, source: Tensor, target: Tensor, members: HypotheticalInliers, weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Fit a pose (B, K, 4, 4) to each set, and tell (B, K) whether the set fixes it."""
        return estimation.hypotheses(source, target, members, weights)

    def crowd_weights(self, source: Tensor, target: Tensor, mask: Tensor) -> Tensor:
        """Return (B, N): less for a match that shares an end with many."""
        return estimation.crowd_weights(source, target, mask)

    def inlier_score(
        self,
        T: Tensor,
        source: Tensor,
        target: Tensor,
        weights: Tensor,
        gain: Callable[[Tensor], Tensor] = estimation.quadratic_gain,
    ) -> Tensor:
        """Return the score (B, K) of each pose."""
        return estimation.inlier_score(T, source, target, weights, gain)

    def refine(
        self,
        estimate: Estimate,
        source: Tensor,
        target: Tensor,
        mask: Tensor,
        rounds: int = estimation.MAX_REFINEMENT_ROUNDS,
    ) -> Estimate:
        """Fit the poses (B, 4, 4) to all their inliers until they settle."""
        return estimation.refine(estimate, source, target, mask, rounds=rounds)

    def aligned(
        self, surfaces: Surfaces, T: Tensor, reach: float, up: Tensor | None = None
    ) -> Tensor:
        """Return poses (B, 4, 4) a step nearer to where clouds lie on each other."""
        return alignment.aligned(surfaces, T, reach, up)

    def alignment_gain(self, surfaces: Surfaces, T: Tensor, reach: float) -> Tensor:
        """Return how well clouds lie on each other (B,) under poses (B, 4, 4)."""
        return alignment.alignment_gain(surfaces, T, reach)

    def nearest(
        self, points: Tensor, queries: Tensor, real: Tensor, k: int, radius: float = math.inf
    ) -> tuple[Tensor, Tensor]:
        """Find the k nearest real points within the radius -> index, distance2 (B, Q, k)."""
        return nearest_by_distances(points, queries, real, k, radius)

    def gathered_product(self, x: Tensor, index: Tensor, kernel: Tensor) -> Tensor:
        """Return (M, D): the sum over k of row index[m, k] of x (N, C) times kernel (K, C, D)."""
        return gathered_product(x, index, kernel)

    def gathered_outer(self, x: Tensor, index: Tensor, y: Tensor) -> Tensor:
        """Return (K, C, D): the sum over m of the products of row index[m, k] of x and y (M, D)."""
        return gathered_outer(x, index, y)
