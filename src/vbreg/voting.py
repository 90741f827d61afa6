"""Voting-based inlier search: seeds, then for each seed a set of hypothetical inliers.

Knows nothing of learning: confidences and per-iteration features are just tensors. Lengths are in
units of the inlier threshold. Shapes: B problems, N correspondences, K seeds, kappa members.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from vbreg.compatibility import (
    Compatibility,
    attention_rows,
    compatibility_of_cosine,
    distances,
    row_chunks,
    spatial_compatibility,
)
from vbreg.geometry import take_rows


@dataclass(frozen=True)
class VotingConfig:
    """Settings of the search; you do not need to set these."""

    seed_ratio: float = 0.1  # v
    min_seeds: int = 1000  # n, the conservative lower bar
    nms_radius: float = 1.0  # in inlier thresholds
    set_size: int = 40  # kappa, the seed included
    z_score: float = 1.96  # 95 %
    attention_voters: bool = False  # let the attention rows vote beside the compatibility maps

    def __post_init__(self) -> None:
        if not 0.0 < self.seed_ratio <= 1.0:
            raise ValueError(f"seed_ratio {self.seed_ratio}: expected a number in (0, 1]")
        for name, least in (("min_seeds", 1), ("set_size", 3)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ValueError(f"{name} {value!r}: expected a whole number, at least {least}")
        for name in ("nms_radius", "z_score"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not 0.0 <= value < math.inf:
                raise ValueError(f"{name} {value!r}: expected a number, at least 0")


class Seeds(NamedTuple):
    """The correspondences that sets of hypothetical inliers are gathered round."""

    indices: Tensor  # (B, K)
    valid: Tensor  # (B, K) False where a smaller problem of the batch has fewer seeds


class HypotheticalInliers(NamedTuple):
    """For each seed, the correspondences that are voted to be right if it is."""

    indices: Tensor  # (B, K, kappa), the seed first
    valid: Tensor  # (B, K, kappa)


class Electorate(NamedTuple):
    """What votes: the features and, if wanted, the attention of every iteration."""

    features: Sequence[Tensor]  # F^1 .. F^L, each (B, N, d)
    sigma: Tensor | float  # of the feature compatibility
    attention: Sequence[tuple[Tensor, Tensor]] = ()  # (Q, K) of each iteration


def seed_count(n: Tensor, config: VotingConfig) -> Tensor:
    """Return max(floor(v N), n) for each of n matches, never more than there are."""
    wanted = (n * config.seed_ratio).floor().long().clamp_min(config.min_seeds)
    return torch.minimum(wanted, n)


def select_seeds(
    confidence: Tensor,  # (B, N), any real numbers
    suppressed: Tensor,  # (B, N) of `suppressed_by_neighbors`
    mask: Tensor,  # (B, N)
    config: VotingConfig,
    most: int | None = None,  # K where it is known beforehand, so that the device need not be asked
) -> Seeds:
    """Choose local maxima of the confidence first, then the rest; each by confidence."""
    by_confidence = confidence.masked_fill(~mask, -torch.inf).argsort(
        dim=-1, descending=True, stable=True
    )
    # Maxima, then suppressed, then padding; a stable sort keeps confidence's order inside each.
    tier = torch.where(mask, suppressed.long(), 2).gather(-1, by_confidence)
    order = by_confidence.gather(-1, tier.argsort(dim=-1, stable=True))
    counts = seed_count(mask.sum(-1), config)
    K = int(counts.max()) if most is None else most
    valid = torch.arange(K, device=counts.device) < counts.unsqueeze(-1)
    return Seeds(order[:, :K], valid)


def suppressed_by_neighbors(
    confidence: Tensor, source: Tensor, mask: Tensor, radius: float
) -> Tensor:
    """Tell (B, N) which correspondences have a more confident one within `radius` of their source.

    confidence (B, N), source (B, N, 3), mask (B, N).
    """
    B, N = confidence.shape
    confidence = confidence.masked_fill(~mask, -torch.inf)
    suppressed = torch.empty(B, N, dtype=torch.bool, device=source.device)
    for rows in row_chunks(N, N, batch=B, maps=3):
        near = distances(source[:, rows], source) < radius
        stronger = confidence.unsqueeze(-2) > confidence[:, rows].unsqueeze(-1)
        suppressed[:, rows] = (near & stronger).any(-1)
    return suppressed


def wilson_lower_bound(accepted: Tensor, voters: Tensor | int, z: float) -> Tensor:
    """Return the lower end of the Wilson interval of `accepted` votes out of `voters` (Eq. 7)."""
    n = torch.as_tensor(voters, dtype=torch.float64)
    p = accepted.to(torch.float64) / n
    spread = z * (p * (1 - p) / n + z**2 / (4 * n**2)).sqrt()
    return (p + z**2 / (2 * n) - spread) / (1 + z**2 / n)


@cache  # a recording of a GPU's work may hold the address of any of them
def wilson_ranks(voters: int, z: float, device: torch.device | None = None) -> Tensor:
    """Return (voters + 1, voters + 1): entry [n, c] ranks the bound for c votes of n.

    Ranks are whole numbers, so that a mean compatibility below one can break ties between them.
    """
    n = torch.arange(voters + 1).unsqueeze(-1).clamp_min(1)
    c = torch.minimum(torch.arange(voters + 1).expand(voters + 1, -1), n)
    bounds = wilson_lower_bound(c, n, z).mul(1e12).round()
    return torch.unique(bounds, return_inverse=True)[1].to(device, torch.float32)


def vote(
    electorate: Electorate,
    source: Tensor,  # (B, N, 3)
    target: Tensor,  # (B, N, 3)
    seeds: Seeds,
    mask: Tensor,  # (B, N)
    config: VotingConfig,
    compatibility: Compatibility = spatial_compatibility,  # or a backend's form of it
) -> HypotheticalInliers:
    """Find the hypothetical inliers of each seed: coarse votes of every iteration, Wilson scores.

    The last iteration, whose features have seen most context, is the first voter. Only rows of
    seeds are ever formed, some seeds at a time.
    """
    unit = [F.normalize(f.float(), dim=-1) for f in reversed(electorate.features)]
    attention = [(q.float(), k.float()) for q, k in reversed(electorate.attention)]
    kappa = min(config.set_size, source.shape[1])
    found = []
    for rows in row_chunks(seeds.indices.shape[1], source.shape[1], batch=len(source), maps=6):
        seed = seeds.indices[:, rows]
        beta = compatibility(take_rows(source, seed), take_rows(target, seed), source, target)
        exclude(beta, seed, mask)
        tally = Tally(beta, kappa - 1, voters=len(unit) + len(attention), z=config.z_score)
        for step, f in enumerate(unit):
            cosine = take_rows(f, seed) @ f.transpose(-1, -2)
            tally.cast(compatibility_of_cosine(cosine, electorate.sigma) * beta)  # S^l
            if attention:
                q, k = attention[step]
                tally.cast(attention_rows(take_rows(q, seed), k, beta, mask) * (beta > 0))
        found.append(with_seed(seed, *tally.elect()))
    index, valid = (torch.cat(parts, dim=1) for parts in zip(*found, strict=True))
    return HypotheticalInliers(index, valid & seeds.valid.unsqueeze(-1))


class Tally:
    """Votes of some seeds for all correspondences, counted voter by voter.

    With c votes fixed, the Wilson bound falls as n grows. So its maximum over n is attained where
    a vote was cast, and only the entries voted for need an update.
    """

    def __init__(self, like: Tensor, ballot: int, *, voters: int, z: float) -> None:
        self.ballot = ballot
        self.ranks = wilson_ranks(voters, z, like.device)
        self.voters = voters
        self.n = 0
        self.count = torch.zeros_like(like)
        self.best = torch.zeros_like(like)
        self.support = torch.zeros_like(like)

    def cast(self, compatibility: Tensor) -> None:
        """Let one voter name its `ballot` most compatible correspondences, positive ones only."""
        self.n += 1
        top, named = compatibility.topk(self.ballot, dim=-1, sorted=False)
        ayes = (top > 0).to(top.dtype)
        count = self.count.gather(-1, named) + ayes
        self.count.scatter_(-1, named, count)
        rank = self.ranks[self.n][count.long()] * ayes
        best = torch.maximum(self.best.gather(-1, named), rank)
        self.best.scatter_(-1, named, best)
        self.support.scatter_add_(-1, named, top.clamp(0.0, 1.0))

    def elect(self) -> tuple[Tensor, Tensor]:
        """Return the `ballot` highest Wilson scores, ties broken by mean compatibility."""
        score = self.best + self.support / (self.voters + 1)
        top, members = score.topk(self.ballot, dim=-1)
        return members, top > 0


def exclude(beta: Tensor, seed: Tensor, mask: Tensor) -> None:
    """Set beta (B, K, N) to zero for padding, and for a seed (B, K) with itself, in place."""
    beta.masked_fill_(~mask.unsqueeze(-2), 0.0)
    beta.scatter_(-1, seed.unsqueeze(-1), 0.0)


def with_seed(seed: Tensor, members: Tensor, elected: Tensor) -> tuple[Tensor, Tensor]:
    """Put each seed (B, K) before its members (B, K, kappa - 1), as elected as any can be."""
    return (
        torch.cat([seed.unsqueeze(-1), members], dim=-1),
        torch.cat([torch.ones_like(elected[..., :1]), elected], dim=-1),
    )
