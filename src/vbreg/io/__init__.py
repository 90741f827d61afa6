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
from vbreg.io.folders import cloud_files, natural_key
from vbreg.io.formats import (
    FORMATS,
    Coordinates,
    Format,
    check_readable,
    read,
    read_blocks,
    streams,
    write,
)
from vbreg.io.open3d_clouds import from_open3d, to_open3d
from vbreg.io.pickles import read_pickle
from vbreg.io.poses import read_pose
from vbreg.io.trajectories import MeasuredPose, write_g2o, write_tum

__all__ = [
    "FORMATS",
    "Coordinates",
    "Format",
    "MeasuredPose",
    "StoredCloud",
    "atomic_path",
    "check_readable",
    "cloud_files",
    "described_pair",
    "from_open3d",
    "natural_key",
    "read",
    "read_arrays",
    "read_blocks",
    "read_described_pair",
    "read_descriptors",
    "read_pickle",
    "read_pose",
    "streams",
    "to_open3d",
    "write",
    "write_g2o",
    "write_tum",
]
