"""How well `register` finds the scale of a source that is too large or too small.

    python benchmarks/unknown_scale.py --root DATA/3dmatch --dataset 3dmatch --every 16
    python benchmarks/unknown_scale.py --root DATA/3dmatch --dataset 3dlomatch --every 16

Every source is divided by a factor drawn between 1 / MAX_SCALE and MAX_SCALE, evenly in its
logarithm, and registered with `max_scale`; beside it stands the same pair of one scale. A pose
counts as right by the protocol of the data set, applied to the source in its true size, so that a
scale that is off by much makes it wrong. Progress goes to stderr; the table is markdown.
"""

from __future__ import annotations

import argparse
import time
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

from vbreg import Registration, VBRegError, register
from vbreg.benchmark.problems import Settings
from vbreg.datasets import Pair, open_pairs
from vbreg.metrics import pose_error
from vbreg.types import LIKELY


class Outcome(NamedTuple):
    """What became of a pair."""

    right: bool
    trusted: bool
    scale_error: float  # as a share
    seconds: float


def outcome(pair: Pair, settings: Settings, factor: float, **options: object) -> Outcome:
    """Register a pair whose source is divided by the factor."""
    began = time.perf_counter()
    view = "origin" if settings.dataset == "kitti" else "unknown"
    try:
        found: Registration = register(
            pair.source / factor,
            pair.target,
            voxel_size=settings.voxel_size,
            viewpoint=view,
            **options,  # type: ignore[arg-type]
        )
    except VBRegError:
        return Outcome(False, False, np.inf, time.perf_counter() - began)
    seconds = time.perf_counter() - began
    # The pose of the source in its true size, about its middle: the rest of the scale is no motion.
    middle = pair.source.mean(0)
    T = np.eye(4)
    T[:3, :3] = found.T_target_source[:3, :3]
    T[:3, 3] = found.apply_to((middle / factor)[None])[0] - T[:3, :3] @ middle
    error = pose_error(torch.from_numpy(T), torch.from_numpy(pair.T_target_source))
    return Outcome(
        bool(error.success(settings.rotation, settings.translation)),
        (found.success_probability or 0.0) >= LIKELY,
        abs(found.scale / factor - 1),
        seconds,
    )


def line(name: str, outcomes: list[Outcome]) -> str:
    """Return a row of the table."""
    right = [o for o in outcomes if o.right]
    errors = [100 * o.scale_error for o in right] or [np.nan]
    cells = [
        name,
        f"{len(right)} of {len(outcomes)}",
        f"{sum(o.trusted for o in right)}, {sum(o.trusted and not o.right for o in outcomes)}",
        f"{np.median(errors):.1f} %",
        f"{np.quantile(errors, 0.9):.1f} %",
        f"{np.median([o.seconds for o in outcomes]):.2f}",
    ]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", default="3dmatch")
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--every", type=int, default=16)
    parser.add_argument("--max-scale", type=float, default=2.0)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    settings = Settings.of(options.dataset)
    pairs = open_pairs(options.dataset, options.root).select(every=options.every)
    found: dict[str, list[Outcome]] = {"one scale": [], "unknown scale": []}
    for pair in track(pairs, options.dataset, len(pairs), console=Console(stderr=True)):
        rng = np.random.default_rng(zlib.crc32(pair.name.encode()))
        factor = options.max_scale ** rng.uniform(-1, 1)
        found["one scale"].append(outcome(pair, settings, 1.0, device=options.device))
        found["unknown scale"].append(
            outcome(pair, settings, factor, device=options.device, max_scale=options.max_scale)
        )
    print(f"{options.dataset}, every {options.every}, max_scale {options.max_scale:g}\n")
    print("| | right | trusted: right, wrong | median scale error | 90 % within | median s |")
    print("| --- " * 6 + "|")
    for name, outcomes in found.items():
        print(line(name, outcomes))


if __name__ == "__main__":
    main()
