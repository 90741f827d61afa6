"""What every method is given and gives back, so that a benchmark treats all of them alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from vbreg.errors import MissingExtraError, VBRegError
from vbreg.types import Correspondences, Float32, Float64, Registration

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, eq=False)
class Problem:
    """What a method is given: matches, how far apart a true one may lie, and where they come from.

    Most methods look at the matches alone. Clouds and descriptors are for those that match anew;
    the indices of the matches point into them. Scans are for those that start from the points as
    they were measured. `seed` is for those that draw at random.
    """

    correspondences: Correspondences  # (N, 3) each: one problem, not a batch
    inlier_threshold: float  # in the unit of the points
    clouds: tuple[Float64, Float64] | None = None  # (N, 3), (M, 3): the points that were described
    descriptors: tuple[Float32, Float32] | None = None  # (N, D), (M, D), of those points
    scans: tuple[Float64, Float64] | None = None  # (P, 3), (Q, 3): before they were thinned
    seed: int = 0

    def __post_init__(self) -> None:
        for role in ("source", "target"):
            shape = getattr(self.correspondences, role).shape
            if len(shape) != 2 or shape[1] != 3:
                raise VBRegError(f"{role} matches have shape {shape}: expected (N, 3)")
        if not (math.isfinite(self.inlier_threshold) and self.inlier_threshold > 0):
            raise VBRegError(
                f"inlier_threshold {self.inlier_threshold!r}: expected a positive number in the "
                "unit of the points"
            )

    def matched_descriptors(self) -> tuple[Float32, Float32] | None:
        """(N, D) each, row by row with the matches; None where there are none."""
        i, j = self.correspondences.source_index, self.correspondences.target_index
        if self.descriptors is None or i is None or j is None:
            return None
        return self.descriptors[0][i], self.descriptors[1][j]


class Method(Protocol):
    """Matches in, pose out. The same problem gives the same answer."""

    def __call__(self, problem: Problem) -> Registration: ...


@dataclass(frozen=True)
class Entry:
    """A row of the registry."""

    name: str  # as given to `open_method`
    title: str  # as printed in tables
    about: str
    paper: str
    open: Callable[[torch.device], Method]
    needs: str = "matches"
    device: str = "cpu, cuda"
    open_weights: Callable[[torch.device, str], Method] | None = None  # for `name:PATH`
    package: str | None = None  # an optional one that is imported when the method is opened
    extra: str | None = None  # of ours, that installs it; None where no index has it
    build: str | None = None  # where to get the package then


class MissingBuildError(MissingExtraError):
    """As MissingExtraError, for a package that has to be built from its sources."""

    def __init__(self, package: str, purpose: str, where: str) -> None:
        ValueError.__init__(
            self,
            f"{purpose} needs the package '{package}', which is not installed and not on PyPI: "
            f"build it from {where}",
        )
