"""Which kernels a GPU spends its time in, from matches to pose or from clouds.

    python benchmarks/gpu_profile.py                 # 1000 and 4500 made-up matches
    python benchmarks/gpu_profile.py 20000 --plain   # without our kernels
    python benchmarks/gpu_profile.py --clouds        # `register` on the demo pair

The first line of a size is the time that a caller waits (median of 20, after a warm-up), the second
what the GPU was busy for; the rest is the host's. Of clouds the stages follow. Then the kernels,
longest first.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from made_up import THRESHOLD, made_up_matches
from torch.profiler import ProfilerActivity, profile

from vbreg import demo
from vbreg.backends import VARIABLE, devices
from vbreg.model import VBReg
from vbreg.registration import register
from vbreg.types import Registration

WARM_UP, REPEATS = 4, 20  # a size of clouds is recorded when it is met for the third time
VOXEL_SIZE = 0.05  # of the demo pair


def waited(solve: Callable[[], Registration]) -> tuple[float, list[Registration]]:
    """Return the milliseconds that a caller waits, and all results."""
    for _ in range(WARM_UP):
        solve()
    times, found = [], []
    for _ in range(REPEATS):
        devices.wait()
        start = time.perf_counter()
        found.append(solve())
        times.append(time.perf_counter() - start)
    return 1e3 * float(np.median(times)), found


def show_stages(found: list[Registration]) -> None:
    """Print the median milliseconds of each stage."""
    for stage in found[0].timings:
        ms = 1e3 * float(np.median([result.timings[stage] for result in found]))
        print(f"{ms:8.3f} ms {stage}")


def show_kernels(solve: Callable[[], Registration], most: int) -> None:
    """Print what one call keeps the GPU busy with."""
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        solve()
        devices.wait()
    rows = [
        (event.self_device_time_total / 1e3, event.count, event.key)
        for event in seen.key_averages()
        if event.device_type == torch.autograd.DeviceType.CUDA  # not torch's calls behind them
    ]
    print(f"GPU busy: {sum(ms for ms, _, _ in rows):.2f} ms")
    for ms, count, key in sorted(rows, reverse=True)[:most]:
        print(f"{ms:8.3f} ms {count:5} x {key[:100]}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("matches", type=int, nargs="*", default=[1000, 4500])
    parser.add_argument("--clouds", action="store_true", help="the demo pair, in place of matches")
    parser.add_argument("--weights", help="of the network; left out, universal, or fast of clouds")
    parser.add_argument("--plain", action="store_true", help="torch alone")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rows", type=int, default=25)
    options = parser.parse_args()
    if options.plain:
        os.environ[VARIABLE] = "plain"
    weights = options.weights or ("fast" if options.clouds else "universal")
    model = VBReg.from_pretrained(weights, device=options.device)
    if options.clouds:
        source, target = (cloud.points for cloud in demo.load()[:2])
        solve = partial(register, source, target, voxel_size=VOXEL_SIZE, model=model)
        ms, found = waited(solve)
        print(f"\nclouds of {len(source)} and {len(target)} points: {ms:.2f} ms")
        show_stages(found)
        show_kernels(solve, options.rows)
        return
    for n in options.matches:
        solve = partial(model.estimate, *made_up_matches(n), inlier_threshold=THRESHOLD)
        ms, _ = waited(solve)
        print(f"\n{n} matches: {ms:.2f} ms")
        show_kernels(solve, options.rows)


if __name__ == "__main__":
    main()
