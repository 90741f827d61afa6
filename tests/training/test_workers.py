"""One process or several."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.training.helpers import CPU, Pretender, alone, as_toml, match_sets, tensors, with_network
from vbreg.errors import VBRegError
from vbreg.pretrained import load_network
from vbreg.training import TrainConfig, journal, train
from vbreg.training.batches import MatchSampler
from vbreg.training.loop import NetworkRun
from vbreg.training.workers import Workers, joined


class Twin(Workers):
    """One of two workers that always agree."""

    def add_up(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.mul_(2)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_items_are_shared_out(count: int) -> None:
    """Each goes to one worker, and shares of a multiple are alike."""
    shares = [Workers(rank, count, CPU).share(12) for rank in range(count)]
    assert sorted(k for share in shares for k in share) == list(range(12))
    assert {len(share) for share in shares} == {12 // count}
    assert [Workers(rank, count, CPU).is_first for rank in range(count)] == [True, False, False][
        :count
    ]


def test_one_worker_hears_itself() -> None:
    one = Workers(0, 1, CPU)
    assert float(one.add_up(torch.tensor(3.0))) == 3.0
    assert one.any(True)
    assert not one.any(False)
    assert one.of_first(3.0) == 3.0


def test_all_workers_follow_the_first_ones_clock() -> None:
    told = [Pretender(rank, 2, CPU).of_first(3.0 + rank) for rank in range(2)]
    assert sum(told) == 3.0


def test_gradients_are_summed_and_a_missing_one_is_zero() -> None:
    layer = torch.nn.Linear(2, 3)
    layer.weight.grad = torch.arange(6.0).view(3, 2)
    Twin(0, 2, CPU).add_up_gradients(layer)
    assert torch.equal(layer.weight.grad, 2 * torch.arange(6.0).view(3, 2))
    assert torch.equal(layer.bias.grad, torch.zeros(3))
    lone = torch.nn.Linear(2, 3)
    Workers(0, 1, CPU).add_up_gradients(lone)
    assert lone.bias.grad is None


def test_a_process_is_alone_where_nobody_started_more(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLD_SIZE", "RANK"):
        monkeypatch.delenv(name, raising=False)
    with joined("cpu") as workers:
        assert workers == Workers(0, 1, CPU)
    assert not torch.distributed.is_initialized()


def test_micro_batches_add_up(config: TrainConfig) -> None:
    """Two workers with a micro-batch each do what one does with both; here without processes."""
    config = replace(config, micro_batches=2)
    terms = alone(config).step()
    halves = []
    for rank in range(2):
        run = alone(config)
        run.workers = Pretender(rank, 2, CPU)
        halves.append(run.step())
    for name, value in terms.items():
        torch.testing.assert_close(value, halves[0][name] + halves[1][name])


def test_workers_must_share_evenly(config: TrainConfig) -> None:
    sampler = MatchSampler([match_sets(2)], config.data, CPU)
    with pytest.raises(VBRegError, match="micro_batches = 1 for 2 workers"):
        NetworkRun(config, Pretender(0, 2, CPU), sampler)


@pytest.mark.slow
def test_two_processes_equal_one_with_the_double_batch(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """With the network that has the most: it is variational, and sees descriptors."""
    config = with_network(request, "feat")
    config = replace(config, micro_batches=2, steps=3, log_every=1)
    assert config.network.variational
    train(config, tmp_path / "one", device="cpu", quiet=True)
    (tmp_path / "config.toml").write_text(as_toml(config))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = ["-m", "vbreg", "train", str(tmp_path / "config.toml"), "--device", "cpu", "-q"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    arguments = [*torchrun, *command, "-o", str(tmp_path / "two")]
    done = subprocess.run(arguments, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    one, two = (journal.read_log(tmp_path / name, "train") for name in ("one", "two"))
    assert [r["step"] for r in two] == [1, 2, 3]
    for a, b in zip(one, two, strict=True):
        assert a["pairs"] == b["pairs"]
        for term in ("total", "kl", "label_prior", "spectral_posterior"):
            assert b[term] == pytest.approx(a[term], rel=1e-4), term
    weights = [load_network(tmp_path / name / "weights.safetensors") for name in ("one", "two")]
    for a, b in zip(tensors(weights[0]), tensors(weights[1]), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
