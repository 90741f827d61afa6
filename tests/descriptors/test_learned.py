from pathlib import Path

import numpy as np
import pytest
import torch
from tests.descriptors.conftest import SMALL, corner, thinned
from torch import Tensor

from vbreg import VBRegError, register
from vbreg.descriptors import descriptor_named
from vbreg.descriptors.choice import SHIPPED
from vbreg.descriptors.learned import describe_rows, load_descriptor, save_descriptor
from vbreg.descriptors.network import DescriptorNetwork
from vbreg.descriptors.prepared import MAX_OUTPUT
from vbreg.errors import FileFormatError
from vbreg.geometry import random_rotation
from vbreg.matching import describe, describe_points, match
from vbreg.scale import Scale
from vbreg.weights_file import WEIGHTS_FOLDER


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    path = tmp_path / "mine.safetensors"
    save_descriptor(path, DescriptorNetwork(SMALL), {"steps": 3})
    return path


def test_a_file_is_read_back(weights: Path) -> None:
    found = load_descriptor(weights).network
    assert found.config == SMALL
    assert not found.training
    torch.manual_seed(0)
    made = DescriptorNetwork(SMALL).state_dict()
    assert all(torch.equal(value, made[name]) for name, value in found.state_dict().items())


def test_a_network_that_all_share_is_not_moved(asked: list[torch.device]) -> None:
    cloud = thinned(corner())
    describe_rows(DescriptorNetwork(SMALL), cloud, torch.arange(5))
    assert asked == [cloud.points.device]


def test_what_is_no_descriptor_is_told(weights: Path, tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="no weights at"):
        descriptor_named(str(tmp_path / "none.safetensors"))
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(FileFormatError, match="not a weights file"):
        load_descriptor(weights)


def test_weights_of_another_network_are_told() -> None:
    with pytest.raises(FileFormatError, match="do not fit together"):
        load_descriptor(WEIGHTS_FOLDER / "fast.safetensors")


def test_the_front_end_gives_it_detail(weights: Path) -> None:
    cloud = corner().double().numpy() * 0.05
    scale = Scale(0.05)
    described = describe(cloud, scale, descriptor=str(weights))
    assert described.descriptors.shape == (len(described), SMALL.output)
    plain = describe_points(described.points, described.origin, scale, descriptor=str(weights))
    assert not torch.equal(plain.descriptors, described.descriptors)  # without the finer points


def test_only_keypoints_are_described(weights: Path) -> None:
    cloud = corner().double().numpy() * 0.05
    every = describe(cloud, Scale(0.05), descriptor=str(weights))
    few = describe(cloud, Scale(0.05), descriptor=str(weights), keypoints=50)
    assert len(few) == 50
    assert few.normals is not None
    row = torch.cdist(few.points, every.points).argmin(1)
    torch.testing.assert_close(few.descriptors, every.descriptors[row], atol=1e-5, rtol=0)
    same = describe(cloud, Scale(0.05), descriptor="fpfh", keypoints=50)
    assert torch.equal(same.points, few.points)


def test_register_takes_a_file(weights: Path) -> None:
    cloud = corner().double().numpy() * 0.05
    T = np.eye(4)
    T[:3, :3] = [[0, -1, 0], [1, 0, 0], [0, 0, 1]]
    T[:3, 3] = [3, -2, 1]
    moved = cloud @ T[:3, :3].T + T[:3, 3]
    result = register(cloud, moved, voxel_size=0.05, descriptor=str(weights))
    np.testing.assert_allclose(result.T_target_source, T, atol=0.02)


def test_an_unknown_name_is_told() -> None:
    with pytest.raises(VBRegError, match="expected"):
        descriptor_named("shot")


def right_share(descriptor: str, R: Tensor, t: Tensor) -> float:
    """The share of matches that are right between a corner and itself, moved and seen anew."""
    scale, generator = Scale(0.05), np.random.default_rng(0)
    cloud = corner(n=20_000).double().numpy() * scale.voxel_size
    ends = []
    for move in (np.eye(3), R.double().numpy()):
        seen = cloud[generator.permutation(len(cloud))[:12_000]]
        noisy = seen + generator.normal(0, 0.1 * scale.voxel_size, seen.shape)
        shift = t.double().numpy() if len(ends) else np.zeros(3)
        ends.append(describe(noisy @ move.T + shift, scale, descriptor=descriptor, keypoints="all"))
    i, j = match(ends[0].descriptors, ends[1].descriptors)
    moved = ends[0].in_user_frame(i) @ R.double().numpy().T + t.double().numpy()
    apart = np.linalg.norm(moved - ends[1].in_user_frame(j), axis=1)
    return float((apart < scale.inlier_threshold).mean())


def test_the_shipped_one_is_small_and_finds_more_than_fpfh() -> None:
    """Wherever the clouds lie and however they are turned."""
    learned = descriptor_named("learned")
    assert learned is descriptor_named("learned")  # read once
    assert learned.network is not None
    assert learned.network.config.output <= MAX_OUTPUT
    assert SHIPPED.stat().st_size < 16 * 2**20
    turns = random_rotation(2, generator=torch.Generator().manual_seed(3))
    away = torch.tensor([5.0, -2.0, 1.0])
    first, second = (right_share("learned", turn, away) for turn in turns)
    assert abs(first - second) < 0.03
    assert second > 1.2 * right_share("fpfh", turns[1], away)


def test_a_lone_point_is_not_described() -> None:
    cloud = np.concatenate([corner().double().numpy() * 0.05, [[40.0, 0, 0], [0, 50.0, 0]]])
    found = describe(cloud, Scale(0.05), keypoints="all")
    length = found.descriptors.norm(dim=-1)
    far = found.points.norm(dim=-1) > 10
    assert int(far.sum()) == 2
    assert bool((length[far] == 0).all())
    torch.testing.assert_close(length[~far], torch.ones(int((~far).sum())), atol=1e-5, rtol=0)
