"""Scenes whose pairs have known poses: fragments of 3DMatch, drives of KITTI."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from scipy.spatial import cKDTree

from vbreg.benchmark.problems import Settings
from vbreg.datasets.threedmatch import read_log
from vbreg.motions import inverse
from vbreg.types import Float64

BENCHMARKS = ("3DMatch", "3DLoMatch")


def limits_of(dataset: str) -> tuple[float, float]:
    """Return the degrees and metres below which a pose of a data set is right."""
    protocol = Settings.of(dataset)
    return protocol.rotation, protocol.translation


@dataclass(frozen=True, eq=False)
class Scene:
    """Clouds, pairs of them with a known pose, and the poses that follow."""

    name: str
    clouds: Sequence[Path | Float64]
    pairs: dict[str, list[tuple[int, int, Float64]]]  # source, target, T_target_source
    truth: list[dict[int, Float64]]  # T_world_scan of scans that pairs connect, the most first
    limits: tuple[float, float] = limits_of("3dmatch")

    @cached_property
    def points(self) -> list[Float64]:
        """The points of every cloud."""
        return [_cloud(cloud) for cloud in self.clouds]

    @cached_property
    def trees(self) -> list[cKDTree]:
        """The points, as neighbours are looked for among them."""
        return [cKDTree(points) for points in self.points]


def chosen(root: Path, names: Sequence[str]) -> list[Path]:
    """Return the folders of these names, or all."""
    folders = {path.name: path for path in sorted(root.iterdir()) if path.is_dir()}
    unknown = [name for name in names if name not in folders]
    if unknown:
        raise SystemExit(f"no scene {unknown[0]!r}; choose from {', '.join(folders)}")
    return [folders[name] for name in names or folders]


def threedmatch_scenes(root: Path, names: Sequence[str]) -> Iterator[Scene]:
    """Yield the scenes of 3DMatch in this project's layout."""
    for folder in chosen(root / "fragments", names):
        count = len(list(folder.glob("cloud_bin_*.npz")))
        clouds = [folder / f"cloud_bin_{k}.npz" for k in range(count)]
        logs = {b: root / "benchmarks" / b / folder.name / "gt.log" for b in BENCHMARKS}
        # The file has T_i_j; the pair is laid from i onto j, as `vbreg benchmark` does.
        pairs = {
            b: [(i, j, np.linalg.inv(T_i_j)) for i, j, T_i_j in read_log(path)]
            for b, path in logs.items()
        }
        every = [pair for each in pairs.values() for pair in each]
        yield Scene(folder.name, clouds, pairs, chained(every))


def kitti_scenes(root: Path, names: Sequence[str]) -> Iterator[Scene]:
    """Yield drives of KITTI: every scan that a pair names, once."""
    for folder in chosen(root, names):
        scans: dict[int, Float64] = {}
        pairs = []
        for file in sorted(folder.glob("drive*-pair*_*.npz")):
            found = re.search(r"pair(\d+)_(\d+)", file.name)
            assert found is not None
            a, b = map(int, found.groups())
            with np.load(file) as held:
                scans.setdefault(a, held["xyz0"].astype(np.float64))
                scans.setdefault(b, held["xyz1"].astype(np.float64))
                pairs.append((a, b, held["gt_trans"].astype(np.float64)))
        number = {frame: k for k, frame in enumerate(sorted(scans))}
        listed = [(number[a], number[b], T_b_a) for a, b, T_b_a in pairs]
        clouds = [scans[frame] for frame in sorted(scans)]
        yield Scene(folder.name, clouds, {"pairs": listed}, chained(listed), limits_of("kitti"))


def chained(pairs: Sequence[tuple[int, int, Float64]]) -> list[dict[int, Float64]]:
    """Return poses of scans by number, each set of scans in a frame of its own; the largest first.

    Pairs lead from scan to scan, from the first of a set.
    """
    neighbours: dict[int, list[tuple[int, Float64]]] = {}
    for source, target, T_target_source in pairs:
        neighbours.setdefault(target, []).append((source, T_target_source))
        neighbours.setdefault(source, []).append((target, np.linalg.inv(T_target_source)))
    sets: list[dict[int, Float64]] = []
    for start in sorted(neighbours):
        if any(start in T for T in sets):
            continue
        T = {start: np.eye(4)}
        todo = [start]
        while todo:
            here = todo.pop(0)
            for other, T_here_other in neighbours[here]:
                if other not in T:
                    T[other] = T[here] @ T_here_other
                    todo.append(other)
        sets.append(T)
    return sorted(sets, key=len, reverse=True)


def true_pose(scene: Scene, source: int, target: int) -> Float64 | None:
    """Return the true T_target_source, or None where known pairs do not join the two scans."""
    for T in scene.truth:
        if source in T and target in T:
            return inverse(T[target]) @ T[source]
    return None


def with_rotations(T: Float64) -> Float64:
    """Return poses (K, 4, 4) with the rotations nearest to theirs: files are rounded."""
    U, _, Vh = np.linalg.svd(T[:, :3, :3])
    found = T.copy()
    found[:, :3, :3] = U @ Vh
    return found


def _cloud(cloud: Path | Float64) -> Float64:
    """Return the points of a fragment."""
    if not isinstance(cloud, Path):
        return cloud
    with np.load(cloud) as held:
        return np.asarray(held["pcd"], dtype=np.float64)
