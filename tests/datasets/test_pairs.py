"""The loaders: lazy, the right way round, and clear about what is missing."""

import os
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial import cKDTree

from vbreg.datasets import pairs
from vbreg.errors import VBRegError

DATA = os.environ.get("VBREG_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="VBREG_DATA is unset: no real pairs to read")


def within(pair: pairs.Pair, radius: float) -> float:
    T = pair.T_target_source
    moved = pair.source @ T[:3, :3].T + T[:3, 3]
    return float((cKDTree(pair.target).query(moved)[0] < radius).mean())


def write_scene(root: Path, T_i_j: np.ndarray) -> np.ndarray:
    """Fragments 0 and 1 of one scene in the 3DMatch layout -> the points of fragment 1."""
    points = np.random.default_rng(0).uniform(-1, 1, (200, 3))
    (root / "fragments" / "attic").mkdir(parents=True)
    (root / "benchmarks" / "3DMatch" / "attic").mkdir(parents=True)
    clouds = points @ T_i_j[:3, :3].T + T_i_j[:3, 3], points
    for k, cloud in enumerate(clouds):
        np.savez(root / "fragments" / "attic" / f"cloud_bin_{k}.npz", pcd=cloud.astype(np.float32))
    rows = "\n".join("\t".join(f"{value:.9e}" for value in row) for row in T_i_j)
    (root / "benchmarks" / "3DMatch" / "attic" / "gt.log").write_text(f"0\t1\t2\n{rows}\n")
    return points


@pytest.fixture
def T_i_j() -> np.ndarray:
    T = np.eye(4)
    T[:3, :3] = [[0, -1, 0], [1, 0, 0], [0, 0, 1]]
    T[:3, 3] = 1, 2, 3
    return T


def test_threedmatch_registers_i_to_j(tmp_path: Path, T_i_j: np.ndarray) -> None:
    write_scene(tmp_path, T_i_j)
    loaded = pairs.threedmatch(tmp_path)
    assert loaded.names == ("attic/0-1",)
    assert loaded[0].source.dtype == np.float64
    assert within(loaded[0], 1e-5) == 1.0


def test_names_come_without_clouds(tmp_path: Path, T_i_j: np.ndarray) -> None:
    write_scene(tmp_path, T_i_j)
    missing = tmp_path / "fragments" / "attic" / "cloud_bin_1.npz"
    missing.unlink()
    loaded = pairs.threedmatch(tmp_path)
    assert len(loaded) == len(loaded[:1]) == 1
    with pytest.raises(VBRegError, match="cloud_bin_1"):
        loaded[0]


def test_missing_things_are_named(tmp_path: Path, T_i_j: np.ndarray) -> None:
    with pytest.raises(VBRegError, match="benchmarks"):
        pairs.threedmatch(tmp_path)
    write_scene(tmp_path, T_i_j)
    with pytest.raises(VBRegError, match=r"cellar.*attic"):
        pairs.threedmatch(tmp_path, scenes=["cellar"])
    with pytest.raises(VBRegError, match="drive"):
        pairs.kitti_pairs(tmp_path)


def test_posed_fragments_need_overlap(tmp_path: Path) -> None:
    points = np.random.default_rng(0).uniform(0, 1, (3000, 3))
    clouds = points[points[:, 0] < 0.6], points[points[:, 0] > 0.4] - [5, 0, 0], points + 9
    for k, cloud in enumerate(clouds):
        np.savez(tmp_path / f"cloud_bin_{k}.npz", pcd=cloud)
    poses = np.tile(np.eye(4), (3, 1, 1))
    poses[1, 0, 3] = 5
    np.savetxt(tmp_path / "poses.txt", poses.reshape(3, 16))
    loaded = pairs.posed_fragments(tmp_path, min_overlap=0.1, radius=0.001)
    assert loaded.names == (f"{tmp_path.name}/0-1",)
    assert loaded[0].overlap == pytest.approx(1 / 3, abs=0.06)
    assert within(loaded[0], 1e-6) == pytest.approx(1 / 3, abs=0.06)


@needs_data
def test_real_threedmatch_pair_overlaps() -> None:
    loaded = pairs.threedmatch(Path(str(DATA)) / "3dmatch")
    pair = loaded[0]
    assert pair.overlap is not None
    assert pair.overlap > 0.3
    assert within(pair, 0.05) > 0.3


@needs_data
def test_real_kitti_pair_overlaps() -> None:
    pair = pairs.kitti_pairs(Path(str(DATA)) / "kitti" / "train" / "00")[0]
    assert within(pair, 0.6) > 0.5
