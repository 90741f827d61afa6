"""Problems with a known pose, and each method opened once."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from tests.conftest import make_problem
from vbreg.geometry import random_rotation
from vbreg.methods import METHODS, Method, Problem, available, open_method
from vbreg.metrics import pose_error
from vbreg.network import NetworkConfig, VariationalNonLocalNetwork
from vbreg.types import Float64, Registration

TAU = 0.10
OURS = (
    *("vbreg", "pointdsc", "sc2pcr", "sc2pcr++", "turboreg", "mac", "teaser"),
    *("trde", "dhvr", "ransac", "sm"),
)
OTHERS = ("teaser-official", "ransac-open3d", "fgr")  # kiss-matcher does its own matching


def parameters(*names: str) -> list[object]:
    """One per method; those of Open3D are for `make test-baselines`, KISS-Matcher is here too."""
    marks = {
        name: [
            pytest.mark.baselines,
            pytest.mark.skipif(
                not available(name), reason=f"needs the package {METHODS[name].package}"
            ),
        ]
        for name in names
        if METHODS[name].package is not None
    }
    return [pytest.param(name, marks=marks.get(name, [])) for name in names]


@cache
def opened(name: str) -> Method:
    """On the CPU, with the weights it comes with."""
    return open_method(name, "cpu")


def untrained() -> VariationalNonLocalNetwork:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return VariationalNonLocalNetwork(NetworkConfig(variational=False, iterations=6)).eval()


def posed(source: Float64, target: Float64) -> Problem:
    """Make a problem of matches with the threshold of these tests."""
    return Problem.of_points(source, target, TAU)


@cache
def bumpy_clouds() -> tuple[Float64, Float64, Float64]:
    """A bumpy field of 2 m seen twice, from other points: source, target, T_target_source."""
    rng = np.random.default_rng(0)
    waves, phases = rng.normal(size=(2, 9)) * 4, rng.uniform(0, 6, 9)
    T = random_pose(5)
    clouds = []
    for _ in range(2):
        flat = rng.uniform(0, 2, (6000, 2))
        clouds.append(np.c_[flat, np.sin(flat @ waves + phases).sum(axis=1) / 12])
    return clouds[0], moved(T, clouds[1]), T


def random_pose(seed: int, reach: float = 2.0) -> Float64:
    T = np.eye(4)
    generator = torch.Generator().manual_seed(seed)
    T[:3, :3] = random_rotation(generator=generator, dtype=torch.float64).numpy()
    T[:3, 3] = np.random.default_rng(seed).uniform(-reach, reach, 3)
    return T


def moved(T: Float64, points: Float64) -> Float64:
    return points @ T[:3, :3].T + T[:3, 3]


def solved(
    name: str, n: int, inlier_ratio: float, noise: float = 0.01, seed: int = 0
) -> tuple[Registration, Float64]:
    """The answer to a synthetic problem, and the truth."""
    problem = make_problem(n, inlier_ratio, noise, seed)
    return opened(name)(posed(problem.source, problem.target)), problem.T


def error(T: Float64, truth: Float64) -> tuple[float, float]:
    """Degrees and metres."""
    found = pose_error(torch.from_numpy(T), torch.from_numpy(truth))
    return float(found.rotation), float(found.translation)
