"""How well two correspondences agree, and the attention that is weighted by it.

Every length is in units of epsilon, so that `beta` reads max(0, 1 - d^2). Shapes: B problems,
N correspondences, K rows (a subset of the N), d channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]  # query, key, value (B, N, d) -> (B, N, d)
Compatibility = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # `spatial_compatibility`

MAX_MAP_BYTES = 128 * 2**20  # no transient K x N map grows beyond this


def row_chunks(rows: int, columns: int, *, batch: int = 1, maps: int = 1) -> Iterator[slice]:
    """Cut `rows` into slices whose `maps` float32 maps of slice x columns stay in bounds."""
    step = max(1, MAX_MAP_BYTES // max(1, 4 * batch * columns * maps))
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def spatial_compatibility(
    source_rows: Tensor, target_rows: Tensor, source: Tensor, target: Tensor
) -> Tensor:
    """Return beta (..., K, N) of Eq. 2 between K rows and all N correspondences, epsilon = 1."""
    d = distances(source_rows, source) - distances(target_rows, target)
    return (1.0 - d.square_()).clamp_min_(0.0)


def distances(rows: Tensor, points: Tensor) -> Tensor:
    """Return the distances (..., K, N) between rows (..., K, 3) and points (..., N, 3).

    They are sums of squared differences, axis by axis. A matrix product would be quicker, but its
    rounding shows from some thousand thresholds of extent on.
    """
    squared = (rows[..., :1] - points[..., None, :, 0]).square_()
    for axis in (1, 2):
        difference = rows[..., axis : axis + 1] - points[..., None, :, axis]
        squared.addcmul_(difference, difference)
    return squared.sqrt_()


def feature_compatibility(features_rows: Tensor, features: Tensor, sigma: Tensor | float) -> Tensor:
    """Return clip(1 - (1 - cos) / sigma^2, 0, 1) (..., K, N); both inputs have rows of length 1."""
    return compatibility_of_cosine(features_rows @ features.transpose(-1, -2), sigma)


def compatibility_of_cosine(cosine: Tensor, sigma: Tensor | float) -> Tensor:
    """Return how compatible features with that cosine between them are, from 0 to 1."""
    return (1.0 - (1.0 - cosine) / sigma**2).clamp(0.0, 1.0)


def spatial_attention(source: Tensor, target: Tensor, mask: Tensor | None = None) -> Attention:
    """Return the attention of Eq. 1 for one set of correspondences, to be called each iteration.

    source, target (B, N, 3); mask (B, N) marks real rows. beta is kept whole where gradients are
    asked for or where it is small; else it is computed anew for some rows at a time.
    """
    B, N, _ = source.shape
    kept = None
    if torch.is_grad_enabled() or 4 * B * N * N <= MAX_MAP_BYTES:
        kept = spatial_compatibility(source, target, source, target)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if kept is not None:
            return attention_rows(query, key, kept, mask) @ value
        parts = []
        for rows in row_chunks(N, N, batch=B, maps=3):
            beta = spatial_compatibility(source[:, rows], target[:, rows], source, target)
            parts.append(attention_rows(query[:, rows], key, beta, mask) @ value)
        return torch.cat(parts, dim=1)

    return attend


def attention_rows(query: Tensor, key: Tensor, beta: Tensor, mask: Tensor | None) -> Tensor:
    """Return softmax_j(beta_ij Q_i.K_j / sqrt(d)) (B, K, N).

    beta multiplies the logit and is no mask: where it is 0, the logit is 0.
    """
    logits = (query / math.sqrt(query.shape[-1])) @ key.transpose(-1, -2) * beta
    if mask is not None:
        logits = logits.masked_fill(~mask.unsqueeze(-2), -torch.inf)
    return logits.softmax(-1)
