"""Pairs a second and memory of a training step, eager and compiled, on made-up matches.

    python benchmarks/training_speed.py                      (the GPU if there is one)
    python benchmarks/training_speed.py --sizes 256 1024 --steps 20 --forms compiled
    python benchmarks/training_speed.py --sizes 1024 --correspondences 98304       (batch 96)

The ratio in the last column is to the first form of the same size in the same run.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import numpy as np
import torch

from vbreg.backends import devices
from vbreg.datasets.matches import MatchSet
from vbreg.network import NetworkConfig
from vbreg.training.batches import MatchSampler
from vbreg.training.config import DataConfig, TrainConfig
from vbreg.training.loop import NetworkRun
from vbreg.training.workers import Workers

FORMS = ("eager", "compiled")  # the second with the attention kernel where there is one


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


@dataclass(frozen=True)
class Measured:
    seconds: float  # of a step, median
    memory: float  # GiB at the peak, as torch counts it
    start: float  # seconds until the third step was done


def measure(
    config: TrainConfig, sampler: MatchSampler, device: torch.device, steps: int
) -> Measured:
    before = devices.start_peak(device, give_back=True)
    run = NetworkRun(config, Workers(0, 1, device), sampler)
    began = time.perf_counter()
    for _ in range(3):
        run.step()
    devices.wait(device)
    start = time.perf_counter() - began
    times = []
    for _ in range(steps):
        began = time.perf_counter()
        run.step()
        devices.wait(device)
        times.append(time.perf_counter() - began)
    memory = float("nan") if before is None else devices.peak(device) / 1024
    return Measured(float(np.median(times)), memory, start)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--correspondences", type=int, default=40960)
    parser.add_argument("--plain", action="store_true", help="the network without latent branches")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=FORMS)
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    device = devices.choose_device(arguments.device)
    sets = made_up(16, max(arguments.sizes), np.random.default_rng(0))
    first: dict[int, float] = {}
    for form in arguments.forms:
        for size in arguments.sizes:
            data = DataConfig(sizes=(size,), correspondences=arguments.correspondences)
            config = TrainConfig(
                compile=form != "eager",
                data=data,
                network=NetworkConfig(variational=not arguments.plain),
                precision="bf16" if devices.is_gpu(device) else "fp32",
            )
            found = measure(config, MatchSampler([sets], data, device), device, arguments.steps)
            pairs = arguments.correspondences // size
            print(
                f"{size:6} {form:>9} "
                f"{1e3 * found.seconds:8.1f} ms {pairs / found.seconds:8.0f} pairs/s "
                f"{found.memory:7.1f} GiB {found.start:7.1f} s to start "
                f"{first.setdefault(size, found.seconds) / found.seconds:5.2f}x",
                flush=True,
            )


if __name__ == "__main__":
    main()
