"""Triton kernels for an NVIDIA GPU: no map of all by all matches, few launches, one recording."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from vbreg.alignment import Surfaces
from vbreg.backends.plain import Backend
from vbreg.backends.triton import alignment, attention, ballots, gathered, layers, nearest, search
from vbreg.backends.triton.beta import coordinates
from vbreg.backends.triton.branches import BranchesTogether, kept_alive, weights_state
from vbreg.backends.triton.precision import rounded_products
from vbreg.compatibility import Attention, row_chunks
from vbreg.estimation import (
    MAX_REFINEMENT_ROUNDS,
    POWER_ITERATIONS,
    SETTLED,
    Estimate,
    quadratic_gain,
)
from vbreg.network import Branches, NormedMLP, VariationalNonLocalNetwork
from vbreg.types import BackendUsed
from vbreg.voting import (
    Electorate,
    HypotheticalInliers,
    Seeds,
    VotingConfig,
    vote,
    wilson_ranks,
)

MAX_BALLOTS = 8192  # correspondences that fit into the registers of a program of `ballots`


class TritonBackend(Backend):
    """Computes on the tensors of an NVIDIA GPU.

    With `rounding`, factors of products are rounded to ten bits, as TF32 does; training, which has
    a precision of its own, is without. Sizes and types that a kernel is not made for take the
    readable form.
    """

    name: BackendUsed = "triton"
    records = True

    def __init__(self, *, rounding: bool = True) -> None:
        self.rounding = rounding

    def weights_state(self, network: VariationalNonLocalNetwork) -> tuple[int, ...]:
        return weights_state(network)

    def kept_alive(self, network: VariationalNonLocalNetwork) -> object:
        return kept_alive(network)

    def attention(self, source: Tensor, target: Tensor, mask: Tensor | None) -> Attention:
        plain = super().attention
        if source.dtype != torch.float32:
            return plain(source, target, mask)
        points = coordinates(source, target)
        readable = cache(lambda: plain(source, target, mask))  # made once, if a width needs it

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            if attention.supports(query.shape[-1]):
                return attention.attend(query, key, value, points, mask, rounding=self.rounding)
            return readable()(query.float(), key.float(), value.float())

        return attend

    def branches(
        self,
        network: VariationalNonLocalNetwork,
        features: Tensor,
        labels: Tensor | None,
        generator: torch.Generator | None,
    ) -> Branches:
        drawn = labels is not None or generator is not None
        if drawn or not network.config.variational or not _inferred(features):
            return super().branches(network, features, labels, generator)
        kind = torch.float16 if self.rounding else torch.float32
        return BranchesTogether(network, features, kind)

    def normed_mlp(
        self, mlp: NormedMLP, x: Tensor, mask: Tensor | None, residual: Tensor | None = None
    ) -> Tensor:
        if not (_inferred(x) and layers.supports(*mlp.widths)):
            return super().normed_mlp(mlp, x, mask, residual)
        return layers.normed_mlp(x, mask, mlp.linears, mlp.norms, residual, rounding=self.rounding)

    def compatibility(
        self, source_rows: Tensor, target_rows: Tensor, source: Tensor, target: Tensor
    ) -> Tensor:
        # By a matrix product about the middle, which rounds from some thousand thresholds of extent
        # on.
        d = _distances(source_rows, source)
        d -= _distances(target_rows, target)
        return (1.0 - d.square_()).clamp_min_(0.0)

    def suppressed(self, confidence: Tensor, source: Tensor, mask: Tensor, radius: float) -> Tensor:
        strength = confidence.masked_fill(~mask, -torch.inf)
        return search.suppressed(strength, coordinates(source, source), radius)

    def vote(
        self,
        electorate: Electorate,
        source: Tensor,
        target: Tensor,
        seeds: Seeds,
        mask: Tensor,
        config: VotingConfig,
    ) -> HypotheticalInliers:
        if electorate.attention or source.shape[1] > MAX_BALLOTS:
            return vote(electorate, source, target, seeds, mask, config, self.compatibility)
        N, K, L = source.shape[1], seeds.indices.shape[1], len(electorate.features)
        points = coordinates(source.float(), target.float())
        unit = F.normalize(torch.stack(list(reversed(electorate.features))).float(), dim=-1)
        ranks = wilson_ranks(L, config.z_score, source.device)
        sigma = torch.as_tensor(electorate.sigma, dtype=torch.float32, device=source.device)
        found = []
        for rows in row_chunks(K, N, batch=len(source) * L):
            seed = seeds.indices[:, rows]
            index = seed.unsqueeze(-1).expand(L, -1, -1, unit.shape[-1])
            with rounded_products:
                cosine = unit.gather(2, index) @ unit.transpose(-1, -2)  # (L, B, k, N)
            kappa = min(config.set_size, N)
            found.append(ballots.elect(cosine, points, mask, seed, sigma, ranks, kappa))
            del cosine  # before the next is made
        index, valid = (torch.cat(parts, dim=1) for parts in zip(*found, strict=True))
        return HypotheticalInliers(index, valid & seeds.valid.unsqueeze(-1))

    def spectral_weights(
        self,
        features: Tensor,
        source: Tensor,
        target: Tensor,
        members: HypotheticalInliers,
        sigma: Tensor | float,
    ) -> Tensor:
        if not attention.supports(features.shape[-1]):
            return super().spectral_weights(features, source, target, members, sigma)
        return search.spectral_weights(
            F.normalize(features.float(), dim=-1),
            coordinates(source.float(), target.float()),
            members.indices,
            members.valid,
            torch.as_tensor(sigma, dtype=torch.float32, device=source.device),
            POWER_ITERATIONS,
        )

    def hypotheses(
        self, source: Tensor, target: Tensor, members: HypotheticalInliers, weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        return search.fit(coordinates(source, target), members.indices, weights)

    def crowd_weights(self, source: Tensor, target: Tensor, mask: Tensor) -> Tensor:
        return search.crowd_weights(coordinates(source.float(), target.float()), mask)

    def inlier_score(
        self,
        T: Tensor,
        source: Tensor,
        target: Tensor,
        weights: Tensor,
        gain: Callable[[Tensor], Tensor] = quadratic_gain,
    ) -> Tensor:
        if gain is not quadratic_gain or source.dtype != torch.float32:
            return super().inlier_score(T, source, target, weights, gain)
        return search.score(T, coordinates(source, target), weights)

    def refine(
        self,
        estimate: Estimate,
        source: Tensor,
        target: Tensor,
        mask: Tensor,
        rounds: int = MAX_REFINEMENT_ROUNDS,
    ) -> Estimate:
        points = coordinates(source, target)
        found = search.refine(*estimate, points, mask, rounds, SETTLED)
        return Estimate(*found)

    def aligned(
        self, surfaces: Surfaces, T: Tensor, reach: float, up: Tensor | None = None
    ) -> Tensor:
        if up is not None:
            return super().aligned(surfaces, T, reach, up)
        return alignment.step(surfaces, T, reach)[0]

    def alignment_gain(self, surfaces: Surfaces, T: Tensor, reach: float) -> Tensor:
        return alignment.step(surfaces, T, reach)[1]

    def nearest(
        self, points: Tensor, queries: Tensor, real: Tensor, k: int, radius: float = math.inf
    ) -> tuple[Tensor, Tensor]:
        if not nearest.supports(k):
            return super().nearest(points, queries, real, k, radius)
        index, distance2 = nearest.search(points.float(), queries.float(), real, k, radius)
        return index, distance2.to(queries.dtype)

    def gathered_product(self, x: Tensor, index: Tensor, kernel: Tensor) -> Tensor:
        if not gathered.supports(x, *kernel.shape[1:]):
            return super().gathered_product(x, index, kernel)
        return gathered.product(x, index, kernel)

    def gathered_outer(self, x: Tensor, index: Tensor, y: Tensor) -> Tensor:
        if not gathered.supports(x, x.shape[1], y.shape[1]):
            return super().gathered_outer(x, index, y)
        return gathered.outer(x, index, y)


def _inferred(x: Tensor) -> bool:
    return x.dtype == torch.float32 and not torch.is_grad_enabled()


def _distances(rows: Tensor, points: Tensor) -> Tensor:
    middle = points.mean(-2, keepdim=True)
    mode = "use_mm_for_euclid_dist_if_necessary"
    return torch.cdist(rows - middle, points - middle, compute_mode=mode)
