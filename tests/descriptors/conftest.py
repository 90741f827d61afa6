"""Clouds of a made-up room corner with things in it, in voxels."""

import numpy as np
import pytest
import torch
from torch import Tensor

from vbreg.backends import devices
from vbreg.clouds import normals, voxel_downsample
from vbreg.descriptors.prepared import DescriptorConfig, Prepared, ThinnedCloud, prepare
from vbreg.scale import Scale

SMALL = DescriptorConfig(rings=3, width=16, depth=2, output=16)
NARROW = DescriptorConfig(azimuths=8, rings=2, heights=5, width=8, depth=1, output=8)
CONFIGS = (SMALL, NARROW)


def corner(seed: int = 0, n: int = 6000) -> Tensor:
    """Three walls that meet, and boxes on the floor: (n, 3), some 20 voxels wide."""
    rng = np.random.default_rng(seed)
    u, v = rng.uniform(0, 20, (2, n))
    zero = np.zeros(n)
    wall = rng.integers(0, 3, n)
    points = np.choose(
        wall[:, None], [np.stack(p, 1) for p in ((u, v, zero), (u, zero, v), (zero, u, v))]
    )
    for _ in range(4):
        middle, size = rng.uniform(4, 16, 2), rng.uniform(2, 5, 3)
        on_top = rng.random(300) < 0.5
        box = rng.uniform(-0.5, 0.5, (300, 3)) * size
        box[on_top, 2] = size[2] / 2
        box[~on_top, 0] = size[0] / 2
        place = np.array([*middle, size[2] / 2])
        points = np.concatenate([points, box + place])
    return torch.from_numpy(points + rng.normal(0, 0.02, points.shape)).float()


def thinned(points: Tensor) -> ThinnedCloud:
    at_voxels = voxel_downsample(points, 1.0)
    return ThinnedCloud(at_voxels, normals(at_voxels, 2.0), points, Scale(1.0))


def prepared(points: Tensor) -> Prepared:
    return prepare(thinned(points))


@pytest.fixture(params=CONFIGS, ids=("small", "narrow"))
def config(request: pytest.FixtureRequest) -> DescriptorConfig:
    found: DescriptorConfig = request.param
    return found


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """The devices that networks are asked for on; they must not be moved themselves."""
    found: list[torch.device] = []
    monkeypatch.setattr(
        devices, "network_on", lambda network, device: found.append(device) or network
    )
    monkeypatch.delattr(torch.nn.Module, "to")
    return found
