from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from vbreg.datasets.poses import inverse_pose
from vbreg.descriptors.prepared import ThinnedCloud
from vbreg.errors import VBRegError
from vbreg.geometry import apply
from vbreg.training.places import PlaceMaker, PlacesConfig
from vbreg.training.ready_places import prepared


class Bare(NamedTuple):
    """The points of a cloud alone, which are soon made ready."""

    points: torch.Tensor


def bare(cloud: ThinnedCloud, generator: torch.Generator) -> Bare:
    return Bare(cloud.points / cloud.scale.voxel_size)


def test_a_place_follows_from_its_number() -> None:
    config = PlacesConfig(kinds=("object_turntable", "object_table"), weights=(3.0, 1.0))
    one, same, other = (PlaceMaker(config, bare, seed=0)(k) for k in (4, 4, 5))
    points = [np.asarray(place.clouds[0].points) for place in (one, same, other)]
    assert np.array_equal(points[0], points[1])
    assert points[0].shape != points[2].shape or not np.array_equal(points[0], points[2])
    assert one.pairs
    assert len(one.clouds) > 1


def test_posed_fragments_of_your_own(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    whole = rng.uniform(0, 3, (20000, 3))
    whole[:, 2] = 0.2 * np.sin(3 * whole[:, 0]) * np.cos(2 * whole[:, 1])
    scene = tmp_path / "real" / "scene"
    scene.mkdir(parents=True)
    poses = []
    for k in range(3):
        T = np.eye(4)
        T[:3, 3] = [k, 0, 0]
        part = whole[whole[:, 0] < 2 + 0.3 * k] - T[:3, 3]
        np.savez(scene / f"cloud_bin_{k}.npz", pcd=part.astype(np.float32))
        poses.append(T.reshape(-1))
    np.savetxt(scene / "poses.txt", np.stack(poses))
    config = PlacesConfig(kinds=("fragments",), weights=(1.0,), fragments=tmp_path / "real")
    place = PlaceMaker(config, prepared)(0)
    assert len(place.clouds) == 3
    assert len(place.pairs) == 3


def test_pairs_of_scans_of_your_own(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    street = rng.uniform(-5, 5, (8000, 3))
    street[:, 2] = np.where(rng.random(8000) < 0.5, 0.0, street[:, 2] % 4)
    T = np.eye(4)
    T[:3, :3] = [[0, -1, 0], [1, 0, 0], [0, 0, 1]]
    T[:3, 3] = [5, 1, 0]
    back = inverse_pose(T)
    first = street @ back[:3, :3].T + back[:3, 3]
    np.savez(tmp_path / "pair.npz", xyz0=first, xyz1=street, gt_trans=T)
    config = PlacesConfig(kinds=("scan_pairs",), weights=(1.0,), scan_pairs=tmp_path)
    place = PlaceMaker(config, prepared)(0)
    (pair,) = place.pairs
    x, y = (torch.as_tensor(c.points).double() for c in place.clouds)
    moved = apply(torch.from_numpy(pair.T_target_source), x)
    assert float(torch.cdist(moved, y).min(1).values.median()) < 0.8


def test_mistakes_are_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="room_camera"):
        PlacesConfig(kinds=("cellar",), weights=(1.0,))
    with pytest.raises(ValueError, match="positive"):
        PlacesConfig(kinds=("mesh",), weights=(0.0,))
    nowhere = PlacesConfig(kinds=("fragments",), weights=(1.0,), fragments=tmp_path / "none")
    with pytest.raises(VBRegError, match=r"place 0 of kind 'fragments' .*name one"):
        PlaceMaker(nowhere, prepared)(0)
    empty = PlacesConfig(kinds=("fragments",), weights=(1.0,), fragments=tmp_path)
    with pytest.raises(VBRegError, match=r"no poses.txt"):
        PlaceMaker(empty, prepared)(0)
