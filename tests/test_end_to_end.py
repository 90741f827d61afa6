"""Real scans and the embedded pair, from clouds to pose, through every door."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

import vbreg
from vbreg import io
from vbreg.cli import main
from vbreg.clouds import estimate_voxel_size
from vbreg.datasets import Pair
from vbreg.datasets.kitti import kitti
from vbreg.datasets.threedmatch import threedmatch
from vbreg.demo import load as load_demo
from vbreg.metrics import PoseError, pose_error
from vbreg.simulator import small_objects
from vbreg.simulator.meshes import Mesh, box, merge, surface_points

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
    stages = {"solve"} if result.backend == "triton" else {"network", "vote", "refine"}
    assert set(result.timings) >= {"prepare", "descriptors", "match", *stages}
    assert result.correspondences.source_index is not None
    assert len(result.confidence) == len(result.inliers) == len(result.correspondences)
    # The network tells inliers from outliers before any pose is known.
    assert result.confidence[result.inliers].mean() > 2 * result.confidence[~result.inliers].mean()


def made_up_table(generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A thing of 14 cm, a table of 1 m with it among others, as points, and where it stands."""
    things = []
    for k, size in enumerate((0.14, 0.2, 0.12, 0.18, 0.15, 0.22)):
        made = small_objects.compound_object(generator)
        low, high = made.vertices.min(0), made.vertices.max(0)
        middle = np.array([*(low + high)[:2] / 2, low[2]])
        vertices = (made.vertices - middle) * size / (high - low).max()
        T = np.eye(4)
        T[:3, :3] = Rotation.from_rotvec([0, 0, generator.uniform(0, 6)]).as_matrix()
        T[:3, 3] = [0.3 * (k % 3) - 0.3, 0.35 * (k // 3) - 0.2, 0]
        things.append((Mesh(vertices, made.faces), T))
    placed = [Mesh(mesh.vertices @ T[:3, :3].T + T[:3, 3], mesh.faces) for mesh, T in things]
    table = merge([*placed, box((1.0, 0.8, 0.02), (0, 0, -0.02))])
    clouds = [
        surface_points(mesh, n, generator)[0] for mesh, n in ((things[0][0], 4000), (table, 60_000))
    ]
    noisy = [points + generator.normal(0, 3e-4, points.shape) for points in clouds]
    return noisy[0], noisy[1], things[0][1]


@pytest.mark.slow
def test_a_small_object_in_its_scene() -> None:
    """The object decides the voxel size: at the size that suits the scene it is not found."""
    thing, table, T_table_thing = made_up_table(np.random.default_rng(2))
    turn = np.eye(4)
    turn[:3, :3] = Rotation.from_rotvec([0.5, 1.0, 0.3]).as_matrix()
    truth = T_table_thing @ turn.T
    clouds = thing @ turn[:3, :3].T, table
    size = estimate_voxel_size(*map(torch.from_numpy, clouds))
    result = vbreg.register(*clouds, voxel_size=size)
    assert error_of(result.T_target_source, truth).success(5.0, 0.01)
    of_table = estimate_voxel_size(torch.from_numpy(table))
    assert size < 0.7 * of_table
    coarse = vbreg.register(*clouds, voxel_size=of_table)
    assert not error_of(coarse.T_target_source, truth).success(5.0, 0.01)


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
    for descriptor, more in (("learned", 1000), ("fpfh", 8000)):
        result = vbreg.register(
            kitti_pair.source, kitti_pair.target, preset="outdoor", descriptor=descriptor
        )
        assert error_of(result.T_target_source, kitti_pair.T_target_source).success(*KITTI)
        assert result.voxel_size == 0.30
        assert len(result.correspondences) <= 8000
        assert result.matches_found >= more


def test_command_line(
    indoor_pair: Pair,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("source", "target"):
        io.write(tmp_path / f"{name}.ply", getattr(indoor_pair, name))
    command = ["register", "source.ply", "target.ply", "--voxel-size", "0.05"]
    with pytest.raises(SystemExit) as stop:
        main([*command, "-o", "aligned.pcd", "--json", "-"])
    assert not stop.value.code
    report = json.loads(capsys.readouterr().out)
    T = np.array(report["T_target_source"])
    assert error_of(T, indoor_pair.T_target_source).success(*INDOOR)
    moved = indoor_pair.source @ T[:3, :3].T + T[:3, 3]
    np.testing.assert_allclose(io.read(tmp_path / "aligned.pcd").points, moved, atol=1e-5)


@pytest.mark.parametrize("weights", [None, "fast", "universal"])
def test_the_embedded_pair(weights: str | None) -> None:
    source, target, truth = load_demo()
    result = vbreg.register(source, target, voxel_size=0.05, weights=weights)
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
    from vbreg.clouds import normals, voxel_downsample
    from vbreg.descriptors import fpfh
    from vbreg.matching import match

    source, target, truth = load_demo()
    scale = vbreg.Scale.of_preset("indoor")
    points = [
        voxel_downsample(torch.from_numpy(c.points).float(), scale.voxel_size)
        for c in (source, target)
    ]
    features = [fpfh(p, normals(p, scale.normal_radius), scale.feature_radius) for p in points]
    i, j = match(*features)
    result = vbreg.VBReg.from_pretrained("fast", device="cpu").estimate(
        points[0][i], points[1][j], inlier_threshold=scale.inlier_threshold
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


# --- what is measured is what ships

LONE = np.array([[30.0, 0, 0], [0, 40.0, 0], [0, 0, 50.0], [60.0, 60.0, 0], [0, 70.0, 70.0]])


@pytest.fixture(scope="module")
def scans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of posed scans in map coordinates (millions of metres), with lone points."""
    folder = tmp_path_factory.mktemp("scans")
    source, target, T = load_demo()
    rng = np.random.default_rng(0)
    middle = target.points.mean(axis=0)
    near = np.linalg.norm(target.points - middle, axis=1) < 1.2
    around = source.points @ T[:3, :3].T + T[:3, 3]
    close = np.linalg.norm(around - middle, axis=1) < 1.2
    world = (target.points[near][::3], target.points[near][1::3], around[close][::2])
    poses = []
    for k, points in enumerate(world):
        pose = np.eye(4)
        pose[:3, :3] = Rotation.random(random_state=k).as_matrix()
        pose[:3, 3] = [512_345.678, 5_412_345.678, 432.1] + rng.uniform(-1, 1, 3) * 1e6
        cloud = np.concatenate([points, middle + LONE])
        np.save(folder / f"scan_{k}.npy", (cloud - pose[:3, 3]) @ pose[:3, :3])
        poses.append(pose)
    np.savetxt(folder / "poses.txt", np.reshape(poses, (-1, 16)))
    return folder


def test_a_benchmark_finds_the_poses_that_register_finds(scans: Path, tmp_path: Path) -> None:
    """Pair by pair and number by number: both come through the same front end."""
    size = 0.08
    command = ["benchmark", str(scans), "--methods", "register", "--device", "cpu", "-q"]
    with pytest.raises(SystemExit) as stop:
        main([*command, "--voxel-size", str(size), "--limit", "2", "-o", str(tmp_path / "out")])
    assert not stop.value.code
    lines = (tmp_path / "out" / "predictions" / "register.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if "pair" in row]
    assert len(rows) == 2
    for row in rows:
        i, j = row["pair"].rpartition("/")[2].split("-")
        paths = scans / f"scan_{i}.npy", scans / f"scan_{j}.npy"
        result = vbreg.register(*paths, voxel_size=size, weights="fast", device="cpu")
        assert "error" not in row
        benchmarked = np.reshape(row["T_target_source"], (4, 4))
        np.testing.assert_allclose(benchmarked, result.T_target_source, rtol=0, atol=1e-9)
        assert row["score"] == pytest.approx(result.score, abs=1e-9)
        assert row["backend"] == result.backend
        # Millions of metres away, and yet no lone point is matched.
        matches = result.correspondences
        for end in (matches.source, matches.target):
            assert np.abs(end).max() > 1e5
            assert np.ptp(end, axis=0).max() < 10
        assert np.abs(np.load(paths[0])).max() > 1e5


def test_the_poses_are_right(scans: Path) -> None:
    """Two samples of one scan, so that the answer is not that of a lucky pair."""
    poses = np.loadtxt(scans / "poses.txt").reshape(-1, 4, 4)
    paths = [scans / f"scan_{k}.npy" for k in (0, 1)]
    result = vbreg.register(*paths, voxel_size=0.08, weights="fast", device="cpu")
    moved = result.apply_to(np.load(paths[0]))
    world = [
        np.load(paths[0]) @ poses[0, :3, :3].T + poses[0, :3, 3],
        moved @ poses[1, :3, :3].T + poses[1, :3, 3],
    ]
    assert np.abs(world[1] - world[0])[: -len(LONE)].max() < 0.15
    assert result.determined


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
        ({"descriptor": "shot"}, "descriptor 'shot': expected 'learned', 'fpfh'"),
        ({"weights": "indoor"}, "no weights at indoor: give one of universal, fast"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], message: str) -> None:
    cloud = np.random.default_rng(0).random((100, 3))
    with pytest.raises(vbreg.errors.VBRegError, match=message):
        vbreg.register(cloud, cloud, **options)  # type: ignore[arg-type]
