"""Seconds per stage."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeAlias

from vbreg.backends import devices

Clock: TypeAlias = Callable[[str], AbstractContextManager[None]]  # of the name of a stage


def untimed(stage: str) -> AbstractContextManager[None]:
    """Return a clock that measures nothing."""
    return nullcontext()


class Stopwatch:
    """Adds up the seconds of each stage; a GPU has finished its work at both ends of one."""

    def __init__(self, on_stage: Callable[[str], None] | None = None) -> None:
        """Take a function that is told the name of each stage as it begins."""
        self.seconds: dict[str, float] = {}
        self.where = ""  # which of several rounds a stage belongs to, in words
        self._tell = on_stage or (lambda stage: None)

    def go_to(self, where: str) -> None:
        """Take note of which of several rounds the next stages belong to."""
        self.where = where

    def on_stage(self, stage: str) -> None:
        """Tell the name of a stage, and which of several rounds it belongs to."""
        self._tell(f"{stage}, {self.where}" if self.where else stage)

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Time what happens within, as part of `stage`."""
        self.on_stage(stage)
        start = self._now()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + self._now() - start

    def share(self, of: int = 1) -> dict[str, float]:
        """Return the seconds so far of each stage, as the share of one of so many problems."""
        return {stage: seconds / of for stage, seconds in self.seconds.items()}

    @staticmethod
    def _now() -> float:
        devices.wait()
        return time.perf_counter()
