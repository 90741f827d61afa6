"""FCGF (Choy, Park, Koltun, ICCV 2019): a sparse U-Net over the fine voxels of a whole cloud.

It sees which voxels are occupied and nothing else, so what it gives depends on how the cloud is
turned; training turns clouds by chance. Layers have their published names (ResUNetBN2C), so that
a published checkpoint fits. Shapes: N cells, n points described.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vbreg.backends import devices
from vbreg.backends.neighbors import radius_knn
from vbreg.descriptors.prepared import ThinnedCloud
from vbreg.errors import FileFormatError
from vbreg.io.checkpoints import read_state_dict
from vbreg.scale import Scale
from vbreg.sparse import (
    MAX_KERNEL,
    Cells,
    Channels,
    ResUNet,
    SparseConvolution,
    levels_of,
    occupied,
)
from vbreg.weights_file import checksum, load_weights, save_weights

FINE = Scale(1.0).detail_size  # voxels: the side of a cell


@dataclass(frozen=True)
class FcgfConfig:
    """The parts of the network; what is not said is as published."""

    first_kernel: int = 7
    channels: Channels = (32, 64, 128, 256)  # down, from fine to coarse
    up_channels: Channels = (64, 64, 64, 128)  # up, the last one first
    output: int = 32

    def __post_init__(self) -> None:
        if self.first_kernel % 2 == 0 or not 1 < self.first_kernel <= MAX_KERNEL:
            raise ValueError(f"first_kernel = {self.first_kernel}: expected 3, 5 or 7")
        if min(*self.channels, *self.up_channels, self.output) < 1:
            raise ValueError(f"{self}: expected positive numbers of channels")


class DetailedCloud(NamedTuple):
    """What the network is given of a cloud; lengths are in voxels."""

    points: Tensor  # (N, 3) that can be described
    detail: Tensor  # (F, 3) finer points of the same surface
    nearest: Tensor  # (N,) rows of `detail`


def detailed(cloud: ThinnedCloud) -> DetailedCloud:
    """Return a cloud in voxels, and which of its finer points is next to each point."""
    # A point is the mean of what lies in its voxel, so some finer point is this near.
    nearest = radius_knn(cloud.detail, cloud.points, cloud.scale.normal_radius, 1)[0].squeeze(1)
    unit = cloud.scale.voxel_size
    return DetailedCloud(cloud.points / unit, cloud.detail / unit, nearest)


def fine_cells(points: Tensor, cloud: Tensor | None = None) -> tuple[Cells, Tensor]:
    """Return the cells of points (P, 3) in voxels, each of a cloud (P,), and their rows (P,)."""
    return occupied((points / FINE).floor().long(), cloud)


class FcgfNetwork(ResUNet):
    """Describes the cells of a cloud, or of several."""

    def __init__(self, config: FcgfConfig | None = None) -> None:
        config = config or FcgfConfig()
        super().__init__(
            SparseConvolution(1, config.channels[0], config.first_kernel),
            config.channels,
            config.up_channels,
            config.output,
            partial(SparseConvolution, kernel=3),
        )
        self.config = config

    def forward(self, cells: Cells, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return descriptors (N, output) of length 1 of the cells, computed in that precision."""
        ones = torch.ones(len(cells), 1, dtype=dtype, device=cells.keys.device)
        first = cells.neighbours(self.config.first_kernel)
        levels = levels_of(cells, lambda some, at: some.neighbours(3, at), first)
        return F.normalize(self.features(ones, levels).float(), dim=-1)


@torch.inference_mode()
def describe_cells(network: FcgfNetwork, cloud: ThinnedCloud, rows: Tensor) -> Tensor:
    """Return (n, D) for the points `rows` (n,) of a cloud: what the fine voxel next to each has."""
    if len(rows) == 0:
        return cloud.points.new_empty(0, network.config.output)
    seen = detailed(cloud)
    cells, row = fine_cells(seen.detail)
    found: Tensor = devices.network_on(network, cloud.points.device)(cells)
    return found[row[seen.nearest[rows]]]


class LoadedFcgf(NamedTuple):
    """A network of FCGF, and the checksum of its weights."""

    network: FcgfNetwork
    fingerprint: str


def save_fcgf(
    path: str | Path, network: FcgfNetwork, about: Mapping[str, Any] | None = None
) -> str:
    """Write weights, kernels in half precision, and configuration; return the checksum written."""
    header = {"fcgf": asdict(network.config), "about": dict(about or {})}
    return save_weights(path, network, header, half=True)


def load_fcgf(path: Path) -> LoadedFcgf:
    """Load the network of a weights file: every tensor and no other."""
    return LoadedFcgf(
        *load_weights(path, "fcgf", lambda **settings: FcgfNetwork(FcgfConfig(**settings)))
    )


def load_published(path: Path) -> LoadedFcgf:
    """Load a checkpoint of the authors' code (`.pth`, ResUNetBN2C): every tensor and no other.

    The numbers of channels follow from the shapes of its kernels.
    """
    tensors = read_state_dict(path)
    try:
        network = FcgfNetwork(_config_of(tensors))
        network.load_state_dict(tensors, strict=True)
    except (KeyError, IndexError, ValueError, RuntimeError) as error:
        raise FileFormatError(
            f"{path}: not a checkpoint of FCGF's ResUNetBN2C on occupancy alone ({error})"
        ) from error
    return LoadedFcgf(network.eval(), checksum(tensors))


def _config_of(tensors: Mapping[str, Tensor]) -> FcgfConfig:
    down = [tensors[f"conv{k}.kernel"].shape[-1] for k in (1, 2, 3, 4)]
    up = [tensors[f"conv{k}_tr.kernel"].shape[-1] for k in (1, 2, 3, 4)]
    return FcgfConfig(
        first_kernel=round(len(tensors["conv1.kernel"]) ** (1 / 3)),
        channels=(down[0], down[1], down[2], down[3]),
        up_channels=(up[0], up[1], up[2], up[3]),
        output=tensors["final.kernel"].shape[-1],
    )
