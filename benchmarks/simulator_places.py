"""Time the simulator's places by kind, and count their points and how much their scans overlap.

    python benchmarks/simulator_places.py --places 6 [--meshes DIR]

Seconds are those of one thread. Overlap is the share of one scan's points with a point of the other
within one voxel, over all pairs of a place.
"""

from __future__ import annotations

import argparse
import time
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
from scipy.spatial import cKDTree

from vbreg.simulator.places import MESH, PLACE_KINDS, Place, make_place

BINS = (0.0, 0.1, 0.3, 0.5, 0.7, 1.01)


def overlaps(place: Place) -> list[float]:
    """Return the overlap of every pair of scans."""
    world = [
        scan.points @ scan.T_world_scan[:3, :3].T + scan.T_world_scan[:3, 3] for scan in place.scans
    ]
    trees = [cKDTree(points) for points in world]
    limit = place.voxel_size
    return [
        float(np.isfinite(trees[j].query(world[i][::8], distance_upper_bound=limit)[0]).mean())
        for i, j in combinations(range(len(world)), 2)
    ]


def main() -> None:
    """Print a row of a Markdown table for every kind."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--places", type=int, default=6, help="of each kind")
    parser.add_argument("--meshes", type=Path, help="folder of <name>.npz, for the kind 'mesh'")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    files = sorted(arguments.meshes.glob("*.npz")) if arguments.meshes else []
    bounds = "0-10 | 10-30 | 30-50 | 50-70 | 70-100"
    print(f"| kind | seconds (most) | scans | points of a scan (5 to 95 %) | {bounds} |")
    print("|---|---|---|---|---|---|---|---|---|")
    for kind in PLACE_KINDS:
        if kind == MESH and not files:
            continue
        seconds, scans, points, shared = [], [], [], []
        for seed in range(arguments.places):
            mesh = files[3 * seed % len(files)] if kind == MESH else None
            start = time.process_time()
            place = make_place(kind, seed, mesh)
            seconds.append(time.process_time() - start)
            scans.append(len(place.scans))
            points += [len(scan.points) for scan in place.scans]
            shared += overlaps(place)
        low, middle, high = np.percentile(points, (5, 50, 95)).astype(int)
        bins = np.histogram(shared, BINS)[0] / len(shared)
        row = [f"`{kind}`", f"{np.mean(seconds):.1f} ({max(seconds):.1f})", f"{np.mean(scans):.1f}"]
        row += [f"{middle} ({low} to {high})", *(f"{100 * share:.0f}" for share in bins)]
        print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
