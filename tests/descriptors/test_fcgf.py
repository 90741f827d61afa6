import argparse
import pickle
import sys
import types
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.descriptors.conftest import corner, thinned
from torch import Tensor

from vbreg import VBRegError, register
from vbreg.descriptors import choice, descriptor_named
from vbreg.descriptors.fcgf import (
    FINE,
    FcgfConfig,
    FcgfNetwork,
    describe_cells,
    detailed,
    fine_cells,
    load_fcgf,
    load_published,
    save_fcgf,
)
from vbreg.errors import FileFormatError
from vbreg.matching import describe
from vbreg.scale import Scale
from vbreg.weights_file import save_weights

TINY = FcgfConfig(first_kernel=3, channels=(4, 4, 6, 8), up_channels=(6, 4, 4, 6), output=5)


def fresh(config: FcgfConfig = TINY, *, trained: bool = True) -> FcgfNetwork:
    """A network of random weights, whose norms have seen something, in eval mode."""
    torch.manual_seed(0)
    network = FcgfNetwork(config)
    if trained:
        network.train()
        with torch.no_grad():
            for _ in range(3):
                network(fine_cells(corner())[0])
    return network.eval()


def test_the_published_network_has_its_size_and_its_names() -> None:
    network = FcgfNetwork()
    assert sum(p.numel() for p in network.parameters()) == 8_760_384
    shapes = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    expected = {
        "conv1.kernel": (343, 1, 32),
        "norm1.bn.running_var": (32,),
        "block1.conv1.kernel": (27, 32, 32),
        "block4.norm2.bn.weight": (256,),
        "conv4.kernel": (27, 128, 256),
        "conv4_tr.kernel": (27, 256, 128),
        "conv3_tr.kernel": (27, 256, 64),
        "conv2_tr.kernel": (27, 128, 64),
        "block2_tr.conv2.kernel": (27, 64, 64),
        "conv1_tr.kernel": (96, 64),
        "final.kernel": (64, 32),
        "final.bias": (1, 32),
    }
    assert {name: shapes.get(name) for name in expected} == expected
    kernels = [name for name in shapes if name.endswith("kernel")]
    assert len(kernels) == 4 + 4 + 1 + 2 * 7  # down, up, last, and in blocks


@torch.no_grad()
def test_a_descriptor_for_every_cell_the_same_twice() -> None:
    cells, _ = fine_cells(corner())
    network = fresh()
    found = network(cells)
    assert found.shape == (len(cells), TINY.output)
    torch.testing.assert_close(found.norm(dim=-1), torch.ones(len(cells)))
    assert torch.equal(found, network(cells))
    assert float(found.std(0).mean()) > 1e-2


@torch.no_grad()
@pytest.mark.parametrize("shift", [(8, -16, 24), (0, 800, 0)])
def test_moved_by_whole_cells_of_the_coarsest_level_nothing_changes(
    shift: tuple[int, int, int],
) -> None:
    cloud = (corner() / FINE).floor() * FINE + FINE / 2
    moved = cloud + FINE * torch.tensor(shift)
    network = fresh()
    ends = [fine_cells(points) for points in (cloud, moved)]
    first, second = (network(cells)[rows] for cells, rows in ends)
    torch.testing.assert_close(first, second)


@torch.no_grad()
def test_packed_clouds_do_not_see_each_other() -> None:
    clouds = [corner(seed, n) for seed, n in ((0, 3000), (1, 2000))]
    network = fresh()
    sizes = torch.tensor([len(cloud) for cloud in clouds])
    cells, rows = fine_cells(torch.cat(clouds), torch.arange(2).repeat_interleave(sizes))
    found = network(cells)
    for cloud, row in zip(clouds, rows.split(sizes.tolist()), strict=True):
        alone, own = fine_cells(cloud)
        torch.testing.assert_close(found[row], network(alone)[own], atol=1e-5, rtol=0)


