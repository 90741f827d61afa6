"""What describes a point: FPFH by its name, a trained network, or a function of the user's own.

A descriptor is a function of points (N, 3), unit normals (N, 3) and the `Scale`; it returns (N, D)
numbers, a row of zeros where a point has too little round it. To ship a new one, add it to
`DESCRIPTORS` and to `DescriptorName`.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, TypeAlias

from torch import Tensor

from vbreg.descriptors.fpfh import fpfh
from vbreg.descriptors.learned import LearnedDescriptor, load_descriptor
from vbreg.errors import VBRegError
from vbreg.scale import Scale

Descriptor: TypeAlias = Callable[[Tensor, Tensor, Scale], Tensor]
DescriptorName: TypeAlias = Literal["fpfh"]
DescriptorChoice: TypeAlias = DescriptorName | str | Path | Descriptor
WEIGHTS_SUFFIX = ".safetensors"

DESCRIPTORS: Mapping[str, Descriptor] = {
    "fpfh": lambda points, normals, scale: fpfh(points, normals, scale.feature_radius),
}


def descriptor_named(descriptor: DescriptorChoice) -> Descriptor:
    """Return the descriptor of that name or weights file; a function is its own answer."""
    if callable(descriptor):
        return descriptor
    if str(descriptor).endswith(WEIGHTS_SUFFIX):
        return load_descriptor(Path(descriptor))
    if not isinstance(descriptor, str) or descriptor not in DESCRIPTORS:
        raise VBRegError(
            f"descriptor {descriptor!r}: expected {', '.join(map(repr, DESCRIPTORS))}, a file "
            f"({WEIGHTS_SUFFIX}) that `vbreg train` wrote, or a function of points (N, 3), normals "
            "(N, 3) and the scale that gives (N, D) numbers"
        )
    return DESCRIPTORS[descriptor]


__all__ = [
    "DESCRIPTORS",
    "Descriptor",
    "DescriptorChoice",
    "DescriptorName",
    "LearnedDescriptor",
    "descriptor_named",
    "fpfh",
]
