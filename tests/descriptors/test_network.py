import pytest
import torch
from tests.descriptors.conftest import EVERYTHING, corner, prepared
from torch import Tensor

from vbreg.descriptors.network import DescriptorNetwork
from vbreg.descriptors.prepared import DescriptorConfig, Prepared, pack, with_patches
from vbreg.geometry import random_rotation


def fresh(config: DescriptorConfig) -> DescriptorNetwork:
    torch.manual_seed(0)
    return DescriptorNetwork(config).eval()


def every_row(cloud: Prepared) -> Tensor:
    return torch.arange(len(cloud.pyramid.levels[0].points))


@torch.no_grad()
def test_a_descriptor_for_every_point_the_same_twice(config: DescriptorConfig) -> None:
    cloud = prepared(corner(), config)
    rows = every_row(cloud)
    network = fresh(config)
    (found, saliency), (again, saliency_again) = network(cloud, rows), network(cloud, rows)
    assert found.shape == (len(rows), config.output)
    torch.testing.assert_close(found.norm(dim=-1), torch.ones(len(rows)))
    assert torch.equal(found, again)
    assert torch.equal(saliency, saliency_again)
    assert float(found.std(0).mean()) > 1e-3  # they differ
    some = network(cloud, rows[7:90:3])[0]
    torch.testing.assert_close(some, found[7:90:3], atol=1e-5, rtol=0)


@torch.no_grad()
def test_a_turned_cloud_has_the_same_descriptors(config: DescriptorConfig) -> None:
    """The same points, turned after they were thinned; only patches have an azimuth to begin at."""
    cloud = prepared(corner(), config)
    R = random_rotation(1, generator=torch.Generator().manual_seed(1))[0]
    pyramid = cloud.pyramid
    levels = tuple(type(x)(x.points @ R.T, x.normals @ R.T) for x in pyramid.levels)
    turned = cloud._replace(pyramid=pyramid._replace(levels=levels, detail=pyramid.detail @ R.T))
    network = fresh(config)
    before, after = (network(c, every_row(c))[0] for c in (cloud, turned))
    alike = (before * after).sum(-1)
    assert float(alike.min()) > (0.95 if config.patch_width else 0.9999)
    assert float(alike.mean()) > 0.99


@torch.no_grad()
def test_packed_clouds_do_not_see_each_other(config: DescriptorConfig) -> None:
    clouds = [
        with_patches(prepared(corner(seed, n), config), config)
        for seed, n in ((0, 6000), (1, 3000), (2, 4000))
    ]
    network = fresh(config)
    sizes = [len(every_row(c)) for c in clouds]
    packed = network(pack(clouds), torch.arange(sum(sizes)))[0].split(sizes)
    for cloud, part in zip(clouds, packed, strict=True):
        torch.testing.assert_close(part, network(cloud, every_row(cloud))[0], atol=1e-5, rtol=0)


@torch.no_grad()
def test_chunks_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = prepared(corner(), EVERYTHING)
    network = fresh(EVERYTHING)
    at_once = network.context(cloud)
    monkeypatch.setattr("vbreg.descriptors.network.MAX_EDGES", 1000)
    torch.testing.assert_close(network.context(cloud), at_once)


def test_every_weight_gets_a_gradient(config: DescriptorConfig) -> None:
    network = fresh(config).train()
    cloud = prepared(corner(), config)
    descriptors, saliency = network(cloud, every_row(cloud))
    (descriptors[:, 0].sum() + saliency.sum()).backward()
    without = {n for n, p in network.named_parameters() if p.grad is None or not bool(p.grad.any())}
    assert without <= {"temperature"}


@pytest.mark.parametrize(
    "bad",
    [
        {"local": ()},
        {"local": (), "widths": (), "patch_width": 0},
        {"widths": (8, 8), "depths": (1, 1)},
    ],
)
def test_a_configuration_that_cannot_be(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="expected"):
        DescriptorConfig(**bad)  # type: ignore[arg-type]


def test_the_size_of_the_default_is_within_bounds() -> None:
    numbers = sum(p.numel() for p in DescriptorNetwork().parameters())
    assert 4 * numbers < 16e6
    assert EVERYTHING.output <= 64