def test_every_weight_gets_a_gradient() -> None:
    network = fresh().train()
    network(fine_cells(corner())[0])[:, 0].sum().backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in network.parameters())


def test_a_network_that_all_share_is_not_moved(asked: list[torch.device]) -> None:
    cloud = thinned(corner())
    describe_cells(fresh(), cloud, torch.arange(5))
    assert asked == [cloud.points.device]


@torch.no_grad()
def test_a_point_has_what_the_fine_voxel_next_to_it_has() -> None:
    cloud = thinned(corner())
    network = fresh()
    rows = torch.arange(5, len(cloud.points), 7)
    found = describe_cells(network, cloud, rows)
    fine = detailed(cloud)
    away = torch.cdist(fine.points.double(), fine.detail.double())
    chosen = away.gather(1, fine.nearest.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(chosen, away.min(1).values, atol=1e-5, rtol=0)
    cells, row = fine_cells(fine.detail)
    torch.testing.assert_close(found, network(cells)[row[fine.nearest[rows]]])
    assert describe_cells(network, cloud, rows[:0]).shape == (0, TINY.output)


def test_lengths_are_in_voxels() -> None:
    found = []
    for unit in (1.0, 0.05):
        points = corner() * unit
        cloud = thinned(corner())
        small = cloud._replace(points=cloud.points * unit, detail=points, scale=Scale(unit))
        found.append(detailed(small))
    for one, other in zip(*found, strict=True):
        same = one == other if one.dtype == torch.int64 else torch.isclose(one, other, atol=1e-5)
        assert float(same.float().mean()) > 0.95  # some points lie as near to two


# --- weights files


def test_a_file_says_which_network_it_is_for(tmp_path: Path) -> None:
    network = fresh()
    path = tmp_path / "mine.safetensors"
    digest = save_fcgf(path, network, {"steps": 3})
    named = descriptor_named(path)
    assert named.fingerprint == digest
    assert isinstance(named.network, FcgfNetwork)
    assert named.network.config == TINY
    assert named.matching == "one-way"
    assert named.keypoints(5000) == 5000
    learned = descriptor_named("learned")
    assert type(learned.network) is not type(named.network)
    assert learned.matching == "either-way"


def test_half_precision_in_the_file_costs_nothing(tmp_path: Path) -> None:
    network = fresh(FcgfConfig())
    half, full = tmp_path / "half.safetensors", tmp_path / "full.safetensors"
    save_fcgf(half, network)
    save_weights(full, network, {"fcgf": asdict(network.config)})
    assert half.stat().st_size < 18e6 < 34e6 < full.stat().st_size
    cells, _ = fine_cells(corner(n=2000))
    with torch.no_grad():
        a, b = (load_fcgf(path).network(cells) for path in (half, full))
    assert float((a * b).sum(-1).min()) > 0.9999
    loaded = load_fcgf(half).network.state_dict()
    assert all(v.dtype == network.state_dict()[k].dtype for k, v in loaded.items())


def test_register_takes_a_file(tmp_path: Path) -> None:
    """A shift by whole voxels of the coarsest level leaves every descriptor as it is."""
    path = tmp_path / "mine.safetensors"
    save_fcgf(path, fresh())
    cloud = corner().double().numpy() * 0.05
    moved = cloud + np.array([3.0, -2.0, 1.0])
    result = register(cloud, moved, voxel_size=0.05, descriptor=str(path))
    np.testing.assert_allclose(result.T_target_source[:3, 3], [3.0, -2.0, 1.0], atol=0.02)


def test_without_shipped_weights_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice._fcgf.cache_clear()
    monkeypatch.setattr(choice, "SHIPPED_FCGF", tmp_path / "fcgf.safetensors")
    with pytest.raises(VBRegError, match="no weights for it; train them with `vbreg train"):
        descriptor_named("fcgf")
    save_fcgf(choice.SHIPPED_FCGF, fresh())
    found = descriptor_named("fcgf")
    assert found.name == "fcgf"
    assert found is descriptor_named("fcgf")  # read once
    described = describe(corner().double().numpy(), Scale(1.0), descriptor="fcgf")
    assert described.descriptors.shape == (len(described), TINY.output)
    choice._fcgf.cache_clear()


def test_shipped_weights_are_those_of_the_published_network() -> None:
    network = descriptor_named("fcgf").network
    assert isinstance(network, FcgfNetwork)
    assert network.config == FcgfConfig()


# --- checkpoints of the authors' code


class EasyDict(dict[str, Any]):
    """As the package of that name has it: entries are attributes, too."""

    def __init__(self, **entries: Any) -> None:
        super().__init__(**entries)
        self.__dict__.update(entries)


@pytest.fixture
def easydict(monkeypatch: pytest.MonkeyPatch) -> type[EasyDict]:
    """The package, whose class pickles by its name."""
    module = types.ModuleType("easydict")
    module.EasyDict = EasyDict  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "easydict", module)
    monkeypatch.setattr(EasyDict, "__module__", "easydict")
    return EasyDict


