"""Seconds per stage."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


class Stopwatch:
    """Seconds per stage, the GPU's queue drained at both ends."""

    def __init__(self, on_stage: Callable[[str], None] | None) -> None:
        self.seconds: dict[str, float] = {}
        self.on_stage = on_stage or (lambda stage: None)

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        self.on_stage(stage)
        start = self._now()
        yield
        self.seconds[stage] = self.seconds.get(stage, 0.0) + self._now() - start

    @staticmethod
    def _now() -> float:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        return time.perf_counter()
