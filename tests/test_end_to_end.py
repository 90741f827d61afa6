"""Real scans and the embedded pair, from clouds to pose, through every door."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import vbreg
from vbreg import io
from vbreg.datasets import Pair
from vbreg.datasets.kitti import kitti
from vbreg.datasets.threedmatch import threedmatch
from vbreg.demo import load as load_demo
from vbreg.metrics import PoseError, pose_error

INDOOR = (15.0, 0.30)
KITTI = (5.0, 0.60)
SCENE = "7-scenes-redkitchen"


def error_of(T: np.ndarray, truth: np.ndarray) -> PoseError:
    return pose_error(torch.from_numpy(np.asarray(T)), torch.from_numpy(truth))


@pytest.fixture(scope="module")
def indoor_pair(data_root: Path) -> Pair:
    pairs = threedmatch(data_root / "3dmatch")
    return pairs[pairs.names.index(f"{SCENE}/0-1")]


@pytest.fixture(scope="module")
def kitti_pair(data_root: Path) -> Pair:
    return kitti(data_root / "kitti" / "dev" / "03")[0]


def test_arrays(indoor_pair: Pair) -> None:
    result = vbreg.register(indoor_pair.source, indoor_pair.target, voxel_size=0.05)
    error = error_of(result.T_target_source, indoor_pair.T_target_source)
    assert error.success(*INDOOR), error
    assert result.determined
    assert set(result.timings) >= {"read", "descriptors", "match", "network", "vote", "refine"}
    assert result.correspondences.source_index is not None
    assert len(result.confidence) == len(result.inliers) == len(result.correspondences)
    # The network tells inliers from outliers before any pose is known.
    assert result.confidence[result.inliers].mean() > 2 * result.confidence[~result.inliers].mean()


def test_an_object_like_open3ds_and_a_tensor(indoor_pair: Pair) -> None:
    cloud = SimpleNamespace(points=indoor_pair.source)
    target = torch.from_numpy(indoor_pair.target.astype(np.float32))
    result = vbreg.register(cloud, target, preset="indoor")
    assert error_of(result.T_target_source, indoor_pair.T_target_source).success(*INDOOR)
    assert result.voxel_size == 0.05
    assert not result.voxel_size_estimated


def test_the_scale_may_be_left_out_and_the_frame_far_away(indoor_pair: Pair) -> None:
    """No voxel size, and the target in a frame like UTM."""
    east = np.array([512_345.0, 5_412_345.0, 432.0])
    result = vbreg.register(indoor_pair.source, indoor_pair.target + east)
    truth = indoor_pair.T_target_source.copy()
    truth[:3, 3] += east
    assert error_of(result.T_target_source, truth).success(*INDOOR)
    assert result.voxel_size_estimated
    assert result.voxel_size == pytest.approx(0.05, rel=0.6)


def test_outdoor(kitti_pair: Pair) -> None:
    result = vbreg.register(kitti_pair.source, kitti_pair.target, preset="outdoor")
    assert error_of(result.T_target_source, kitti_pair.T_target_source).success(*KITTI)
    assert result.voxel_size == 0.30
    assert len(result.correspondences) <= 8000 <= result.matches_found


def test_command_line(indoor_pair: Pair, tmp_path: Path) -> None:
    for name in ("source", "target"):
        io.write(tmp_path / f"{name}.ply", getattr(indoor_pair, name))
    command = [sys.executable, "-m", "vbreg", "register", "source.ply", "target.ply"]
    command += ["--voxel-size", "0.05", "-o", "aligned.pcd", "--json", "-"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    report = json.loads(run.stdout)
    T = np.array(report["T_target_source"])
    assert error_of(T, indoor_pair.T_target_source).success(*INDOOR)
    moved = indoor_pair.source @ T[:3, :3].T + T[:3, 3]
    np.testing.assert_allclose(io.read(tmp_path / "aligned.pcd").points, moved, atol=1e-5)


def test_the_embedded_pair() -> None:
    source, target, truth = load_demo()
    result = vbreg.register(source, target, voxel_size=0.05)
    error = error_of(result.T_target_source, truth)
    assert error.success(5.0, 0.10), error


def test_non_finite_points_are_counted_in_the_result() -> None:
    source, target, truth = load_demo()
    holed = np.concatenate([source.points, np.full((17, 3), np.nan)])
    result = vbreg.register(holed, target, voxel_size=0.05)
    assert result.points_dropped == (17, 0)
    assert result.points_read == (len(holed), len(target))
    assert error_of(result.T_target_source, truth).success(5.0, 0.10)


def test_stages_by_hand_are_the_recipe() -> None:
    """What the README shows for users with their own descriptors or matches."""
    from vbreg.correspondences import match

    from vbreg.clouds import normals, voxel_downsample
    from vbreg.descriptors import fpfh

    source, target, truth = load_demo()
    points = [voxel_downsample(torch.from_numpy(c.points).float(), 0.05) for c in (source, target)]
    features = [fpfh(p, normals(p, 0.10), 0.25) for p in points]
    i, j = match(*features)
    result = vbreg.VBReg.from_pretrained("indoor", device="cpu").estimate(
        points[0][i], points[1][j], inlier_threshold=0.10
    )
    assert error_of(result.T_target_source, truth).success(5.0, 0.10)


def test_lone_points_are_not_matched() -> None:
    """Far from everything, a point has no descriptor; it must not match the first that comes."""
    source, target, truth = load_demo()
    lone = np.random.default_rng(0).uniform(100, 900, (500, 3))
    result = vbreg.register(np.concatenate([source.points, lone]), target, voxel_size=0.05)
    assert float(result.correspondences.source.max()) < 100
    assert error_of(result.T_target_source, truth).success(5.0, 0.10)


def test_a_cloud_far_too_large_for_its_voxels_is_refused_at_once() -> None:
    cloud = np.random.default_rng(0).uniform(0, 1000, (301_000, 3))
    with pytest.raises(vbreg.errors.VBRegError, match=r"at most 300000 .* larger voxel size"):
        vbreg.register(cloud, cloud, voxel_size=0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"voxel_size": -1.0}, "voxel_size -1.0"),
        ({"voxel_size": float("nan")}, "voxel_size nan"),
        ({"preset": "space"}, "indoor, outdoor"),
        ({"device": "abacus"}, "abacus"),
        ({"max_correspondences": 2}, "max_correspondences 2"),
        ({"max_correspondences": 20.5}, "max_correspondences 20.5"),
        ({"voxel_size": "fine"}, "voxel_size 'fine'"),
        ({"voxel_size": 100.0}, "a smaller voxel size"),
        ({"voxel_size": 1e-4}, "a larger one"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], message: str) -> None:
    cloud = np.random.default_rng(0).random((100, 3))
    with pytest.raises(vbreg.errors.VBRegError, match=message):
        vbreg.register(cloud, cloud, **options)  # type: ignore[arg-type]