def published(state: dict[str, Tensor], settings: object) -> dict[str, Any]:
    return {
        "epoch": 100,
        "state_dict": state,
        "optimizer": {"state": {}, "param_groups": [{"lr": 0.1, "params": [0]}]},
        "scheduler": {"last_epoch": 100},
        "config": settings,
        "best_val": np.float64(0.9),
        "best_val_metric": "feat_match_ratio",
    }


@pytest.mark.skipif(not hasattr(torch.serialization, "safe_globals"), reason="needs torch 2.5")
@pytest.mark.parametrize("zipped", [True, False], ids=("zip", "before torch 1.6"))
@pytest.mark.parametrize("kind", ["easydict", "namespace"])
def test_a_published_checkpoint_fits(
    tmp_path: Path, easydict: type[EasyDict], kind: str, zipped: bool
) -> None:
    network = fresh()
    settings = {"easydict": easydict, "namespace": argparse.Namespace}[kind](model_n_out=5, lr=0.1)
    path = tmp_path / "checkpoint.pth"
    torch.save(
        published(network.state_dict(), settings), path, _use_new_zipfile_serialization=zipped
    )
    sys.modules.pop("easydict", None)  # whoever loads it need not have the package
    found = load_published(path).network
    assert found.config == TINY
    assert not found.training
    for name, value in network.state_dict().items():
        assert torch.equal(found.state_dict()[name], value), name
    assert isinstance(descriptor_named(str(path)).network, FcgfNetwork)


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("evil"),))


def test_a_hostile_checkpoint_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": {}, "config": Evil()}, "evil.pth")
    with pytest.raises(FileFormatError, match="nothing in it was run"):
        load_published(Path("evil.pth"))
    Path("bare.pth").write_bytes(pickle.dumps(Evil(), protocol=2))
    with pytest.raises(FileFormatError, match="refused"):
        load_published(Path("bare.pth"))
    assert not Path("evil").exists()


def test_a_checkpoint_of_something_else_is_told(tmp_path: Path) -> None:
    path = tmp_path / "other.pth"
    torch.save({"state_dict": {"linear.weight": torch.zeros(3)}}, path)
    with pytest.raises(FileFormatError, match="not a checkpoint of FCGF"):
        load_published(path)
    torch.save(published({**fresh().state_dict(), "more": torch.zeros(1)}, {}), path)
    with pytest.raises(FileFormatError, match="not a checkpoint of FCGF"):
        load_published(path)
    torch.save([1, 2], path)
    with pytest.raises(FileFormatError, match="expected tensors by name"):
        load_published(path)
    with pytest.raises(FileFormatError, match="no checkpoint at"):
        descriptor_named(str(tmp_path / "none.pth"))


@pytest.mark.parametrize("bad", [{"first_kernel": 4}, {"first_kernel": 9}, {"output": 0}])
def test_a_configuration_that_cannot_be(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="expected"):
        FcgfConfig(**bad)  # type: ignore[arg-type]
