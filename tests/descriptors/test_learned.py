from pathlib import Path

import numpy as np
import pytest
import torch
from tests.descriptors.conftest import SMALL, corner

from vbreg import VBRegError, register
from vbreg.descriptors import descriptor_named
from vbreg.descriptors.learned import load_descriptor, save_descriptor
from vbreg.descriptors.network import DescriptorNetwork
from vbreg.errors import FileFormatError
from vbreg.matching import describe, match_clouds
from vbreg.scale import Scale


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


def test_what_is_no_descriptor_is_told(weights: Path, tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="no weights at"):
        descriptor_named(str(tmp_path / "none.safetensors"))
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(FileFormatError, match="not a weights file"):
        load_descriptor(weights)


def test_weights_of_another_network_are_told() -> None:
    from vbreg.weights_file import WEIGHTS_FOLDER

    with pytest.raises(FileFormatError, match="do not fit together"):
        load_descriptor(WEIGHTS_FOLDER / "fast.safetensors")


def test_the_front_end_gives_it_detail_and_keeps_the_salient(weights: Path) -> None:
    cloud = corner().double().numpy() * 0.05
    scale = Scale(0.05)
    described = describe(cloud, scale, descriptor=str(weights))
    assert described.saliency is not None
    assert described.descriptors.shape == (len(described), SMALL.output)
    plain = load_descriptor(weights)(described.points, described.normals, scale)
    assert not torch.equal(plain, described.descriptors)  # without the finer points
    matched = match_clouds(described, described, scale, max_matches=100)
    kept = described.saliency[matched.source_index]
    assert len(kept) == 100
    assert float(kept.min()) >= float(described.saliency.topk(100).values[-1])


def test_only_keypoints_are_described(weights: Path) -> None:
    described = describe(corner().double().numpy() * 0.05, Scale(0.05), descriptor=str(weights))
    points, direction = described.points, described.normals
    assert direction is not None
    descriptor = load_descriptor(weights)
    few = descriptor.with_detail(points, direction, points, Scale(0.05), keypoints=50)
    every = descriptor.with_detail(points, direction, points, Scale(0.05))
    kept = few.descriptors.any(-1)
    assert int(kept.sum()) == 50
    assert float(few.saliency[kept].min()) >= float(few.saliency[~kept].max())
    torch.testing.assert_close(few.descriptors[kept], every.descriptors[kept], atol=1e-5, rtol=0)


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
