"""A scan of 100 million points, registered in little memory.

    python benchmarks/big_scan.py
    python benchmarks/big_scan.py --points 10000000 --folder /data/tmp

A building of the simulator is sampled as densely as asked for and written, part by part, to a
binary PLY in a temporary folder; a smaller scan of a part of it, moved, is registered to it. The
time of each step is printed, and the highest memory of the registration, which runs in a process of
its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from vbreg import geometry, register
from vbreg.backends import devices
from vbreg.simulator.buildings import make_building
from vbreg.simulator.meshes import Mesh, surface_points
from vbreg.types import Float64

PART = 2_000_000  # points that are made and written at a time
NOISE = 0.003  # metres
SHARE = 0.5  # of the building that the smaller scan shows


def sampled(mesh: Mesh, count: int, seed: int) -> Iterator[Float64]:
    """Yield points on a mesh, evenly by area, with noise, part by part."""
    rng = np.random.default_rng(seed)
    for start in range(0, count, PART):
        points, _ = surface_points(mesh, min(PART, count - start), rng)
        yield points + rng.normal(scale=NOISE, size=points.shape)


def write_ply(path: Path, parts: Iterator[Float64], count: int) -> None:
    """Write a binary PLY as its points come."""
    head = ["ply", "format binary_little_endian 1.0", f"element vertex {count}"]
    head += [f"property float {axis}" for axis in "xyz"]
    with path.open("wb") as file:
        file.write(("\n".join([*head, "end_header"]) + "\n").encode())
        for part in parts:
            file.write(part.astype("<f4").tobytes())


def registration(source: Path, target: Path, voxel_size: float | None) -> dict[str, object]:
    """Register two files, and say how long it took and how much memory."""
    cpu = torch.device("cpu")
    torch.set_num_threads(1)
    before = devices.start_peak(cpu)
    start = time.perf_counter()
    result = register(source, target, voxel_size=voxel_size, device="cpu")
    return {
        "seconds": time.perf_counter() - start,
        "megabytes": devices.peak(cpu),
        "megabytes_before": before,
        "T": result.T_target_source.tolist(),
        "probability": result.success_probability,
        "voxel_size": result.voxel_size,
        "read": result.points_read,
        "timings": dict(result.timings),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--points", type=int, default=100_000_000, help="of the large scan")
    parser.add_argument("--source-points", type=int, default=2_000_000)
    parser.add_argument("--rooms", type=int, default=6, help="of the building")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--voxel-size", type=float, help="left out, it is estimated")
    parser.add_argument("--folder", type=Path, help="for the files, which are removed at the end")
    parser.add_argument("--only", nargs=2, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        print(json.dumps(registration(*options.only, options.voxel_size)))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        source, target = Path(folder) / "source.ply", Path(folder) / "target.ply"
        start = time.perf_counter()
        mesh = make_building(np.random.default_rng(options.seed), options.rooms)
        write_ply(target, sampled(mesh, options.points, 1), options.points)
        truth = np.eye(4)
        generator = torch.Generator().manual_seed(0)
        truth[:3, :3] = geometry.random_rotation(generator=generator, dtype=torch.float64).numpy()
        truth[:3, 3] = 5.0, -3.0, 2.0
        points = np.concatenate(list(sampled(mesh, options.source_points, 2)))
        points = points[points[:, 0] < np.quantile(points[:, 0], SHARE)]
        write_ply(source, iter([(points - truth[:3, 3]) @ truth[:3, :3]]), len(points))
        made = time.perf_counter() - start
        size = target.stat().st_size / 2**30
        print(f"{options.points:,} points, {size:.2f} GiB, made in {made:.0f} s", flush=True)
        command = [sys.executable, __file__, "--only", str(source), str(target)]
        if options.voxel_size:
            command += ["--voxel-size", str(options.voxel_size)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found = json.loads(done.stdout)
        error = np.linalg.inv(np.array(found["T"])) @ truth
        angle = np.degrees(np.arccos(np.clip((np.trace(error[:3, :3]) - 1) / 2, -1, 1)))
        print(f"registered in {found['seconds']:.0f} s at voxel size {found['voxel_size']:g}")
        print("  " + "  ".join(f"{k} {v:.1f}" for k, v in found["timings"].items()))
        before = found["megabytes_before"] or float("nan")
        print(f"peak memory {found['megabytes']:.0f} MB ({before:.0f} MB before the first file)")
        shift = np.linalg.norm(error[:3, 3])
        print(f"probability {found['probability']:.3f}, off by {angle:.3f} deg and {shift:.4f} m")


if __name__ == "__main__":
    main()
