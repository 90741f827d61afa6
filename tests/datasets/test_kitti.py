"""KITTI: which frames make a pair, the way of the pose, and the layouts."""

from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from tests.datasets.layouts import within
from vbreg import io
from vbreg.datasets.kitti import choose_frames, kitti
from vbreg.errors import VBRegError

T_CAMERA_LIDAR = np.eye(4)
T_CAMERA_LIDAR[:3, :3] = [[0, -1, 0], [0, 0, -1], [1, 0, 0]]
T_CAMERA_LIDAR[:3, 3] = 0.0, -0.08, -0.27


def drive_poses(frames: int = 40) -> np.ndarray:
    """T_world_camera (F, 4, 4) along a bend, a metre a frame."""
    T = np.tile(np.eye(4), (frames, 1, 1))
    yaw = 0.01 * np.arange(frames)
    T[:, :3, :3] = Rotation.from_euler("y", yaw[:, None]).as_matrix()
    T[:, 0, 3] = np.cumsum(np.sin(yaw))
    T[:, 2, 3] = np.cumsum(np.cos(yaw))
    return T


def write_odometry(root: Path, drive: int = 8, shift: float = 0.0) -> None:
    """The same street seen from every frame; `shift` spoils the poses from frame 15 on."""
    world = street()
    scans = root / "sequences" / f"{drive:02d}" / "velodyne"
    scans.mkdir(parents=True)
    poses = drive_poses()
    for k, T_world_camera in enumerate(poses):
        T = np.linalg.inv(T_world_camera @ T_CAMERA_LIDAR)
        io.write(scans / f"{k:06d}.bin", world @ T[:3, :3].T + T[:3, 3])
    calibration = " ".join(f"{x:.9e}" for x in T_CAMERA_LIDAR[:3].ravel())
    (scans.parent / "calib.txt").write_text(f"P0: {calibration}\nTr: {calibration}\n")
    (root / "poses").mkdir()
    poses[15:, 0, 3] += shift
    np.savetxt(root / "poses" / f"{drive:02d}.txt", poses[:, :3].reshape(-1, 12))


def street() -> np.ndarray:
    """A road, two walls and some poles, in the camera's world (y down, z ahead)."""
    draw = np.random.default_rng(0).uniform
    road = np.c_[draw(-8, 8, 3000), np.full(3000, 1.7), draw(-20, 60, 3000)]
    walls = np.c_[draw(-8.2, -8, 4000), draw(-2, 1.7, 4000), draw(-20, 60, 4000)]
    walls[::2, 0] *= -1
    poles = np.c_[np.repeat([-5.0, 5.5, -4.0, 4.5], 300), draw(-2, 1.7, 1200), np.zeros(1200)]
    poles[:, 2] = np.repeat([0.0, 12.0, 25.0, 40.0], 300)
    poles[:, ::2] += draw(-0.3, 0.3, (1200, 2))
    return np.concatenate([road, walls, poles])


def naive_frames(positions: np.ndarray) -> list[tuple[int, int]]:
    """Word by word: walk on until the next frame would be too far."""
    pairs, a = [], 0
    while a < len(positions):
        ahead = range(a + 1, min(a + 100, len(positions)))
        far = [f for f in ahead if np.linalg.norm(positions[f] - positions[a]) > 10]
        if not far:
            a += 1
            continue
        pairs.append((a, far[0] - 1))
        a = far[0]
    return pairs


def test_frames_are_chosen_as_in_the_literature() -> None:
    steps = np.abs(np.random.default_rng(0).normal(0.8, 0.5, 400)).clip(0.01)
    steps[100:230] = 0.0  # the car waits longer than anyone looks ahead
    positions = np.c_[steps.cumsum(), np.zeros((400, 2))]
    pairs = choose_frames(positions, range(400))
    assert pairs == naive_frames(positions)
    assert len(pairs) > 10
    distance = [np.linalg.norm(positions[b] - positions[a]) for a, b in pairs]
    assert 8 < min(distance) <= max(distance) <= 10
    fewer = choose_frames(positions, set(range(400)) - {pairs[0][0]})
    assert fewer[0][0] == pairs[0][0] + 1
    assert choose_frames(positions[:5], range(5)) == []


@pytest.mark.parametrize("base", [".", "dataset"])
def test_odometry(tmp_path: Path, base: str) -> None:
    write_odometry(tmp_path / base)
    pairs = kitti(tmp_path, drives=[8])
    assert pairs.names == ("08/0-10", "08/11-21", "08/22-32")
    pair = pairs[1]
    assert (pair.scene, pair.ids) == ("08", (11, 21))
    assert within(pair, 1e-3) == 1.0
    assert kitti(tmp_path, drives=[8], distance=20.0).names[0] == "08/0-20"


def test_refinement_repairs_the_pose(tmp_path: Path) -> None:
    write_odometry(tmp_path, shift=0.4)
    rough, fine = (kitti(tmp_path, drives=[8], refine=flag)[1] for flag in (False, True))
    assert within(rough, 0.1) < 0.7
    assert within(fine, 0.05) > 0.99
    assert np.abs(fine.T_target_source - rough.T_target_source)[:3, 3].max() < 0.6


