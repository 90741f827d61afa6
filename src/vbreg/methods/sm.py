"""Spectral matching (Leordeanu & Hebert, ICCV 2005), as papers on outlier rejection compare it.

True matches agree with each other, so they form the main cluster of the compatibility graph, and
the leading eigenvector of its matrix is large on them. The original then picks matches one by one
under a one-to-one constraint; the compared papers take the tenth with the largest entries and fit a
pose by least squares with these entries as weights. Nothing is refined.
"""

from __future__ import annotations

import torch

from vbreg.estimation import Estimate
from vbreg.geometry import procrustes
from vbreg.methods.common import Answer, LocalMethod, Task, leading_eigenvector
from vbreg.methods.interface import Method

KEPT = 0.1  # of the matches


def solve(task: Task) -> Answer:
    """Fit a pose to the tenth of the matches with the largest eigenvector entries."""
    source, target, _ = task.exact()
    confidence = leading_eigenvector(task, diagonal=0.0)  # (n,)
    kept = max(3, int(KEPT * len(task)))
    order = confidence.argsort(descending=True, stable=True)
    weights = torch.zeros_like(confidence)
    weights[order[:kept]] = confidence[order[:kept]]
    estimate = Estimate(*procrustes(source, target, weights.double().cpu().unsqueeze(0)))
    return Answer(estimate, confidence)


def open_(device: torch.device) -> Method:
    """Open spectral matching on a device."""
    return LocalMethod(solve, device)
