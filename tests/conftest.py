"""Fixtures: real data where VBREG_DATA says it lies, and synthetic problems with a known pose."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from collections.abc import Iterator
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

from vbreg import backends
from vbreg.backends.cpu import CPUBackend
from vbreg.backends.plain import Backend
from vbreg.geometry import random_rotation
from vbreg.model import VBReg
from vbreg.network import NetworkConfig, VariationalNonLocalNetwork

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")  # that kernels run on
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


SMALL = NetworkConfig(iterations=3, width=32, latent_width=16, hidden_width=24, label_width=8)


def fresh(config: NetworkConfig) -> VariationalNonLocalNetwork:
    """An untrained network, the same in every call."""
    torch.manual_seed(0)
    return VariationalNonLocalNetwork(config).eval()


@pytest.fixture
def small_network() -> VariationalNonLocalNetwork:
    """A network of the test's own: what one test does to it, no other sees."""
    return fresh(SMALL)


@pytest.fixture
def feat_network() -> VariationalNonLocalNetwork:
    """Like `small_network`, and it sees FPFH."""
    return fresh(dataclasses.replace(SMALL, input="feat", descriptor_width=33))


@pytest.fixture(scope="session")
def fast() -> VBReg:
    return VBReg.from_pretrained("fast", device="cpu")


class Form(NamedTuple):
    """A backend as the laws are tested with it."""

    backend: Backend
    device: torch.device
    dtype: torch.dtype  # that all its forms take, the quick ones included

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor on the device; numbers in the precision."""
        return tensor.to(self.device, self.dtype if tensor.is_floating_point() else tensor.dtype)

    def close(self, exact: float, rounded: float) -> dict[str, float]:
        """Tolerances: as strict as double precision allows, or as single precision does."""
        return dict.fromkeys(("atol", "rtol"), exact if self.dtype == torch.float64 else rounded)


def form_of(name: str) -> Form:
    if name == "cpu":
        return Form(CPUBackend(), torch.device("cpu"), torch.float64)
    if name == "triton":
        pytest.importorskip("triton", reason="needs Triton, which is for Linux")
        from vbreg.backends.triton import TritonBackend

        return Form(TritonBackend(rounding=False), DEVICE, torch.float32)
    return Form(Backend(), torch.device("cpu"), torch.float64)


@pytest.fixture(
    scope="session", params=["plain", "cpu", pytest.param("triton", marks=pytest.mark.slow)]
)
def form(request: pytest.FixtureRequest) -> Form:
    """Every law of the science is tested once with each of these.

    Triton's interpreter is slow; `backends/test_triton.py` compares its kernels in every run.
    """
    return form_of(request.param)


@pytest.fixture(autouse=True)
def _backends_as_new() -> Iterator[None]:
    """A backend that failed in one test is tried again in the next."""
    backends._failed.clear()
    yield
    backends._failed.clear()
