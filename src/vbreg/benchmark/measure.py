"""Seconds and peak memory of one call."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch

from vbreg.backends import devices

T = TypeVar("T")


class Cost(NamedTuple):
    """What a call costs."""

    seconds: float
    megabytes: float | None  # beyond what was held before; None where it cannot be told


def measured(
    call: Callable[[], T], device: torch.device, *, give_back: bool = False
) -> tuple[T, Cost]:
    """Return what the call gives and costs, the GPU's queue drained at both ends.

    A process keeps what earlier calls have left, and a call that finds it there seems to need less
    memory; `give_back` returns it first, which costs the call time.
    """
    devices.wait(device)
    before = devices.start_peak(device, give_back=give_back)
    start = time.perf_counter()
    result = call()
    devices.wait(device)
    seconds = time.perf_counter() - start
    if before is None:
        return result, Cost(seconds, None)
    return result, Cost(seconds, max(0.0, devices.peak(device) - before))
