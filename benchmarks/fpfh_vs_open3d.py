"""Our FPFH beside Open3D's: inlier ratio of the 1-NN matches and time of normals + FPFH.

    python benchmarks/fpfh_vs_open3d.py --root DATA --pairs 20
    python benchmarks/fpfh_vs_open3d.py --root DATA --pairs 2000 --repeats 1 --method sc2pcr \\
        --benchmark 3DMatch 3DLoMatch

DATA (or the environment variable VBREG_DATA) holds the folder `3dmatch`. The pairs are spread
evenly over its scenes. A cloud is described once; its time is the best of `--repeats` runs, both
methods in turn. With `--method sc2pcr` the matches of both go to that method, and recall is
printed, too. `--device cuda` moves all but Open3D to a GPU.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from vbreg.benchmark.measure import measured
from vbreg.clouds import normals, voxel_downsample
from vbreg.datasets import Pair
from vbreg.datasets.threedmatch import threedmatch
from vbreg.descriptors import fpfh
from vbreg.descriptors.open3d_fpfh import open3d_fpfh
from vbreg.geometry import random_rotation
from vbreg.matching import match
from vbreg.methods import Method, Problem, open_method
from vbreg.metrics import pose_error, right_matches
from vbreg.scale import Scale


def ours(points: Tensor, scale: Scale) -> Tensor:
    return fpfh(points, normals(points, scale.normal_radius), scale.feature_radius)


DESCRIPTORS: dict[str, Callable[[Tensor, Scale], Tensor]] = {"open3d": open3d_fpfh, "vbreg": ours}


@dataclass
class Described:
    """A cloud on its voxel grid, with the features of each descriptor and the seconds they took."""

    points: Tensor
    features: dict[str, Tensor] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


def describe(points: Tensor, scale: Scale, repeats: int, turn: Tensor | None) -> Described:
    cloud = Described(points)
    turned = points if turn is None else points @ turn.T
    for _ in range(repeats):
        for name, features in DESCRIPTORS.items():
            found, cost = measured(partial(features, turned, scale), points.device)
            cloud.features[name] = found
            cloud.seconds[name] = min(cost.seconds, cloud.seconds.get(name, cost.seconds))
    return cloud


def judge(
    pair: Pair, ends: tuple[Described, Described], name: str, threshold: float, solve: Method | None
) -> tuple[float, bool]:
    """Share of right matches, and whether the method finds the pose from them."""
    i, j = match(*(end.features[name] for end in ends))
    T = torch.from_numpy(pair.T_target_source)
    source, target = (end.points[k].cpu() for end, k in zip(ends, (i, j), strict=True))
    ratio = float(right_matches(source, target, T, threshold).double().mean())
    if solve is None:
        return ratio, False
    found = torch.from_numpy(solve(Problem.of_points(source, target, threshold)).T_target_source)
    return ratio, bool(pose_error(found, T).success(15.0, 0.30))


def _data_root() -> Path | None:
    value = os.environ.get("VBREG_DATA")
    return Path(value) if value else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=_data_root())
    known = ["3DMatch", "3DLoMatch"]
    parser.add_argument("--benchmark", choices=known, nargs="+", default=known[:1])
    parser.add_argument("--pairs", type=int, default=20, help="of each benchmark")
    parser.add_argument("--voxel-size", type=float, default=0.05)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--method", help="one of `vbreg methods`, for recall")
    parser.add_argument("--rotate", action="store_true", help="turn every cloud at random first")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    if args.root is None:
        parser.error("give --root or set VBREG_DATA")

    scale = Scale(args.voxel_size)
    solve = open_method(args.method, args.device) if args.method else None
    generator = torch.Generator().manual_seed(0)
    clouds: dict[tuple[str, int], Described] = {}

    def described(pair: Pair, end: int) -> Described:
        assert pair.ids is not None
        key = pair.scene, pair.ids[end]
        if key not in clouds:
            points = torch.from_numpy((pair.source, pair.target)[end].copy()).float()
            grid = voxel_downsample(points.to(args.device), args.voxel_size)
            turn = random_rotation(generator=generator).to(grid) if args.rotate else None
            clouds[key] = describe(grid, scale, args.repeats, turn)
        return clouds[key]

    threads = torch.get_num_threads()
    for benchmark in args.benchmark:
        every = threedmatch(args.root / "3dmatch", benchmark)
        chosen = np.linspace(0, len(every) - 1, min(args.pairs, len(every))).astype(int)
        found: dict[str, list[tuple[float, bool]]] = {name: [] for name in DESCRIPTORS}
        for k in track(chosen, benchmark, console=Console(stderr=True)):
            pair = every[k]
            ends = described(pair, 0), described(pair, 1)
            for name, judged in found.items():
                judged.append(judge(pair, ends, name, scale.inlier_threshold, solve))
        print(f"{len(chosen)} pairs of {benchmark}, on {args.device}, {threads} threads")
        for name, judged in found.items():
            ratio, right = (sum(column) for column in zip(*judged, strict=True))
            line = f"{name:8} {100 * ratio / len(chosen):6.2f} % of the matches are right"
            share = f"{right}/{len(chosen)} = {100 * right / len(chosen):.1f} %"
            print(line + (f"; {args.method} finds {share}" if solve else ""), flush=True)
    print_times(list(clouds.values()))


def print_times(clouds: Sequence[Described]) -> None:
    total = {name: sum(cloud.seconds[name] for cloud in clouds) for name in DESCRIPTORS}
    for name, seconds in total.items():
        each, relative = 1e3 * seconds / len(clouds), seconds / total["open3d"]
        print(f"{name:8} {each:6.1f} ms a cloud ({len(clouds)} clouds), {relative:.2f} of open3d's")


if __name__ == "__main__":
    main()
