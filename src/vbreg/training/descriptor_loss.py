"""What a descriptor is trained for: its nearest in the other scan is the same place.

Both directions of a pair; all points of the other cloud compete (InfoNCE). Shapes: n anchors,
M points of the other cloud.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

MAX_DRAWN = 2048  # points of a cloud that are looked at in a step
MAX_ANCHORS = 768
SAME_PLACE = 1.0  # voxels to the point that an anchor should find
TOO_NEAR = 3.0  # voxels round the truth in which nothing counts as wrong
RIGHT = 2.0  # voxels within which a match is right


class DescriptorLoss(NamedTuple):
    """Terms of the loss of a pair, and how good the matches are."""

    contrast: Tensor
    saliency: Tensor
    right_anchors: Tensor  # share of the anchors whose nearest is right
    inlier_ratio: Tensor  # share of all drawn points whose nearest is right


def pair_loss(
    descriptors: tuple[Tensor, Tensor],  # (N, d), (M, d) of length 1
    saliency: tuple[Tensor, Tensor],  # (N,), (M,)
    points: tuple[Tensor, Tensor],  # (N, 3), (M, 3), both in the target's frame, in voxels
    temperature: Tensor,
    generator: torch.Generator,
) -> DescriptorLoss | None:
    """Return the loss of a pair, the mean of both directions; None where nothing overlaps."""
    found = []
    for a, b in ((0, 1), (1, 0)):
        one = _one_way(
            descriptors[a],
            descriptors[b],
            saliency[a],
            points[a],
            points[b],
            temperature,
            generator,
        )
        if one is None:
            return None
        found.append(one)
    return DescriptorLoss(*(torch.stack(terms).mean() for terms in zip(*found, strict=True)))


def _one_way(
    source: Tensor,
    target: Tensor,
    saliency: Tensor,
    x: Tensor,
    y: Tensor,
    temperature: Tensor,
    generator: torch.Generator,
) -> DescriptorLoss | None:
    drawn = torch.randperm(len(x), generator=generator, device=x.device)[:MAX_DRAWN]
    distance = torch.cdist(x[drawn], y)  # (n, M)
    nearest, partner = distance.min(1)
    rows = (nearest < SAME_PLACE).nonzero().squeeze(-1)[:MAX_ANCHORS]
    if len(rows) < 2:
        return None
    similarity = source[drawn] @ target.T  # (n, M)
    logits = similarity[rows] / temperature
    beside = distance[rows] < TOO_NEAR
    beside.scatter_(1, partner[rows].unsqueeze(1), False)
    contrast = F.cross_entropy(logits.masked_fill(beside, -torch.inf), partner[rows])
    with torch.no_grad():
        chosen = similarity.argmax(1, keepdim=True)
        right = distance.gather(1, chosen).squeeze(1) < RIGHT
    judged = F.binary_cross_entropy_with_logits(saliency[drawn], right.float())
    return DescriptorLoss(contrast, judged, right[rows].float().mean(), right.float().mean())
