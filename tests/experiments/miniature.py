"""A small data folder as experiments want it: 3DMatch with one attic, and KITTI."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
from scipy.spatial import cKDTree
from scipy.stats import special_ortho_group

from tests.datasets.layouts import write_log

SCENE = "attic"
FRAGMENTS = 4
PAIRS = tuple(combinations(range(FRAGMENTS), 2))
NAMES = tuple(f"{SCENE}/{i}-{j}" for i, j in PAIRS)
BENCHMARKS = ("3DMatch", "3DLoMatch")


def bumps(generator: np.random.Generator, extent: float, count: int = 2500) -> np.ndarray:
    """Points (count, 3) of one bumpy floor, other ones in every call."""
    fixed = np.random.default_rng(7)
    waves, phases = fixed.normal(size=(2, 9)) * 5 / extent, fixed.uniform(0, 6, 9)
    flat = generator.uniform(0, extent, (count, 2))
    return np.c_[flat, extent * np.sin(flat @ waves + phases).sum(axis=1) / 24]


def poses(count: int) -> np.ndarray:
    """T_world_fragment (count, 4, 4)."""
    T = np.tile(np.eye(4), (count, 1, 1))
    T[:, :3, :3] = special_ortho_group.rvs(3, count, random_state=3)
    T[:, :3, 3] = np.random.default_rng(3).uniform(-1, 1, (count, 3))
    return T


def in_frame(T_world_fragment: np.ndarray, world: np.ndarray) -> np.ndarray:
    """The points of the world as the fragment has them."""
    return (world - T_world_fragment[:3, 3]) @ T_world_fragment[:3, :3]


def write(root: Path) -> Path:
    """Write all of it below `root`, and return that."""
    _write_3dmatch(root / "3dmatch")
    for drive in ("03", "03_20m"):
        _write_kitti(root / "kitti" / "dev" / drive)
    return root


def _write_3dmatch(root: Path) -> None:
    generator = np.random.default_rng(0)
    T = poses(FRAGMENTS)
    folder = root / "fragments" / SCENE
    folder.mkdir(parents=True)
    for k in range(FRAGMENTS):
        points = in_frame(T[k], bumps(generator, 1.2))
        np.savez(folder / f"cloud_bin_{k}.npz", pcd=points.astype(np.float32))
    for benchmark in BENCHMARKS:
        lists = root / "benchmarks" / benchmark / SCENE
        write_log(lists / "gt.log", {(i, j): np.linalg.inv(T[i]) @ T[j] for i, j in PAIRS})
        write_log(lists / "gt.info", {pair: np.eye(6) for pair in PAIRS})
        rows = [f"{i},{j},{0.9 - 0.1 * k}\n" for k, (i, j) in enumerate(PAIRS)]
        (lists / "gt_overlap.log").write_text("".join(rows))
    _write_matches(root / "learned_matches", T, generator)


def _write_matches(folder: Path, T: np.ndarray, generator: np.random.Generator) -> None:
    """Four in ten lead to the nearest point, the others anywhere."""
    folder.mkdir()
    worlds = [bumps(generator, 1.2, 250) for _ in T]
    keypoints = {
        f"cloud_bin_{k}": np.round(1000 * in_frame(pose, world)).astype(np.int16)
        for k, (pose, world) in enumerate(zip(T, worlds, strict=True))
    }
    np.savez(folder / f"{SCENE}_keypoints.npz", **keypoints)
    rows = []
    for i, j in PAIRS:
        nearest = cKDTree(worlds[j]).query(worlds[i])[1]
        wrong = generator.random(250) > 0.4
        rows.append(np.where(wrong, generator.integers(250, size=250), nearest))
    for benchmark in BENCHMARKS:
        np.savez(
            folder / f"{SCENE}_{benchmark}.npz",
            pairs=np.array(PAIRS, dtype=np.int16),
            count=np.full(len(PAIRS), 250),
            target_index=np.concatenate(rows).astype(np.uint16),
        )


def _write_kitti(folder: Path) -> None:
    folder.mkdir(parents=True)
    generator = np.random.default_rng(1)
    T = poses(2)
    ends = [in_frame(pose, bumps(generator, 7.2)) for pose in T]
    for k in range(2):
        np.savez(
            folder / f"drive3-pair{k}_{k + 10}.npz",
            xyz0=ends[0].astype(np.float32),
            xyz1=ends[1].astype(np.float32),
            gt_trans=np.linalg.inv(T[1]) @ T[0],
        )
