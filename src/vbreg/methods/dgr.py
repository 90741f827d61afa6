"""DGR (Choy, Dong, Koltun, CVPR 2020): a convolution over matches as points of six dimensions.

A match occupies the cell of its source end and its target end together. A sparse U-Net gives each
match a weight; weighted least squares and a robust refinement give the pose, and RANSAC does where
the weights find too little.

What differs from the paper. Its kernels have a matrix for each of 3^6 offsets; ours has one for
each class of offsets (`tied_classes`), since either cloud may be turned anyhow: 2 M parameters, not
22. The robust loss is minimised by re-weighted least squares from the same start, not by Adam.
There is no ICP at the end, which none of the methods here has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vbreg.errors import FileFormatError
from vbreg.estimation import Estimate, squared_residuals
from vbreg.geometry import procrustes
from vbreg.methods import ransac
from vbreg.methods.common import Answer, LocalMethod, Task
from vbreg.methods.interface import Method
from vbreg.sparse import (
    Cells,
    Channels,
    Levels,
    ResUNet,
    TiedConvolution,
    levels_of,
    occupied,
    tied_classes,
)
from vbreg.weights_file import WEIGHTS_FOLDER, load_weights, save_weights

SHIPPED = WEIGHTS_FOLDER / "dgr.safetensors"
CELL = 0.5  # inlier thresholds: one voxel
MIN_WEIGHT = 0.05  # below, a match does not count
ENOUGH, ENOUGH_SHARE = 200.0, 0.05  # sum of the weights, and by the number of matches, to be used
SAFEGUARD_SAMPLES = 80_000  # of RANSAC, where there is less
HUBER = 1.0  # inlier thresholds up to which residuals count by their square
REFINEMENTS, SETTLED = 100, 1e-7  # steps at most, and the change of the pose that ends them


@dataclass(frozen=True)
class DgrConfig:
    """The parts of the network."""

    channels: Channels = (32, 64, 128, 128)  # down, from fine to coarse
    up_channels: Channels = (32, 32, 64, 64)  # up, the last one first

    def __post_init__(self) -> None:
        if min(*self.channels, *self.up_channels) < 1:
            raise ValueError(f"{self}: expected positive numbers of channels")


class DgrNetwork(ResUNet):
    """Tells how probable it is that each match is right. Shapes: B problems of N matches."""

    def __init__(self, config: DgrConfig | None = None) -> None:
        config = config or DgrConfig()
        first = TiedConvolution(1, config.channels[0])
        super().__init__(first, config.channels, config.up_channels, 1, TiedConvolution)
        self.config = config

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return logits (B, N) of matches (B, N, 3), (B, N, 3) in inlier thresholds."""
        B, N, _ = source.shape
        at = (torch.cat([source, target], dim=-1) / CELL).floor().long()
        number = torch.arange(B, device=at.device).repeat_interleave(N)
        cells, row = occupied(at.flatten(0, 1), number)
        ones = torch.ones(len(cells), 1, dtype=source.dtype, device=at.device)
        return self.features(ones, levels(cells)).squeeze(1)[row].view(B, N)


def levels(cells: Cells) -> Levels:
    """Return what the convolutions see of six-dimensional cells and of coarser ones."""
    classes = tied_classes(cells.keys.device)
    return levels_of(cells, lambda some, at: some.edges(3, at).in_classes(classes))


def clipped(weights: Tensor) -> Tensor:
    """Return the weights with those set to 0 that are too small to count."""
    return torch.where(weights < MIN_WEIGHT, 0.0, weights)


def robust_fit(source: Tensor, target: Tensor, weights: Tensor) -> Estimate:
    """Fit the pose of the least weighted Huber loss to matches (1, n, 3), weights (1, n).

    Each step is a weighted least squares, and none makes the loss larger.
    """
    T, sound = procrustes(source, target, weights)
    for _ in range(REFINEMENTS):
        d = squared_residuals(T, source, target).sqrt()
        before = T
        T, _ = procrustes(source, target, weights * (HUBER / d.clamp_min(HUBER)))
        if float((T - before).abs().max()) < SETTLED:
            break
    return Estimate(T, sound)


@dataclass(frozen=True, eq=False)
class DeepGlobalRegistration:
    """The pose of weighted matches, or of RANSAC where the weights find too little."""

    network: DgrNetwork

    def __call__(self, task: Task) -> Answer:
        weights = clipped(self.network(task.source, task.target).float().sigmoid())  # (1, n)
        if float(weights.sum()) < max(ENOUGH, ENOUGH_SHARE * len(task)):
            return Answer(ransac.solve(task, SAFEGUARD_SAMPLES).estimate, weights[0])
        source, target, _ = task.exact()
        return Answer(robust_fit(source, target, weights.double().cpu()), weights[0])


@dataclass(frozen=True)
class Dgr(LocalMethod):
    """The method with its weights' fingerprint, so that cached poses are not mixed."""

    fingerprint: str | None = None


class LoadedDgr(NamedTuple):
    """A network of DGR, and the checksum of its weights."""

    network: DgrNetwork
    fingerprint: str


def save_dgr(path: str | Path, network: DgrNetwork, about: Mapping[str, Any] | None = None) -> str:
    """Write weights, kernels in half precision, and configuration; return the checksum written."""
    header = {"dgr": asdict(network.config), "about": dict(about or {})}
    return save_weights(path, network, header, half=True)


def load_dgr(path: Path) -> LoadedDgr:
    """Load the network of a weights file: every tensor and no other."""
    if not path.is_file():
        raise FileFormatError(
            f"no weights of DGR at {path}: train them with `vbreg train configs/dgr.toml -o "
            "runs/dgr` and use the method 'dgr:runs/dgr/weights.safetensors'"
        )
    return LoadedDgr(
        *load_weights(path, "dgr", lambda **settings: DgrNetwork(DgrConfig(**settings)))
    )


def open_(device: torch.device) -> Method:
    """Open DGR with the weights that are shipped."""
    return open_weights(device, str(SHIPPED))


def open_weights(device: torch.device, path: str) -> Method:
    """Open DGR with the weights of a file."""
    network, fingerprint = load_dgr(Path(path))
    return Dgr(DeepGlobalRegistration(network.to(device)), device, fingerprint=fingerprint)
