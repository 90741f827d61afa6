"""Our FPFH beside Open3D's: inlier ratio of the 1-NN matches and time of normals + FPFH.

    python benchmarks/fpfh_vs_open3d.py --root DATA --pairs 20

DATA (or the environment variable VBREG_DATA) holds the folder `3dmatch`. The pairs are spread
evenly over its scenes. Times are the best of `--repeats` runs, both methods in turn. With
`--method sc2pcr` the matches of both go to that method, and recall is printed, too.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import open3d as o3d
import torch
from torch import Tensor

from vbreg.clouds import normals, voxel_downsample
from vbreg.correspondences import label, match
from vbreg.datasets.threedmatch import threedmatch
from vbreg.descriptors import fpfh
from vbreg.geometry import random_rotation
from vbreg.methods import Problem, open_method
from vbreg.metrics import pose_error
from vbreg.types import Correspondences


def ours(points: Tensor, voxel_size: float) -> Tensor:
    return fpfh(points, normals(points, 2 * voxel_size), 5 * voxel_size)


def open3d_fpfh(points: Tensor, voxel_size: float) -> Tensor:
    search = o3d.geometry.KDTreeSearchParamHybrid
    cloud = o3d.geometry.PointCloud(o3d.utility.Vector3dVector(points.double().numpy()))
    cloud.estimate_normals(search(2 * voxel_size, 30))
    feature = o3d.pipelines.registration.compute_fpfh_feature(cloud, search(5 * voxel_size, 100))
    return torch.from_numpy(np.array(feature.data.T))


def best_time(
    describe: Callable[[Tensor, float], Tensor], points: Tensor, voxel_size: float, repeats: int
) -> tuple[Tensor, float]:
    best = float("inf")
    for _ in range(repeats):
        begin = time.perf_counter()
        features = describe(points, voxel_size)
        best = min(best, time.perf_counter() - begin)
    return features, best


def _data_root() -> Path | None:
    value = os.environ.get("VBREG_DATA")
    return Path(value) if value else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=_data_root())
    parser.add_argument("--benchmark", choices=["3DMatch", "3DLoMatch"], default="3DMatch")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--voxel-size", type=float, default=0.05)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--method", help="one of `vbreg methods`, for recall")
    parser.add_argument("--rotate", action="store_true", help="turn every cloud at random first")
    args = parser.parse_args()
    if args.root is None:
        parser.error("give --root or set VBREG_DATA")

    methods = {"open3d": open3d_fpfh, "vbreg": ours}
    ratio: dict[str, list[float]] = {name: [] for name in methods}
    seconds, right = dict.fromkeys(methods, 0.0), dict.fromkeys(methods, 0)
    solve = open_method(args.method, "cpu") if args.method else None
    generator = torch.Generator().manual_seed(0)
    every = threedmatch(args.root / "3dmatch", args.benchmark)
    pairs = np.linspace(0, len(every) - 1, min(args.pairs, len(every))).astype(int)
    for pair in map(every.__getitem__, pairs):
        clouds = [
            voxel_downsample(torch.from_numpy(cloud).float(), args.voxel_size)
            for cloud in (pair.source.copy(), pair.target.copy())
        ]
        turned = [
            points @ random_rotation(generator=generator).T if args.rotate else points
            for points in clouds
        ]
        for name, describe in methods.items():
            features = []
            for points in turned:
                f, t = best_time(describe, points, args.voxel_size, args.repeats)
                features.append(f)
                seconds[name] += t
            i, j = match(*features)
            T = torch.from_numpy(pair.T_target_source)
            inlier = label(clouds[0][i], clouds[1][j], T, 2 * args.voxel_size)
            ratio[name].append(float(inlier.double().mean()))
            if solve is not None:
                ends = (
                    cloud[rows].double().numpy() for cloud, rows in zip(clouds, (i, j), strict=True)
                )
                found = solve(Problem(Correspondences(*ends), 2 * args.voxel_size)).T_target_source
                right[name] += bool(pose_error(torch.from_numpy(found), T).success(15.0, 0.30))

    print(f"{len(pairs)} pairs of {args.benchmark}, {torch.get_num_threads()} threads")
    print(f"{'method':8} {'inlier ratio %':>14} {'ms per cloud':>13} {'time / open3d':>14}")
    for name in methods:
        milliseconds = 500 * seconds[name] / len(pairs)
        relative = seconds[name] / seconds["open3d"]
        print(f"{name:8} {100 * np.mean(ratio[name]):14.2f} {milliseconds:13.1f} {relative:14.2f}")
    if solve is not None:
        for name, count in right.items():
            share = f"{count}/{len(pairs)} = {100 * count / len(pairs):.1f} %"
            print(f"recall of {args.method} on matches of {name}: {share}")


if __name__ == "__main__":
    main()
