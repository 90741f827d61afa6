"""Which kernels a GPU spends its time in, from matches to pose.

    python benchmarks/gpu_profile.py                 # 1000 and 4500 made-up matches
    python benchmarks/gpu_profile.py 20000 --plain   # without our kernels

The first line of a size is the time that a caller waits (median of 20, after a warm-up), the second
what the GPU was busy for; the rest is the host's. Then the kernels, longest first.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from made_up import THRESHOLD, made_up_matches
from torch.profiler import ProfilerActivity, profile

from vbreg.model import VBReg


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("matches", type=int, nargs="*", default=[1000, 4500])
    parser.add_argument("--weights", default="universal")
    parser.add_argument("--plain", action="store_true", help="torch alone")
    parser.add_argument("--rows", type=int, default=25)
    options = parser.parse_args()
    backend = "plain" if options.plain else "auto"
    model = VBReg.from_pretrained(options.weights, device="cuda", backend=backend)
    for n in options.matches:
        problem = made_up_matches(n)
        for _ in range(3):
            model.estimate(*problem, inlier_threshold=THRESHOLD)
        waited = []
        for _ in range(20):
            start = time.perf_counter()
            model.estimate(*problem, inlier_threshold=THRESHOLD)
            waited.append(time.perf_counter() - start)
        with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
            model.estimate(*problem, inlier_threshold=THRESHOLD)
            torch.cuda.synchronize()
        rows = [
            (event.self_device_time_total / 1e3, event.count, event.key)
            for event in seen.key_averages()
            if event.self_device_time_total > 0
        ]
        print(f"\n{n} matches: {1e3 * float(np.median(waited)):.2f} ms")
        print(f"GPU busy: {sum(ms for ms, _, _ in rows):.2f} ms")
        for ms, count, key in sorted(rows, reverse=True)[: options.rows]:
            print(f"{ms:8.3f} ms {count:5} x {key[:100]}")


if __name__ == "__main__":
    main()
