"""The call `vbreg.register(source, target, voxel_size=...)`, as users make it, among the methods.

It matches the clouds itself and tries again where a pose is in doubt, so the given matches serve
only to judge its pose.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vbreg import pretrained
from vbreg.errors import VBRegError
from vbreg.methods.common import Answer, LocalMethod, Task, pose_between_scans, undetermined
from vbreg.methods.interface import Method, Problem
from vbreg.model import VBReg
from vbreg.registration import register
from vbreg.scale import Scale
from vbreg.types import Registration
from vbreg.verification import shipped_judge


@dataclass(frozen=True, eq=False)
class RegisterMethod:
    """Registers the scans of a problem, at the voxel size that its threshold stands for."""

    model: VBReg
    fingerprint: str  # of the weights, so that cached poses are not mixed

    def __call__(self, problem: Problem) -> Registration:
        return LocalMethod(self._solve, self.model.device)(problem)

    def _solve(self, task: Task) -> Answer:
        scans = task.problem.given_scans("register")
        size = Scale.of_threshold(task.problem.inlier_threshold).voxel_size
        try:
            found = register(*scans, voxel_size=size, model=self.model)
        except VBRegError:  # too few points or matches: a pose that is not found
            return Answer(undetermined())
        T = found.T_target_source
        return Answer(pose_between_scans(task, T[:3, :3], T[:3, 3]))


def open_(device: torch.device) -> Method:
    """Open `register` with the weights that it has by default."""
    return open_weights(device, pretrained.DEFAULT)


def open_weights(device: torch.device, path: str) -> Method:
    """Open `register` with the weights of a name or a file."""
    identity = f"{pretrained.fingerprint(path)} {shipped_judge().fingerprint}"
    return RegisterMethod(VBReg.from_pretrained(path, device=device), identity)
