import pytest
import torch
from tests.descriptors.conftest import SMALL, corner, prepared
from tests.descriptors.test_patches import moved
from torch import Tensor

from vbreg.descriptors.network import DescriptorNetwork
from vbreg.descriptors.prepared import DescriptorConfig, Prepared, pack, with_patches
from vbreg.geometry import random_rotation


def fresh(config: DescriptorConfig) -> DescriptorNetwork:
    torch.manual_seed(0)
    return DescriptorNetwork(config).eval()


def every_row(cloud: Prepared) -> Tensor:
    return torch.arange(len(cloud.points))


@torch.no_grad()
def test_a_descriptor_for_every_point_the_same_twice(config: DescriptorConfig) -> None:
    cloud = prepared(corner())
    rows = every_row(cloud)
    network = fresh(config)
    found, again = network(cloud, rows), network(cloud, rows)
    assert found.shape == (len(rows), config.output)
    torch.testing.assert_close(found.norm(dim=-1), torch.ones(len(rows)))
    assert torch.equal(found, again)
    assert float(found.std(0).mean()) > 1e-3  # they differ
    some = network(cloud, rows[7:90:3])
    torch.testing.assert_close(some, found[7:90:3], atol=1e-5, rtol=0)


@torch.no_grad()
def test_a_turned_cloud_has_the_same_descriptors(config: DescriptorConfig) -> None:
    """The same points, turned after they were thinned; only the azimuth begins elsewhere."""
    cloud = prepared(corner())
    R = random_rotation(1, generator=torch.Generator().manual_seed(1))[0]
    turned = moved(cloud, R)
    network = fresh(config)
    before, after = (network(c, every_row(c)) for c in (cloud, turned))
    alike = (before * after).sum(-1)
    assert float(alike.min()) > 0.85
    assert float(alike.mean()) > 0.99


@torch.no_grad()
def test_the_beginning_of_the_azimuth_does_not_matter(config: DescriptorConfig) -> None:
    network = fresh(config)
    x = torch.rand(3, config.azimuths, network.enter.in_features)
    torch.testing.assert_close(network.from_cells(x), network.from_cells(x.roll(5, 1)))


@torch.no_grad()
def test_packed_clouds_do_not_see_each_other(config: DescriptorConfig) -> None:
    clouds = [
        with_patches(prepared(corner(seed, n))) for seed, n in ((0, 6000), (1, 3000), (2, 4000))
    ]
    network = fresh(config)
    sizes = [len(every_row(c)) for c in clouds]
    packed = network(pack(clouds), torch.arange(sum(sizes))).split(sizes)
    for cloud, part in zip(clouds, packed, strict=True):
        torch.testing.assert_close(part, network(cloud, every_row(cloud)), atol=1e-5, rtol=0)


@torch.no_grad()
def test_parts_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = prepared(corner())
    network = fresh(SMALL)
    at_once = network(cloud, every_row(cloud))
    monkeypatch.setattr("vbreg.descriptors.network.MAX_PATCHES", 37)
    torch.testing.assert_close(network(cloud, every_row(cloud)), at_once)
    none = network(cloud, every_row(cloud)[:0])
    assert none.shape == (0, SMALL.output)


def test_every_weight_gets_a_gradient(config: DescriptorConfig) -> None:
    network = fresh(config).train()
    cloud = prepared(corner())
    network(cloud, every_row(cloud))[:, 0].sum().backward()
    without = {n for n, p in network.named_parameters() if p.grad is None or not bool(p.grad.any())}
    assert without <= {"temperature"}


def test_the_size_of_the_default_is_within_bounds() -> None:
    assert 4 * sum(p.numel() for p in DescriptorNetwork().parameters()) < 16e6
