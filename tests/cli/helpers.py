"""This file holds what several tests of the command line use."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from vbreg.errors import VBRegWarning
from vbreg.types import PointCloud, Registration


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


def known_pose() -> np.ndarray:
    T = np.eye(4)
    T[:3, :3] = [[0, -1, 0], [1, 0, 0], [0, 0, 1]]  # a quarter turn about z
    T[:3, 3] = [10.0, 20.0, 30.0]
    return T


@dataclass
class Search:
    """A stand-in for `registration.register` gives a known pose and remembers its options."""

    result: Registration
    error: BaseException | None = None
    options: dict[str, Any] | None = None
    warning: str | None = None
    clouds: tuple[PointCloud, ...] = ()

    def __call__(self, source: PointCloud, target: PointCloud, **options: Any) -> Registration:
        self.options, self.clouds = options, (source, target)
        if self.warning:
            warnings.warn(self.warning, VBRegWarning, stacklevel=2)
        options["on_stage"]("prepare")
        if self.error:
            raise self.error
        return self.result


def assert_one_line(outcome: Outcome, *words: str) -> None:
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.startswith("vbreg: error: ")
    assert outcome.err.count("\n") == 1
    for word in words:
        assert word in outcome.err
