from __future__ import annotations

import itertools
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vbreg.backends.neighbors import radius_knn
from vbreg.clouds import (
    NORMAL_NEIGHBORS,
    VoxelMeans,
    estimate_voxel_size,
    isolated_points,
    lone_points,
    normals,
    smallest_eigenvectors,
    voxel_downsample,
    voxel_index,
)
from vbreg.errors import VBRegError
from vbreg.geometry import random_rotation

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def room(count: int = 3000, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """A floor, two walls and a ball, with 2 mm of noise."""
    g = generator(seed)
    u = 2 * torch.rand(count, 2, generator=g, dtype=torch.float64)
    zero = torch.zeros(count, dtype=torch.float64)
    floor = torch.stack([u[:, 0], u[:, 1], zero], -1)
    ball = torch.randn(count, 3, generator=g, dtype=torch.float64)
    ball = 0.4 * ball / ball.norm(dim=1, keepdim=True) + torch.tensor([1.0, 1.2, 0.5])
    parts = torch.stack([floor, floor[:, [0, 2, 1]], floor[:, [2, 0, 1]], ball])  # (4, count, 3)
    pick = torch.randint(4, (count,), generator=g)
    points = parts[pick, torch.arange(count)]
    return (points + 0.002 * torch.randn(count, 3, generator=g, dtype=torch.float64)).to(dtype)


def naive_downsample(points: Tensor, size: float) -> list[list[float]]:
    low = points.amin(0)
    voxels: dict[tuple[float, ...], list[Tensor]] = {}
    for p in points:
        voxels.setdefault(tuple(((p - low) / size + 0.5).floor().tolist()), []).append(p)
    return [torch.stack(voxels[cell]).mean(0).tolist() for cell in sorted(voxels)]


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 150), size=st.floats(0.05, 3.0), seed=st.integers(0, 1000))
def test_downsample_equals_the_naive_mean(device, n, size, seed):
    points = torch.rand(n, 3, generator=generator(seed), dtype=torch.float64)
    got = voxel_downsample(points.to(device), size).cpu()
    torch.testing.assert_close(got, torch.tensor(naive_downsample(points, size)).to(got))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_downsample_does_not_depend_on_the_order(dtype):
    points = room(dtype=dtype)
    shuffled = points[torch.randperm(len(points), generator=generator(1))]
    got = voxel_downsample(shuffled, 0.1)
    assert got.dtype == dtype
    torch.testing.assert_close(got, voxel_downsample(points, 0.1))


def test_downsample_keeps_a_lattice_of_its_own_size():
    axis = 0.05 * torch.arange(12, dtype=torch.float32)
    lattice = torch.cartesian_prod(axis, axis, axis)
    torch.testing.assert_close(voxel_downsample(lattice, 0.05), lattice)


def test_voxel_index_is_the_inverse():
    points = room()
    index, down = voxel_index(points, 0.1), voxel_downsample(points, 0.1)
    assert torch.equal(index.unique(), torch.arange(len(down)))
    assert (points - down[index]).abs().amax() < 0.1


def test_downsample_of_few_points():
    assert voxel_downsample(torch.zeros(0, 3), 0.1).shape == (0, 3)
    assert voxel_index(torch.zeros(0, 3), 0.1).shape == (0,)
    one = torch.tensor([[1.0, 2.0, 3.0]])
    assert torch.equal(voxel_downsample(one, 0.1), one)
    assert torch.equal(voxel_downsample(one.expand(9, 3), 0.1), one)


