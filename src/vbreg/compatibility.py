"""How well two correspondences agree, and the attention that is weighted by it.

Every length is in units of epsilon, so that `beta` reads max(0, 1 - d^2). Shapes: B problems,
N correspondences, K rows (a subset of the N), d channels.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from vbreg import kernels

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]  # query, key, value (B, N, d) -> (B, N, d)
AttentionForm = Literal["auto", "dense", "fused", "kernel", "chunked", "sparse"]

MAP_BYTES = 128 * 2**20  # no transient K x N map grows beyond this
MAX_PAIRS = 2**25  # compatible pairs that the sparse form keeps: some 0.5 GB with what it derives
DENSE_FROM = 0.12  # share of compatible pairs from which dense arithmetic is quicker on a CPU
CACHED = 2**17  # numbers of a map that stay in a CPU's cache from one operation to the next
KEPT_BYTES = 4 * MAP_BYTES  # beta of all problems is kept whole up to here: one of 11,585 matches
KEPT_ROWS = 256  # of a map of logits: few for the cache, enough for the products
MIRRORED_ROWS = 128  # of a symmetric map that are made before their image is
HIGHEST_LOGIT = 60.0  # exp is finite in float32 up to 88; some thousands of these are added up
LOWEST_LOGIT = -80.0  # below -87 exp is so small that products become slow


def row_chunks(rows: int, columns: int, *, batch: int = 1, maps: int = 1) -> Iterator[slice]:
    """Slices of `rows` such that `maps` float32 maps of slice x columns stay within MAP_BYTES."""
    step = max(1, MAP_BYTES // max(1, 4 * batch * columns * maps))
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def spatial_compatibility(
    source_rows: Tensor, target_rows: Tensor, source: Tensor, target: Tensor
) -> Tensor:
    """beta (..., K, N) of Eq. 2 between K rows and all N correspondences, epsilon = 1."""
    if _stays_in_cache(source_rows, source, target_rows, target):
        out = source.new_empty(*source_rows.shape[:-1], source.shape[-2])
        for block, x, y, X, Y in _blocks(out, source_rows, target_rows, source, target):
            _distances_into(block, x, X)
            block.sub_(_distances_into(torch.empty_like(block), y, Y))
            block.mul_(block).neg_().add_(1.0).clamp_min_(0.0)
        return out
    d = distances(source_rows, source) - distances(target_rows, target)
    return (1.0 - d.square_()).clamp_min_(0.0)


def own_compatibility(source: Tensor, target: Tensor) -> Tensor:
    """beta (..., N, N) among all N correspondences. On a CPU half of it is computed, and the other
    half is its mirror image."""
    if not _stays_in_cache(source, source, target):
        return spatial_compatibility(source, target, source, target)
    N = source.shape[-2]
    out = source.new_empty(*source.shape[:-1], N)
    for start in range(0, N, MIRRORED_ROWS):
        end = min(start + MIRRORED_ROWS, N)
        x, y = source[..., start:end, :], target[..., start:end, :]
        strip = spatial_compatibility(x, y, source[..., start:, :], target[..., start:, :])
        out[..., start:end, start:] = strip
        out[..., end:, start:end] = strip[..., end - start :].mT
    return out


def distances(rows: Tensor, points: Tensor) -> Tensor:
    """(..., K, N). Exact on the CPU, where it costs little; by matrix product on a GPU, where
    rounding shows from some thousand thresholds of extent on."""
    if _stays_in_cache(rows, points):
        out = points.new_empty(*rows.shape[:-1], points.shape[-2])
        for block, x, X in _blocks(out, rows, points):
            _distances_into(block, x, X)
        return out
    exact = rows.device.type == "cpu"
    mode = "donot_use_mm_for_euclid_dist" if exact else "use_mm_for_euclid_dist_if_necessary"
    return torch.cdist(rows, points, compute_mode=mode)


def _stays_in_cache(rows: Tensor, points: Tensor, *others: Tensor) -> bool:
    """Whether a map is better made some rows at a time, so that a CPU need not fetch it from memory
    for every operation."""
    large = rows.shape[-2] * points.shape[-2] > CACHED
    if not large or rows.device.type != "cpu":
        return False
    return not (torch.is_grad_enabled() and any(x.requires_grad for x in (rows, points, *others)))


def _blocks(out: Tensor, *ends: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Some rows of a map (..., K, N), these rows (k, 3) of the first half of the ends (..., K, 3),
    and the columns (3, N) of the second half (..., N, 3)."""
    maps = out.view(-1, *out.shape[-2:])
    flat = [end.reshape(-1, *end.shape[-2:]) for end in ends]
    half = len(flat) // 2
    step = max(1, CACHED // out.shape[-1])
    for b, whole in enumerate(maps):
        columns = [end[b].T.contiguous() for end in flat[half:]]
        for start in range(0, len(whole), step):
            some = slice(start, start + step)
            yield whole[some], *(end[b, some] for end in flat[:half]), *columns


def _distances_into(out: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Between rows (K, 3) and columns (3, N) -> out (K, N)."""
    difference = torch.empty_like(out)
    torch.sub(rows[:, :1], columns[0], out=out).mul_(out)
    for axis in (1, 2):
        torch.sub(rows[:, axis : axis + 1], columns[axis], out=difference)
        out.addcmul_(difference, difference)
    return out.sqrt_()


def feature_compatibility(features_rows: Tensor, features: Tensor, sigma: Tensor | float) -> Tensor:
    """clip(1 - (1 - cos) / sigma^2, 0, 1) (..., K, N); both inputs have unit rows."""
    return compatibility_of(features_rows @ features.transpose(-1, -2), sigma)


def compatibility_of(cosine: Tensor, sigma: Tensor | float) -> Tensor:
    """Of features with that cosine between them."""
    return (1.0 - (1.0 - cosine) / sigma**2).clamp(0.0, 1.0)


def spatial_attention(
    source: Tensor, target: Tensor, mask: Tensor | None = None, form: AttentionForm = "auto"
) -> Attention:
    """The attention of Eq. 1 for one set of correspondences, to be called once per iteration.

    source, target (B, N, 3); mask (B, N) marks real rows. All forms compute the same function:
    `dense` keeps beta whole and carries gradients (training); `fused` is `dense` compiled, for long
    training on a GPU; `kernel` never forms beta and carries gradients, too, but needs Triton;
    `chunked` recomputes beta for some rows at a time; `sparse` keeps only beta > 0, which is about
    a tenth on real matches.
    """
    if form == "auto" and torch.is_grad_enabled():
        form = "dense"
    if form == "kernel":
        return _kernel(source, target, mask)
    if form in ("dense", "fused"):
        return _dense(source, target, mask, _compiled_attend() if form == "fused" else _attend)
    if form == "chunked":
        return _chunked(source, target, mask)
    if form == "sparse":
        attend = _sparse(source, target, mask, most=None)
        assert attend is not None
        return attend
    if form != "auto":
        raise ValueError(
            f"attention form {form!r}: expected auto, dense, fused, kernel, chunked or sparse"
        )
    if kernels.usable(source.device) and source.dtype == torch.float32:
        return _kernel(source, target, mask)
    B, N, _ = source.shape
    if source.device.type == "cpu":
        if torch.backends.mkl.is_available() and _density(source, target) < DENSE_FROM:
            attend = _sparse(source, target, mask, most=MAX_PAIRS)
            if attend is not None:
                return attend
        return _on_cpu(source, target, mask, keep=source.element_size() * B * N * N <= KEPT_BYTES)
    if 4 * B * N * N <= MAP_BYTES:  # a GPU would rather read beta again than compute it again
        return _dense(source, target, mask, _attend)
    return _chunked(source, target, mask)


def quickest_with_gradients(device: torch.device, width: int) -> AttentionForm:
    """For long training with features of that width."""
    if kernels.usable(device):
        from vbreg.kernels import attention

        if attention.supports(width):
            return "kernel"
    return "fused"


def attention_rows(query: Tensor, key: Tensor, beta: Tensor, mask: Tensor | None) -> Tensor:
    """softmax_j(beta_ij Q_i.K_j / sqrt(d)) (B, K, N). beta multiplies the logit; it is no mask."""
    logits = (query / math.sqrt(query.shape[-1])) @ key.transpose(-1, -2) * beta
    if mask is not None:
        logits = logits.masked_fill(~mask.unsqueeze(-2), -torch.inf)
    return logits.softmax(-1)


def _attend(query: Tensor, key: Tensor, value: Tensor, beta: Tensor, mask: Tensor | None) -> Tensor:
    return attention_rows(query, key, beta, mask) @ value


@lru_cache(maxsize=1)
def _compiled_attend() -> Callable[..., Tensor]:
    """Scaling by beta and softmax become one kernel each way instead of some ten."""
    return torch.compile(_attend, dynamic=True)


def _dense(
    source: Tensor, target: Tensor, mask: Tensor | None, attend: Callable[..., Tensor]
) -> Attention:
    beta = own_compatibility(source, target)
    return lambda query, key, value: attend(query, key, value, beta, mask)


def _kernel(source: Tensor, target: Tensor, mask: Tensor | None) -> Attention:
    from vbreg.kernels import attention

    points = attention.coordinates(source.float(), target.float())
    plain = _chunked(source, target, mask)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if not attention.supports(query.shape[-1]):
            return plain(query.float(), key.float(), value.float())
        return attention.attend(query, key, value, points, mask)

    return attend


def _chunked(source: Tensor, target: Tensor, mask: Tensor | None) -> Attention:
    B, N, _ = source.shape

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        out = torch.empty_like(value)
        for rows in row_chunks(N, N, batch=B, maps=3):
            beta = spatial_compatibility(source[:, rows], target[:, rows], source, target)
            out[:, rows] = attention_rows(query[:, rows], key, beta, mask) @ value
        return out

    return attend


def _on_cpu(source: Tensor, target: Tensor, mask: Tensor | None, *, keep: bool) -> Attention:
    """As `chunked`, with few rows at a time in memory that is used again, beta kept from one
    iteration to the next if asked for, and a row's maximum looked for only where features are so
    long that exp could overflow."""
    kept = own_compatibility(source, target) if keep else None
    logits = source.new_empty(min(KEPT_ROWS, source.shape[1]), source.shape[1])

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        B, N, d = value.shape
        query, key, value = (end.to(source.dtype) for end in (query, key, value))  # may be lower
        scale = 1.0 / math.sqrt(d)
        wild = bool(scale * query.norm(dim=-1).max() * key.norm(dim=-1).max() > HIGHEST_LOGIT)
        out = torch.empty_like(value)
        for b in range(B):
            for start in range(0, N, KEPT_ROWS):
                rows = slice(start, min(start + KEPT_ROWS, N))
                weights = logits[: rows.stop - start]
                torch.addmm(weights, query[b, rows], key[b].T, beta=0.0, alpha=scale, out=weights)
                if kept is not None:
                    weights.mul_(kept[b, rows])
                else:
                    ends = source[b, rows], target[b, rows], source[b], target[b]
                    weights.mul_(spatial_compatibility(*ends))
                if wild:
                    if mask is not None:
                        weights.masked_fill_(~mask[b], -torch.inf)
                    weights.sub_(weights.amax(-1, keepdim=True))
                    weights.clamp_min_(LOWEST_LOGIT)
                weights.exp_()
                if mask is not None:
                    weights.mul_(mask[b])
                total = weights.sum(-1, keepdim=True)
                torch.mm(weights, value[b], out=out[b, rows]).div_(total)
        return out

    return attend


def _sparse(
    source: Tensor, target: Tensor, mask: Tensor | None, most: int | None
) -> Attention | None:
    """Exact, because a logit is zero wherever beta is: with w_ij = exp(beta_ij a_ij) - 1,

    out_i = (sum_j w_ij V_j + sum_j V_j) / (sum_j w_ij + N), and w_ij = 0 wherever beta_ij = 0.
    None where a problem has more than `most` compatible pairs.
    """
    B = len(source)
    keep = [slice(None) if mask is None else mask[b].nonzero().squeeze(-1) for b in range(B)]
    betas = []
    for b in range(B):
        beta = _compatibility_csr(source[b, keep[b]], target[b, keep[b]], most)
        if beta is None:
            return None
        betas.append(beta)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
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
    w = torch.expm1((logits.values() * beta.values()).clamp_max_(HIGHEST_LOGIT))
    offsets = beta.crow_indices().long()
    w_sum = torch.segment_reduce(w, "sum", offsets=offsets, axis=0).unsqueeze(-1)  # (N, 1)
    wV = _csr(beta.crow_indices(), beta.col_indices(), w, beta.shape) @ value
    return (wV + value.sum(0)) / (w_sum + len(value))


def _density(source: Tensor, target: Tensor, rows: int = 64) -> float:
    """About which share of pairs is compatible, from some rows."""
    few = slice(None, None, max(1, source.shape[1] // rows))
    beta = spatial_compatibility(source[:, few], target[:, few], source, target)
    return float((beta > 0).float().mean())


def _compatibility_csr(source: Tensor, target: Tensor, most: int | None = None) -> Tensor | None:
    """beta (N, N) as a CSR matrix, built some rows at a time; None beyond `most` entries."""
    N = len(source)
    counts, columns, values = [], [], []
    entries = 0
    small = source.device.type == "cpu" and source.element_size() * N * N <= KEPT_BYTES
    whole = own_compatibility(source, target) if small else None
    for rows in row_chunks(N, N, maps=4):
        if whole is None:
            beta = spatial_compatibility(source[rows], target[rows], source, target)
        else:
            beta = whole[rows]
        at, starts = positive_entries(beta)
        counts.append(starts.diff())
        columns.append((at % N).to(torch.int32))
        values.append(beta.view(-1)[at])
        entries += len(values[-1])
        if most is not None and entries > most:
            return None
    crow = torch.zeros(N + 1, dtype=torch.int32, device=source.device)
    crow[1:] = torch.cat(counts).cumsum(0)
    return _csr(crow, torch.cat(columns), torch.cat(values), torch.Size((N, N)))


def positive_entries(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Places of what is above zero in maps (..., K, N), ascending and counted through all of them,
    and where each of the rows begins among these places, the end included."""
    N = maps.shape[-1]
    at = (maps > 0).view(-1).nonzero().squeeze(-1)
    rows = torch.arange(maps.numel() // N + 1, device=at.device)
    return at, torch.searchsorted(at, N * rows)


def _csr(crow: Tensor, columns: Tensor, values: Tensor, size: torch.Size) -> Tensor:
    with warnings.catch_warnings():  # torch calls its CSR layout beta-stage, once per process
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
        return torch.sparse_csr_tensor(crow, columns, values, size, check_invariants=False)
