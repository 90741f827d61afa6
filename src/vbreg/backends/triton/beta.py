"""The spatial compatibility of Eq. 2 inside a kernel, from coordinates."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def beta_of(source_squared, target_squared):
    """Return max(0, 1 - d^2) from squared distances in source and target, of any shape."""
    difference = tl.sqrt(source_squared) - tl.sqrt(target_squared)
    return tl.maximum(1.0 - difference * difference, 0.0)


def coordinates(source: Tensor, target: Tensor) -> Tensor:
    """Return (B, 6, N) of source, target (B, N, 3): one row per axis, as the kernels read them."""
    return torch.cat([source, target], dim=-1).transpose(1, 2).contiguous()
