"""vbreg: align two 3D point clouds when most of the matches between them are wrong."""

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from vbreg.types import Correspondences, PointCloud, Registration

if TYPE_CHECKING:
    from vbreg.registration import VBReg, register

try:
    __version__ = version("vbreg")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+source"

__all__ = ["Correspondences", "PointCloud", "Registration", "VBReg", "__version__", "register"]


def __getattr__(name: str) -> Any:
    """Load what needs torch when it is first asked for, so that `vbreg --help` does not wait."""
    if name in ("VBReg", "register"):
        from vbreg import registration

        return getattr(registration, name)
    raise AttributeError(f"module 'vbreg' has no attribute {name!r}")
