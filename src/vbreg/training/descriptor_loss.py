"""What a descriptor is trained for: its nearest in the other scan is the same place.

Both directions of a pair; all points drawn of the other cloud compete (InfoNCE). Shapes: n and m
points drawn of clouds of N and M.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

MAX_DRAWN = 1536  # points of a cloud that look for their partners in a step
SAME_PLACE = 1.0  # voxels to the point that an anchor should find
TOO_NEAR = 3.0  # voxels round the truth in which nothing counts as wrong
RIGHT = 2.0  # voxels within which a match is right


class Drawn(NamedTuple):
    """Points of two clouds that are described in a step."""

    source: Tensor  # (n,) rows: some by chance, then partners of those of the target
    target: Tensor  # (m,) rows, likewise
    by_chance: tuple[int, int]  # how many of each come first


class DescriptorLoss(NamedTuple):
    """Terms of the loss of a pair, and how good the matches are."""

    contrast: Tensor
    saliency: Tensor
    right_anchors: Tensor  # share of the anchors whose nearest is right
    inlier_ratio: Tensor  # share of all drawn points whose nearest is right


def draw(x: Tensor, y: Tensor, generator: torch.Generator) -> Drawn:
    """Draw points of two clouds (N, 3), (M, 3) in one frame by chance, and add their partners."""
    by_chance = [
        torch.randperm(len(points), generator=generator, device=points.device)[:MAX_DRAWN]
        for points in (x, y)
    ]
    rows = []
    for own, other, drawn, looked_for in ((x, y, *by_chance), (y, x, *reversed(by_chance))):
        nearest, partner = torch.cdist(other[looked_for], own).min(1)
        rows.append(torch.cat([drawn, partner[nearest < SAME_PLACE]]))
    return Drawn(rows[0], rows[1], (len(by_chance[0]), len(by_chance[1])))


def pair_loss(
    descriptors: tuple[Tensor, Tensor],  # (n, d), (m, d) of length 1, of the points drawn
    saliency: tuple[Tensor, Tensor],  # (n,), (m,)
    points: tuple[Tensor, Tensor],  # (n, 3), (m, 3), both in the target's frame, in voxels
    by_chance: tuple[int, int],
    temperature: Tensor,
) -> DescriptorLoss | None:
    """Return the loss of a pair, the mean of both directions; None where nothing overlaps."""
    found = []
    for a, b in ((0, 1), (1, 0)):
        first = slice(by_chance[a])
        ends = descriptors[a][first], descriptors[b]
        one = _one_way(*ends, saliency[a][first], points[a][first], points[b], temperature)
        if one is None:
            return None
        found.append(one)
    return DescriptorLoss(*(torch.stack(terms).mean() for terms in zip(*found, strict=True)))


def _one_way(
    source: Tensor, target: Tensor, saliency: Tensor, x: Tensor, y: Tensor, temperature: Tensor
) -> DescriptorLoss | None:
    distance = torch.cdist(x, y)  # (n, m)
    nearest, partner = distance.min(1)
    rows = (nearest < SAME_PLACE).nonzero().squeeze(-1)
    if len(rows) < 2:
        return None
    similarity = source @ target.T  # (n, m)
    logits = similarity[rows] / temperature
    beside = distance[rows] < TOO_NEAR
    beside.scatter_(1, partner[rows].unsqueeze(1), False)
    contrast = F.cross_entropy(logits.masked_fill(beside, -torch.inf), partner[rows])
    with torch.no_grad():
        chosen = similarity.argmax(1, keepdim=True)
        right = distance.gather(1, chosen).squeeze(1) < RIGHT
    judged = F.binary_cross_entropy_with_logits(saliency, right.float())
    return DescriptorLoss(contrast, judged, right[rows].float().mean(), right.float().mean())
