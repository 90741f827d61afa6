"""What describes a point: a trained network, FPFH, or a function of the user's own.

To ship a new one, add it to `DESCRIPTORS` and to `DescriptorName`.
"""

from vbreg.descriptors.choice import (
    DESCRIPTORS,
    Descriptor,
    DescriptorChoice,
    DescriptorName,
    MatchingName,
    OwnDescriptor,
    descriptor_named,
    is_computed,
    is_shipped,
)
from vbreg.descriptors.fpfh import fpfh
from vbreg.descriptors.prepared import ThinnedCloud

__all__ = [
    "DESCRIPTORS",
    "Descriptor",
    "DescriptorChoice",
    "DescriptorName",
    "MatchingName",
    "OwnDescriptor",
    "ThinnedCloud",
    "descriptor_named",
    "fpfh",
    "is_computed",
    "is_shipped",
]
