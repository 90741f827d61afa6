"""Quick forms for a CPU: less memory to fetch, less to write, nothing computed twice.

`benchmarks/backends.py` times each against its readable form. They carry no gradients: where these
are asked for, the readable form is called.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import torch
from scipy import sparse
from scipy.spatial import cKDTree
from torch import Tensor
from torch.nn import functional as F

from vbreg.backends.plain import Backend
from vbreg.compatibility import (
    Attention,
    attention_rows,
    compatibility_of_cosine,
    row_chunks,
)
from vbreg.estimation import quadratic_gain
from vbreg.geometry import take_rows
from vbreg.types import BackendUsed
from vbreg.voting import (
    Electorate,
    HypotheticalInliers,
    Seeds,
    Tally,
    VotingConfig,
    exclude,
    with_seed,
)

MAX_SPARSE_SHARE = 0.12  # of compatible pairs, up to which sparse arithmetic is quicker
MAX_SPARSE_PAIRS = 2**25  # that the sparse form keeps: some 0.5 GB with what it derives
MAX_SPARSE_EDGES = 0.05  # share of a graph's pairs below which a sparse product is quicker
MAX_KEPT_BYTES = 2**29  # beta of all problems is kept whole up to here: one of 11,585 matches
CACHED_NUMBERS = 2**17  # of a map that stay in the cache from one operation to the next
LOGIT_ROWS = 256  # of a map of logits: few for the cache, enough for the products
MIRRORED_ROWS = 128  # of a symmetric map that are made before their image is
SCORED_MAPS = 64  # shares of MAX_MAP_BYTES, so that a map of scores stays in the cache
MAX_NEAR = 200  # correspondences about one, on average, that are listed for suppression
MAX_LOGIT = 60.0  # exp is finite in float32 up to 88; some thousands of these are added up
MIN_LOGIT = -80.0  # below -87 exp is so small that products become slow


class CPUBackend(Backend):
    """Computes on the tensors of a CPU."""

    name: BackendUsed = "cpu"
    max_rows = 8192

    def attention(self, source: Tensor, target: Tensor, mask: Tensor | None) -> Attention:
        if torch.is_grad_enabled():
            return super().attention(source, target, mask)
        if torch.backends.mkl.is_available() and _share(source, target) < MAX_SPARSE_SHARE:
            attend = sparse_attention(source, target, mask, MAX_SPARSE_PAIRS)
            if attend is not None:
                return attend
        return dense_attention(source, target, mask)

    def compatibility(
        self, source_rows: Tensor, target_rows: Tensor, source: Tensor, target: Tensor
    ) -> Tensor:
        small = source_rows.shape[-2] * source.shape[-2] <= CACHED_NUMBERS
        if small or torch.is_grad_enabled():
            return super().compatibility(source_rows, target_rows, source, target)
        return compatibility(source_rows, target_rows, source, target)

    def triangle_weights(self, graph: Tensor) -> Tensor:
        if graph.count_nonzero() >= MAX_SPARSE_EDGES * graph.numel():
            return super().triangle_weights(graph)
        few = sparse.csr_array(graph.numpy())
        return torch.from_numpy((few @ few).multiply(few).toarray())

    def suppressed(self, confidence: Tensor, source: Tensor, mask: Tensor, radius: float) -> Tensor:
        strength = confidence.masked_fill(~mask, -torch.inf)
        found = [_suppressed(c, s, radius) for c, s in zip(strength, source, strict=True)]
        if any(part is None for part in found):
            return super().suppressed(confidence, source, mask, radius)
        return torch.stack([part for part in found if part is not None])

    def vote(
        self,
        electorate: Electorate,
        source: Tensor,
        target: Tensor,
        seeds: Seeds,
        mask: Tensor,
        config: VotingConfig,
    ) -> HypotheticalInliers:
        return vote(electorate, source, target, seeds, mask, config)

    def inlier_score(
        self,
        T: Tensor,
        source: Tensor,
        target: Tensor,
        weights: Tensor,
        gain: Callable[[Tensor], Tensor] = quadratic_gain,
    ) -> Tensor:
        if gain is not quadratic_gain or T.shape[1] == 1:
            return super().inlier_score(T, source, target, weights, gain)
        return inlier_score(T, source, target, weights)


# --- compatibility --------------------------------------------------------------------------------


def compatibility(
    source_rows: Tensor, target_rows: Tensor, source: Tensor, target: Tensor
) -> Tensor:
    """Return beta (..., K, N), made some rows at a time so that they stay in the cache."""
    out = source.new_empty(*source_rows.shape[:-1], source.shape[-2])
    maps = out.view(-1, *out.shape[-2:])
    x, y, X, Y = (
        end.reshape(-1, *end.shape[-2:]) for end in (source_rows, target_rows, source, target)
    )
    step = max(1, CACHED_NUMBERS // out.shape[-1])
    for b, whole in enumerate(maps):
        columns = X[b].T.contiguous(), Y[b].T.contiguous()
        for start in range(0, len(whole), step):
            some = slice(start, start + step)
            block = whole[some]
            _distances_into(block, x[b, some], columns[0])
            block.sub_(_distances_into(torch.empty_like(block), y[b, some], columns[1]))
            block.mul_(block).neg_().add_(1.0).clamp_min_(0.0)
    return out


def _distances_into(out: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Write the distances between rows (K, 3) and columns (3, N) to out (K, N)."""
    difference = torch.empty_like(out)
    torch.sub(rows[:, :1], columns[0], out=out).mul_(out)
    for axis in (1, 2):
        torch.sub(rows[:, axis : axis + 1], columns[axis], out=difference)
        out.addcmul_(difference, difference)
    return out.sqrt_()


