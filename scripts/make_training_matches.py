"""Scan simulated rooms and streets, add real posed fragments, and write match sets to train on.

    python scripts/make_training_matches.py --meshes DIR --rgbd DIR --output data

makes data/indoor, data/streets, data/real and data/validation, which configs/*.toml name. Each
place is a shard of its own, made from its own seed, so a second call makes only what is missing.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from vbreg.datasets import matches
from vbreg.datasets.folder import posed_clouds
from vbreg.datasets.matches import MAX_MATCHES, MatchSet, PlaceCode
from vbreg.datasets.poses import inverse_pose
from vbreg.errors import VBRegError
from vbreg.metrics import overlap
from vbreg.scale import Scale
from vbreg.simulator import (
    ROOM_KINDS,
    DepthCamera,
    Lidar,
    Scene,
    add_clutter,
    drive_and_scan,
    make_room,
    make_street,
    meshes,
    random_trajectory,
    sample_surface,
    scan_scene,
)
from vbreg.types import Float64

Posed = tuple[Float64, Float64]  # points (N, 3), T_world_cloud
INDOOR, OUTDOOR = 0.05, 0.30  # voxel sizes
GROUP = 10  # fragments that look at one place
STREET_SCANS = 8
MAX_PAIRS = 12  # of a place, each matched by FPFH and as a learned descriptor would
HELD_OUT_PAIRS = 4  # of a place for validation
MAX_REAL_PAIRS = 300
STRENGTH = 0.15, 0.6  # of what joins FPFH in the second kind
LOW_OVERLAP = 0.35  # half of the pairs of a place lie below, if there are enough
HELD_OUT = 50_000  # seeds from here on are for validation


@dataclass(frozen=True)
class Place:
    """What one worker scans: a kind of room, a mesh file, or a street."""

    kind: str
    seed: int
    folder: str
    mesh: Path | None = None

    @property
    def shard(self) -> Path:
        return Path(self.folder) / f"{self.kind}-{self.seed}.npz"

    @property
    def voxel_size(self) -> float:
        return OUTDOOR if self.kind == "street" else INDOOR


def room_scene(place: Place, generator: np.random.Generator) -> Scene:
    if place.mesh is None:
        mesh = make_room(place.kind, generator)
    else:
        with np.load(place.mesh, allow_pickle=False) as data:
            whole = meshes.Mesh(data["vertices"].astype(np.float64), data["faces"].astype(np.int64))
        floor = meshes.floor_height(whole, generator)
        points, _ = meshes.surface_points(whole, 20000, generator)
        furnished = (points[:, 2] > floor + 0.2) & (points[:, 2] < floor + 1.5)
        centre = points[furnished][generator.integers(furnished.sum())]
        mesh = add_clutter(meshes.crop(whole, centre, 4.0), generator)
    return sample_surface(mesh, generator, relief=generator.uniform(0.001, 0.005))


def scans_of_room(place: Place) -> list[Posed]:
    """Scans around one focus; fewer in narrow places."""
    generator = np.random.default_rng(place.seed)
    noise = torch.Generator().manual_seed(place.seed)
    scene = room_scene(place, generator)
    candidates = scene.coarse[(scene.coarse[:, 2] - scene.floor < 1.5)]
    middle = np.median(candidates[:, :2], axis=0)
    candidates = candidates[np.abs(candidates[:, :2] - middle).max(-1) < 2.0]
    focus = candidates[generator.integers(len(candidates))]
    fragments: list[Posed] = []
    trajectory: Float64 | None = None
    for _ in range(2 * GROUP):
        after = trajectory if generator.random() < 0.8 else None  # mostly walk on, at times jump
        try:
            trajectory = random_trajectory(scene, generator, focus, after, frames=30)
        except VBRegError:
            trajectory = None
            continue
        volume = bool(generator.random() < 0.75)
        camera = DepthCamera(noise=generator.uniform(0.5, 1.3), volume=volume)
        points, T_world_fragment = scan_scene(scene, trajectory, camera, noise)
        if len(points) > 4000:
            fragments.append((points.numpy(), T_world_fragment.numpy()))
        if len(fragments) == GROUP:
            break
    return fragments


def scans_of_street(place: Place) -> list[Posed]:
    generator = np.random.default_rng(place.seed)
    street = make_street(generator)
    scans = drive_and_scan(street, generator, STREET_SCANS, Lidar(voxel_size=OUTDOOR))
    return [(points.numpy(), pose.numpy()) for points, pose in scans]


def chosen_pairs(
    clouds: Sequence[Posed], voxel_size: float, most: int, generator: np.random.Generator
) -> list[tuple[int, int, float]]:
    """Choose up to `most` pairs (i, j, overlap) that share a tenth or more, half of them little."""
    found = []
    for j, (target, T_world_j) in enumerate(clouds):
        for i, (source, T_world_i) in enumerate(clouds[:j]):
            T_j_i = torch.from_numpy(inverse_pose(T_world_j) @ T_world_i)
            sample, whole = torch.tensor(source[::4]), torch.tensor(target)
            shared = overlap(sample, whole, T_j_i, voxel_size)
            if shared >= 0.1:
                found.append((i, j, shared))
    found = [found[k] for k in generator.permutation(len(found))]
    low = [pair for pair in found if pair[2] < LOW_OVERLAP]
    high = [pair for pair in found if pair[2] >= LOW_OVERLAP]
    few = min(len(low), max(most // 2, most - len(high)))
    return low[:few] + high[: most - few]


def match_group(
    name: str, clouds: Sequence[Posed], voxel_size: float, most: int, seed: int
) -> list[MatchSet]:
    """Match every chosen pair twice, in directions drawn by lot: by FPFH, and with a place code."""
    generator = np.random.default_rng([seed, 1])
    scale = Scale(voxel_size)
    code = PlaceCode(generator, voxel_size)
    described = [matches.described(points, scale) for points, _ in clouds]
    thinned = [matches.thinned(cloud, MAX_MATCHES) for cloud in described]
    sets: list[MatchSet] = []
    for i, j, shared in chosen_pairs(clouds, voxel_size, most, generator):
        for strength in (0.0, generator.uniform(*STRENGTH)):
            a, b = (i, j) if generator.random() < 0.5 else (j, i)
            source, target = thinned[a], described[b]
            if strength:
                source = code.join(source, clouds[a][1], strength, generator)
                target = code.join(target, clouds[b][1], strength, generator)
            T_b_a = inverse_pose(clouds[b][1]) @ clouds[a][1]
            kind = f"code {strength:.2f}" if strength else "fpfh"
            title = f"{name}/{a}-{b} {kind}"
            sets.append(matches.match_set(title, source, target, T_b_a, shared, scale))
    return sets


def make_place(place: Place, output: Path) -> Path:
    torch.set_num_threads(1)
    clouds = scans_of_street(place) if place.kind == "street" else scans_of_room(place)
    most = HELD_OUT_PAIRS if place.seed >= HELD_OUT else MAX_PAIRS
    sets = match_group(place.shard.stem, clouds, place.voxel_size, most, place.seed)
    if sets:
        matches.write_shard(output / place.shard, sets)
    return output / place.shard


def make_real(folder: Path, most: int, output: Path) -> Path:
    torch.set_num_threads(1)
    clouds = posed_clouds(folder)
    path = output / "real" / f"{folder.name}.npz"
    matches.write_shard(path, match_group(folder.name, clouds, INDOOR, most, 0))
    return path


def places(mesh_folder: Path, rooms: int, streets: int, validation: int) -> list[Place]:
    """Take the kinds in turn: the meshes, and every kind of room."""
    files = {f"mesh-{file.stem}": file for file in sorted(mesh_folder.glob("*.npz"))}
    kinds = [*files, *ROOM_KINDS]

    def place(k: int, first: int, folder: str) -> Place:
        kind = kinds[k % len(kinds)]
        return Place(kind, first + k, folder, files.get(kind))

    return [
        *(place(k, HELD_OUT, "validation") for k in range(validation)),
        *(Place("street", HELD_OUT + k, "validation") for k in range(min(2, validation))),
        *(Place("street", k, "streets") for k in range(streets)),
        *(place(k, 0, "indoor") for k in range(rooms)),
    ]


def statistics(sets: Sequence[MatchSet], title: str) -> Table:
    """Count matches, and the share that is right, by overlap."""
    table = Table("overlap", "sets", "matches", "right (mean %)", "right (median %)", title=title)
    for low, high in ((0.1, 0.3), (0.3, 0.5), (0.5, 0.7), (0.7, 1.01)):
        chosen = [s for s in sets if low <= s.overlap < high]
        if chosen:
            ratio = [100 * s.labels.mean() for s in chosen]
            size = np.median([len(s) for s in chosen])
            values = f"{size:.0f}", f"{np.mean(ratio):.2f}", f"{np.median(ratio):.2f}"
            table.add_row(
                f"{100 * low:.0f}-{min(100 * high, 100):.0f} %", str(len(chosen)), *values
            )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--meshes", type=Path, required=True, help="folder of <name>.npz meshes")
    parser.add_argument("--rgbd", type=Path, required=True, help="folder of posed-fragment folders")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--rooms", type=int, default=76, help="places of ten fragments each")
    parser.add_argument("--streets", type=int, default=12, help="of eight scans each")
    parser.add_argument("--validation", type=int, default=15, help="rooms kept out of training")
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1))
    arguments = parser.parse_args()
    output: Path = arguments.output
    for name in ("indoor", "streets", "real", "validation"):
        (output / name).mkdir(parents=True, exist_ok=True)
    todo = places(arguments.meshes, arguments.rooms, arguments.streets, arguments.validation)
    todo = [place for place in todo if not (output / place.shard).exists()]
    rgbd = sorted(p.parent for p in arguments.rgbd.glob("*/poses.txt"))
    most = MAX_REAL_PAIRS // max(1, len(rgbd))
    rgbd = [folder for folder in rgbd if not (output / "real" / f"{folder.name}.npz").exists()]
    console = Console()
    with ProcessPoolExecutor(arguments.workers, mp_context=get_context("spawn")) as pool:
        jobs = [pool.submit(make_real, folder, most, output) for folder in rgbd]
        jobs += [pool.submit(make_place, place, output) for place in todo]
        for job in track(as_completed(jobs), "match sets", len(jobs), console=console):
            console.print(job.result().name)
    for name in ("indoor", "streets", "real", "validation"):
        found = [
            s for file in sorted((output / name).glob("*.npz")) for s in matches.read_shard(file)
        ]
        for kind in ("fpfh", "code"):
            console.print(statistics([s for s in found if f" {kind}" in s.name], f"{name}, {kind}"))
    size = sum(p.stat().st_size for p in output.glob("*/*.npz"))
    console.print(f"{size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
