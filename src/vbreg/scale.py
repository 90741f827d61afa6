"""Every length that follows from the voxel size, in one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from vbreg.errors import VBRegError
from vbreg.inputs import positive_number

PresetName: TypeAlias = Literal["indoor", "outdoor"]

VOXEL_SIZES: Mapping[str, float] = {"indoor": 0.05, "outdoor": 0.30}  # metres, by preset

INLIER_THRESHOLD = 2.0  # voxels; so are the next three
_NORMAL_RADIUS = 2.0
_FEATURE_RADIUS = 5.0
_DETAIL_SIZE = 0.5


@dataclass(frozen=True)
class Scale:
    """The voxel size of a registration, and every radius that follows from it."""

    voxel_size: float  # in the unit of the points

    def __post_init__(self) -> None:
        object.__setattr__(self, "voxel_size", positive_number(self.voxel_size, "voxel_size"))

    @staticmethod
    def of_threshold(inlier_threshold: float) -> Scale:
        """Return the scale whose inlier threshold this is."""
        return Scale(inlier_threshold / INLIER_THRESHOLD)

    @staticmethod
    def of_preset(name: PresetName) -> Scale:
        """Return the scale for a kind of scan, in metres: 'indoor' or 'outdoor'."""
        if name not in VOXEL_SIZES:
            raise VBRegError(f"unknown preset {name!r}: expected one of {', '.join(VOXEL_SIZES)}")
        return Scale(VOXEL_SIZES[name])

    @property
    def inlier_threshold(self) -> float:
        """How far apart the two ends of a right match may lie."""
        return INLIER_THRESHOLD * self.voxel_size

    @property
    def normal_radius(self) -> float:
        """The radius of the neighbourhood that gives a normal."""
        return _NORMAL_RADIUS * self.voxel_size

    @property
    def detail_size(self) -> float:
        """The voxel size of the finer points that show a learned descriptor the relief."""
        return _DETAIL_SIZE * self.voxel_size

    @property
    def feature_radius(self) -> float:
        """The radius of the neighbourhood that a local descriptor sees."""
        return _FEATURE_RADIUS * self.voxel_size