def own_compatibility(source: Tensor, target: Tensor) -> Tensor:
    """Return beta (..., N, N) among all correspondences; half of it is the other's mirror image."""
    N = source.shape[-2]
    out = source.new_empty(*source.shape[:-1], N)
    for start in range(0, N, MIRRORED_ROWS):
        end = min(start + MIRRORED_ROWS, N)
        x, y = source[..., start:end, :], target[..., start:end, :]
        strip = compatibility(x, y, source[..., start:, :], target[..., start:, :])
        out[..., start:end, start:] = strip
        out[..., end:, start:end] = strip[..., end - start :].mT
    return out


# --- attention ------------------------------------------------------------------------------------


def dense_attention(source: Tensor, target: Tensor, mask: Tensor | None) -> Attention:
    """Return the attention over all pairs, few rows at a time in memory that is used again.

    beta is kept from one iteration to the next unless it is too large. A row's maximum is looked
    for only where features are so long that exp could overflow.
    """
    B, N, _ = source.shape
    small = source.element_size() * B * N * N <= MAX_KEPT_BYTES
    kept = own_compatibility(source, target) if small else None
    logits = source.new_empty(min(LOGIT_ROWS, N), N)

    def beta(b: int, rows: slice) -> Tensor:
        if kept is not None:
            return kept[b, rows]
        return compatibility(source[b, rows], target[b, rows], source[b], target[b])

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query, key, value = (end.to(source.dtype) for end in (query, key, value))  # may be lower
        scale = 1.0 / math.sqrt(value.shape[-1])
        wild = bool(scale * query.norm(dim=-1).max() * key.norm(dim=-1).max() > MAX_LOGIT)
        out = torch.empty_like(value)
        for b in range(B):
            for start in range(0, N, LOGIT_ROWS):
                rows = slice(start, min(start + LOGIT_ROWS, N))
                weights = logits[: rows.stop - start]
                torch.addmm(weights, query[b, rows], key[b].T, beta=0.0, alpha=scale, out=weights)
                weights.mul_(beta(b, rows))
                if wild:
                    if mask is not None:
                        weights.masked_fill_(~mask[b], -torch.inf)
                    weights.sub_(weights.amax(-1, keepdim=True))
                    weights.clamp_min_(MIN_LOGIT)
                weights.exp_()
                if mask is not None:
                    weights.mul_(mask[b])
                total = weights.sum(-1, keepdim=True)
                torch.mm(weights, value[b], out=out[b, rows]).div_(total)
        return out

    return attend


