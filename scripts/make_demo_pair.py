"""Make the demo pair that ships with vbreg: two scans of a room that never was.

    python scripts/make_demo_pair.py

Writes `demo_source.ply`, `demo_target.ply` and `demo_pose.json` into `src/vbreg/data`. The same
script gives the same bytes on the same processor; on another one rounding may choose two other
scans of the same room.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from vbreg import geometry
from vbreg.datasets.synthetic import OVERLAP_RADIUS, scan_pair
from vbreg.types import Float64

DATA = Path(__file__).resolve().parents[1] / "src" / "vbreg" / "data"
KIND = "clutter"  # of room: full of things to match
OVERLAP = (0.38, 0.42)
POINTS = (11_000, 18_000)
TRIES, FRAMES = 40, 50  # scans of the room at most, and depth images of each


def make_pair(seed: int) -> tuple[Float64, Float64, Float64, float]:
    """Source, target, T_target_source, overlap: the first two scans that suit each other."""
    generator = np.random.default_rng(seed)
    noise = torch.Generator().manual_seed(seed)
    found = scan_pair(
        KIND, generator, noise, overlap=OVERLAP, points=POINTS, tries=TRIES, frames=FRAMES
    )
    if found is None:
        raise SystemExit(f"no two of {TRIES} scans overlap by {OVERLAP}; try another seed")
    source, target, T_target_source, overlap = found
    return turned_away(source, target, T_target_source, noise, overlap)


def turned_away(
    source: torch.Tensor,
    target: torch.Tensor,
    T_target_source: torch.Tensor,
    generator: torch.Generator,
    overlap: float,
) -> tuple[Float64, Float64, Float64, float]:
    """Give the source another frame, far off and turned by more than 90 degrees."""
    while True:
        R = geometry.random_rotation(generator=generator, dtype=torch.float64)
        t = torch.randn(3, generator=generator, dtype=torch.float64) * 2
        T_source_scan = geometry.from_rotation_translation(R, t)
        T = T_target_source @ geometry.inverse(T_source_scan)
        angle = float(geometry.degrees(geometry.rotation_angle(T[:3, :3])))
        if 100 < angle < 160 and float(T[:3, 3].norm()) > 2:
            moved = geometry.apply(T_source_scan, source)
            return moved.numpy(), target.numpy(), T.numpy(), overlap


def write_ply(path: Path, points: Float64) -> None:
    """Binary little-endian float32 x y z."""
    header = (
        "ply\nformat binary_little_endian 1.0\n"
        "comment a simulated scan made by scripts/make_demo_pair.py of vbreg\n"
        f"element vertex {len(points)}\n"
        "property float x\nproperty float y\nproperty float z\nend_header\n"
    )
    path.write_bytes(header.encode("ascii") + points.astype("<f4").tobytes())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=DATA)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # sums in one order, so the bytes repeat
    source, target, T_target_source, overlap = make_pair(arguments.seed)
    arguments.output.mkdir(parents=True, exist_ok=True)
    write_ply(arguments.output / "demo_source.ply", source)
    write_ply(arguments.output / "demo_target.ply", target)
    truth = {
        "T_target_source": T_target_source.tolist(),
        "overlap": round(overlap, 4),
        "overlap_radius": OVERLAP_RADIUS,
        "seed": arguments.seed,
        "unit": "metre",
        "made_by": f"scripts/make_demo_pair.py: a room of vbreg.simulator ({KIND}), scanned twice "
        "by its depth camera; the source in a random frame",
    }
    (arguments.output / "demo_pose.json").write_text(
        json.dumps(truth, indent=2) + "\n", encoding="utf-8"
    )
    print(f"{len(source)} and {len(target)} points, overlap {overlap:.4f}, in {arguments.output}")


if __name__ == "__main__":
    main()
