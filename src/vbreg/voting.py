"""Voting-based inlier search: seeds, then for each seed a set of hypothetical inliers.

Knows nothing of learning: confidences and per-iteration features are just tensors. Lengths are in
units of the inlier threshold. Shapes: B problems, N correspondences, K seeds, kappa members.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import NamedTuple

import torch
from scipy.spatial import cKDTree
from torch import Tensor
from torch.nn import functional as F

from vbreg import kernels
from vbreg.compatibility import (
    attention_rows,
    compatibility_of,
    distances,
    positive_entries,
    row_chunks,
    spatial_compatibility,
)

MOST_NEAR = 200  # correspondences about one, on average, that are listed


@dataclass(frozen=True)
class VotingConfig:
    """You do not need to set these."""

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
    indices: Tensor  # (B, K)
    valid: Tensor  # (B, K) False where a smaller problem of the batch has fewer seeds


class HypotheticalInliers(NamedTuple):
    indices: Tensor  # (B, K, kappa), the seed first
    valid: Tensor  # (B, K, kappa)


def seed_count(n: Tensor, config: VotingConfig) -> Tensor:
    """max(floor(v N), n), never more than N."""
    wanted = (n * config.seed_ratio).floor().long().clamp_min(config.min_seeds)
    return torch.minimum(wanted, n)


def select_seeds(
    confidence: Tensor,  # (B, N), any real numbers
    source: Tensor,  # (B, N, 3)
    mask: Tensor,  # (B, N)
    config: VotingConfig,
    most: int | None = None,  # K where it is known beforehand, so that the GPU need not be asked
) -> Seeds:
    """Local maxima of the confidence within the NMS radius first, then the rest; each by
    confidence."""
    confidence = confidence.masked_fill(~mask, -torch.inf)
    suppressed = _suppressed(confidence, source, config.nms_radius)
    by_confidence = confidence.argsort(dim=-1, descending=True, stable=True)
    # Maxima, then suppressed, then padding; a stable sort keeps confidence's order inside each.
    tier = torch.where(mask, suppressed.long(), 2).gather(-1, by_confidence)
    order = by_confidence.gather(-1, tier.argsort(dim=-1, stable=True))
    counts = seed_count(mask.sum(-1), config)
    K = int(counts.max()) if most is None else most
    valid = torch.arange(K, device=counts.device) < counts.unsqueeze(-1)
    return Seeds(order[:, :K], valid)


def _suppressed(confidence: Tensor, source: Tensor, radius: float) -> Tensor:
    """(B, N): whether something more confident is near."""
    B, N = confidence.shape
    if kernels.usable(source.device):
        from vbreg.kernels import attention, search

        return search.suppressed(confidence, attention.coordinates(source, source), radius)
    if source.device.type == "cpu":
        found = [_suppressed_by_tree(c, s, radius) for c, s in zip(confidence, source, strict=True)]
        if all(f is not None for f in found):
            return torch.stack([f for f in found if f is not None])
    suppressed = torch.empty(B, N, dtype=torch.bool, device=source.device)
    for rows in row_chunks(N, N, batch=B, maps=3):
        near = distances(source[:, rows], source) < radius
        stronger = confidence.unsqueeze(-2) > confidence[:, rows].unsqueeze(-1)
        suppressed[:, rows] = (near & stronger).any(-1)
    return suppressed


def _suppressed_by_tree(confidence: Tensor, source: Tensor, radius: float) -> Tensor | None:
    """(N,) of one problem, from the pairs that are near; None where these are too many to list."""
    tree = cKDTree(source.numpy())
    if tree.count_neighbors(tree, radius) > MOST_NEAR * len(source):
        return None
    near = torch.from_numpy(tree.query_pairs(radius, output_type="ndarray"))  # (pairs, 2)
    a, b = near.unbind(-1)
    within = (source[a] - source[b]).norm(dim=-1) < radius
    first = confidence[a] - confidence[b]
    suppressed = torch.zeros_like(confidence, dtype=torch.bool)
    suppressed[b[within & (first > 0)]] = True
    suppressed[a[within & (first < 0)]] = True
    return suppressed


def wilson_lower_bound(accepted: Tensor, voters: Tensor | int, z: float) -> Tensor:
    """Eq. 7: lower end of the Wilson interval of `accepted` out of `voters`."""
    n = torch.as_tensor(voters, dtype=torch.float64)
    p = accepted.to(torch.float64) / n
    spread = z * (p * (1 - p) / n + z**2 / (4 * n**2)).sqrt()
    return (p + z**2 / (2 * n) - spread) / (1 + z**2 / n)


@lru_cache(maxsize=32)
def wilson_ranks(voters: int, z: float) -> Tensor:
    """(voters + 1, voters + 1): entry [n, c] ranks the bound for c votes of n among all of them.

    Ranks are whole numbers, so that a mean compatibility below one can break ties between them.
    """
    n = torch.arange(voters + 1).unsqueeze(-1).clamp_min(1)
    c = torch.minimum(torch.arange(voters + 1).expand(voters + 1, -1), n)
    bounds = wilson_lower_bound(c, n, z).mul(1e12).round()
    return torch.unique(bounds, return_inverse=True)[1].to(torch.float32)


def vote(
    features: Sequence[Tensor],  # F^1 .. F^L, each (B, N, d)
    source: Tensor,  # (B, N, 3)
    target: Tensor,  # (B, N, 3)
    seeds: Seeds,
    mask: Tensor,  # (B, N)
    *,
    sigma: Tensor | float,
    config: VotingConfig,
    attention: Sequence[tuple[Tensor, Tensor]] = (),  # (Q, K) of each iteration
) -> HypotheticalInliers:
    """The hypothetical inliers of each seed: coarse votes of every iteration, then Wilson scores.

    The last iteration, whose features have seen most context, is the first voter. Only rows of
    seeds are ever formed, some seeds at a time.
    """
    B, N, _ = source.shape
    K = seeds.indices.shape[1]
    if kernels.usable(source.device) and not attention and N <= kernels.MOST_BALLOTS:
        return _vote_by_kernel(features, source, target, seeds, mask, sigma, config)
    unit = [F.normalize(f.float(), dim=-1) for f in reversed(features)]
    pairs = [(q.float(), k.float()) for q, k in reversed(attention)]
    kappa = min(config.set_size, N)
    index = torch.empty(B, K, kappa, dtype=torch.long, device=source.device)
    valid = torch.empty(B, K, kappa, dtype=torch.bool, device=source.device)
    for rows in row_chunks(K, N, batch=B, maps=6):
        seed = seeds.indices[:, rows]
        beta = spatial_compatibility(_take(source, seed), _take(target, seed), source, target)
        beta.masked_fill_(~mask.unsqueeze(-2), 0.0)
        beta.scatter_(-1, seed.unsqueeze(-1), 0.0)  # a seed does not vote for itself
        candidates = _Candidates.of(beta, seed, at_least=kappa - 1)
        near = candidates.pick(beta)
        tally = _Tally(near, kappa - 1, voters=len(unit) + len(pairs), z=config.z_score)
        for step, f in enumerate(unit):
            cosine = candidates.pick(_take(f, seed) @ f.transpose(-1, -2))
            tally.cast(compatibility_of(cosine, sigma) * near)  # S^l
            if step < len(pairs):
                q, k = pairs[step]
                rows_of_attention = attention_rows(_take(q, seed), k, beta, mask)
                tally.cast(candidates.pick(rows_of_attention) * (near > 0))
        members, elected = tally.elect()
        members = candidates.named(members)
        index[:, rows] = torch.cat([seed.unsqueeze(-1), members], dim=-1)
        valid[:, rows] = torch.cat([torch.ones_like(elected[..., :1]), elected], dim=-1)
    return HypotheticalInliers(index, valid & seeds.valid.unsqueeze(-1))


def _vote_by_kernel(
    features: Sequence[Tensor],
    source: Tensor,
    target: Tensor,
    seeds: Seeds,
    mask: Tensor,
    sigma: Tensor | float,
    config: VotingConfig,
) -> HypotheticalInliers:
    """As the tally below, with the votes of a seed counted in one program."""
    from vbreg.kernels import ballots
    from vbreg.kernels.attention import coordinates

    B, N, _ = source.shape
    K = seeds.indices.shape[1]
    L = len(features)
    points = coordinates(source.float(), target.float())
    unit = F.normalize(torch.stack(list(reversed(features))).float(), dim=-1)  # (L, B, N, d)
    ranks = _ranks_on(L, config.z_score, source.device)
    sigma = torch.as_tensor(sigma, dtype=torch.float32, device=source.device)
    found = []
    for rows in row_chunks(K, N, batch=B * L):
        seed = seeds.indices[:, rows]
        index = seed.unsqueeze(-1).expand(L, -1, -1, unit.shape[-1])
        with kernels.tensor_cores(source.device):
            cosine = unit.gather(2, index) @ unit.transpose(-1, -2)  # (L, B, k, N)
        found.append(
            ballots.elect(cosine, points, mask, seed, sigma, ranks, min(config.set_size, N))
        )
        del cosine  # before the next is made
    index, valid = (torch.cat(parts, dim=1) for parts in zip(*found, strict=True))
    return HypotheticalInliers(index, valid & seeds.valid.unsqueeze(-1))


@cache  # a recording may hold the address of any of them
def _ranks_on(voters: int, z: float, device: torch.device) -> Tensor:
    return wilson_ranks(voters, z).to(device)


class _Candidates(NamedTuple):
    """The columns that a row may vote for: those compatible with it, a tenth of all on real
    matches. All columns on a GPU, which would have to be asked how many there are."""

    columns: Tensor | None  # (B, K, most of any row), ascending, then the seed again and again

    @staticmethod
    def of(beta: Tensor, seed: Tensor, at_least: int) -> _Candidates:
        if beta.device.type != "cpu":
            return _Candidates(None)
        at, starts = positive_entries(beta)
        row, column = at // beta.shape[-1], at % beta.shape[-1]
        most = max(at_least, int(starts.diff().max()))
        columns = seed.unsqueeze(-1).repeat(1, 1, most)
        columns.view(-1, most)[row, torch.arange(len(at)) - starts[row]] = column
        return _Candidates(columns)

    def pick(self, rows: Tensor) -> Tensor:
        return rows if self.columns is None else rows.gather(-1, self.columns)

    def named(self, places: Tensor) -> Tensor:
        return places if self.columns is None else self.columns.gather(-1, places)


class _Tally:
    """Votes of some seeds for all correspondences, counted voter by voter.

    With c votes fixed, the Wilson bound falls as n grows. So its maximum over n is attained where
    a vote was cast, and only the entries voted for need an update.
    """

    def __init__(self, like: Tensor, ballot: int, *, voters: int, z: float) -> None:
        self.ballot = ballot
        self.ranks = _ranks_on(voters, z, like.device)
        self.voters = voters
        self.n = 0
        self.count = torch.zeros_like(like)
        self.best = torch.zeros_like(like)
        self.support = torch.zeros_like(like)

    def cast(self, compatibility: Tensor) -> None:
        """One voter names its `ballot` most compatible correspondences, positive ones only."""
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
        """The `ballot` highest Wilson scores, ties broken by mean compatibility."""
        score = self.best + self.support / (self.voters + 1)
        top, members = score.topk(self.ballot, dim=-1)
        return members, top > 0


def _take(x: Tensor, index: Tensor) -> Tensor:
    """Rows index (B, K) of x (B, N, C)."""
    return x.gather(1, index.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