def sparse_attention(
    source: Tensor, target: Tensor, mask: Tensor | None, max_pairs: int
) -> Attention | None:
    """Return the attention over compatible pairs alone, or None where there are too many.

    It is exact, because a logit is zero wherever beta is: with w_ij = exp(beta_ij a_ij) - 1,
    out_i = (sum_j w_ij V_j + sum_j V_j) / (sum_j w_ij + N), and w_ij = 0 wherever beta_ij = 0.
    """
    B = len(source)
    keep = [slice(None) if mask is None else mask[b].nonzero().squeeze(-1) for b in range(B)]
    betas = []
    for b in range(B):
        beta = _compatibility_csr(source[b, keep[b]], target[b, keep[b]], max_pairs)
        if beta is None:
            return None
        betas.append(beta)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query, key, value = (end.to(source.dtype) for end in (query, key, value))  # may be lower
        out = torch.zeros_like(value)
        for b in range(B):
            q, k, v = query[b, keep[b]], key[b, keep[b]], value[b, keep[b]]
            out[b, keep[b]] = _attend_csr(q, k, v, betas[b])
        return out

    return attend


def _attend_csr(query: Tensor, key: Tensor, value: Tensor, beta: Tensor) -> Tensor:
    scaled = query / math.sqrt(query.shape[-1])
    logits = torch.sparse.sampled_addmm(beta, scaled, key.mT, beta=0.0)
    # |logit| stays far below where exp overflows in float32 (88) for any trained network; the
    # clamp keeps a wild one finite, and a row maximum cannot be subtracted here.
    w = torch.expm1((logits.values() * beta.values()).clamp_max_(MAX_LOGIT))
    offsets = beta.crow_indices().long()
    w_sum = torch.segment_reduce(w, "sum", offsets=offsets, axis=0).unsqueeze(-1)  # (N, 1)
    wV = _csr(beta.crow_indices(), beta.col_indices(), w, beta.shape) @ value
    return (wV + value.sum(0)) / (w_sum + len(value))


