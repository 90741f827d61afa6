"""Posed clouds: any format, natural order, poses in three spellings, overlap as measured."""

from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from tests.datasets.layouts import T_world, fragments, within
from vbreg import io
from vbreg.datasets.folder import posed_clouds, posed_pairs
from vbreg.errors import VBRegError


def write(folder: Path, names: list[str], rows: np.ndarray) -> None:
    for name, points in zip(names, fragments(), strict=True):
        io.write(folder / name, points)
    np.savetxt(folder / "poses.txt", rows, header="as written by us")


def tum(T: np.ndarray) -> np.ndarray:
    return np.c_[np.arange(len(T)), T[:, :3, 3], Rotation.from_matrix(T[:, :3, :3]).as_quat()]


ROWS = {
    "16": T_world().reshape(-1, 16),
    "12": T_world()[:, :3].reshape(-1, 12),
    "TUM": tum(T_world()),
}


@pytest.mark.parametrize("rows", ROWS)
def test_poses_in_every_spelling(tmp_path: Path, rows: str) -> None:
    write(tmp_path, ["a.ply", "b.pcd", "c.xyz"], ROWS[rows])
    for (points, T), expected in zip(posed_clouds(tmp_path), T_world(), strict=True):
        assert len(points) == 200
        np.testing.assert_allclose(T, expected, atol=1e-9)
    pairs = posed_pairs(tmp_path, radius=1e-4)
    assert pairs.names == tuple(f"{tmp_path.name}/{p}" for p in ("0-1", "0-2", "1-2"))
    assert pairs[1].ids == (0, 2)
    assert pairs[1].overlap == 1.0
    assert within(pairs[1], 1e-4) == 1.0


def test_ten_comes_after_two(tmp_path: Path) -> None:
    write(tmp_path, ["scan_1.txt", "scan_2.txt", "scan_10.txt"], ROWS["12"])
    assert within(posed_pairs(tmp_path, radius=1e-4)[2], 1e-4) == 1.0


def test_pairs_need_overlap(tmp_path: Path) -> None:
    points = np.random.default_rng(0).uniform(0, 1, (3000, 3))
    clouds = points[points[:, 0] < 0.6], points[points[:, 0] > 0.4] - [5, 0, 0], points + 9
    for k, cloud in enumerate(clouds):
        np.savez(tmp_path / f"cloud_bin_{k}.npz", pcd=cloud)
    poses = np.tile(np.eye(4), (3, 1, 1))
    poses[1, 0, 3] = 5
    np.savetxt(tmp_path / "poses.txt", poses.reshape(3, 16))
    loaded = posed_pairs(tmp_path, min_overlap=0.1, radius=0.001)
    assert loaded.names == (f"{tmp_path.name}/0-1",)
    assert loaded[0].overlap == pytest.approx(1 / 3, abs=0.06)
    assert within(loaded[0], 1e-6) == pytest.approx(1 / 3, abs=0.06)
    assert len(posed_pairs(tmp_path, min_overlap=0.1, max_overlap=0.2, radius=0.001)) == 0
    assert len(posed_pairs(tmp_path, min_overlap=0.0, radius=0.001)) == 3


def test_points_that_are_no_numbers_are_left_out(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", pcd=np.r_[fragments()[0], [[np.nan, 0, 0]]])
    np.savetxt(tmp_path / "poses.txt", np.eye(4).reshape(1, 16))
    assert len(posed_clouds(tmp_path)[0][0]) == 200


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.zeros((3, 7)), "7 numbers a row"),
        (np.zeros((3, 8)), "time, x, y, z"),
        (ROWS["16"][:2], "3 clouds and 2 poses"),
        (np.r_[ROWS["16"][:2], 2 * ROWS["16"][2:]], "row 3 is not a rotation"),
        (np.where(np.arange(16) == 3, np.nan, ROWS["16"]), "row 1 is not a rotation"),
        (np.diag([1.0, 1, -1, 1]).reshape(1, 16).repeat(3, 0), "row 1 is not a rotation"),
    ],
)
def test_wrong_poses_are_named(tmp_path: Path, rows: np.ndarray, message: str) -> None:
    write(tmp_path, ["a.ply", "b.ply", "c.ply"], rows)
    with pytest.raises(VBRegError, match=f"{tmp_path}.*{message}"):
        posed_pairs(tmp_path)


def test_missing_poses_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        VBRegError, match=r"poses\.txt: no such file; expected the poses .* 16 or 12"
    ):
        posed_pairs(tmp_path)
    (tmp_path / "poses.txt").write_text("1 2 3\nfour\n")
    with pytest.raises(VBRegError, match="no table of numbers"):
        posed_clouds(tmp_path)
    with pytest.raises(VBRegError, match=f"looked for {tmp_path}/none"):
        posed_pairs(tmp_path / "none")


def test_a_radius_must_be_a_length(tmp_path: Path) -> None:
    write(tmp_path, ["a.ply", "b.ply", "c.ply"], ROWS["16"])
    with pytest.raises(VBRegError, match="radius is 0"):
        posed_pairs(tmp_path, radius=0)


def test_real_fragments_overlap(data_root: Path) -> None:
    pairs = posed_pairs(data_root / "rgbd_train" / "tum_fr1_desk", min_overlap=0.4)
    for pair in pairs.select(every=30):
        assert within(pair, 0.05) == pytest.approx(pair.overlap, abs=0.05)
