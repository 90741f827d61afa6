from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.spatial import cKDTree

from tests.training.test_ready_places import SCALE, scans, write_scene
from vbreg import io
from vbreg.errors import VBRegError
from vbreg.simulator.places import MESH, Place, PosedScan
from vbreg.training import places
from vbreg.training.comparison import (
    Comparison,
    DescriptorScore,
    compare_descriptors,
    held_out_pairs,
)
from vbreg.training.own_scans import prepare_scans
from vbreg.training.places import PlacesConfig
from vbreg.types import PointCloud


def test_the_last_scans_of_a_scene_are_only_looked_at(tmp_path: Path) -> None:
    said: list[str] = []
    folder = write_scene(tmp_path / "in")
    ready = prepare_scans(folder, tmp_path / "out", 0.05, said.append)
    assert said[0] == "6 scans, folders: 1, voxel size 0.05"
    assert [text.split(",")[0] for text in said[1:]] == [
        "to train on: 4 scans",
        "to look at: 2 scans",
    ]
    assert ready.train.fragments == tmp_path / "out" / "train"
    assert len(list((tmp_path / "out" / "train").glob("*/cloud_*.npz"))) == 4
    ((pair, scale),) = held_out_pairs(ready.look_at)
    assert scale.voxel_size == 0.05
    assert pair.overlap is not None
    assert pair.overlap > 0.5
    plan = ready.plan(3.0)
    assert plan.start_from is not None
    assert plan.places == ready.train


def test_of_many_scenes_whole_ones_are_only_looked_at(tmp_path: Path) -> None:
    for k in range(3):
        write_scene(tmp_path / "in" / f"scene{k}", 3)
    prepare_scans(tmp_path / "in", tmp_path / "out", 0.05, lambda text: None)
    counts = [len(list((tmp_path / "out" / n).iterdir())) for n in ("train", "held_out")]
    assert counts == [2, 1]


def test_a_voxel_size_is_estimated(tmp_path: Path) -> None:
    folder = write_scene(tmp_path / "in")
    size = prepare_scans(folder, tmp_path / "out", say=lambda text: None).train.voxel_size
    assert size is not None
    assert 0.02 < size < 0.1


def test_a_folder_that_nothing_can_be_learned_from(tmp_path: Path) -> None:
    def complaint(folder: Path) -> str:
        with pytest.raises(VBRegError) as error:
            prepare_scans(folder, tmp_path / "out", 0.05, lambda text: None)
        return str(error.value)

    assert "no such folder; expected clouds with poses.txt" in complaint(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    assert "no poses.txt and no meshes" in complaint(tmp_path / "empty")
    assert "3 scans" in complaint(write_scene(tmp_path / "few", 3))
    assert "write T_world_cloud" in complaint(write_scene(tmp_path / "inverted", inverted=True))
    apart = write_scene(tmp_path / "apart")
    poses = np.loadtxt(apart / "poses.txt")
    poses[:, 3] += 100 * np.arange(6)
    np.savetxt(apart / "poses.txt", poses)
    assert "the same unit and order" in complaint(apart)
    np.savetxt(apart / "poses.txt", poses[:5])
    assert "6 clouds and 5 poses" in complaint(apart)


def test_meshes_are_copied_and_checked(tmp_path: Path) -> None:
    corners = np.array([[0, 0, 0], [4, 0, 0], [0, 4, 0], [0, 0, 3.0]])
    faces = np.array([[0, 1, 2], [0, 1, 3], [0, 2, 3]])
    (tmp_path / "in").mkdir()
    io.write(tmp_path / "in" / "a.ply", PointCloud(corners, faces=faces))
    np.savez(tmp_path / "in" / "b.npz", vertices=corners, faces=faces)
    said: list[str] = []
    ready = prepare_scans(tmp_path / "in", tmp_path / "out", say=said.append)
    assert said[0] == "2 meshes, 0 of them to look at only"
    assert ready.train.meshes is not None
    assert len(list(ready.train.meshes.glob("*.npz"))) == 2
    with pytest.raises(VBRegError, match="leave it out"):
        prepare_scans(tmp_path / "in", tmp_path / "out", 0.05)
    io.write(tmp_path / "in" / "c.ply", PointCloud(1000 * corners, faces=faces))
    with pytest.raises(VBRegError, match="scale it to metres"):
        prepare_scans(tmp_path / "in", tmp_path / "out", say=said.append)
    io.write(tmp_path / "in" / "c.ply", corners)
    with pytest.raises(VBRegError, match="no faces: expected a mesh, or scans with"):
        prepare_scans(tmp_path / "in", tmp_path / "out", say=said.append)
    np.savez(tmp_path / "in" / "c.npz", pcd=corners)
    (tmp_path / "in" / "c.ply").unlink()
    with pytest.raises(VBRegError, match="holds pcd: expected the arrays vertices"):
        prepare_scans(tmp_path / "in", tmp_path / "out", say=said.append)


def test_meshes_are_scanned_for_pairs_to_compare_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here by a scanner that always brings the same three scans of a corner."""
    parts = [PosedScan(s.points.astype(np.float32), s.T_world_scan, None) for s in scans(3)]
    place = Place(MESH, 0, SCALE.voxel_size, tuple(parts))
    monkeypatch.setattr(places, "make_place", lambda kind, seed, mesh: place)
    (tmp_path / "room.npz").touch()
    config = PlacesConfig(kinds=(MESH,), weights=(1.0,), meshes=tmp_path, held_out=2)
    found = held_out_pairs(config)
    assert [pair.name for pair, _ in found] == [
        f"mesh-{k}/{i}-{j}" for k in range(2) for i, j in ((0, 1), (0, 2), (1, 2))
    ]
    for pair, scale in found:
        assert scale == SCALE
        T = pair.T_target_source
        moved = pair.source @ T[:3, :3].T + T[:3, 3]  # each part holds the ones before it
        assert cKDTree(pair.target).query(moved)[0].max() < 1e-5


def test_better_means_more_right_matches_and_no_fewer_poses() -> None:
    before = DescriptorScore((0.1, 0.2, 0.3, 0.2), (True, True, False, True))
    more = DescriptorScore((0.15, 0.26, 0.35, 0.27), (True, True, True, True))
    assert Comparison(before, more).better
    assert not Comparison(more, before).better
    assert not Comparison(before, before).better
    fewer_poses = DescriptorScore(more.right, (True, False, False, True))
    assert not Comparison(before, fewer_poses).better


def test_descriptors_are_compared_on_the_same_pairs(tmp_path: Path) -> None:
    ready = prepare_scans(write_scene(tmp_path / "in"), tmp_path / "out", 0.05, lambda text: None)
    comparison = compare_descriptors(held_out_pairs(ready.look_at), "learned", "fpfh")
    assert 0 < comparison.before.right[0] <= 1
    assert comparison.before != comparison.after
