"""scripts/make_open3d_matches.py: what it writes is read as the matches of 3DMatch."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.experiments import miniature
from tests.scripts.helpers import load
from vbreg.clouds import normals, voxel_downsample
from vbreg.datasets.matches import stored_matches
from vbreg.datasets.threedmatch import threedmatch
from vbreg.descriptors import fpfh
from vbreg.scale import Scale


@pytest.fixture
def script() -> ModuleType:
    return load("scripts/make_open3d_matches.py")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return miniature.write(tmp_path_factory.mktemp("data")) / "3dmatch"


@pytest.fixture
def ours(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our voxels and our FPFH in place of Open3D's, which the core does without."""

    def describe(points: Tensor, scale: Scale) -> Tensor:
        return fpfh(points, normals(points, scale.normal_radius), scale.feature_radius)

    monkeypatch.setattr(
        script, "open3d_voxels", lambda points, scale: voxel_downsample(points, scale.voxel_size)
    )
    monkeypatch.setattr(script, "open3d_fpfh", describe)


def run(script: ModuleType, monkeypatch: pytest.MonkeyPatch, *options: object) -> int:
    monkeypatch.setattr(sys, "argv", ["make_open3d_matches.py", *map(str, options)])
    return int(script.main())


@pytest.mark.usefixtures("ours")
def test_every_keypoint_of_the_source_has_its_nearest_in_the_target(
    script: ModuleType,
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of all pairs of both lists, by a naive twin; the shares of right ones are those printed."""
    assert run(script, monkeypatch, "--root", root, "--output", tmp_path) == 0
    said = capsys.readouterr().out
    for benchmark in miniature.BENCHMARKS:
        shares = []
        for pair in threedmatch(root, benchmark):
            found = stored_matches(tmp_path, "open3d_fpfh", benchmark, pair)
            clouds = [torch.from_numpy(p.copy()) for p in (pair.source, pair.target)]
            source, target = (script.open3d_voxels(cloud, Scale(0.05)) for cloud in clouds)
            np.testing.assert_allclose(found.source, source.numpy(), atol=0.00051)
            a, b = (script.open3d_fpfh(p, Scale(0.05)).numpy() for p in (source, target))
            chosen = np.linalg.norm(a - b[found.target_index], axis=1)
            nearest = np.linalg.norm(a[:, None] - b, axis=2).min(1)
            np.testing.assert_allclose(chosen, nearest, atol=1e-3)
            shares.append(found.labels.mean())
        assert np.mean(shares) > 0.05
        assert f"{benchmark}: {100 * np.mean(shares):.2f} % of the matches are right" in said
    files = {file.name: file for file in (tmp_path / "open3d_fpfh_matches").iterdir()}
    parts = ("keypoints", *miniature.BENCHMARKS)
    assert set(files) == {f"{miniature.SCENE}_{part}.npz" for part in parts}
    assert f"{sum(file.stat().st_size for file in files.values())} bytes" in said


def test_errors_are_one_line(
    script: ModuleType,
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A root without 3DMatch, and no Open3D; then nothing is left behind."""
    assert run(script, monkeypatch, "--root", tmp_path / "nowhere") == 2
    first = capsys.readouterr().err
    assert first.startswith("error: ")
    assert str(tmp_path / "nowhere") in first
    monkeypatch.setitem(sys.modules, "open3d", None)
    assert run(script, monkeypatch, "--root", root, "--output", tmp_path) == 2
    assert "pip install 'vbreg[baselines]'" in capsys.readouterr().err.splitlines()[-1]
    assert not list(tmp_path.iterdir()), "an empty folder would look like matches"


@pytest.mark.usefixtures("ours")
def test_a_run_that_ends_early_leaves_no_matches(
    script: ModuleType, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even after it wrote the keypoints: a folder that is there would be taken for whole."""
    write_rows = script.write_stored_rows

    def end(folder: Path, *_: object) -> None:
        written.extend(folder.iterdir())
        raise KeyboardInterrupt

    written: list[Path] = []
    monkeypatch.setattr(script, "write_stored_rows", end)
    with pytest.raises(KeyboardInterrupt):
        run(script, monkeypatch, "--root", root, "--output", tmp_path)
    assert [file.name for file in written] == [f"{miniature.SCENE}_keypoints.npz"]
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(script, "write_stored_rows", write_rows)
    assert run(script, monkeypatch, "--root", root, "--output", tmp_path) == 0
    assert [file.name for file in tmp_path.iterdir()] == ["open3d_fpfh_matches"]


@pytest.mark.usefixtures("ours")
def test_matches_that_are_there_stay(
    script: ModuleType,
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """They may be of a run that was killed, or of hours: the user decides."""
    there = tmp_path / "open3d_fpfh_matches" / "of_a_user.npz"
    there.parent.mkdir()
    there.touch()
    assert run(script, monkeypatch, "--root", root, "--output", tmp_path) == 2
    assert f"{there.parent} exists: delete it" in capsys.readouterr().err
    assert list(tmp_path.rglob("*")) == [there.parent, there]


@pytest.mark.baselines
def test_matches_of_open3d_are_those_of_its_own_points(
    script: ModuleType, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are fewer keypoints than points, and more matches are right than by chance."""
    pytest.importorskip("open3d")
    assert run(script, monkeypatch, "--root", root, "--output", tmp_path) == 0
    for pair in threedmatch(root, "3DLoMatch"):
        found = stored_matches(tmp_path, "open3d_fpfh", "3DLoMatch", pair)
        assert 200 < len(found) < len(pair.source)
        by_chance = np.random.default_rng(0).permutation(found.target)
        T = pair.T_target_source
        moved = found.source @ T[:3, :3].T + T[:3, 3]
        luck = (np.linalg.norm(moved - by_chance, axis=1) < found.inlier_threshold).mean()
        assert found.labels.mean() > 3 * luck
