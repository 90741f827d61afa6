"""What describes a point: our own FPFH, or descriptors that the user brings along."""

from vbreg.descriptors.fpfh import fpfh
from vbreg.descriptors.precomputed import (
    Described,
    described_pair,
    read_arrays,
    read_described_pair,
    read_descriptors,
)

__all__ = [
    "Described",
    "described_pair",
    "fpfh",
    "read_arrays",
    "read_described_pair",
    "read_descriptors",
]
