"""When the program began, as far as it can tell: imported before what takes long to load."""

from __future__ import annotations

import importlib
import time

BEGAN = time.perf_counter()


def load_torch() -> float:
    """Load what computes, which takes seconds; return how long the program has run by then."""
    importlib.import_module("vbreg.registration")
    return time.perf_counter() - BEGAN
