"""Pairs a second and memory of a training step, eager and compiled, on made-up matches.

    python benchmarks/training_speed.py                      (the GPU if there is one)
    python benchmarks/training_speed.py --sizes 256 1024 --steps 20

The ratio in the last column is to the eager step of the same size in the same run.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

import numpy as np
import torch

from vbreg.datasets.matches import MatchSet
from vbreg.network import NetworkConfig
from vbreg.registration import choose_device
from vbreg.training.batches import MatchSampler
from vbreg.training.config import DataConfig, TrainConfig
from vbreg.training.loop import Run
from vbreg.training.workers import Workers


def made_up(count: int, matches: int, generator: np.random.Generator) -> list[MatchSet]:
    """Rooms of 4 m with one match in ten right."""
    sets = []
    for k in range(count):
        source = generator.uniform(0, 4, (matches, 3)).astype(np.float32)
        right = generator.random(matches) < 0.1
        target = np.where(right[:, None], source, generator.uniform(0, 4, (matches, 3)))
        target = target.astype(np.float32)
        index = np.arange(matches)
        sets.append(MatchSet(str(k), source, target, index, right, np.eye(4), 0.5))
    return sets


def measure(config: TrainConfig, sampler: MatchSampler, device: torch.device, steps: int) -> str:
    run = Run(config, Workers(0, 1, device), sampler)
    began = time.perf_counter()
    for _ in range(3):
        run.step()
    synchronize(device)
    start = time.perf_counter() - began
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(steps):
        began = time.perf_counter()
        run.step()
        synchronize(device)
        times.append(time.perf_counter() - began)
    pairs = config.data.correspondences // config.data.sizes[0]
    memory = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else float("nan")
    middle = float(np.median(times))
    measure.eager[config.data.sizes] = measure.eager.get(config.data.sizes, middle)  # type: ignore[attr-defined]
    ratio = measure.eager[config.data.sizes] / middle  # type: ignore[attr-defined]
    return (
        f"{config.data.sizes[0]:6} {'compiled' if config.compile else 'eager':>9} "
        f"{1e3 * middle:8.1f} ms {pairs / middle:8.0f} pairs/s {memory:7.1f} GiB "
        f"{start:7.1f} s to start {ratio:5.2f}x"
    )


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--correspondences", type=int, default=40960)
    parser.add_argument("--plain", action="store_true", help="the network without latent branches")
    parser.add_argument("--compiled-only", action="store_true")
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    device = choose_device(arguments.device)
    sets = made_up(16, max(arguments.sizes), np.random.default_rng(0))
    measure.eager = {}  # type: ignore[attr-defined]
    for compiled in (True,) if arguments.compiled_only else (False, True):
        for size in arguments.sizes:
            data = DataConfig(sizes=(size,), correspondences=arguments.correspondences)
            config = TrainConfig(
                compile=compiled,
                data=data,
                network=NetworkConfig(variational=not arguments.plain),
                precision="bf16" if device.type == "cuda" else "fp32",
            )
            sampler = MatchSampler([sets], replace(data), device)
            print(measure(config, sampler, device, arguments.steps), flush=True)


if __name__ == "__main__":
    main()
