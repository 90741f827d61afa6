"""The learned descriptor as `register` uses it: weights from a file, a cloud in, numbers out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vbreg.backends import devices
from vbreg.descriptors.network import DescriptorNetwork
from vbreg.descriptors.prepared import DescriptorConfig, ThinnedCloud, prepare
from vbreg.errors import FileFormatError
from vbreg.weights_file import load_weights, save_weights


class LoadedDescriptor(NamedTuple):
    """A descriptor's network, and the checksum of its weights."""

    network: DescriptorNetwork
    fingerprint: str


@torch.inference_mode()
def describe_rows(network: DescriptorNetwork, cloud: ThinnedCloud, rows: Tensor) -> Tensor:
    """Return (n, D) for the points `rows` (n,) of a cloud, on its device."""
    found: Tensor = devices.network_on(network, cloud.points.device)(prepare(cloud), rows)
    return found


def save_descriptor(
    path: str | Path, network: DescriptorNetwork, about: Mapping[str, Any] | None = None
) -> str:
    """Write a descriptor's weights and configuration; return the checksum written."""
    header = {"descriptor": asdict(network.config), "about": dict(about or {})}
    return save_weights(path, network, header)


def load_descriptor(path: Path) -> LoadedDescriptor:
    """Load the descriptor of a weights file: every tensor and no other."""
    if not path.is_file():
        raise FileFormatError(f"no weights at {path}: give a .safetensors file that vbreg wrote")
    return LoadedDescriptor(
        *load_weights(
            path, "descriptor", lambda **settings: DescriptorNetwork(DescriptorConfig(**settings))
        )
    )
