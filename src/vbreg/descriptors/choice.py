"""Which descriptor is meant: by name, by a weights file, or a function of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from vbreg.descriptors.fpfh import fpfh
from vbreg.descriptors.learned import describe_rows, load_descriptor
from vbreg.descriptors.network import DescriptorNetwork
from vbreg.descriptors.prepared import ThinnedCloud
from vbreg.errors import VBRegError
from vbreg.scale import Scale
from vbreg.weights_file import WEIGHTS_FOLDER

WEIGHTS_SUFFIX = ".safetensors"
SHIPPED = WEIGHTS_FOLDER / "descriptor.safetensors"

OwnDescriptor: TypeAlias = Callable[[Tensor, Tensor, Scale], Tensor]  # points and normals (N, 3)
DescriptorName: TypeAlias = Literal["learned", "fpfh"]
MatchingName: TypeAlias = Literal["one-way", "either-way", "mutual"]

# Of a trained descriptor, as many keypoints, looked for from either cloud, find what all find
# (docs/training.md).
ENOUGH = 1000
ENOUGH_SHARE = 0.25  # of the points, where that is more


@dataclass(frozen=True, eq=False)
class Descriptor:
    """A way to describe some points of a cloud."""

    name: str
    rows: Callable[[ThinnedCloud, Tensor], Tensor]  # rows (n,) -> (n, D); zeros: not described
    network: DescriptorNetwork | None = None
    fingerprint: str | None = None  # of the weights, so that cached poses are not mixed

    def keypoints(self, count: int) -> int:
        """Return how many of so many points are described, if nothing else is said."""
        return count if self.network is None else min(count, max(ENOUGH, int(ENOUGH_SHARE * count)))

    @property
    def matching(self) -> MatchingName:
        """How descriptors are matched, if nothing else is said."""
        return "one-way" if self.network is None else "either-way"


DescriptorChoice: TypeAlias = DescriptorName | str | Path | OwnDescriptor | Descriptor


def _fpfh() -> Descriptor:
    def rows(cloud: ThinnedCloud, rows: Tensor) -> Tensor:
        return fpfh(cloud.points, cloud.normals, cloud.scale.feature_radius)[rows]

    return Descriptor("fpfh", rows)


def _of_file(path: Path, name: str) -> Descriptor:
    network, fingerprint = load_descriptor(path)
    return Descriptor(name, partial(describe_rows, network), network, fingerprint)


@lru_cache(maxsize=1)
def _learned() -> Descriptor:
    return _of_file(SHIPPED, "learned")


DESCRIPTORS: Mapping[str, Callable[[], Descriptor]] = {"learned": _learned, "fpfh": _fpfh}


def descriptor_named(choice: DescriptorChoice) -> Descriptor:
    """Return the descriptor of that name or weights file, or that of a function."""
    if isinstance(choice, Descriptor):
        return choice
    if callable(choice):
        name = getattr(choice, "__name__", "yours")
        return Descriptor(name, partial(_own_rows, choice, name))
    if str(choice).endswith(WEIGHTS_SUFFIX):
        return _of_file(Path(choice), str(choice))
    if not isinstance(choice, str) or choice not in DESCRIPTORS:
        raise VBRegError(
            f"descriptor {choice!r}: expected {', '.join(map(repr, DESCRIPTORS))}, a file "
            f"({WEIGHTS_SUFFIX}) that `vbreg train` wrote, or a function of points (N, 3), normals "
            "(N, 3) and the scale that gives (N, D) numbers"
        )
    return DESCRIPTORS[choice]()


def _own_rows(function: OwnDescriptor, name: str, cloud: ThinnedCloud, rows: Tensor) -> Tensor:
    """Return rows (n, D) of what a user's function gives, if it is (N, D) finite numbers."""
    points = cloud.points
    found: object = function(points, cloud.normals, cloud.scale)
    try:
        table = torch.as_tensor(np.asarray(found) if not isinstance(found, Tensor) else found)
    except (TypeError, ValueError, RuntimeError) as error:
        raise VBRegError(
            f"descriptor {name!r} gave a {type(found).__name__}: expected numbers (N, D) as a "
            f"tensor or an array ({error})"
        ) from error
    if table.ndim != 2 or len(table) != len(points):
        raise VBRegError(
            f"descriptor {name!r} gave shape {tuple(table.shape)}: expected ({len(points)}, D), "
            "one row per point"
        )
    table = table.detach().to(points.device, torch.float32)
    if not bool(torch.isfinite(table).all()):
        raise VBRegError(
            f"descriptor {name!r} gave NaN or infinity: give a row of zeros to a point that it "
            "cannot describe"
        )
    return table[rows]
