"""What matches a descriptor gives: inlier ratio, recall with the same estimator, time, parameters.

    python benchmarks/descriptors.py --root DATA/3dmatch learned fpfh
    python benchmarks/descriptors.py --root DATA/kitti/dev --dataset kitti learned mine.safetensors

Every descriptor goes through the front end that ships, on the same pairs. `--rotate` turns every
cloud at random first, which a descriptor should not notice.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

from vbreg.backends.devices import choose_device
from vbreg.benchmark.measure import measured
from vbreg.benchmark.problems import Labelled, Settings, open_sequence, problem_source
from vbreg.descriptors import descriptor_named
from vbreg.matching import describe
from vbreg.methods import open_method
from vbreg.metrics import pose_error

TIMED_CLOUDS = 20


class Line(NamedTuple):
    """A row of the table; shares in per cent."""

    descriptor: str
    dataset: str
    points: str
    pairs: int
    inlier_ratio: float
    enough: float  # pairs with more than 5 % of right matches
    recall: float
    milliseconds: float  # of describing a cloud, thinning and normals included
    parameters: int


def lines(options: argparse.Namespace, device: torch.device) -> Iterator[Line]:
    method = open_method(options.method, device)
    for name in options.descriptors:
        for count in options.points:
            settings = Settings.of(
                options.dataset, descriptor=name, points=count, turned=options.rotate
            )
            pairs = open_sequence(settings, options.root).select(every=options.every)
            source = problem_source(settings, options.root, device)
            ratios, right, clouds = [], [], []
            title = f"{Path(name).parent.name or ''} {name[-24:]} {settings.dataset} {count or ''}"
            for k, pair in enumerate(track(pairs, title, len(pairs), console=Console(stderr=True))):
                labelled = Labelled.of(pair, source(pair))
                ratios.append(labelled.inlier_ratio)
                found = method(labelled.problem).T_target_source
                error = pose_error(torch.from_numpy(found), torch.from_numpy(pair.T_target_source))
                right.append(bool(error.success(settings.rotation, settings.translation)))
                if k < TIMED_CLOUDS:
                    clouds.append(pair.source)
            compute = descriptor_named(name)
            describing = partial(describe, scale=settings.scale, descriptor=compute, device=device)
            seconds = [measured(partial(describing, c), device)[1].seconds for c in clouds]
            size = 0
            if compute.network is not None:
                size = sum(p.numel() for p in compute.network.parameters())
            yield Line(
                name,
                options.dataset,
                str(count or "all"),
                len(right),
                round(100 * float(np.mean(ratios)), 2),
                round(100 * float(np.mean(np.array(ratios) > 0.05)), 1),
                round(100 * float(np.mean(right)), 2),
                round(1000 * float(np.median(seconds[1:] or seconds)), 1),
                size,
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("descriptors", nargs="+", help="learned, fpfh, or a weights file")
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--dataset", default="3dlomatch", help="3dmatch, 3dlomatch or kitti")
    parser.add_argument("--method", default="vbreg:fast", help="the estimator")
    parser.add_argument("--points", type=int, nargs="+", default=[0], help="keypoints; 0: all")
    parser.add_argument("--every", type=int, default=1, help="every n-th pair")
    parser.add_argument("--rotate", action="store_true", help="turn every cloud at random first")
    parser.add_argument("--device", default="auto")
    parser.add_argument("-o", "--output", type=Path, help="a CSV file")
    options = parser.parse_args()
    options.points = [count or None for count in options.points]
    rows = []
    for line in lines(options, choose_device(options.device)):
        print("  ".join(f"{k} {v}" for k, v in line._asdict().items()), flush=True)
        rows.append(line)
        if options.output:
            with options.output.open("w", encoding="utf-8", newline="") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(Line._fields)
                writer.writerows(rows)


if __name__ == "__main__":
    main()
