"""vbreg: align two 3D point clouds when most of the matches between them are wrong."""

from importlib.metadata import PackageNotFoundError, version

from vbreg.types import Correspondences, PointCloud, Registration

try:
    __version__ = version("vbreg")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+source"

__all__ = ["Correspondences", "PointCloud", "Registration", "__version__"]
