"""Which descriptor is meant: by name, by a weights file, or a function of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from vbreg.descriptors.fcgf import describe_cells, load_fcgf, load_published
from vbreg.descriptors.fpfh import fpfh
from vbreg.descriptors.learned import describe_rows, load_descriptor
from vbreg.descriptors.prepared import ThinnedCloud
from vbreg.errors import FileFormatError, VBRegError
from vbreg.io.checkpoints import CHECKPOINT_SUFFIX
from vbreg.scale import Scale
from vbreg.weights_file import WEIGHTS_FOLDER, read_weights

WEIGHTS_SUFFIX = ".safetensors"
SHIPPED = WEIGHTS_FOLDER / "descriptor.safetensors"
SHIPPED_FCGF = WEIGHTS_FOLDER / "fcgf.safetensors"

OwnDescriptor: TypeAlias = Callable[[Tensor, Tensor, Scale], Tensor]  # points and normals (N, 3)
DescriptorName: TypeAlias = Literal["learned", "fpfh", "fcgf"]
MatchingName: TypeAlias = Literal["one-way", "either-way", "mutual", "ratio", "two-nearest"]

# Of the learned descriptor, as many keypoints, looked for from either cloud, find what all find
# (docs/descriptor_trials.md#keypoints-and-matching).
ENOUGH = 1000
ENOUGH_SHARE = 0.25  # of the points, where that is more


@dataclass(frozen=True, eq=False)
class Descriptor:
    """A way to describe some points of a cloud."""

    name: str
    rows: Callable[[ThinnedCloud, Tensor], Tensor]  # rows (n,) -> (n, D); zeros: not described
    network: nn.Module | None = None
    fingerprint: str | None = None  # of the weights, so that cached poses are not mixed
    few_suffice: bool = False  # some keypoints, matched either way, find what all find
    # Nothing in `rows` waits for the device where a cloud says which of its rows are real, so that
    # a GPU can record it.
    recordable: bool = False

    def keypoints(self, count: int) -> int:
        """Return how many of so many points are described, if nothing else is said."""
        return min(count, max(ENOUGH, int(ENOUGH_SHARE * count))) if self.few_suffice else count

    @property
    def matching(self) -> MatchingName:
        """How descriptors are matched, if nothing else is said."""
        return "either-way" if self.few_suffice else "one-way"


DescriptorChoice: TypeAlias = DescriptorName | str | Path | OwnDescriptor | Descriptor


def _fpfh() -> Descriptor:
    def rows(cloud: ThinnedCloud, rows: Tensor) -> Tensor:
        return fpfh(cloud.points, cloud.normals, cloud.scale.feature_radius)[rows]

    return Descriptor("fpfh", rows)


def _of_file(path: Path, name: str) -> Descriptor:
    """Return the descriptor of a weights file, whose header says which network it is for."""
    if path.suffix == CHECKPOINT_SUFFIX:
        published = load_published(path)
        return Descriptor(name, partial(describe_cells, published.network), *published)
    if not path.is_file():
        raise FileFormatError(f"no weights at {path}: give a .safetensors file that vbreg wrote")
    if "fcgf" in read_weights(path)[0]:
        fcgf = load_fcgf(path)
        return Descriptor(name, partial(describe_cells, fcgf.network), *fcgf)
    learned = load_descriptor(path)
    rows = partial(describe_rows, learned.network)
    return Descriptor(name, rows, *learned, few_suffice=True, recordable=True)


@lru_cache(maxsize=1)
def _learned() -> Descriptor:
    return _of_file(SHIPPED, "learned")


@lru_cache(maxsize=1)
def _fcgf() -> Descriptor:
    if not SHIPPED_FCGF.is_file():
        raise VBRegError(
            "descriptor 'fcgf': this copy of vbreg has no weights for it; train them with `vbreg "
            "train configs/fcgf.toml -o runs/fcgf` and give runs/fcgf/weights.safetensors, give a "
            f"checkpoint of the authors' code ({CHECKPOINT_SUFFIX}), or use 'learned'"
        )
    return _of_file(SHIPPED_FCGF, "fcgf")


DESCRIPTORS: Mapping[str, Callable[[], Descriptor]] = {
    "learned": _learned,
    "fpfh": _fpfh,
    "fcgf": _fcgf,
}


def is_computed(choice: str) -> bool:
    """Tell whether text is the name of a descriptor or looks like the file of one."""
    return choice in DESCRIPTORS or choice.endswith((WEIGHTS_SUFFIX, CHECKPOINT_SUFFIX))


def is_shipped(choice: str) -> bool:
    """Tell whether a descriptor can be used without weights of the user's own.

    What is stored beside the clouds, or named by a file, can be.
    """
    return choice != "fcgf" or SHIPPED_FCGF.is_file()


def descriptor_named(choice: DescriptorChoice) -> Descriptor:
    """Return the descriptor of that name or weights file, or that of a function."""
    if isinstance(choice, Descriptor):
        return choice
    if callable(choice):
        name = getattr(choice, "__name__", "yours")
        return Descriptor(name, partial(_own_rows, choice, name))
    if isinstance(choice, str) and choice in DESCRIPTORS:
        return DESCRIPTORS[choice]()
    if isinstance(choice, str | Path) and is_computed(str(choice)):
        return _of_file(Path(choice), str(choice))
    raise VBRegError(
        f"descriptor {choice!r}: expected {', '.join(map(repr, DESCRIPTORS))}, a file "
        f"({WEIGHTS_SUFFIX}) that `vbreg train` wrote, a checkpoint of FCGF ({CHECKPOINT_SUFFIX}), "
        "or a function of points (N, 3), normals (N, 3) and the scale that gives (N, D) numbers"
    )


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
