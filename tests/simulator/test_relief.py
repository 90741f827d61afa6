"""Waves have the height that they are asked for, are fixed in the world and repeat."""

import numpy as np
import pytest
import torch

from vbreg.simulator.relief import random_waves


def test_waves_have_unit_variance_and_repeat() -> None:
    points = 50 * torch.rand(20000, 3, generator=torch.Generator().manual_seed(0))
    one, again = (random_waves(np.random.default_rng(1), 0.2, 2.0) for _ in range(2))
    assert abs(float(one(points).mean())) < 0.05
    assert float(one(points).std()) == pytest.approx(1, abs=0.05)
    assert torch.equal(one(points), again(points))


def test_waves_are_as_long_as_asked() -> None:
    waves = random_waves(np.random.default_rng(0), 0.5, 4.0, count=5)
    length = 2 * np.pi / torch.linalg.vector_norm(waves.wave, dim=-1)
    assert length.tolist() == pytest.approx(np.geomspace(0.5, 4.0, 5).tolist(), rel=1e-5)
