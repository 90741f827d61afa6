"""Surfaces are made uneven here, by waves that are fixed in the world."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vbreg.simulator.meshes import Generator


@dataclass(frozen=True, eq=False)
class Waves:
    """This is a sum of plane waves; called with points (N, 3), it returns heights (N,)."""

    wave: Tensor  # (W, 3) wave vectors
    phase: Tensor  # (W,)

    def __call__(self, points: Tensor) -> Tensor:
        """Return the height (N,) at points (N, 3) of the world, of unit variance."""
        return torch.sin(points @ self.wave.T + self.phase).sum(-1) * math.sqrt(2 / len(self.wave))

    def to(self, device: torch.device | str) -> Waves:
        """Return the same waves on another device."""
        return Waves(self.wave.to(device), self.phase.to(device))


def random_waves(generator: Generator, shortest: float, longest: float, count: int = 12) -> Waves:
    """Draw `count` waves in any direction, from `shortest` to `longest` metres long."""
    direction = generator.normal(size=(count, 3))
    length = np.geomspace(shortest, longest, count)[:, None]
    wave = 2 * np.pi / length * direction / np.linalg.norm(direction, axis=-1, keepdims=True)
    phase = generator.uniform(0, 2 * np.pi, count)
    return Waves(torch.from_numpy(wave).float(), torch.from_numpy(phase).float())
