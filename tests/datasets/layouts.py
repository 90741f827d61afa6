"""Miniatures of the layouts on users' disks: three fragments of an attic, all seeing all of it."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import torch
from scipy.spatial import cKDTree
from scipy.spatial.transform import Rotation

from vbreg import io
from vbreg.datasets import Pair

SCENE = "attic"
PAIRS = ((0, 1), (0, 2))
OVERLAP = {(0, 1): 0.9, (0, 2): 0.25}
NAMES = ("attic/0-1", "attic/0-2")


def T_world() -> np.ndarray:
    """(3, 4, 4), one for each fragment."""
    T = np.tile(np.eye(4), (3, 1, 1))
    T[:, :3, :3] = Rotation.random(3, random_state=0).as_matrix()
    T[:, :3, 3] = np.random.default_rng(0).uniform(-3, 3, (3, 3))
    return T


def fragments(count: int = 200) -> list[np.ndarray]:
    world = np.random.default_rng(1).uniform(-1, 1, (count, 3))
    return [(world - T[:3, 3]) @ T[:3, :3] for T in T_world()]


def T_i_j(i: int, j: int) -> np.ndarray:
    """As in gt.log: fragment j into fragment i."""
    T = T_world()
    return np.linalg.inv(T[i]) @ T[j]


def features(k: int, count: int = 200) -> np.ndarray:
    """Row n of every fragment is the same place; its descriptor says so, and whose it is."""
    return np.c_[np.arange(count), np.full(count, k), np.ones(count)].astype(np.float32)


def write_log(path: Path, matrices: dict[tuple[int, int], np.ndarray]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        f"{i}\t {j}\t 3\n" + "\n".join("\t".join(f"{x:.9e}" for x in row) for row in matrix)
        for (i, j), matrix in matrices.items()
    ]
    path.write_text("\n".join(rows) + "\n")


def write_gt_log(folder: Path) -> None:
    write_log(folder / "gt.log", {pair: T_i_j(*pair) for pair in PAIRS})


def information(i: int, j: int) -> np.ndarray:
    return np.diag(np.arange(1.0, 7.0)) * (10 * i + j)


def ours(root: Path, benchmark: str = "3DMatch") -> None:
    folder = root / "fragments" / SCENE
    folder.mkdir(parents=True, exist_ok=True)
    for k, points in enumerate(fragments()):
        np.savez(folder / f"cloud_bin_{k}.npz", pcd=points.astype(np.float32))
    lists = root / "benchmarks" / benchmark / SCENE
    write_gt_log(lists)
    write_log(lists / "gt.info", {pair: information(*pair) for pair in PAIRS})
    (lists / "gt_overlap.log").write_text(
        "".join(f"{i},{j},{o}\n" for (i, j), o in OVERLAP.items())
    )


def plys(folder: Path) -> None:
    (folder / SCENE).mkdir(parents=True)
    for k, points in enumerate(fragments()):
        io.write(folder / SCENE / f"cloud_bin_{k}.ply", points)


def pointdsc(root: Path) -> None:
    plys(root / "fragments")
    for k, points in enumerate(fragments()):
        for name in ("fcgf", "fpfh"):
            file = root / "fragments" / SCENE / f"cloud_bin_{k}_{name}.npz"
            np.savez(file, points=points, xyz=points[:50], feature=features(k, 50))
    write_gt_log(root / "gt_result" / f"{SCENE}-evaluation")


def archives(folder: Path) -> None:
    plys(folder)
    write_gt_log(folder / f"{SCENE}-evaluation")


def pths(folder: Path) -> None:
    (folder / SCENE).mkdir(parents=True)
    for k, points in enumerate(fragments()):
        torch.save(points, folder / SCENE / f"cloud_bin_{k}.pth")


def predator_list() -> dict[str, list]:
    """Predator's source is the later fragment."""
    return {
        "src": [f"test/{SCENE}/cloud_bin_{j}.pth" for _, j in PAIRS],
        "tgt": [f"test/{SCENE}/cloud_bin_{i}.pth" for i, _ in PAIRS],
        "rot": [T_i_j(*pair)[:3, :3] for pair in PAIRS],
        "trans": [T_i_j(*pair)[:3, 3:] for pair in PAIRS],
        "overlap": list(OVERLAP.values()),
    }


def geotransformer_list() -> list[dict]:
    return [
        {
            "scene_name": SCENE,
            "frag_id0": i,
            "frag_id1": j,
            "pcd0": f"test/{SCENE}/cloud_bin_{i}.pth",
            "pcd1": f"test/{SCENE}/cloud_bin_{j}.pth",
            "rotation": T_i_j(i, j)[:3, :3],
            "translation": T_i_j(i, j)[:3, 3],
            "overlap": np.float64(OVERLAP[i, j]),
        }
        for i, j in PAIRS
    ]


def write_pickle(path: Path, value: object, protocol: int = 4) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(value, protocol))


def predator_features(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for n, (i, j) in enumerate(PAIRS):
        source, target = fragments()[j], fragments()[i]
        held = {
            "pcd": torch.from_numpy(np.r_[source, target]).float(),
            "feats": torch.from_numpy(np.r_[features(j), features(i)]),
            "overlaps": torch.full((400,), 0.5),
            "saliency": torch.cat([torch.full((200,), 0.2), torch.full((200,), 0.4)]),
            "len_src": torch.tensor(200),
            "rot": torch.from_numpy(T_i_j(i, j)[:3, :3]).float(),
            "trans": torch.from_numpy(T_i_j(i, j)[:3, 3:]).float(),
        }
        torch.save(held, folder / f"{n}.pth")


def within(pair: Pair, radius: float) -> float:
    """Share of the source that lies on the target under the true pose."""
    T = pair.T_target_source
    moved = pair.source @ T[:3, :3].T + T[:3, 3]
    return float((cKDTree(pair.target).query(moved)[0] < radius).mean())
