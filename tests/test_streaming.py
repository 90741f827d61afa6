"""Clouds that stay in their files: what is thinned in blocks is what is thinned as a whole."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from vbreg import frames, io, register, streaming
from vbreg.backends import devices
from vbreg.errors import VBRegError, VBRegWarning
from vbreg.frames import LocalCloud
from vbreg.io import formats
from vbreg.matching import describe
from vbreg.scale import Scale
from vbreg.streaming import StreamedCloud, local_cloud

EAST = np.array([512_345.678, 5_412_345.678, 432.1])


def walls(count: int = 8000, seed: int = 0) -> np.ndarray:
    """Three bumpy walls of a corner, of some metres."""
    points = np.random.default_rng(seed).random((count, 3)) * [4.0, 3.0, 2.0]
    for axis, rows in enumerate(np.array_split(np.arange(count), 3)):
        points[rows, axis] = 0.2 * np.sin(3 * points[rows].sum(axis=1))
    return points


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stream every file, some thousand points at a time."""
    monkeypatch.setattr(streaming, "MIN_STREAMED_BYTES", 0)
    monkeypatch.setattr(formats.read_blocks, "__defaults__", (3000,))


def pair(path: Path, points: np.ndarray) -> tuple[StreamedCloud, LocalCloud]:
    io.write(path, points)
    streamed = local_cloud(path, "a scan")
    assert isinstance(streamed, StreamedCloud)
    return streamed, LocalCloud.of(path, "a scan")


def assert_same_voxels(streamed: LocalCloud, whole: LocalCloud, size: float) -> None:
    """One point a voxel, at the same places; a point on a face may be in either voxel."""
    (a,), (b,) = streamed.thinned([size]), whole.thinned([size])
    shift = torch.from_numpy(streamed.origin - whole.origin)
    nearest = torch.cdist(a.double() + shift, b.double()).amin(1)
    assert abs(len(a) - len(b)) <= 2
    assert float((nearest < 1e-4).double().mean()) > 0.999


@pytest.mark.parametrize("far", [0.0, 1.0])
def test_streamed_is_whole(tmp_path: Path, far: float) -> None:
    streamed, whole = pair(tmp_path / "scan.ply", walls() + far * EAST)
    np.testing.assert_allclose(streamed.origin, whole.origin, atol=1e-6)
    assert (streamed.count, streamed.dropped) == (whole.count, whole.dropped) == (8000, 0)
    for size in (0.1, 0.05):
        assert_same_voxels(streamed, whole, size)
    both = streamed.thinned((0.1, 0.05))
    assert torch.equal(both[0], streamed.thinned((0.1,))[0])
    assert torch.equal(both[1], streamed.thinned((0.05,))[0])


def test_a_mirror_turns_what_is_streamed(tmp_path: Path) -> None:
    flip = np.array([-1.0, 1.0, 1.0])
    streamed, whole = (
        cloud.multiplied(flip) for cloud in pair(tmp_path / "scan.ply", walls() + EAST)
    )
    assert_same_voxels(streamed, whole, 0.1)
    assert_same_voxels(streamed.multiplied(flip), whole.multiplied(flip), 0.1)
    twice = 2 * np.ones(3)
    assert_same_voxels(streamed.multiplied(twice), whole.multiplied(twice), 0.1)


def test_what_does_not_count_is_left_out_alike(tmp_path: Path) -> None:
    points = walls()
    points[::100] = np.nan
    points[1::1000] = 1e6
    with pytest.warns(VBRegWarning, match="8 of 8000 points of a scan lie more than"):
        streamed, whole = pair(tmp_path / "scan.ply", points)
    assert (streamed.count, streamed.dropped) == (whole.count, whole.dropped) == (8000, 88)
    assert_same_voxels(streamed, whole, 0.1)


def test_where_no_point_is_left_out_nothing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The corner of the box may lie beyond the limit, and no point does."""
    monkeypatch.setattr(frames, "STRAY_REACH", 1.5)
    directions = np.random.default_rng(0).normal(size=(4000, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        streamed, whole = pair(
            tmp_path / "scan.ply", directions / np.linalg.norm(directions, axis=1, keepdims=True)
        )
    assert (streamed.count, streamed.dropped) == (whole.count, whole.dropped) == (4000, 0)


def test_points_to_ignore_are_told_by_a_function(tmp_path: Path) -> None:
    io.write(tmp_path / "scan.ply", walls())

    def low(points: np.ndarray) -> np.ndarray:
        return points[:, 2] < 0.5

    streamed = local_cloud(tmp_path / "scan.ply", "a scan", low)
    whole = LocalCloud.of(tmp_path / "scan.ply", "a scan", low)
    assert isinstance(streamed, StreamedCloud)
    assert (streamed.count, streamed.dropped) == (whole.count, whole.dropped)
    assert_same_voxels(streamed, whole, 0.1)
    mask = low(io.read(tmp_path / "scan.ply").points)
    masked = local_cloud(tmp_path / "scan.ply", "a scan", mask)
    assert not isinstance(masked, StreamedCloud)


def test_the_sample_is_even_and_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "MAX_SAMPLE", 500)
    streamed, whole = pair(tmp_path / "scan.ply", walls())
    assert 500 <= len(streamed.points) <= 1000
    every = 8000 // len(streamed.points)
    assert torch.allclose(streamed.points, whole.points[::every][: len(streamed.points)], atol=1e-5)


def test_memory_is_that_of_a_block_and_not_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three million points, written part by part; as float64 they are 69 MiB."""
    monkeypatch.setattr(formats.read_blocks, "__defaults__", (50_000,))
    monkeypatch.setattr(streaming, "MAX_SAMPLE", 10_000)
    path, cpu = tmp_path / "scan.bin", torch.device("cpu")
    with path.open("wb") as file:
        for seed in range(30):
            part = np.c_[walls(100_000, seed), np.zeros(100_000)]
            file.write(part.astype("<f4").tobytes())
    grown = []
    for load in (StreamedCloud.of_file, LocalCloud.of):
        start = devices.start_peak(cpu, give_back=True)
        if start is None:
            pytest.skip("only Linux keeps the mark of the highest memory that can be set back")
        cloud = load(path, "a scan")
        assert cloud.count == 3_000_000
        assert len(cloud.thinned([0.1])[0]) > 1000
        grown.append(devices.peak(cpu) - start)
        del cloud
    streamed, whole = grown  # MiB
    assert streamed < 40
    assert whole > 68


