"""VBReg itself, as one method among others."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vbreg import pretrained
from vbreg.methods.interface import Method, Problem
from vbreg.model import VBReg
from vbreg.types import Registration
from vbreg.verification import shipped_judge


@dataclass(frozen=True, eq=False)
class VBRegMethod:
    """Solves matched clouds as one attempt of `vbreg.register`, and given matches as `estimate`.

    `verify` is the choice by the clouds and the refinement on them; without, it is the paper's
    method, to which the matches are all.
    """

    model: VBReg
    fingerprint: str | None = None  # of the weights, so that cached poses are not mixed
    verify: bool = False

    def __call__(self, problem: Problem) -> Registration:
        if problem.matched is not None:
            return self.model.solve(problem.matched, verify=self.verify)
        given = problem.correspondences
        return self.model.estimate(
            given.source, given.target, inlier_threshold=problem.inlier_threshold
        )


def open_(device: torch.device) -> Method:
    """Open VBReg with the large network."""
    return open_weights(device, "universal")


def open_weights(device: torch.device, path: str) -> Method:
    """Open VBReg with the weights of a name or a file."""
    return VBRegMethod(VBReg.from_pretrained(path, device=device), pretrained.fingerprint(path))


def open_verified(device: torch.device) -> Method:
    """Open VBReg with verification and refinement, in one attempt on the given matches."""
    return open_verified_weights(device, pretrained.DEFAULT)


def open_verified_weights(device: torch.device, path: str) -> Method:
    """Open the same with the weights of a name or a file."""
    model = VBReg.from_pretrained(path, device=device)
    identity = f"{pretrained.fingerprint(path)} {shipped_judge().fingerprint}"
    return VBRegMethod(model, identity, verify=True)
