"""How good the weights are by now: whole registrations of match sets that training never sees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from vbreg.datasets.matches import MatchSet
from vbreg.metrics import classification, pose_error
from vbreg.model import VBReg
from vbreg.network import VariationalNonLocalNetwork
from vbreg.training.descriptors import CloudDescriptors
from vbreg.types import Registration
from vbreg.voting import VotingConfig

ROTATION, TRANSLATION = 15.0, 3.0  # a success: degrees, and inlier thresholds (30 cm at 10 cm)
MAX_SETS = 96  # sets that are looked at, spread evenly over those given


class Validation(NamedTuple):
    """How good a network is on match sets that it was not trained on."""

    recall: float  # share of sets whose pose is right
    inlier_precision: float  # of confidence > 1/2, mean over sets, as the next two
    inlier_recall: float
    inlier_f1: float


def validate(
    network: VariationalNonLocalNetwork,
    sets: Sequence[MatchSet],
    descriptors: CloudDescriptors | None = None,
    voting: VotingConfig | None = None,
) -> Validation:
    """Register match sets with the network, and judge poses and inlier labels."""
    model = VBReg(network, voting=voting)
    return judged(
        sets,
        lambda match_set: model.estimate(
            match_set.source,
            match_set.target,
            descriptors=descriptors.of(match_set) if descriptors is not None else None,
            inlier_threshold=match_set.inlier_threshold,
        ),
    )


def judged(sets: Sequence[MatchSet], solve: Callable[[MatchSet], Registration]) -> Validation:
    """Return how good what solves match sets is, by poses and by inlier labels."""
    rows = []
    for k in np.unique(np.linspace(0, len(sets) - 1, min(MAX_SETS, len(sets))).round().astype(int)):
        match_set = sets[k]
        result = solve(match_set)
        error = pose_error(
            torch.from_numpy(result.T_target_source), torch.from_numpy(match_set.T_target_source)
        )
        success = error.success(ROTATION, TRANSLATION * match_set.inlier_threshold)
        predicted = torch.from_numpy(result.confidence > 0.5)
        scores = classification(predicted, torch.from_numpy(match_set.labels))
        rows.append([float(success), *map(float, scores)])
    return Validation(*np.mean(rows, axis=0).tolist())