def test_splits_are_drives(tmp_path: Path) -> None:
    write_odometry(tmp_path, drive=6)
    with pytest.raises(VBRegError, match=f"looked for {tmp_path}/sequences/07/velodyne"):
        kitti(tmp_path, "val")
    with pytest.raises(VBRegError, match=f"looked for {tmp_path}/sequences/08/velodyne"):
        kitti(tmp_path)
    with pytest.raises(VBRegError, match="train"):
        kitti(tmp_path, "dev")  # type: ignore[arg-type]
    (tmp_path / "sequences" / "06" / "calib.txt").write_text("P0: 1 2 3\n")
    with pytest.raises(VBRegError, match=r"calib.txt: expected a line Tr:"):
        kitti(tmp_path, drives=[6])


def write_pairs(folder: Path, *names: str, descriptors: bool = False, record: bool = False) -> None:
    folder.mkdir(parents=True)
    points = np.random.default_rng(0).uniform(-5, 5, (60, 3))
    T = np.eye(4)
    T[:3, :3], T[:3, 3] = Rotation.from_euler("z", 1.0).as_matrix(), (10, 1, 0)
    held = {"xyz0": points, "xyz1": points @ T[:3, :3].T + T[:3, 3], "gt_trans": T}
    if descriptors:
        held |= {"features0": np.zeros((60, 32)), "features1": np.ones((60, 32))}
    for name in names:
        np.savez(folder / f"{name}.npz", **held)
    if record:
        (folder / "pairs.csv").write_text("source,target\n")


def test_pointdsc(tmp_path: Path) -> None:
    names = ("drive10-pair0_9", "drive8-pair20_31", "drive8-pair3_11")
    write_pairs(tmp_path / "fcgf_test", *names, descriptors=True)
    write_pairs(tmp_path / "fpfh_test", names[0], descriptors=True)
    write_pairs(tmp_path / "fcgf_train", "drive0-pair0_9", descriptors=True)
    pairs = kitti(tmp_path, descriptor="fcgf")
    assert pairs.names == ("08/3-11", "08/20-31", "10/0-9")
    assert pairs.scenes == ("08", "08", "10")
    assert within(pairs[0], 1e-6) == 1.0
    assert pairs[0].descriptors is not None
    assert pairs[0].descriptors[1].dtype == np.float32
    assert kitti(tmp_path)[0].descriptors is None
    assert kitti(tmp_path, "train").names == ("00/0-9",)
    assert kitti(tmp_path, descriptor="fpfh").names == ("10/0-9",)
    assert kitti(tmp_path / "fcgf_test", descriptor="fcgf").names == pairs.names
    with pytest.raises(VBRegError, match=r"fpfh(.|\n)*fcgf_val/drive"):
        kitti(tmp_path, "val", "fpfh")
    with pytest.raises(VBRegError, match="odometry"):
        kitti(tmp_path, refine=True)


def test_sub_folders_are_scenes(tmp_path: Path) -> None:
    for scene in ("03", "03_20m", "raw5"):
        write_pairs(tmp_path / scene, "drive3-pair12_24", "drive3-pair0_11", record=True)
    pairs = kitti(tmp_path)
    assert pairs.names[:3] == ("03/0-11", "03/12-24", "03_20m/0-11")
    assert len(set(pairs.names)) == len(pairs) == 6
    assert kitti(tmp_path / "raw5").names == ("raw5/0-11", "raw5/12-24")
    assert within(pairs[0], 1e-6) == 1.0
    with pytest.raises(VBRegError, match=f"{tmp_path}.*no array features0"):
        kitti(tmp_path, descriptor="fcgf")[0]


def test_unknown_roots_and_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(VBRegError, match=rf"no KITTI in {tmp_path}(.|\n)*velodyne(.|\n)*fcgf_test"):
        kitti(tmp_path)
    with pytest.raises(VBRegError, match=f"looked for {tmp_path}/none"):
        kitti(tmp_path / "none")
    np.savez(tmp_path / "drive3-pair0_11.npz", xyz0=np.zeros((3, 3)))
    with pytest.raises(VBRegError, match=r"drive3-pair0_11.npz: no array xyz1, gt_trans"):
        kitti(tmp_path)[0]
    np.savez(tmp_path / "drive3-pair0_11_old.npz")
    with pytest.raises(VBRegError, match="drive3-pair0_11_old"):
        kitti(tmp_path)


def test_real_pairs_overlap(data_root: Path) -> None:
    pairs = kitti(data_root / "kitti" / "dev")
    assert list(dict.fromkeys(pairs.scenes)) == ["03", "03_20m", "raw5", "raw5_20m"]
    for pair in pairs.select(every=20):
        assert within(pair, 0.6) > (0.35 if pair.scene.endswith("20m") else 0.5)
