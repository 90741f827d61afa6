"""What every method is given and gives back, so that a benchmark treats all of them alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from vbreg.errors import MissingExtraError, VBRegError
from vbreg.types import Bool, Correspondences, Float64, Registration

if TYPE_CHECKING:  # listing the methods loads no torch
    import torch

    from vbreg.frames import Matches
    from vbreg.inputs import Points
    from vbreg.matching import MatchedClouds


@dataclass(frozen=True, eq=False)
class Problem:
    """What a method is given: matches, how far apart a right one may lie, and where they come from.

    Most methods look at the matches alone. Scans are for those that start from the points as they
    were measured. `seed` is for those that draw at random.
    """

    matches: Matches  # one problem, its finite rows in local frames
    correspondences: Correspondences  # (N, 3) each, all rows in the user's frames
    valid: Bool  # (N,) which rows of the correspondences `matches` holds
    matched: MatchedClouds | None = None  # the described clouds, where the matches come from them
    scans: tuple[Float64, Float64] | None = None  # (P, 3), (Q, 3): before they were thinned
    seed: int = 0

    @staticmethod
    def of_points(
        source: Points,
        target: Points,
        inlier_threshold: float,
        *,
        scans: tuple[Float64, Float64] | None = None,
        seed: int = 0,
    ) -> Problem:
        """Make a problem of matches (N, 3) that are given row by row."""
        from vbreg.frames import Matches
        from vbreg.inputs import as_matches, finite_rows, positive_number

        unit = positive_number(inlier_threshold, "inlier_threshold")
        x, y = as_matches(source, target)
        valid = finite_rows(x, y)
        matches = Matches.of_points([x[valid]], [y[valid]], unit)
        return Problem(matches, Correspondences(x, y), valid, None, scans, seed)

    @staticmethod
    def of_clouds(
        matched: MatchedClouds,
        *,
        scans: tuple[Float64, Float64] | None = None,
        seed: int = 0,
    ) -> Problem:
        """Make a problem of clouds that the front end has matched."""
        matches = matched.matches(with_descriptors=True)
        valid = np.ones(len(matches), dtype=bool)
        return Problem(matches, matched.correspondences, valid, matched, scans, seed)

    def given_scans(self, method: str) -> tuple[Float64, Float64]:
        """Return the points of both clouds, for a method that makes its own matches."""
        if self.scans is not None:
            return self.scans
        if self.matched is None:
            raise VBRegError(
                f"method {method!r} finds its own matches: give the problem `scans`, the points of "
                "both as they were measured"
            )
        return (
            self.matched.source.surface_in_user_frame(),
            self.matched.target.surface_in_user_frame(),
        )

    @property
    def inlier_threshold(self) -> float:
        """How far apart a right match may lie, in the unit of the user's points."""
        return self.matches.unit


class Method(Protocol):
    """A function from a problem to a pose; the same problem gives the same answer."""

    def __call__(self, problem: Problem) -> Registration: ...


@dataclass(frozen=True)
class MethodEntry:
    """A row of the registry: what a method is called, needs and runs on."""

    name: str  # as given to `open_method`
    title: str  # as printed in tables
    about: str
    paper: str
    open: Callable[[torch.device], Method]
    needs: Literal["matches", "clouds"] = "matches"
    device: Literal["cpu", "cpu, cuda"] = "cpu, cuda"
    open_weights: Callable[[torch.device, str], Method] | None = None  # for `name:PATH`
    weights: str | None = None  # a file of the package that may not have been trained yet
    package: str | None = None  # an optional one that is imported when the method is opened
    extra: str | None = None  # of ours, that installs it; None where no index has it
    build: str | None = None  # where to get the package then


class MissingBuildError(MissingExtraError):
    """A package is needed here that has to be built from its sources."""

    def __init__(self, package: str, purpose: str, where: str) -> None:
        ValueError.__init__(
            self,
            f"{purpose} needs the package '{package}', which is not installed and not on PyPI: "
            f"build it from {where}",
        )
