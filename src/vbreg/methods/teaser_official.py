"""TEASER++ by its authors (MIT-SPARK/TEASER-plusplus), through the binding `teaserpp_python`."""

from __future__ import annotations

import numpy as np
import torch

from vbreg.methods.common import Answer, LocalMethod, Task, pose
from vbreg.methods.interface import Method
from vbreg.methods.teaser import GNC_FACTOR, GNC_ROUNDS, GNC_SETTLED, NOISE


def solve(task: Task) -> Answer:
    """Ask the authors' solver, with the settings that ours has."""
    import teaserpp_python

    solver_type = teaserpp_python.RobustRegistrationSolver
    parameters = solver_type.Params()
    parameters.noise_bound = NOISE
    parameters.cbar2 = 1.0
    parameters.estimate_scaling = False
    parameters.rotation_estimation_algorithm = solver_type.ROTATION_ESTIMATION_ALGORITHM.GNC_TLS
    parameters.rotation_gnc_factor = GNC_FACTOR
    parameters.rotation_max_iterations = GNC_ROUNDS
    parameters.rotation_cost_threshold = GNC_SETTLED
    solver = solver_type(parameters)
    source, target = (end[0].numpy() for end in task.exact()[:2])
    solver.solve(np.asfortranarray(source.T), np.asfortranarray(target.T))
    found = solver.getSolution()
    return Answer(
        pose(np.asarray(found.rotation), np.asarray(found.translation), found=bool(found.valid))
    )


def open_(device: torch.device) -> Method:
    """Open the authors' TEASER++."""
    return LocalMethod(solve, device, external=True)
