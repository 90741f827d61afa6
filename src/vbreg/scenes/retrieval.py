"""Which scans may overlap, told without registering them.

Some keypoints of each scan are compared with some of every other: descriptors that are nearest
to each other both ways, and are alike, speak for a place that both scans show. One product of
matrices a pair takes about two milliseconds, where a registration takes hundreds.
Shapes: K scans, S keypoints of each, D numbers a descriptor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vbreg.matching import DescribedCloud, evenly
from vbreg.types import Float64

LOOKED_AT = 500  # keypoints of a scan
ALIKE, SLOPE = 0.85, 20.0  # similarity at which a mutual match counts half, and how steeply
MAX_SIMILARITIES = 2**22  # held at a time: 16 MB, near a CPU's cache


def similarities(
    scans: Sequence[DescribedCloud], on_done: Callable[[int], object] = lambda scans: None
) -> Float64:
    """Return how alike scans are (K, K): the share of keypoints with a mutual, alike partner.

    It is symmetric with zeros on the diagonal. `on_done` is told how many scans are compared.
    """
    K = len(scans)
    found = np.zeros((K, K))
    if K < 2:
        return found
    table = keypoint_table(scans)
    for k in range(K - 1):
        scores = _compared(table.of(k), table.after(k))
        found[k, k + 1 :] = scores.double().cpu().numpy()
        on_done(k + 2)
    return found + found.T


class KeypointTable(NamedTuple):
    """Some keypoints of every scan, to compare scans by."""

    features: Tensor  # (K, S, D) of length 1
    counts: Sequence[int]  # how many rows of each scan are keypoints

    def of(self, k: int) -> Tensor:
        """Return the keypoints (S', D) of a scan."""
        return self.features[k, : self.counts[k]]

    def after(self, k: int) -> KeypointTable:
        """Return the table of all scans after number k."""
        return KeypointTable(self.features[k + 1 :], self.counts[k + 1 :])


def keypoint_table(scans: Sequence[DescribedCloud]) -> KeypointTable:
    """Return what scans are compared by."""
    device = scans[0].descriptors.device
    width = scans[0].descriptors.shape[1]
    features = torch.zeros(len(scans), LOOKED_AT, width, device=device)
    count = []
    for k, scan in enumerate(scans):
        described = scan.descriptors[scan.descriptors.any(-1)].float()
        rows = evenly(len(described), LOOKED_AT).to(device)
        features[k, : len(rows)] = F.normalize(described[rows], dim=-1)
        count.append(len(rows))
    return KeypointTable(features, count)


def similarities_to(scan: DescribedCloud, table: KeypointTable) -> Tensor:
    """Return how alike a scan is to every scan of a table (K,), as `similarities` tells it."""
    return _compared(keypoint_table([scan]).of(0), table)


def _compared(one: Tensor, table: KeypointTable) -> Tensor:
    """Return the score (K,) of keypoints (S, D) beside those of every scan of a table."""
    chunk = max(1, MAX_SIMILARITIES // LOOKED_AT**2)
    parts = [
        _shares(one, table.features[j : j + chunk], table.counts[j : j + chunk])
        for j in range(0, len(table.counts), chunk)
    ]
    return torch.cat(parts)


def _shares(one: Tensor, others: Tensor, count: Sequence[int]) -> Tensor:
    """Return the score (n,) of keypoints (S, D) beside those of other scans (n, S', D)."""
    if len(one) == 0:
        return others.new_zeros(len(others))
    similarity = one @ others.mT  # (n, S, S')
    for row, real in enumerate(count):
        if real < similarity.shape[2]:
            similarity[row, :, real:] = -torch.inf
    value, there = similarity.max(2)  # (n, S)
    back = similarity.max(1).indices.gather(1, there)  # which keypoint the partner would choose
    mutual = (back == torch.arange(len(one), device=one.device)) & value.isfinite()
    weight = torch.sigmoid(SLOPE * (value - ALIKE)) * mutual
    fewer = torch.tensor([max(1, min(len(one), real)) for real in count], device=one.device)
    return weight.sum(1) / fewer


def first_pairs(similarity: Float64, partners: int, budget: int) -> list[tuple[int, int]]:
    """Return the pairs (i < j) that are among the `partners` best of either scan, best first.

    They are at most `budget`; where these are too few for all, each scan's best come first.
    """
    K = len(similarity)
    if K < 2:
        return []
    scores = similarity.copy()
    np.fill_diagonal(scores, -np.inf)
    order = np.argsort(-scores, axis=1, kind="stable")
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.arange(K)[None].repeat(K, 0), axis=1)
    i, j = np.triu_indices(K, 1)
    best = np.minimum(rank[i, j], rank[j, i])
    listed = np.lexsort((-similarity[i, j], best))
    chosen = [e for e in listed.tolist() if best[e] < partners][:budget]
    chosen.sort(key=lambda e: -similarity[i[e], j[e]])
    return [(int(i[e]), int(j[e])) for e in chosen]
