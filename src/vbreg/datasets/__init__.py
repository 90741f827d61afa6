"""Pairs of clouds with a known pose come from here: benchmarks, posed clouds, simulated rooms.

pairs = vbreg.datasets.open_pairs("3dmatch", "/data/3DMatch").select(every=10)
"""

from vbreg.datasets.catalog import KINDS, open_pairs
from vbreg.datasets.pairs import Pair, PairSequence

__all__ = ["KINDS", "Pair", "PairSequence", "open_pairs"]