def test_downsample_refuses_voxels_without_number():
    points = torch.tensor([[0.0, 0, 0], [1e9, 0, 0]])
    with pytest.raises(VBRegError, match=r"voxel_size is 0\.001"):
        voxel_downsample(points, 0.001)
    with pytest.raises(VBRegError, match=r"voxel_size -1\.0: expected a positive number"):
        voxel_downsample(points, -1.0)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_smallest_eigenvector_equals_lapack(seed):
    X = torch.randn(20, 3, 3, generator=generator(seed), dtype=torch.float64)
    A = X @ X.transpose(-1, -2)
    expected = torch.linalg.eigh(A)[1][..., 0]
    aligned = (smallest_eigenvectors(A) * expected).sum(-1).abs()
    torch.testing.assert_close(aligned, torch.ones_like(aligned), atol=1e-6, rtol=0)


@pytest.mark.parametrize("eigenvalues", [(0, 1, 1), (0, 0, 1), (0, 0, 0), (1, 1, 1), (0, 1e-9, 1)])
def test_smallest_eigenvector_of_degenerate_matrices(eigenvalues):
    R = random_rotation(50, generator=generator(0), dtype=torch.float64)
    d = torch.tensor(eigenvalues, dtype=torch.float64)
    A = (R * d) @ R.transpose(-1, -2)
    v = smallest_eigenvectors(A)
    torch.testing.assert_close(v.norm(dim=-1), torch.ones(50, dtype=torch.float64))
    rayleigh = (v * (A @ v[..., None]).squeeze(-1)).sum(-1)
    torch.testing.assert_close(rayleigh, d.min().expand(50), atol=1e-8, rtol=0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normals_turn_with_the_cloud(dtype, device):
    points = room(dtype=dtype).to(device)
    expected = normals(points, 0.15)
    assert expected.dtype == dtype
    for seed in range(4):
        R = random_rotation(generator=generator(seed), dtype=dtype).to(device)
        t = torch.tensor([3.0, -2.0, 1.0], dtype=dtype, device=device)
        got = normals(points @ R.T + t, 0.15)
        cosine = (got * (expected @ R.T)).sum(-1)
        assert (cosine > 0.999).double().mean() > 0.998  # all but a few near-ties


def test_normals_do_not_depend_on_the_order():
    points = room()
    order = torch.randperm(len(points), generator=generator(2))
    cosine = (normals(points[order], 0.15) * normals(points, 0.15)[order]).sum(-1)
    assert (cosine > 0.999).double().mean() > 0.998


def test_normals_of_a_ball_point_inwards():
    g = generator(3)
    p = torch.randn(4000, 3, generator=g, dtype=torch.float64)
    p = p / p.norm(dim=1, keepdim=True)
    assert ((normals(p, 0.2) * -p).sum(-1) > 0.98).all()


def test_normals_of_a_noiseless_plane_agree():
    """Nothing bends here: the centroid, off the plane, decides for all points alike."""
    axis = torch.linspace(0, 1, 30, dtype=torch.float64)
    plane = torch.cartesian_prod(axis, axis, torch.zeros(1, dtype=torch.float64))
    away = torch.tensor([[0.5, 0.5, 5.0]], dtype=torch.float64)
    n = normals(torch.cat([plane, away]), 0.1)[:-1]
    torch.testing.assert_close(n, torch.tensor([0.0, 0, 1]).to(n).expand_as(n))


@pytest.mark.parametrize(
    "points",
    [
        torch.zeros(0, 3),
        torch.ones(1, 3),
        torch.ones(5, 3),
        torch.tensor([[0.0, 0, 0], [1.0, 0, 0]]),
        torch.arange(20.0)[:, None] * torch.tensor([1.0, 2.0, 3.0]),
    ],
    ids=["empty", "one", "identical", "two", "collinear"],
)
def test_normals_of_degenerate_clouds_are_unit_vectors(points):
    n = normals(points, 10.0)
    assert n.shape == points.shape
    torch.testing.assert_close(n.norm(dim=-1), torch.ones(len(points)))


@settings(max_examples=10, deadline=None)
@given(scale=st.floats(1e-3, 1e4))
def test_voxel_size_scales_with_the_clouds(scale):
    source, target = room(seed=0), room(seed=1)
    got = estimate_voxel_size(scale * source, scale * target)
    assert got == pytest.approx(scale * estimate_voxel_size(source, target), rel=0.12)  # 2 digits


def test_voxel_size_is_symmetric_and_blind_to_offset():
    source, target = room(seed=0), room(2000, seed=1)
    size = estimate_voxel_size(source, target)
    assert estimate_voxel_size(target, source) == size
    assert estimate_voxel_size(source + 1e5, target - 1e5) == pytest.approx(size, rel=0.05)


def test_voxel_size_has_two_digits():
    size = estimate_voxel_size(room(seed=0), room(seed=1))
    assert float(f"{size:.1e}") == size


def test_a_cloud_alone_is_looked_at_once(monkeypatch):
    scene, twice = room(), estimate_voxel_size(room(), room())
    looked: list[torch.Tensor] = []
    monkeypatch.setattr(
        "vbreg.clouds._own_voxel_size", lambda points: looked.append(points) or (twice, 0.0)
    )
    assert estimate_voxel_size(scene) == twice
    assert len(looked) == 1
    with pytest.raises(VBRegError, match="the scale of the cloud cannot be estimated from 1 point"):
        estimate_voxel_size(torch.ones(1, 3))


def test_voxel_size_of_a_dense_ball_gives_thousands_of_points():
    p = torch.randn(60_000, 3, generator=generator(0))
    p = 50 * p / p.norm(dim=1, keepdim=True)  # a scan in millimetres
    assert 3000 < len(voxel_downsample(p, estimate_voxel_size(p))) < 8000


def test_voxel_size_never_falls_below_the_spacing():
    axis = torch.arange(20.0)
    plane = torch.cartesian_prod(axis, axis, torch.zeros(1))
    assert 0.5 < estimate_voxel_size(plane) < 3


@pytest.mark.parametrize("count", [1500, 20_000])
def test_voxel_size_does_not_depend_on_orientation(count):
    """Thin clouds, whose spacing decides, as well as dense ones."""
    source, target = room(count, seed=0), room(count, seed=1)
    turns = [random_rotation(generator=generator(k), dtype=source.dtype) for k in range(6)]
    sizes = [estimate_voxel_size(source @ R, target @ R.T) for R in turns]
    assert max(sizes) / min(sizes) < 1.15


def test_voxel_size_does_not_depend_on_strays():
    source, target = room(seed=0), room(seed=1)
    strays = torch.tensor([[5e5, 5e6, 0.0], [-5e6, 0, 0]], dtype=source.dtype)
    with_strays = torch.cat([source, strays])
    expected = estimate_voxel_size(source, target)
    assert estimate_voxel_size(with_strays, target) == pytest.approx(expected, rel=0.05)


def test_of_an_object_and_its_scene_the_object_counts():
    scene = room(60_000, seed=0)
    near = (scene - scene[0]).norm(dim=1).argsort()[:3000]
    of_object = estimate_voxel_size(scene[near])
    of_scene = estimate_voxel_size(scene)
    both = estimate_voxel_size(scene[near], scene)
    assert of_scene > 2.2 * of_object
    assert of_object <= both < 1.5 * of_object
    assert estimate_voxel_size(scene[::20], scene[near]) > both  # but the spacing of both does


def test_an_estimated_size_leaves_no_more_voxels_than_are_matched(monkeypatch):
    monkeypatch.setattr("vbreg.clouds.MAX_VOXELS", 4000)
    scene = room(60_000, seed=0)
    near = (scene - scene[0]).norm(dim=1).argsort()[:500]
    size = estimate_voxel_size(scene[near], scene)
    assert 2000 < len(voxel_downsample(scene, size)) < 4400
    monkeypatch.setattr("vbreg.clouds.MAX_VOXELS", 60_000)
    assert estimate_voxel_size(scene[near], scene) < size


def test_points_that_lie_apart_are_found():
    points = np.random.default_rng(0).random((1000, 3))
    points[3], points[4] = 20, np.nan
    apart = isolated_points(points)
    assert apart[3]
    assert apart[4]
    assert apart.sum() < 30
    assert not isolated_points(points[:3]).any()  # nobody can tell


@pytest.mark.parametrize("points", [torch.zeros(0, 3), torch.ones(1, 3), torch.ones(9, 3)])
def test_voxel_size_of_a_cloud_without_extent_is_an_error(points):
    with pytest.raises(VBRegError, match=f"target cannot be estimated from {len(points)} points"):
        estimate_voxel_size(room(), points)


def test_voxel_size_of_real_scans():
    root = os.environ.get("VBREG_DATA")
    if root is None:
        pytest.skip("VBREG_DATA is unset: no real scans to estimate the scale of")
    clouds = [
        torch.from_numpy(np.load(path)["pcd"])
        for path in sorted(Path(root).glob("3dmatch/fragments/7-scenes-redkitchen/*.npz"))[:4]
    ]
    indoor = [estimate_voxel_size(a, b) for a, b in itertools.pairwise(clouds)]
    assert 0.03 < math.prod(indoor) ** (1 / len(indoor)) < 0.07
    pairs = [np.load(path) for path in sorted(Path(root).glob("kitti/train/00/*.npz"))[::10]]
    street = [
        estimate_voxel_size(torch.from_numpy(p["xyz0"]), torch.from_numpy(p["xyz1"])) for p in pairs
    ]
    assert 0.2 < math.prod(street) ** (1 / len(street)) < 0.6


@pytest.mark.parametrize("blocks", [1, 3, 17])
def test_voxels_of_blocks_are_those_of_the_whole(blocks: int) -> None:
    """In any order of the blocks, and of blocks without points."""
    points = torch.rand(5000, 3, generator=torch.Generator().manual_seed(0)) * 3 - 1
    expected = voxel_downsample(points, 0.2)
    means = VoxelMeans(0.2, points.amin(0), points.amax(0))
    for block in reversed(points.tensor_split(blocks)):
        means.add(block)
        means.add(block[:0])
    torch.testing.assert_close(means.points(), expected, rtol=0, atol=1e-6)
    assert len(VoxelMeans(0.2, points[0], points[1]).points()) == 0


def alone(points: Tensor, voxel_size: float = 0.05) -> Tensor:
    """Which points, one a voxel, lie on no surface."""
    return lone_points(radius_knn(points, None, 2 * voxel_size, NORMAL_NEIGHBORS))


def test_points_strewn_over_the_box_of_a_room_lie_on_no_surface() -> None:
    """Nearly all of them are told, and hardly any point of a surface, whatever the order."""
    surfaces = voxel_downsample(room(20_000), 0.05)
    g = generator(1)
    low, high = surfaces.amin(0), surfaces.amax(0)
    strewn = low + (high - low) * torch.rand(1500, 3, generator=g, dtype=torch.float64)
    away = radius_knn(surfaces, strewn, 0.1, 1)[2][:, 0].logical_not()
    points = torch.cat([surfaces, strewn[away]])
    told = alone(points)
    assert told[len(surfaces) :].double().mean() > 0.95
    assert told[: len(surfaces)].double().mean() < 0.03
    order = torch.randperm(len(points), generator=g)
    assert torch.equal(alone(points[order]), told[order])


def test_one_round_tells_fewer_lone_points_than_all() -> None:
    """A pair of points is each other's company until both are asked again."""
    surfaces = voxel_downsample(room(20_000), 0.05)
    near = radius_knn(surfaces, None, 0.1, NORMAL_NEIGHBORS)
    once, often = lone_points(near, rounds=1), lone_points(near)
    assert bool((often | ~once).all())


def test_no_point_of_an_empty_cloud_is_alone() -> None:
    assert len(alone(torch.empty(0, 3))) == 0