def _share(source: Tensor, target: Tensor, rows: int = 64) -> float:
    """Estimate from some rows which share of pairs is compatible."""
    few = slice(None, None, max(1, source.shape[1] // rows))
    beta = compatibility(source[:, few], target[:, few], source, target)
    return float((beta > 0).float().mean())


def _compatibility_csr(source: Tensor, target: Tensor, max_pairs: int) -> Tensor | None:
    """Return beta (N, N) as a CSR matrix, built some rows at a time; None beyond `max_pairs`."""
    N = len(source)
    counts, columns, values = [], [], []
    entries = 0
    small = source.element_size() * N * N <= MAX_KEPT_BYTES
    whole = own_compatibility(source, target) if small else None
    for rows in row_chunks(N, N, maps=4):
        if whole is None:
            beta = compatibility(source[rows], target[rows], source, target)
        else:
            beta = whole[rows]
        at, starts = _positive_entries(beta)
        counts.append(starts.diff())
        columns.append((at % N).to(torch.int32))
        values.append(beta.view(-1)[at])
        entries += len(values[-1])
        if entries > max_pairs:
            return None
    crow = torch.zeros(N + 1, dtype=torch.int32)
    crow[1:] = torch.cat(counts).cumsum(0)
    return _csr(crow, torch.cat(columns), torch.cat(values), torch.Size((N, N)))


def _positive_entries(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Find what is above zero in maps (..., K, N).

    Return the places, ascending and counted through all maps, and where each row begins among
    these places, the end included.
    """
    N = maps.shape[-1]
    at = (maps > 0).view(-1).nonzero().squeeze(-1)
    rows = torch.arange(maps.numel() // N + 1)
    return at, torch.searchsorted(at, N * rows)


def _csr(crow: Tensor, columns: Tensor, values: Tensor, size: torch.Size) -> Tensor:
    with warnings.catch_warnings():  # torch calls its CSR layout beta-stage, once per process
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
        return torch.sparse_csr_tensor(crow, columns, values, size, check_invariants=False)


# --- search ---------------------------------------------------------------------------------------


def _suppressed(confidence: Tensor, source: Tensor, radius: float) -> Tensor | None:
    """Tell (N,) of one problem from a list of near pairs; None where these are too many to list."""
    tree = cKDTree(source.numpy())
    if tree.count_neighbors(tree, radius) > MAX_NEAR * len(source):
        return None
    near = torch.from_numpy(tree.query_pairs(radius, output_type="ndarray"))  # (pairs, 2)
    a, b = near.unbind(-1)
    within = (source[a] - source[b]).norm(dim=-1) < radius
    first = confidence[a] - confidence[b]
    suppressed = torch.zeros_like(confidence, dtype=torch.bool)
    suppressed[b[within & (first > 0)]] = True
    suppressed[a[within & (first < 0)]] = True
    return suppressed


def vote(
    electorate: Electorate,
    source: Tensor,
    target: Tensor,
    seeds: Seeds,
    mask: Tensor,
    config: VotingConfig,
) -> HypotheticalInliers:
    """Find the sets that `voting.vote` finds, counting votes for compatible matches alone.

    Those compatible with a seed are about a tenth of all, where matches are real.
    """
    unit = [F.normalize(f.float(), dim=-1) for f in reversed(electorate.features)]
    attention = [(q.float(), k.float()) for q, k in reversed(electorate.attention)]
    kappa = min(config.set_size, source.shape[1])
    found = []
    for rows in row_chunks(seeds.indices.shape[1], source.shape[1], batch=len(source), maps=6):
        seed = seeds.indices[:, rows]
        beta = compatibility(take_rows(source, seed), take_rows(target, seed), source, target)
        exclude(beta, seed, mask)
        columns = _compatible_columns(beta, seed, at_least=kappa - 1)
        near = beta.gather(-1, columns)
        tally = Tally(near, kappa - 1, voters=len(unit) + len(attention), z=config.z_score)
        for step, f in enumerate(unit):
            cosine = (take_rows(f, seed) @ f.transpose(-1, -2)).gather(-1, columns)
            tally.cast(compatibility_of_cosine(cosine, electorate.sigma) * near)  # S^l
            if attention:
                q, k = attention[step]
                looked_at = attention_rows(take_rows(q, seed), k, beta, mask).gather(-1, columns)
                tally.cast(looked_at * (near > 0))
        places, elected = tally.elect()
        found.append(with_seed(seed, columns.gather(-1, places), elected))
    index, valid = (torch.cat(parts, dim=1) for parts in zip(*found, strict=True))
    return HypotheticalInliers(index, valid & seeds.valid.unsqueeze(-1))


def _compatible_columns(beta: Tensor, seed: Tensor, at_least: int) -> Tensor:
    """Return (B, K, most of any row): columns of beta > 0, ascending, then the seed repeated."""
    at, starts = _positive_entries(beta)
    row, column = at // beta.shape[-1], at % beta.shape[-1]
    most = max(at_least, int(starts.diff().max()))
    columns = seed.unsqueeze(-1).repeat(1, 1, most)
    columns.view(-1, most)[row, torch.arange(len(at)) - starts[row]] = column
    return columns


def inlier_score(T: Tensor, source: Tensor, target: Tensor, weights: Tensor) -> Tensor:
    """Compute `estimation.inlier_score` of all poses by one product of matrices."""
    poses, matches = _residual_factors(T, source, target)
    weight = weights.double().unsqueeze(-1)  # (B, N, 1)
    B, K = T.shape[:2]
    scores = torch.empty(B, K, dtype=torch.float64)
    for rows in row_chunks(K, source.shape[1], batch=B, maps=SCORED_MAPS):
        gain = (poses[:, rows] @ matches).clamp_(0.0, 1.0)
        scores[:, rows] = (gain @ weight).squeeze(-1)
    scores /= weight.sum(1).clamp_min(torch.finfo(weight.dtype).tiny)
    return scores.to(source.dtype)


def _residual_factors(T: Tensor, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return (B, K, 26) and (B, 26, N), float64, whose product is 1 - |R x + t - y|^2.

    Multiplied out, it is a sum of products of something of the pose with something of the match; in
    double precision, because it is a small difference of large numbers.
    """
    x, y = source.double(), target.double()
    R, t = T[..., :3, :3].double(), T[..., :3, 3].double()
    one, tt = torch.ones_like(t[..., :1]), t.square().sum(-1, keepdim=True)
    RR, tR = (R.mT @ R).flatten(-2), (t.unsqueeze(-2) @ R).squeeze(-2)  # R may be rounded
    poses = torch.cat([RR, R.flatten(-2), tR, t, one, tt], dim=-1)
    xx, yx = ((end.unsqueeze(-1) * x.unsqueeze(-2)).flatten(-2) for end in (x, y))
    rest = 1.0 - y.square().sum(-1, keepdim=True)
    matches = torch.cat([-xx, 2 * yx, -2 * x, 2 * y, rest, -torch.ones_like(rest)], dim=-1)
    return poses, matches.mT.contiguous()
