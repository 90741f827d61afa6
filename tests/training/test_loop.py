"""The loop: plans, clocks, steps, and what they leave behind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.training.helpers import NETWORK, alone, tensors
from vbreg.losses import Objective
from vbreg.network import VariationalNonLocalNetwork
from vbreg.pretrained import load_network, load_voting, read_header
from vbreg.training import TrainConfig, checkpoint, journal, train
from vbreg.training.config import OptimizerConfig, from_dict
from vbreg.training.loop import NetworkRun, average_weights, learning_rate
from vbreg.voting import VotingConfig


def test_training_lowers_the_loss_and_writes_weights(config: TrainConfig, tmp_path: Path) -> None:
    config = replace(config, steps=60, validate_every=60, log_every=20)
    path = train(config, tmp_path / "run", quiet=True)
    about = read_header(path)["about"]
    assert about["steps"] == 60
    assert about["match_sets"] == 7
    torch.manual_seed(0)
    untrained = VariationalNonLocalNetwork(NETWORK)
    batch = alone(config).sampler.draw_pairs(16, 60, torch.Generator().manual_seed(0))
    ends = batch.source, batch.target
    with torch.no_grad():
        label = [
            float(Objective()(None, n(*ends), ends, batch.labels, n.sigma).label_prior)
            for n in (untrained, load_network(path))
        ]
    assert label[1] < 0.95 * label[0]
    steps = [record["step"] for record in journal.read_log(tmp_path / "run", "train")]
    assert steps == [20, 40, 60]
    (seen,) = journal.read_log(tmp_path / "run", "validation")
    assert 0.0 <= seen["recall"] <= 1.0
    assert about["pairs"] == seen["pairs"]


def test_weights_carry_the_search_that_they_are_meant_for(
    config: TrainConfig, tmp_path: Path
) -> None:
    voting = VotingConfig(min_seeds=7, set_size=11)
    path = train(replace(config, steps=1, voting=voting), tmp_path / "run", quiet=True)
    assert load_voting(path) == voting


def test_the_clock_stops_a_run_that_then_goes_on(config: TrainConfig, tmp_path: Path) -> None:
    config = replace(config, steps=2000, validate_every=2000)
    path = train(config, tmp_path, minutes=0.01, quiet=True)
    first = read_header(path)["about"]["steps"]
    assert 0 < first < 2000
    train(config, tmp_path, minutes=0.01, quiet=True)
    assert read_header(path)["about"]["steps"] > first


class Ticks:
    """A clock that is a second later whenever it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def test_a_plan_in_minutes_follows_the_clock(config: TrainConfig, tmp_path: Path) -> None:
    """Every step takes a second, the first of a process is free, what was used is remembered."""
    config = replace(config, minutes=4 / 60, steps=1, log_every=1, validate_every=100)

    def go_on(folder: str, stop: int | None) -> NetworkRun:
        (tmp_path / folder).mkdir(exist_ok=True)
        run = alone(config, Ticks())
        if (tmp_path / folder / checkpoint.NAME).exists():
            run.state.resume(tmp_path / folder, config)
        with journal.opened(tmp_path / folder, None, quiet=True) as notes:
            run.until(stop, None, tmp_path / folder, notes)
        return run

    def rates(folder: str) -> list[float]:
        return [r["learning_rate"] for r in journal.read_log(tmp_path / folder, "train")]

    assert go_on("whole", None).state.step == 5
    done = (0, 0, 0.25, 0.5, 0.75)
    expected = [learning_rate(step, x, config.optimizer) for step, x in enumerate(done)]
    assert rates("whole") == pytest.approx(expected)
    assert go_on("parts", 3).state.step_seconds == 2.0
    second = go_on("parts", None)
    assert (second.state.step, second.state.step_seconds) == (6, 4.0)
    assert rates("parts")[:3] == rates("whole")[:3]
    again = learning_rate(3, 0.5, config.optimizer)
    assert rates("parts")[3:5] == pytest.approx([again, learning_rate(4, 0.5, config.optimizer)])


def test_validation_ends_a_plan_in_minutes(config: TrainConfig, tmp_path: Path) -> None:
    config = replace(config, minutes=1e-6, validate_every=100)
    path = train(config, tmp_path / "run", quiet=True)
    assert read_header(path)["about"]["steps"] == 2
    (seen,) = journal.read_log(tmp_path / "run", "validation")
    assert seen["step"] == 2


def test_a_run_stops_at_a_step_and_keeps_to_its_plan(config: TrainConfig, tmp_path: Path) -> None:
    config = replace(config, steps=6)
    path = train(config, tmp_path / "parts", until=4, quiet=True)
    assert read_header(path)["about"]["steps"] == 4
    train(config, tmp_path / "parts", quiet=True)
    whole = train(config, tmp_path / "whole", quiet=True)
    for got, expected in zip(
        tensors(load_network(path)), tensors(load_network(whole)), strict=True
    ):
        assert torch.equal(got, expected)


def test_a_finished_plan_takes_no_more_steps(config: TrainConfig, tmp_path: Path) -> None:
    path = train(config, tmp_path / "run", quiet=True)
    before = tensors(load_network(path))
    train(config, tmp_path / "run", quiet=True)
    assert read_header(path)["about"]["steps"] == config.steps
    for a, b in zip(before, tensors(load_network(path)), strict=True):
        assert torch.equal(a, b)


def test_a_step_that_is_not_finite_is_skipped_and_counted(config: TrainConfig) -> None:
    run = alone(config)
    before = [t.clone() for t in tensors(run.state.network)]
    run.sampler.points.fill_(float("nan"))
    run.step()
    assert run.state.skipped == 1
    assert all(torch.equal(a, b) for a, b in zip(before, tensors(run.state.network), strict=True))


def test_average_is_a_weighted_mean() -> None:
    a, b = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    expected = 0.9 * a.weight.detach() + 0.1 * b.weight.detach()
    average_weights(a, b, 0.9)
    torch.testing.assert_close(a.weight.detach(), expected)


def test_what_norms_have_seen_is_averaged_too() -> None:
    a, b = torch.nn.BatchNorm1d(3), torch.nn.BatchNorm1d(3)
    b(5 + torch.randn(100, 3, generator=torch.Generator().manual_seed(0)))
    assert a.running_mean is not None
    assert b.running_mean is not None
    average_weights(a, b, 0.75)
    torch.testing.assert_close(a.running_mean, 0.25 * b.running_mean)


@pytest.mark.parametrize("decay", ["cosine", "exponential"])
def test_learning_rate_warms_up_and_decays(decay: str) -> None:
    config = from_dict(
        OptimizerConfig, {"decay": decay, "learning_rate": 2.0, "warmup_steps": 10}, "test"
    )
    rates = [learning_rate(step, step / 100, config) for step in range(101)]
    assert rates[0] == pytest.approx(0.2, rel=0.01)
    assert max(rates) < 2.0
    assert rates[20:] == sorted(rates[20:], reverse=True)
    assert rates[100] == pytest.approx(0.02)
