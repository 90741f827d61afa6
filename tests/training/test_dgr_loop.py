from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.methods.test_dgr import TINY
from tests.training.helpers import CPU
from vbreg.errors import VBRegError
from vbreg.geometry import procrustes, random_rotation
from vbreg.methods.dgr import load_dgr
from vbreg.training import TrainConfig
from vbreg.training.batches import Batch, MatchSampler, read_folder
from vbreg.training.config import OptimizerConfig
from vbreg.training.dgr_loop import (
    DgrRun,
    DgrTrainConfig,
    dgr_loss,
    is_dgr_config,
    read_dgr_config,
    weighted_pose,
)
from vbreg.training.journal import read_log
from vbreg.training.loop import train_on_matches
from vbreg.training.workers import Workers


@pytest.fixture
def plan(config: TrainConfig) -> DgrTrainConfig:
    """The short plan on small shards, for a small network."""
    return DgrTrainConfig(
        steps=4,
        log_every=1,
        validate_every=2,
        checkpoint_every=2,
        data=config.data,
        dgr=TINY,
        optimizer=OptimizerConfig(learning_rate=1e-2, warmup_steps=2),
    )


def batch(N: int = 60, right: int = 20, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    x = 10 * torch.randn(3, N, 3, generator=generator, dtype=torch.float64)
    R = random_rotation(3, generator=generator, dtype=torch.float64)
    y = x @ R.transpose(1, 2) + torch.tensor([1.0, -2.0, 3.0])
    y[:, right:] = 10 * torch.randn(3, N - right, 3, generator=generator, dtype=torch.float64)
    labels = torch.arange(N).expand(3, -1) < right
    return Batch(x, y, labels)


def random_weights(N: int = 12) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(3, N, generator=generator, dtype=torch.float64)


def test_the_weighted_pose_is_procrustes() -> None:
    """Also where the best orthogonal matrix is a reflection."""
    made, w = batch(12, 6), random_weights()
    for x in (made.source, made.source * torch.tensor([1.0, 1.0, -1.0])):
        R, t = weighted_pose(x, made.target, w)
        T, _ = procrustes(x, made.target, w)
        torch.testing.assert_close(R, T[:, :3, :3])
        torch.testing.assert_close(t, T[:, :3, 3])


@pytest.mark.parametrize("mirrored", [False, True])
def test_the_pose_has_a_gradient(mirrored: bool) -> None:
    made = batch(12, 6)
    x = made.source * torch.tensor([1.0, 1.0, -1.0 if mirrored else 1.0])
    w = random_weights().requires_grad_()
    assert torch.autograd.gradcheck(lambda v: weighted_pose(x, made.target, v), (w,))


def test_the_gradient_is_finite_where_singular_values_are_the_same() -> None:
    x = torch.eye(3, dtype=torch.float64).repeat(2, 1)[None] * torch.tensor([1.0] * 6)[:, None]
    x[:, 3:] *= -1
    w = torch.ones(1, 6, dtype=torch.float64, requires_grad=True)
    R, t = weighted_pose(x, x, w)
    torch.testing.assert_close(R[0], torch.eye(3, dtype=torch.float64))
    (R[0, 0, 1] + t.sum()).backward()
    assert w.grad is not None
    assert bool(torch.isfinite(w.grad).all())


def test_right_weights_have_no_loss_and_wrong_ones_do() -> None:
    made = batch()
    sure = torch.where(made.labels, 20.0, -20.0).double()
    good, bad = dgr_loss(sure, made), dgr_loss(-sure, made)
    assert float(good.labels) < 1e-6
    assert float(good.rotation) < 1e-5
    assert float(good.translation) < 1e-5
    assert float(good.posed) == 1.0
    assert float(bad.rotation) > 0.3
    assert float(bad.labels) > 10


def test_problems_without_a_pose_are_asked_for_none() -> None:
    few = batch(right=5)
    found = dgr_loss(torch.zeros(3, 60, dtype=torch.float64), few)
    assert float(found.posed) == float(found.rotation) == float(found.translation) == 0.0
    nothing = dgr_loss(torch.full((3, 60), -9.0, dtype=torch.float64), batch())
    assert float(nothing.posed) == 0.0


def run_of(plan: DgrTrainConfig) -> DgrRun:
    sets = [read_folder(folder) for folder in plan.data.shards]
    return DgrRun(plan, Workers(0, 1, CPU), MatchSampler(sets, plan.data, CPU))


def test_it_learns(plan: DgrTrainConfig) -> None:
    run = run_of(replace(plan, steps=1000))
    terms = [run.step() for _ in range(30)]
    first, last = (np.mean([float(t["total"]) for t in part]) for part in (terms[:5], terms[-5:]))
    assert last < 0.95 * first


def test_a_whole_run_from_shards_to_weights(plan: DgrTrainConfig, tmp_path: Path) -> None:
    """Two calls: the second goes on where the first was stopped."""
    output = tmp_path / "run"
    make = partial(DgrRun, plan)
    train_on_matches(plan, make, output, CPU, until=2, quiet=True)
    path = train_on_matches(plan, make, output, CPU, quiet=True)
    steps = read_log(output, "train")
    assert [record["step"] for record in steps] == [1, 2, 3, 4]
    assert np.isfinite([record["total"] for record in steps]).all()
    last = read_log(output, "validation")[-1]
    assert 0.0 <= last["recall"] <= 1.0
    network = load_dgr(path).network
    assert network.config == TINY
    again = run_of(replace(plan, start_from=path))
    torch.testing.assert_close(again.state.network.final.kernel, network.final.kernel)
    with pytest.raises(VBRegError, match="holds another network"):
        run_of(replace(plan, start_from=path, dgr=replace(TINY, channels=(4, 4, 4, 4))))


def test_a_configuration_is_read(tmp_path: Path) -> None:
    path = tmp_path / "dgr.toml"
    path.write_text('minutes = 2\n[dgr]\nchannels = [4, 8, 8, 8]\n[data]\nshards = ["here"]\n')
    assert is_dgr_config(path)
    config = read_dgr_config(path)
    assert config.data.shards == (tmp_path / "here",)
    assert config.dgr.channels == (4, 8, 8, 8)
    path.write_text("compile = true\n[dgr]\n")
    with pytest.raises(VBRegError, match="unknown 'compile'"):
        read_dgr_config(path)
