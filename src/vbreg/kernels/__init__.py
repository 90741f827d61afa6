"""Triton kernels for what would otherwise fill memory or launch hundreds of small operations.

Each computes what a function of torch elsewhere in the package computes; that function calls it
where it can. Without Triton, or without a GPU, the function of torch is all there is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from importlib.util import find_spec

import torch

MOST_BALLOTS = 8192  # correspondences that fit into the registers of a program of `ballots`
_wanted: ContextVar[bool] = ContextVar("wanted", default=True)


@lru_cache(maxsize=1)
def installed() -> bool:
    return find_spec("triton") is not None


def usable(device: torch.device) -> bool:
    """Whether kernels are to run on tensors of that device."""
    return device.type == "cuda" and _wanted.get() and installed()


@contextmanager
def switched(on: bool) -> Iterator[None]:
    """Within, kernels are used where they can be, or not at all."""
    token = _wanted.set(on)
    try:
        yield
    finally:
        _wanted.reset(token)
