"""Scan virtual scenes, add real posed fragments, and write the match sets to train on.

python scripts/make_training_matches.py --meshes DIR --rgbd DIR --output DIR --fragments 400
"""

from __future__ import annotations

import argparse
import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from vbreg.correspondences import overlap
from vbreg.datasets import matches, pairs, scenes, shapes, virtual
from vbreg.datasets.matches import Features, MatchSet
from vbreg.errors import VBRegError
from vbreg.types import Float64

GROUP = 10  # fragments that look at one place
MAX_REAL_PAIRS = 600


@dataclass(frozen=True)
class Place:
    """What one worker scans: a mesh file (None: a room made up) and the seed of the rest."""

    mesh: Path | None
    seed: int

    @property
    def name(self) -> str:
        return f"{self.mesh.stem if self.mesh else 'room'}-{self.seed}"


def build_scene(place: Place, generator: np.random.Generator) -> virtual.Scene:
    if place.mesh is None:
        mesh = scenes.procedural_room(generator)
    else:
        with np.load(place.mesh, allow_pickle=False) as data:
            whole = shapes.Mesh(data["vertices"].astype(np.float64), data["faces"].astype(np.int64))
        floor = shapes.floor_height(whole, generator)
        points, _ = shapes.surface_points(whole, 20000, generator)
        furnished = (points[:, 2] > floor + 0.2) & (points[:, 2] < floor + 1.5)
        centre = points[furnished][generator.integers(furnished.sum())]
        mesh = scenes.add_clutter(shapes.crop(whole, centre, 4.0), generator)
    relief = generator.uniform(0.001, 0.005)
    return virtual.sample_surface(mesh, generator, relief=relief)


def scan_place(place: Place, count: int) -> list[tuple[Float64, Float64]]:
    """(points, T_world_fragment) of `count` scans around one focus; fewer in narrow places."""
    generator = np.random.default_rng(place.seed)
    noise = torch.Generator().manual_seed(place.seed)
    scene = build_scene(place, generator)
    candidates = scene.coarse[(scene.coarse[:, 2] - scene.floor < 1.5)]
    middle = np.median(candidates[:, :2], axis=0)
    candidates = candidates[np.abs(candidates[:, :2] - middle).max(-1) < 2.0]
    focus = candidates[generator.integers(len(candidates))]
    fragments: list[tuple[Float64, Float64]] = []
    trajectory: Float64 | None = None
    for _ in range(2 * count):
        after = trajectory if generator.random() < 0.8 else None  # mostly walk on, at times jump
        try:
            trajectory = virtual.random_trajectory(scene, generator, focus, after, frames=30)
        except VBRegError:
            trajectory = None
            continue
        volume = bool(generator.random() < 0.75)
        camera = virtual.Camera(noise=generator.uniform(0.5, 1.3), volume=volume)
        points, T_world_fragment = virtual.scan(scene, trajectory, camera, noise)
        if len(points) > 4000:
            fragments.append((points.numpy(), T_world_fragment.numpy()))
        if len(fragments) == count:
            break
    return fragments


def cached_scans(place: Place, count: int, cache: Path | None) -> list[tuple[Float64, Float64]]:
    """`scan_place`, kept in a file, so that other descriptors can be tried on the same scans."""
    if cache is None:
        return scan_place(place, count)
    file = cache / f"{place.name}.npz"
    if not file.exists():
        fragments = scan_place(place, count)
        partial = file.with_suffix(".partial.npz")
        points = np.concatenate([p for p, _ in fragments] or [np.zeros((0, 3))]).astype(np.float32)
        sizes, poses = [len(p) for p, _ in fragments], [T for _, T in fragments]
        np.savez_compressed(partial, points=points, sizes=sizes, poses=poses)
        partial.replace(file)
    with np.load(file, allow_pickle=False) as data:
        clouds = np.split(data["points"].astype(np.float64), np.cumsum(data["sizes"])[:-1])
        return list(zip(clouds, data["poses"], strict=True))


