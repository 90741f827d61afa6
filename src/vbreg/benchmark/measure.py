"""Seconds and peak memory of one call."""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch

T = TypeVar("T")
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Cost(NamedTuple):
    seconds: float
    megabytes: float | None  # beyond what was held before; None where it cannot be told


def measured(
    call: Callable[[], T], device: torch.device, *, give_back: bool = False
) -> tuple[T, Cost]:
    """What the call gives and costs, the GPU's queue drained at both ends.

    Memory is the allocator's peak on a GPU, and the process's on Linux (the kernel keeps a mark of
    the highest, which can be set back). A process keeps what earlier calls have left, and a call
    that finds it there seems to need less; `give_back` returns it first, which costs the call time.
    """
    gpu = device.type == "cuda"
    if gpu:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before: float | None = torch.cuda.memory_allocated(device) / 2**20
    else:
        if give_back:
            with contextlib.suppress(OSError, AttributeError):  # glibc's
                ctypes.CDLL("libc.so.6").malloc_trim(0)
        before = _resident() if _reset_mark() else None
    start = time.perf_counter()
    result = call()
    if gpu:
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - start
    if before is None:
        return result, Cost(seconds, None)
    peak = torch.cuda.max_memory_allocated(device) / 2**20 if gpu else _highest()
    return result, Cost(seconds, max(0.0, peak - before))


def _reset_mark() -> bool:
    try:
        RESET.write_text("5")
    except OSError:
        return False
    return STATUS.exists()


def _resident() -> float:
    return _field("VmRSS:")


def _highest() -> float:
    return _field("VmHWM:")


def _field(name: str) -> float:
    """Megabytes of a line of /proc/self/status, which counts in kB."""
    for line in STATUS.read_text().splitlines():
        if line.startswith(name):
            return float(line.split()[1]) / 1024
    return float("nan")
