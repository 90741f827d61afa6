"""Point clouds from files and into files, and points that another program has described.

cloud = vbreg.io.read("scan.ply")
vbreg.io.write("aligned.ply", result.apply_to(cloud))
"""

from vbreg.io.atomic import atomic_path
from vbreg.io.described import (
    StoredCloud,
    described_pair,
    read_arrays,
    read_described_pair,
    read_descriptors,
)
from vbreg.io.formats import FORMATS, Format, read, write
from vbreg.io.pickles import read_pickle

__all__ = [
    "FORMATS",
    "Format",
    "StoredCloud",
    "atomic_path",
    "described_pair",
    "read",
    "read_arrays",
    "read_described_pair",
    "read_descriptors",
    "read_pickle",
    "write",
]
