import pytest
import torch
from tests.descriptors.conftest import EVERYTHING, corner, prepared

from vbreg.descriptors.network import DescriptorNetwork
from vbreg.descriptors.prepared import DescriptorConfig, pack
from vbreg.geometry import random_rotation


def fresh(config: DescriptorConfig) -> DescriptorNetwork:
    torch.manual_seed(0)
    return DescriptorNetwork(config).eval()


@torch.no_grad()
def test_a_descriptor_for_every_point_the_same_twice(config: DescriptorConfig) -> None:
    cloud = prepared(corner(), config)
    network = fresh(config)
    found, again = network(cloud), network(cloud)
    assert found.descriptors.shape == (len(cloud.pyramid.levels[0].points), config.output)
    torch.testing.assert_close(found.descriptors.norm(dim=-1), torch.ones(len(found.saliency)))
    assert torch.equal(found.descriptors, again.descriptors)
    assert torch.equal(found.saliency, again.saliency)
    assert float(found.descriptors.std(0).mean()) > 1e-3  # they differ


@torch.no_grad()
def test_a_turned_cloud_has_the_same_descriptors(config: DescriptorConfig) -> None:
    """The same points, turned after they were thinned; only patches have an azimuth to begin at."""
    cloud = prepared(corner(), config)
    R = random_rotation(1, generator=torch.Generator().manual_seed(1))[0]
    pyramid = cloud.pyramid
    levels = tuple(type(x)(x.points @ R.T, x.normals @ R.T) for x in pyramid.levels)
    turned = cloud._replace(pyramid=pyramid._replace(levels=levels, detail=pyramid.detail @ R.T))
    network = fresh(config)
    before, after = (network(c).descriptors for c in (cloud, turned))
    alike = (before * after).sum(-1)
    assert float(alike.min()) > (0.98 if "patch" in config.local else 0.9999)


@torch.no_grad()
def test_packed_clouds_do_not_see_each_other(config: DescriptorConfig) -> None:
    clouds = [prepared(corner(seed, n), config) for seed, n in ((0, 6000), (1, 3000), (2, 4000))]
    network = fresh(config)
    sizes = [len(c.pyramid.levels[0].points) for c in clouds]
    packed = network(pack(clouds)).descriptors.split(sizes)
    for cloud, part in zip(clouds, packed, strict=True):
        torch.testing.assert_close(part, network(cloud).descriptors, atol=1e-5, rtol=0)


def test_every_weight_gets_a_gradient(config: DescriptorConfig) -> None:
    network = fresh(config).train()
    found = network(prepared(corner(), config))
    (found.descriptors[:, 0].sum() + found.saliency.sum()).backward()
    without = {n for n, p in network.named_parameters() if p.grad is None or not bool(p.grad.any())}
    assert without <= {"temperature"}


@pytest.mark.parametrize("bad", [{"local": ()}, {"widths": (8, 8), "depths": (1, 1)}])
def test_a_configuration_that_cannot_be(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="expected"):
        DescriptorConfig(**bad)  # type: ignore[arg-type]


def test_the_size_of_the_default_is_within_bounds() -> None:
    numbers = sum(p.numel() for p in DescriptorNetwork().parameters())
    assert 4 * numbers < 16e6
    assert EVERYTHING.output <= 64
