"""Labels of matches as text, for a row of a table."""

from __future__ import annotations

import base64

import numpy as np

from vbreg.types import Bool


def pack(mask: Bool) -> str:
    """Return a mask as text, six labels to a letter."""
    return base64.b64encode(np.packbits(mask).tobytes()).decode()


def unpack(text: str, count: int) -> Bool:
    """Return the labels (count,) that `pack` made a text of."""
    bits = np.frombuffer(base64.b64decode(text), dtype=np.uint8)
    return np.unpackbits(bits, count=count).astype(bool)
