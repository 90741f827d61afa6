"""What a descriptor is trained for: its nearest in the other scan is the same place.

Both directions of a pair; all points drawn of the other cloud compete (InfoNCE), or the hardest of
them does. All pairs of a step are looked at together, and nothing waits for the device. Shapes:
B pairs, S points of a cloud drawn by chance, D = 2 S with the partners of those of the other cloud,
d numbers of a descriptor.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from vbreg.geometry import apply

DRAWN = 1024  # points of a cloud that look for their partners in a step
MIN_ANCHORS = 2  # of them that have one, for a pair to count
SAME_PLACE = 1.0  # voxels to the point that an anchor should find
TOO_NEAR = 3.0  # voxels round the truth in which nothing counts as wrong
RIGHT = 2.0  # voxels within which a match is right
ALIKE, UNLIKE = 0.1, 1.4  # squared distance of partners, distance of others, that are good enough
MIN_TEMPERATURE = 0.01
FAR_AWAY = 1e6  # voxels, where no point is

ContrastName: TypeAlias = Literal["infonce", "hardest"]
# of similarity (B, S, D), partner (B, S) and what lies beside it (B, S, D), for each point (B, S)
Contrast: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]


class DescriptorLoss(NamedTuple):
    """Terms of the loss and how good the matches are: means over the pairs that count."""

    contrast: Tensor
    right_anchors: Tensor  # share of the anchors whose nearest is right
    inlier_ratio: Tensor  # share of all drawn points whose nearest is right
    pairs: Tensor  # how many count


class Padded(NamedTuple):
    """Points of B clouds, those behind the last of a cloud far away."""

    points: Tensor  # (B, N, 3)
    sizes: Tensor  # (B,)

    @staticmethod
    def of(clouds: Sequence[Tensor]) -> Padded:
        """Return the points of clouds (N, 3) of any sizes."""
        sizes = torch.tensor([len(cloud) for cloud in clouds], device=clouds[0].device)
        return Padded(pad_sequence(list(clouds), batch_first=True, padding_value=FAR_AWAY), sizes)

    def moved(self, T: Tensor) -> Padded:
        """Return the points moved by poses (B, 4, 4)."""
        return Padded(apply(T, self.points), self.sizes)

    def at(self, rows: Tensor) -> Tensor:
        """Return the points (B, n, 3) of rows (B, n)."""
        return self.points.gather(1, rows.unsqueeze(2).expand(-1, -1, 3))


def starts(sizes: Sequence[int], like: Tensor) -> Tensor:
    """Return the row (B, 1) at which each of B clouds begins where all follow each other."""
    begin = [0, *itertools.accumulate(sizes)][:-1]
    return torch.tensor(begin, device=like.device).unsqueeze(1)


def draw(x: Padded, y: Padded, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw rows (B, D) of sources and of targets that lie in one frame.

    The first S are drawn by chance; then come those nearest to what is drawn of the other cloud.
    """
    source, target = (_some_rows(cloud, generator) for cloud in (x, y))
    return (
        torch.cat([source, torch.cdist(y.at(target), x.points).argmin(2)], dim=1),
        torch.cat([target, torch.cdist(x.at(source), y.points).argmin(2)], dim=1),
    )


def _some_rows(clouds: Padded, generator: torch.Generator) -> Tensor:
    """Draw rows (B, S), each once where a cloud has enough of them."""
    B, N, _ = clouds.points.shape
    device = clouds.points.device
    chance = torch.rand(B, N, generator=generator, device=device)
    order = chance.masked_fill_(
        torch.arange(N, device=device) >= clouds.sizes.unsqueeze(1), 2.0
    ).argsort(1)
    turn = torch.arange(DRAWN, device=device) % clouds.sizes.unsqueeze(1)  # (B, S)
    return order.gather(1, turn)


def info_nce(similarity: Tensor, partner: Tensor, beside: Tensor, temperature: Tensor) -> Tensor:
    """Return how improbable the partner is among all that do not lie beside it."""
    logits = (similarity / temperature).masked_fill(beside, -torch.inf)
    return F.cross_entropy(logits.transpose(1, 2), partner, reduction="none")


def hardest(similarity: Tensor, partner: Tensor, beside: Tensor) -> Tensor:
    """Return FCGF's loss: the partner is to be alike, the likest of the others is to be unlike."""
    at = partner.unsqueeze(2)
    apart2 = 2 - 2 * similarity.gather(2, at).squeeze(2)  # of descriptors of length 1
    others = similarity.masked_fill(beside, -1.0).scatter(2, at, -1.0)
    apart = (2 - 2 * others.amax(2)).clamp_min(1e-6).sqrt()
    return F.relu(apart2 - ALIKE) + F.relu(UNLIKE - apart).square()


def contrast_named(name: ContrastName, log_temperature: Tensor) -> Contrast:
    """Return the loss of that name."""
    if name == "hardest":
        return hardest
    return partial(info_nce, temperature=log_temperature.exp().clamp_min(MIN_TEMPERATURE))


def pairs_loss(
    descriptors: tuple[Tensor, Tensor],  # (B, D, d) of length 1, of sources and of targets
    points: tuple[Tensor, Tensor],  # (B, D, 3), both in the target's frame, in voxels
    contrast: Contrast,
) -> DescriptorLoss:
    """Return the loss, the mean of both directions, over the pairs that overlap."""
    S = descriptors[0].shape[1] // 2
    ways = [
        _one_way(
            descriptors[a][:, :S],
            descriptors[b],
            torch.cdist(points[a][:, :S], points[b]),
            contrast,
        )
        for a, b in ((0, 1), (1, 0))
    ]
    counts = ((ways[0][-1] >= MIN_ANCHORS) & (ways[1][-1] >= MIN_ANCHORS)).float()  # (B,)
    pairs = counts.sum()
    lost, right_anchors, inlier_ratio = (
        ((one + other) / 2 * counts).sum() / pairs.clamp_min(1)
        for one, other in zip(ways[0][:-1], ways[1][:-1], strict=True)
    )
    return DescriptorLoss(lost, right_anchors, inlier_ratio, pairs)


def _one_way(
    source: Tensor,  # (B, S, d)
    target: Tensor,  # (B, D, d)
    distance: Tensor,  # (B, S, D)
    contrast: Contrast,
) -> tuple[Tensor, ...]:
    """Return the terms of each pair (B,), and at last its number of anchors."""
    nearest, partner = distance.min(2)
    anchor = (nearest < SAME_PLACE).float()  # (B, S)
    anchors = anchor.sum(1)
    similarity = source @ target.transpose(1, 2)  # (B, S, D)
    beside = (distance < TOO_NEAR).scatter(2, partner.unsqueeze(2), False)
    lost = contrast(similarity, partner, beside)  # (B, S)
    with torch.no_grad():
        chosen = similarity.argmax(2, keepdim=True)
        right = (distance.gather(2, chosen).squeeze(2) < RIGHT).float()
    of_anchors = ((part * anchor).sum(1) / anchors.clamp_min(1) for part in (lost, right))
    return *of_anchors, right.mean(1), anchors