def test_a_registration_is_the_same(tmp_path: Path) -> None:
    """With and without a voxel size, which then comes from a sample."""
    io.write(tmp_path / "a.ply", walls(seed=0))
    turn = np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]])
    io.write(tmp_path / "b.ply", walls(seed=1) @ turn.T + EAST)
    paths = tmp_path / "a.ply", tmp_path / "b.ply"
    clouds = [io.read(path) for path in paths]
    for options in ({"voxel_size": 0.1}, {}):
        streamed = register(*paths, device="cpu", **options)  # type: ignore[arg-type]
        whole = register(*clouds, device="cpu", **options)  # type: ignore[arg-type]
        assert streamed.voxel_size == whole.voxel_size
        assert streamed.points_read == whole.points_read
        moved = [result.apply_to(clouds[0].points[:5]) for result in (streamed, whole)]
        np.testing.assert_allclose(moved[0], moved[1], atol=0.02)


def test_describe_takes_a_large_file(tmp_path: Path) -> None:
    io.write(tmp_path / "a.ply", walls())
    streamed = describe(tmp_path / "a.ply", Scale(0.1), descriptor="fpfh")
    whole = describe(io.read(tmp_path / "a.ply"), Scale(0.1), descriptor="fpfh")
    assert abs(len(streamed) - len(whole)) <= 2


def test_a_file_without_points_is_told(tmp_path: Path) -> None:
    io.write(tmp_path / "a.ply", np.full((10, 3), np.nan))
    with pytest.raises(VBRegError, match="a scan has 0 finite points of 10"):
        local_cloud(tmp_path / "a.ply", "a scan")
    io.write(tmp_path / "b.ply", walls(100))
    with pytest.raises(VBRegError, match="a scan has 0 finite points of 100, with 100 ignored: at"):
        local_cloud(tmp_path / "b.ply", "a scan", lambda points: np.ones(len(points), dtype=bool))


def test_small_files_and_other_things_are_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    io.write(tmp_path / "a.npz", walls(100))
    assert type(local_cloud(tmp_path / "a.npz", "a scan")) is LocalCloud  # a zip is unpacked
    assert type(local_cloud(walls(100), "a scan")) is LocalCloud
    monkeypatch.setattr(streaming, "MIN_STREAMED_BYTES", 1 << 27)
    io.write(tmp_path / "a.ply", walls(100))
    assert type(local_cloud(tmp_path / "a.ply", "a scan")) is LocalCloud


def test_a_streamed_cloud_loses_its_lone_points_by_its_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sample stays in memory, and tells of how many points of the file it speaks."""
    monkeypatch.setattr(streaming, "MAX_SAMPLE", 3000)
    points = np.concatenate([walls(), np.random.default_rng(1).uniform(0, 3, (1000, 3))])
    streamed, whole = pair(tmp_path / "scan.ply", np.random.default_rng(2).permutation(points))
    kept, expected = (cloud.without_lone_points(0.1, 0.2) for cloud in (streamed, whole))
    assert not isinstance(kept, StreamedCloud)
    assert len(kept.points) < len(streamed.points)
    assert kept.count == expected.count == len(points)
    assert abs(kept.dropped - expected.dropped) < 0.5 * expected.dropped
    assert expected.dropped > 300


def test_points_to_ignore_are_not_counted_as_dropped(tmp_path: Path) -> None:
    points = np.concatenate([walls(), np.random.default_rng(0).uniform(0, 4, (800, 3))])

    def far(given: np.ndarray) -> np.ndarray:
        return given[:, 0] > 2.0

    io.write(tmp_path / "scan.ply", points)
    streamed = local_cloud(tmp_path / "scan.ply", "a scan", far)
    whole = LocalCloud.of(tmp_path / "scan.ply", "a scan", far)
    assert isinstance(streamed, StreamedCloud)
    kept, expected = (each.without_lone_points(0.1, 0.2) for each in (streamed, whole))
    assert expected.dropped > 100
    assert kept.dropped == pytest.approx(expected.dropped, rel=0.1)
