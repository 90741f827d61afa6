"""vbreg: align two 3D point clouds when most of the matches between them are wrong.

    result = vbreg.register("source.ply", "target.ply", voxel_size=0.05)
    result.T_target_source

Torch is loaded when something that needs it is first asked for.
"""

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from vbreg.errors import VBRegError
from vbreg.types import Correspondences, PointCloud, Registration

if TYPE_CHECKING:  # so that a type checker knows every name, and no other
    from vbreg import (
        clouds,
        demo,
        descriptors,
        errors,
        estimation,
        geometry,
        io,
        matching,
        metrics,
        network,
        uncertainty,
        voting,
    )
    from vbreg.maps import Map
    from vbreg.model import VBReg
    from vbreg.registration import register
    from vbreg.scale import Scale
    from vbreg.scenes.reconstruction import reconstruct
    from vbreg.scenes.results import Reconstruction
else:
    _WHERE = {
        "Map": "maps",
        "VBReg": "model",
        "register": "registration",
        "Scale": "scale",
        "reconstruct": "scenes",
        "Reconstruction": "scenes",
    }

    def __getattr__(name: str) -> object:
        """Load what is heavy when it is first asked for."""
        if name in _WHERE:
            return getattr(importlib.import_module(f"vbreg.{_WHERE[name]}"), name)
        if name in __all__:  # a room
            return importlib.import_module(f"vbreg.{name}")
        raise AttributeError(f"module 'vbreg' has no attribute {name!r}; it has {__all__}")

    def __dir__() -> list[str]:
        """List what there is, whether it is loaded yet or not."""
        return sorted(__all__)


try:
    __version__ = version("vbreg")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+source"

__all__ = [
    "Correspondences",
    "Map",
    "PointCloud",
    "Reconstruction",
    "Registration",
    "Scale",
    "VBReg",
    "VBRegError",
    "__version__",
    "clouds",
    "demo",
    "descriptors",
    "errors",
    "estimation",
    "geometry",
    "io",
    "matching",
    "metrics",
    "network",
    "reconstruct",
    "register",
    "uncertainty",
    "voting",
]