def place_matches(place: Place, count: int, cache: Path | None) -> list[MatchSet]:
    """Every pair of a place that overlaps by a tenth or more, matched in both directions."""
    torch.set_num_threads(1)
    fragments = cached_scans(place, count, cache)
    features = [matches.describe(points) for points, _ in fragments]
    sets: list[MatchSet] = []
    for j, (target, T_world_j) in enumerate(fragments):
        for i, (source, T_world_i) in enumerate(fragments[:j]):
            T_j_i = pairs.inverse(T_world_j) @ T_world_i
            sample, whole = torch.from_numpy(source[::4].copy()), torch.from_numpy(target)
            shared = overlap(sample, whole, torch.from_numpy(T_j_i), 0.05)
            if shared >= 0.1:
                name = f"{place.name}/{i}-{j}"
                sets += matches.match_both_ways(name, features[i], features[j], T_j_i, shared)
    return sets


def real_matches(folder: Path, most: int, generator: np.random.Generator) -> list[MatchSet]:
    """Up to `most` pairs of posed real fragments, of all overlaps alike."""
    torch.set_num_threads(1)
    loaded = pairs.posed_fragments(folder, min_overlap=0.1, max_overlap=0.95)
    chosen = generator.permutation(len(loaded))[:most]
    cache: dict[bytes, Features] = {}
    sets: list[MatchSet] = []
    for pair in (loaded[int(k)] for k in sorted(chosen)):
        ends = []
        for cloud in (pair.source, pair.target):
            key = cloud[:50].tobytes()
            if key not in cache:
                cache[key] = matches.describe(cloud)
            ends.append(cache[key])
        sets += matches.match_both_ways(
            pair.name, ends[0], ends[1], pair.T_target_source, pair.overlap or 0.0
        )
    return sets


def statistics(sets: list[MatchSet], title: str) -> Table:
    """Matches, and the share that is right, by overlap."""
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


def places(meshes: Path, fragments: int, seed: int) -> list[Place]:
    """As many places as hold `fragments` scans: half in the meshes, half in made-up rooms."""
    files = sorted(meshes.glob("*.npz"))
    kinds: list[Path | None] = [kind for file in files for kind in (file, None)]
    count = -(-fragments // GROUP)
    return [Place(kinds[k % len(kinds)], seed * 100_000 + k) for k in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--meshes", type=Path, required=True, help="folder of <name>.npz meshes")
    parser.add_argument("--rgbd", type=Path, required=True, help="folder of posed-fragment folders")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--fragments", type=int, default=400, help="virtual fragments to scan")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cache", type=Path, help="folder that keeps the scanned fragments")
    parser.add_argument("--workers", type=int, default=min(2, os.cpu_count() or 1))
    arguments = parser.parse_args()
    for folder in filter(None, (arguments.output, arguments.cache)):
        folder.mkdir(parents=True, exist_ok=True)
    todo = places(arguments.meshes, arguments.fragments, arguments.seed)
    rgbd = sorted(p.parent for p in arguments.rgbd.glob("*/poses.txt"))
    console = Console()
    virtual_sets: list[MatchSet] = []
    real_sets: list[MatchSet] = []
    with ProcessPoolExecutor(arguments.workers, mp_context=get_context("spawn")) as pool:
        generator = np.random.default_rng(arguments.seed)
        most = MAX_REAL_PAIRS // max(1, len(rgbd))
        real = [pool.submit(real_matches, folder, most, generator) for folder in rgbd]
        scanned = {
            pool.submit(place_matches, place, GROUP, arguments.cache): place for place in todo
        }
        for job in track(as_completed(real), "real pairs", len(real), console=console):
            real_sets += job.result()
        for job in track(as_completed(scanned), "virtual scans", len(scanned), console=console):
            sets = job.result()
            if sets:
                virtual_sets += sets
                matches.write_shard(arguments.output / f"{scanned[job].name}.npz", sets)
    for folder in rgbd:
        sets = [s for s in real_sets if s.name.startswith(f"{folder.name}/")]
        matches.write_shard(arguments.output / f"real-{folder.name}.npz", sets)
    console.print(statistics(virtual_sets, "virtual"), statistics(real_sets, "real"))
    size = sum(p.stat().st_size for p in arguments.output.glob("*.npz"))
    console.print(f"{len(virtual_sets)} + {len(real_sets)} sets, {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
