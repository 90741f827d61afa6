"""Decide by the verdict: a pair that fits, and a pair that has nothing in common."""

import numpy as np

import vbreg
from vbreg.demo import load

source, target, _ = load()
nothing = np.random.default_rng(0).uniform(-2, 2, (5000, 3))  # noise in place of a target


def decide(name: str, result: vbreg.Registration) -> None:
    """Print what a program would do with a pose."""
    use = (result.success_probability or 0.0) >= 0.9 and result.determined
    print(f"{name}: {'use it' if use else 'leave it'} ({result.verdict})")
    for reason in result.reasons:
        print(f"  {reason}")
    for other in result.alternatives:
        print(f"  another pose has {100 * other.probability:.1f} %")


decide("the same room", vbreg.register(source, target, voxel_size=0.05))
decide("noise", vbreg.register(source, nothing, voxel_size=0.1))
