"""Triton kernels for what would otherwise fill memory or launch hundreds of small operations.

Each computes what a function of torch elsewhere in the package computes; that function calls it
where it can. Without Triton, or without a GPU, the function of torch is all there is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from threading import Lock

import torch

MOST_BALLOTS = 8192  # correspondences that fit into the registers of a program of `ballots`
OLDEST = (8, 0)  # compute capability of the first GPU that the kernels are made for
_wanted: ContextVar[bool] = ContextVar("wanted", default=True)
_rounding: ContextVar[bool] = ContextVar("rounding", default=False)


@lru_cache(maxsize=1)
def installed() -> bool:
    if os.environ.get("VBREG_KERNELS") == "0":  # for a whole process, to compare with
        return False
    try:
        return int(version("triton").partition(".")[0]) >= 3
    except (PackageNotFoundError, ValueError):
        return False


def usable(device: torch.device) -> bool:
    """Whether kernels are to run on tensors of that device."""
    return device.type == "cuda" and _wanted.get() and installed() and _capable(device)


@lru_cache(maxsize=16)
def _capable(device: torch.device) -> bool:
    return torch.version.hip is None and torch.cuda.get_device_capability(device) >= OLDEST


@contextmanager
def switched(on: bool) -> Iterator[None]:
    """Within, kernels are used where they can be, or not at all."""
    token = _wanted.set(on)
    try:
        yield
    finally:
        _wanted.reset(token)


def rounding() -> bool:
    """Whether factors of products may be rounded to ten bits."""
    return _rounding.get()


@contextmanager
def tensor_cores(device: torch.device) -> Iterator[None]:
    """Within, products of float32 matrices on a GPU may round their factors to ten bits, in kernels
    and in torch."""
    if not usable(device):
        yield
        return
    token = _rounding.set(True)
    try:
        with _rounding_in_torch:
            yield
    finally:
        _rounding.reset(token)


class _RoundingInTorch:
    """Torch's own switch, which is the whole process's: the first thread to come in turns it, the
    last to leave turns it back."""

    def __init__(self) -> None:
        self.lock, self.inside, self.before = Lock(), 0, ""

    def __enter__(self) -> None:
        with self.lock:
            if self.inside == 0:
                self.before = self._set("high", "tf32")
            self.inside += 1

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.inside -= 1
            if self.inside == 0:
                self._set(self.before, self.before)

    @staticmethod
    def _set(older: str, newer: str) -> str:
        """By the older of its two switches, unless the newer one has been touched -> as it was."""
        try:
            before = torch.get_float32_matmul_precision()
        except RuntimeError:
            matmul = torch.backends.cuda.matmul
            before, matmul.fp32_precision = matmul.fp32_precision, newer
            return before
        torch.set_float32_matmul_precision(older)
        return before


_rounding_in_torch = _RoundingInTorch()
