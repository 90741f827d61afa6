"""Pairs of clouds with a known pose, read from the layouts that benchmarks come in.

Every loader gives a lazy sequence: the names and poses are known at once, and the clouds of a pair
are read when the pair is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Literal, overload

import numpy as np
from scipy.spatial import cKDTree

from vbreg.errors import FileFormatError, VBRegError
from vbreg.types import Float64

Benchmark = Literal["3DMatch", "3DLoMatch"]


@dataclass(frozen=True, eq=False)
class Pair:
    """Two clouds of one scene and the true pose between them."""

    name: str
    source: Float64  # (N, 3)
    target: Float64  # (M, 3)
    T_target_source: Float64  # (4, 4)
    overlap: float | None = None  # share of the smaller view seen by both, where known


class PairSequence(Sequence[Pair]):
    """Names now, clouds later: `names[k]` is free, `self[k]` reads two files."""

    def __init__(self, entries: Iterable[tuple[str, Callable[[], Pair]]]) -> None:
        entries = list(entries)
        self.names: tuple[str, ...] = tuple(name for name, _ in entries)
        self._load = [load for _, load in entries]

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, index: int) -> Pair: ...
    @overload
    def __getitem__(self, index: slice) -> PairSequence: ...
    def __getitem__(self, index: int | slice) -> Pair | PairSequence:
        if isinstance(index, slice):
            return PairSequence(zip(self.names[index], self._load[index], strict=True))
        return self._load[index]()


def threedmatch(
    root: str | Path, benchmark: Benchmark = "3DMatch", scenes: Sequence[str] | None = None
) -> PairSequence:
    """The official 3DMatch or 3DLoMatch pairs below `root`; source is fragment i, target is j.

    `root` holds `fragments/<scene>/cloud_bin_<k>.npz` (key `pcd`) and
    `benchmarks/<benchmark>/<scene>/gt.log`. None for `scenes` takes all that are there.
    """
    root = Path(root)
    lists = _existing(root / "benchmarks" / benchmark, "the pair lists")
    known = sorted(p.name for p in lists.iterdir() if p.is_dir())
    if unknown := sorted(set(scenes or ()) - set(known)):
        raise VBRegError(f"no scene {unknown} in {lists}; choose from {known}")
    entries: list[tuple[str, Callable[[], Pair]]] = []
    for scene in known if scenes is None else scenes:
        folder = root / "fragments" / scene
        overlaps = _read_overlaps(lists / scene / "gt_overlap.log")
        for i, j, T_i_j in read_log(lists / scene / "gt.log"):
            name = f"{scene}/{i}-{j}"
            T_j_i = inverse(T_i_j)  # gt.log maps j into i; we register i to j
            entries.append((name, _fragments(folder, name, i, j, T_j_i, overlaps.get((i, j)))))
    return PairSequence(entries)


def kitti_pairs(folder: str | Path) -> PairSequence:
    """The files `drive<d>-pair<a>_<b>.npz` (`xyz0`, `xyz1`, `gt_trans` maps 0 into 1)."""
    folder = _existing(Path(folder), "the KITTI pairs")
    files = sorted(folder.glob("drive*-pair*_*.npz"), key=lambda p: _numbers(p.name))
    if not files:
        raise FileFormatError(f"no file drive<d>-pair<a>_<b>.npz in {folder}")

    def load(path: Path) -> Pair:
        source, target, T_target_source = _read_npz(path, "xyz0", "xyz1", "gt_trans")
        return Pair(path.stem, source, target, T_target_source)

    return PairSequence((path.stem, partial(load, path)) for path in files)


def posed_clouds(folder: str | Path) -> list[tuple[Float64, Float64]]:
    """`cloud_bin_<k>.npz`, each with row k of `poses.txt`: sixteen numbers of T_world_cloud."""
    file = _existing(Path(folder) / "poses.txt", "the poses")
    poses = np.loadtxt(file, ndmin=2)
    if poses.shape[1] != 16:
        raise FileFormatError(f"{file}: {poses.shape[1]} numbers a row, expected 16")
    return [
        (_read_cloud(file.parent / f"cloud_bin_{k}.npz"), T)
        for k, T in enumerate(poses.reshape(-1, 4, 4))
    ]


def posed_fragments(
    folder: str | Path,
    min_overlap: float = 0.1,
    max_overlap: float = 1.0,
    radius: float = 0.05,
) -> PairSequence:
    """All pairs i < j of `posed_clouds` that overlap enough; measured here, once, at `radius`, from
    every fourth point of the source."""
    folder = Path(folder)
    clouds, T_world = zip(*posed_clouds(folder), strict=True)
    world = [c @ T[:3, :3].T + T[:3, 3] for c, T in zip(clouds, T_world, strict=True)]
    trees = [cKDTree(points) for points in world]
    entries: list[tuple[str, Callable[[], Pair]]] = []
    for j in range(len(world)):
        for i in range(j):
            distance, _ = trees[j].query(world[i][::4], distance_upper_bound=radius)
            overlap = float(np.isfinite(distance).mean())
            if min_overlap <= overlap <= max_overlap:
                name = f"{folder.name}/{i}-{j}"
                T_j_i = inverse(T_world[j]) @ T_world[i]
                entries.append((name, _fragments(folder, name, i, j, T_j_i, overlap)))
    return PairSequence(entries)


def read_log(path: Path) -> list[tuple[int, int, Float64]]:
    """A Redwood-style log: `i j n` and four rows of the pose that maps fragment j into i."""
    values = _existing(path, "the ground truth").read_text().split()
    if len(values) % 19:
        raise FileFormatError(f"{path}: {len(values)} numbers, expected 19 for every pair")
    rows = np.array(values, dtype=np.float64).reshape(-1, 19)
    return [(int(row[0]), int(row[1]), row[3:].reshape(4, 4)) for row in rows]


def inverse(T_a_b: Float64) -> Float64:
    """T_b_a of a pose in numpy; no assumption on how well the file's rotation is orthonormal."""
    return np.asarray(np.linalg.inv(T_a_b), dtype=np.float64)


def _fragments(
    folder: Path, name: str, i: int, j: int, T_j_i: Float64, overlap: float | None
) -> Callable[[], Pair]:
    def load() -> Pair:
        source, target = (_read_cloud(folder / f"cloud_bin_{k}.npz") for k in (i, j))
        return Pair(name, source, target, T_j_i, overlap)

    return load


@lru_cache(maxsize=128)  # the pairs of a scene share their fragments
def _read_cloud(path: Path) -> Float64:
    (points,) = _read_npz(path, "pcd")
    points.flags.writeable = False
    return points


def _read_npz(path: Path, *keys: str) -> list[Float64]:
    with np.load(_existing(path, "a cloud"), allow_pickle=False) as data:
        if missing := [key for key in keys if key not in data]:
            raise FileFormatError(f"{path}: no array {missing}; it holds {sorted(data.files)}")
        return [np.asarray(data[key], dtype=np.float64) for key in keys]


def _read_overlaps(path: Path) -> dict[tuple[int, int], float]:
    if not path.exists():  # only the official lists carry it
        return {}
    rows = np.loadtxt(path, delimiter=",", ndmin=2)
    return {(int(i), int(j)): float(overlap) for i, j, overlap in rows}


def _numbers(name: str) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", name)]


def _existing(path: Path, what: str) -> Path:
    if not path.exists():
        raise FileFormatError(f"{what} not found: looked for {path.absolute()}")
    return path
