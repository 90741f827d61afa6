"""How far the true poses of a data set lie from where the clouds fit best.

    python benchmarks/ground_truth.py --root DATA/3dmatch --dataset 3dmatch --every 40

Every pair begins at its true pose and is refined on the clouds alone, without matches, at two voxel
sizes. Where both end equally far from it, no method that lays clouds upon each other can come
closer to that truth.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

from vbreg import Scale
from vbreg.benchmark.problems import Settings
from vbreg.datasets import Pair, open_pairs
from vbreg.matching import describe, match_clouds
from vbreg.metrics import PoseError, pose_error
from vbreg.refinement import refined, with_fewer_points
from vbreg.surfaces import SurfacePair


def moved_from_truth(pair: Pair, voxel_size: float) -> PoseError:
    """Return how far a refinement leads away from the true pose."""
    scale = Scale(voxel_size)
    ends = [
        describe(cloud, scale, descriptor="fpfh", keypoints=100)
        for cloud in (pair.source, pair.target)
    ]
    surfaces = SurfacePair.of(match_clouds(*ends, scale))
    assert surfaces is not None
    alone = surfaces._replace(matched_real=torch.zeros_like(surfaces.matched_real))
    here, there = (np.eye(4) for _ in range(2))
    here[:3, 3], there[:3, 3] = ends[0].origin, -ends[1].origin
    T = there @ pair.T_target_source @ here  # between the local frames
    T[:3, 3] /= voxel_size
    found = refined(with_fewer_points(alone), torch.from_numpy(T)[None])[0].numpy()
    found[:3, 3] *= voxel_size
    back = np.linalg.inv(there) @ found @ np.linalg.inv(here)
    return pose_error(torch.from_numpy(back), torch.from_numpy(pair.T_target_source))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--dataset", default="3dmatch")
    parser.add_argument("--every", type=int, default=40)
    options = parser.parse_args()
    settings = Settings.of(options.dataset)
    pairs = open_pairs(options.dataset, options.root).select(every=options.every)
    print("| voxel size | pairs | median RE, deg | median TE, cm |\n|---|---|---|---|")
    for size in (settings.voxel_size, settings.scale.detail_size):
        todo = track(pairs, f"voxel size {size:g}", len(pairs), console=Console(stderr=True))
        errors = [moved_from_truth(pair, size) for pair in todo]
        turn, shift = (
            float(np.median([float(getattr(error, name)) for error in errors]))
            for name in ("rotation", "translation")
        )
        print(f"| {size:g} | {len(errors)} | {turn:.2f} | {100 * shift:.1f} |", flush=True)


if __name__ == "__main__":
    main()
