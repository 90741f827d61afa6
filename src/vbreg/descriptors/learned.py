"""The learned descriptor as `register` uses it: weights from a file, a cloud in, numbers out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vbreg.descriptors.network import DescriptorNetwork
from vbreg.descriptors.prepared import DescriptorConfig, prepare
from vbreg.errors import FileFormatError
from vbreg.scale import Scale
from vbreg.weights_file import do_not_fit, fill, read_weights, save_weights


class Described(NamedTuple):
    """What the network says of each point."""

    descriptors: Tensor  # (N, D), each of length 1, or of zeros where a point was left out
    saliency: Tensor  # (N,) logit that the nearest descriptor in another scan is the right one


class LearnedDescriptor:
    """Describes points by a trained network; all lengths are taken in units of the voxel size."""

    def __init__(self, network: DescriptorNetwork, fingerprint: str | None = None) -> None:
        self.network = network.eval()
        self.fingerprint = fingerprint  # of the weights, so that cached poses are not mixed

    def __call__(self, points: Tensor, normals: Tensor, scale: Scale) -> Tensor:
        """Return (N, D) for points (N, 3), one a voxel, that are all that is known of a cloud."""
        return self.with_detail(points, normals, points, scale).descriptors

    @torch.inference_mode()
    def with_detail(
        self,
        points: Tensor,
        normals: Tensor,
        detail: Tensor,
        scale: Scale,
        keypoints: int | None = None,
    ) -> Described:
        """Describe points (N, 3), one a voxel, of a cloud whose finer points are `detail`.

        With `keypoints`, at most so many are described, the most salient; the others get zeros.
        """
        network = self.network.to(points.device)
        cloud = prepare(points, normals, detail, scale, network.config)
        saliency = network.judge(cloud)
        rows = torch.arange(len(points), device=points.device)
        if keypoints is not None and keypoints < len(points):
            rows = saliency.topk(keypoints).indices.sort().values
        found = network.describe(cloud, rows)
        whole = found.new_zeros(len(points), found.shape[1]).index_copy_(0, rows, found)
        return Described(whole, saliency)


def save_descriptor(
    path: str | Path, network: DescriptorNetwork, about: Mapping[str, Any] | None = None
) -> str:
    """Write a descriptor's weights and configuration; return the checksum written."""
    header = {"descriptor": asdict(network.config), "about": dict(about or {})}
    return save_weights(path, network, header)


def load_descriptor(path: Path) -> LearnedDescriptor:
    """Load the descriptor of a weights file: every tensor and no other."""
    if not path.is_file():
        raise FileFormatError(f"no weights at {path}: give a .safetensors file that vbreg wrote")
    header, tensors = read_weights(path)
    try:
        values: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in header["descriptor"].items()
        }
        network = DescriptorNetwork(DescriptorConfig(**values))
    except (KeyError, TypeError, ValueError) as error:
        raise do_not_fit(path, error) from error
    fill(network, tensors, header, path)
    return LearnedDescriptor(network, header["sha256"])
