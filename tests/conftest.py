"""Fixtures: real data where VBREG_DATA says it lies, and synthetic problems with a known pose."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import NamedTuple

# Read by OpenMP when torch is loaded: a waiting thread sleeps instead of spinning, so that tests
# beside other work on the same cores take seconds and not minutes.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from vbreg.geometry import random_rotation
from vbreg.network import NetworkConfig, VariationalNonLocalNetwork

GPU = torch.cuda.is_available()
if not GPU:  # read where a kernel is defined: Triton then interprets it line by line
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_report_header() -> list[str]:
    """Show what the core is tested without, and whether real scans are at hand."""
    open3d = "installed" if importlib.util.find_spec("open3d") else "not installed"
    return [f"open3d: {open3d}", f"VBREG_DATA: {os.environ.get('VBREG_DATA', 'unset')}"]


@pytest.fixture(scope="session")
def data_root() -> Path:
    value = os.environ.get("VBREG_DATA")
    if not value:
        pytest.skip("needs real scans: set VBREG_DATA to the folder that holds 3dmatch/ and kitti/")
    return Path(value)


class Problem(NamedTuple):
    source: NDArray[np.float64]  # (N, 3)
    target: NDArray[np.float64]
    T: NDArray[np.float64]  # (4, 4)
    inliers: NDArray[np.bool_]  # (N,)


def make_problem(
    n: int = 300, inlier_ratio: float = 0.3, noise: float = 0.01, seed: int = 0
) -> Problem:
    """A room of 4 m, matches right with `inlier_ratio`, else to a random place."""
    rng = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)
    T = np.eye(4)
    T[:3, :3] = random_rotation(generator=generator, dtype=torch.float64).numpy()
    T[:3, 3] = rng.uniform(-2, 2, 3)
    source = rng.uniform(0, 4, (n, 3))
    inliers = rng.permutation(n) < round(inlier_ratio * n)
    wrong = rng.uniform(0, 4, (n, 3))
    target = np.where(inliers[:, None], source, wrong) @ T[:3, :3].T + T[:3, 3]
    return Problem(source, target + rng.normal(0, noise, (n, 3)), T, inliers)


@pytest.fixture
def problem() -> Problem:
    return make_problem()


@pytest.fixture(scope="session")
def small_network() -> VariationalNonLocalNetwork:
    torch.manual_seed(0)
    config = NetworkConfig(iterations=3, width=32, latent_width=16, hidden_width=24, label_width=8)
    return VariationalNonLocalNetwork(config).eval()


@pytest.fixture(scope="session")
def feat_network() -> VariationalNonLocalNetwork:
    """Like `small_network`, and it sees FPFH."""
    torch.manual_seed(0)
    config = NetworkConfig("feat", 33, 3, width=32, latent_width=16, hidden_width=24, label_width=8)
    return VariationalNonLocalNetwork(config).eval()
