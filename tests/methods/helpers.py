"""Problems with a known pose, and each method opened once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch

from tests.conftest import Problem as Planted
from tests.conftest import make_problem
from vbreg.geometry import random_rotation
from vbreg.methods import METHODS, Method, Problem, available, open_method
from vbreg.metrics import pose_error
from vbreg.network import NetworkConfig, VariationalNonLocalNetwork
from vbreg.types import Float64, Registration

TAU = 0.10
OURS = (
    *("vbreg", "pointdsc", "dgr", "sc2pcr", "sc2pcr++", "turboreg", "mac", "teaser"),
    *("trde", "dhvr", "ransac", "sm"),
)
OTHERS = ("teaser-official", "ransac-open3d", "fgr")
# Not of matches alone: test_bindings.py has kiss-matcher, which does its own matching; `verified`
# and `register` are compared with what users are given.
APART = ("verified", "register", "kiss-matcher")


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


def bumpy_field(rng: np.random.Generator) -> Callable[[int, float], Float64]:
    """A field of 2 m with waves. It gives so many points of it, of its first share along x."""
    waves, phases = rng.normal(size=(2, 9)) * 4, rng.uniform(0, 6, 9)

    def points(count: int, share: float) -> Float64:
        flat = rng.uniform(0, 2, (count, 2)) * [share, 1.0]
        return np.c_[flat, np.sin(flat @ waves + phases).sum(axis=1) / 12]

    return points


@cache
def bumpy_clouds() -> tuple[Float64, Float64, Float64]:
    """A bumpy field seen twice, from other points: source, target, T_target_source."""
    points, T = bumpy_field(np.random.default_rng(0)), random_pose(5)
    source, target = points(6000, 1.0), points(6000, 1.0)
    return source, moved(T, target), T


def surface_problem(seed: int, n: int = 4000, inlier_ratio: float = 0.15) -> Planted:
    """Matches as of two scans of a bumpy field: the right ones lie in the half that both show."""
    rng = np.random.default_rng(seed)
    points, T = bumpy_field(rng), random_pose(seed)
    right = np.arange(n) < round(inlier_ratio * n)
    source = np.concatenate([points(int(right.sum()), 0.5), points(int((~right).sum()), 1.0)])
    target = np.where(right[:, None], source, points(n, 1.0))
    return Planted(source, moved(T, target) + rng.normal(0, 0.01, (n, 3)), T, right)


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
