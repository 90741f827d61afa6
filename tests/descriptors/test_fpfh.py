from __future__ import annotations

import importlib
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from vbreg.clouds import normals, voxel_downsample
from vbreg.descriptors import fpfh
from vbreg.descriptors.open3d_fpfh import open3d_fpfh
from vbreg.errors import VBRegError
from vbreg.geometry import random_rotation
from vbreg.matching import match
from vbreg.metrics import right_matches
from vbreg.scale import Scale

module = importlib.import_module("vbreg.descriptors.fpfh")
DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def surface(count: int = 1500, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """A bumpy sheet with 1 mm of noise."""
    g = generator(seed)
    xy = torch.rand(count, 2, generator=g, dtype=torch.float64)
    z = 0.2 * torch.sin(7 * xy[:, 0]) * torch.cos(5 * xy[:, 1])
    z = z + 0.001 * torch.randn(count, generator=g, dtype=torch.float64)
    return torch.cat([xy, z[:, None]], dim=1).to(dtype)


def naive_fpfh(points: Tensor, unit: Tensor, radius: float) -> Tensor:
    """The definition, pair by pair, for fewer points than the neighbour limit."""
    n = len(points)
    distance = (points[:, None] - points).norm(dim=-1)
    own = torch.zeros(n, 3, 11, dtype=torch.float64)
    near = [[j for j in range(n) if 0 < distance[i, j] <= radius] for i in range(n)]
    for i in range(n):
        for j in near[i]:
            angles = naive_angles(points[i], unit[i], points[j], unit[j])
            for group, value in enumerate(angles):
                place = (value + 1) / 2 * 11 - 0.5
                low = math.floor(place)
                for b, share in ((low, 1 - place + low), (low + 1, place - low)):
                    b = b % 11 if group == 0 else min(max(b, 0), 10)
                    own[i, group, b] += share / len(near[i])
    rows = []
    for i in range(n):
        weight = torch.tensor([1 / float(distance[i, j]) for j in near[i]], dtype=torch.float64)
        mean = (weight[:, None, None] * own[near[i]]).sum(0) / weight.sum().clamp_min(1e-300)
        rows.append((mean + module.OWN_WEIGHT * own[i]).sqrt().reshape(33))
    return F.normalize(torch.stack(rows), dim=-1)


def naive_angles(p: Tensor, u: Tensor, q: Tensor, t: Tensor) -> list[float]:
    """The Darboux frame at p, as the paper draws it."""
    d = (q - p) / (q - p).norm()
    v = torch.linalg.cross(d, u)
    v = v / v.norm()
    w = torch.linalg.cross(u, v)
    return [math.atan2(float(w @ t), float(u @ t)) / math.pi, float(v @ t), float(u @ d)]


def test_equals_the_naive_definition():
    points = surface(60)
    unit = F.normalize(torch.randn(60, 3, generator=generator(1), dtype=torch.float64), dim=1)
    got, expected = fpfh(points, unit, 0.3), naive_fpfh(points, unit, 0.3)
    torch.testing.assert_close(got.square(), expected.square(), atol=1e-4, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("device", DEVICES)
def test_does_not_change_under_rigid_motion(dtype, device):
    points = surface(dtype=dtype).to(device)
    expected = fpfh(points, normals(points, 0.1), 0.2)
    assert expected.dtype == dtype
    for seed in range(3):
        R = random_rotation(generator=generator(seed), dtype=dtype).to(device)
        moved = points @ R.T + torch.tensor([2.0, -1.0, 3.0], dtype=dtype, device=device)
        got = fpfh(moved, normals(moved, 0.1), 0.2)
        # One normal whose sign is a tie reaches every point within the radius, but lightly.
        assert ((got - expected).abs().amax(1) < 0.02).double().mean() > 0.99


def test_does_not_change_under_scale():
    points = surface()
    unit = normals(points, 0.1)
    got, expected = fpfh(1000 * points, unit, 200.0), fpfh(points, unit, 0.2)
    torch.testing.assert_close(got.square(), expected.square(), atol=1e-4, rtol=0)


def test_follows_a_permutation():
    points = surface()
    unit = normals(points, 0.1)
    order = torch.randperm(len(points), generator=generator(1))
    torch.testing.assert_close(
        fpfh(points[order], unit[order], 0.2), fpfh(points, unit, 0.2)[order]
    )


def test_chunks_do_not_show(monkeypatch):
    points = surface()
    unit = normals(points, 0.1)
    whole = fpfh(points, unit, 0.2)
    monkeypatch.setattr(module, "MAX_CHUNK_PAIRS", 1000)
    assert torch.equal(fpfh(points, unit, 0.2), whole)


def test_rows_have_length_one():
    points = surface()
    features = fpfh(points, normals(points, 0.1), 0.2)
    assert features.shape == (len(points), 33)
    assert (features >= 0).all()
    torch.testing.assert_close(features.norm(dim=1), torch.ones_like(features[:, 0]))


@pytest.mark.parametrize(
    "points",
    [torch.zeros(0, 3), torch.ones(1, 3), torch.ones(4, 3), 5 * torch.eye(3)],
    ids=["empty", "one", "identical", "far apart"],
)
def test_without_neighbours_the_row_is_zero(points):
    features = fpfh(points, normals(points, 1.0), 1.0)
    assert torch.equal(features, torch.zeros(len(points), 33))


def test_collinear_points_give_finite_rows():
    points = torch.arange(20.0)[:, None] * torch.tensor([1.0, 2.0, 3.0])
    along = F.normalize(points[1:2], dim=-1).expand(20, 3)
    for unit in (normals(points, 10.0), along):  # across the line, and along it
        features = fpfh(points, unit, 10.0)
        torch.testing.assert_close(features.norm(dim=1), torch.ones(20))


def test_errors_name_the_value():
    points = surface(10)
    with pytest.raises(VBRegError, match=r"normals have shape \(9, 3\)"):
        fpfh(points, points[:9], 0.1)
    with pytest.raises(VBRegError, match=r"radius -1\.0: expected a positive number"):
        fpfh(points, points, -1.0)


def read_pairs(root: Path, scene: str, count: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Evenly spread pairs of a scene at 5 cm: source i, target j, T_target_source."""
    lines = (root / f"3dmatch/benchmarks/3DMatch/{scene}/gt.log").read_text().splitlines()
    starts = range(0, len(lines) // 5 * 5, 5)
    pairs = []
    for start in starts[:: len(starts) // count][:count]:
        i, j = lines[start].split()[:2]
        T_i_j = np.array([line.split() for line in lines[start + 1 : start + 5]], dtype=float)
        source, target = (
            voxel_downsample(
                torch.from_numpy(
                    np.load(root / f"3dmatch/fragments/{scene}/cloud_bin_{k}.npz")["pcd"]
                ),
                0.05,
            )
            for k in (i, j)
        )
        pairs.append((source, target, torch.from_numpy(np.linalg.inv(T_i_j)).float()))
    return pairs


@pytest.mark.baselines
def test_finds_at_least_the_inliers_of_open3d(data_root):
    """Mean inlier ratio of all 1-NN matches, no more than 5 % (relative) below Open3D's."""
    pytest.importorskip("open3d")

    def theirs(points: Tensor) -> Tensor:
        return open3d_fpfh(points, Scale(0.05))

    def ours(points: Tensor) -> Tensor:
        return fpfh(points, normals(points, 0.1), 0.25)

    ratios: dict[str, list[float]] = {"ours": [], "theirs": []}
    for source, target, T in read_pairs(data_root, "7-scenes-redkitchen", 8):
        for name, describe in (("ours", ours), ("theirs", theirs)):
            i, j = match(describe(source), describe(target))
            inlier = right_matches(source[i], target[j], T, 0.1)
            ratios[name].append(float(inlier.double().mean()))
    assert np.mean(ratios["ours"]) >= 0.95 * np.mean(ratios["theirs"])
