"""What was computed, one line a pair: a run that was killed goes on where it stopped."""

from __future__ import annotations

import base64

import numpy as np

from vbreg.io.tables import DEVICE, Table, read_table
from vbreg.types import Bool

__all__ = ["DEVICE", "Table", "pack", "read_table", "unpack"]


def pack(mask: Bool) -> str:
    """Return a mask as text, six labels to a letter."""
    return base64.b64encode(np.packbits(mask).tobytes()).decode()


def unpack(text: str, count: int) -> Bool:
    """Return the labels (count,) that `pack` made a text of."""
    bits = np.frombuffer(base64.b64decode(text), dtype=np.uint8)
    return np.unpackbits(bits, count=count).astype(bool)
