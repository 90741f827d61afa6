"""VBReg itself, as one method among others."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from vbreg import pretrained
from vbreg.methods.interface import Method, Problem
from vbreg.registration import VBReg
from vbreg.timing import Stopwatch
from vbreg.types import Registration


@dataclass(frozen=True, eq=False)
class VBRegMethod:
    model: VBReg
    fingerprint: str | None = None  # of the weights, so that cached poses are not mixed

    @property
    def wants_descriptors(self) -> bool:
        return self.model.network.config.input == "feat"

    def __call__(self, problem: Problem) -> Registration:
        matches = problem.correspondences
        clock = Stopwatch(None)
        with clock("estimate"):
            # No seed: the network takes the mean of its latent features, so nothing is drawn.
            result = self.model.estimate(
                matches.source,
                matches.target,
                descriptors=problem.matched_descriptors() if self.wants_descriptors else None,
                inlier_threshold=problem.inlier_threshold,
            )
        if len(result.correspondences) == len(matches):  # none were left out for lack of memory
            result = replace(result, correspondences=matches)
        return replace(result, timings=clock.seconds)


def open_(device: torch.device) -> Method:
    return open_weights(device, "indoor")


def open_weights(device: torch.device, path: str) -> Method:
    return VBRegMethod(VBReg.from_pretrained(path, device=device), pretrained.fingerprint(path))
