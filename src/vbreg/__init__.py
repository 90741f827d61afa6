"""vbreg: align two 3D point clouds when most of the matches between them are wrong."""

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from vbreg.types import Correspondences, PointCloud, Registration

if TYPE_CHECKING:
    from vbreg.registration import VBReg, register

try:
    __version__ = version("vbreg")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+source"

STAGES = (
    "io",
    "clouds",
    "descriptors",
    "correspondences",
    "network",
    "voting",
    "estimation",
    "geometry",
    "metrics",
    "errors",
)

__all__ = ["Correspondences", "PointCloud", "Registration", "VBReg", "__version__", "register"]


def __getattr__(name: str) -> Any:
    """Load what is heavy when it is first asked for, so that `vbreg --help` does not wait."""
    if name in ("VBReg", "register"):
        return getattr(importlib.import_module("vbreg.registration"), name)
    if name in STAGES:
        return importlib.import_module(f"vbreg.{name}")
    raise AttributeError(f"module 'vbreg' has no attribute {name!r}")
