import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conftest import make_problem
from vbreg.datasets.matches import MatchSet, write_shard
from vbreg.errors import FileFormatError, VBRegError
from vbreg.losses import Objective
from vbreg.network import NetworkConfig, VariationalNonLocalNetwork
from vbreg.pretrained import load_network, read_header
from vbreg.training import TrainConfig, checkpoint, journal, train
from vbreg.training.batches import MatchSampler, read_folder
from vbreg.training.config import DataConfig, OptimizerConfig, from_dict, read_config, to_dict
from vbreg.training.loop import Run, average_weights, learning_rate
from vbreg.training.validation import validate
from vbreg.training.workers import Workers

CPU = torch.device("cpu")
NETWORK = NetworkConfig(iterations=2, width=16, latent_width=8, hidden_width=8, label_width=4)


def match_sets(count: int, threshold: float = 0.1, first: int = 0) -> list[MatchSet]:
    found = []
    for k in range(first, first + count):
        p = make_problem(100 + 20 * k, 0.3, seed=k)
        source, target = (x.astype(np.float32) * (threshold / 0.1) for x in p[:2])
        found.append(
            MatchSet(str(k), source, target, np.arange(len(source)), p.inliers, p.T, 0.5, threshold)
        )
    return found


@pytest.fixture
def config(tmp_path: Path) -> TrainConfig:
    for folder, sets in {
        "near": match_sets(4),
        "far": match_sets(3, 0.6, first=4),
        "held": match_sets(2, first=7),
    }.items():
        (tmp_path / folder).mkdir()
        write_shard(tmp_path / folder / "one.npz", sets)
    return TrainConfig(
        steps=6,
        precision="fp32",
        log_every=2,
        validate_every=3,
        checkpoint_every=2,
        data=DataConfig(
            shards=(tmp_path / "near", tmp_path / "far"),
            validation=tmp_path / "held",
            sizes=(40, 60),
            correspondences=240,
        ),
        network=NETWORK,
        optimizer=OptimizerConfig(learning_rate=1e-2, warmup_steps=2),
    )


def alone(config: TrainConfig) -> Run:
    sets = [read_folder(folder) for folder in config.data.shards]
    return Run(config, Workers(0, 1, CPU), MatchSampler(sets, config.data, CPU))


def tensors(network: torch.nn.Module) -> list[torch.Tensor]:
    return list(network.state_dict().values())


# --- batches


def test_augmentation_keeps_matches_what_they_are(config: TrainConfig) -> None:
    """Rotated, swapped and jittered, inliers still keep their mutual distances and outliers not.
    Sets of 0.1 m and 0.6 m look alike: both are in units of their threshold."""
    batch = alone(config).sampler.draw_pairs(12, 80, torch.Generator().manual_seed(0))
    for x, y, labels in zip(batch.source, batch.target, batch.labels, strict=True):
        difference = (torch.cdist(x, x) - torch.cdist(y, y)).abs()
        assert float(difference[labels][:, labels].max()) < 2.0
        assert float(difference[~labels][:, ~labels].median()) > 2.0


def test_batches_follow_from_their_seed(config: TrainConfig) -> None:
    def draw(seed: int) -> torch.Tensor:
        return alone(config).sampler.draw(40, torch.Generator().manual_seed(seed)).source

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))
    sizes = [alone(config).sampler.size_of(seed) for seed in range(20)]
    assert sizes == [alone(config).sampler.size_of(seed) for seed in range(20)]
    assert set(sizes) == {40, 60}


def test_the_share_of_inliers_varies(config: TrainConfig) -> None:
    batch = alone(config).sampler.draw_pairs(64, 40, torch.Generator().manual_seed(0))
    ratio = batch.labels.float().mean(-1)
    assert float(ratio.min()) < 0.25  # the sets have 0.3
    assert float(ratio.max()) > 0.6


def test_sources_are_drawn_by_weight(config: TrainConfig) -> None:
    sets = [match_sets(2), match_sets(1, first=5)]
    data = replace(config.data, weights=(1.0, 9.0))
    sampler = MatchSampler(sets, data, CPU)
    torch.testing.assert_close(sampler.weights, torch.tensor([0.5, 0.5, 9.0]))


def test_sets_smaller_than_asked_repeat_their_own_rows(config: TrainConfig) -> None:
    sampler = MatchSampler([match_sets(2)], config.data, CPU)
    batch = sampler.draw_pairs(4, 300, torch.Generator().manual_seed(0))
    assert batch.source.shape == (4, 300, 3)
    assert torch.isfinite(batch.source).all()
    large = MatchSampler([match_sets(2)], config.data, CPU)._choose_rows(
        8, 110, torch.Generator().manual_seed(0)
    )
    assert int(large.min()) >= 100  # only the second set has 110 rows


# --- the loop


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


@pytest.mark.parametrize("variational", [True, False])
def test_a_stopped_run_goes_on_to_the_bit(
    config: TrainConfig, tmp_path: Path, variational: bool
) -> None:
    config = replace(config, network=replace(NETWORK, variational=variational))
    train(config, tmp_path / "whole", quiet=True)
    run = alone(config)
    (tmp_path / "parts").mkdir()
    for _ in range(3):  # and then the machine goes away
        run.step()
    run.save(tmp_path / "parts")
    run.step()
    train(config, tmp_path / "parts", quiet=True)
    states = []
    for name in ("whole", "parts"):
        run = alone(config)
        run.state.resume(tmp_path / name, config)
        states.append(run.state)
    assert states[0].step == states[1].step == config.steps
    assert states[0].pairs == states[1].pairs
    for part in ("network", "averaged"):
        pairs = zip(
            tensors(getattr(states[0], part)), tensors(getattr(states[1], part)), strict=True
        )
        assert all(torch.equal(a, b) for a, b in pairs)
    moments = [s.optimizer.state_dict()["state"] for s in states]
    assert all(
        torch.equal(moments[0][k]["exp_avg_sq"], v["exp_avg_sq"]) for k, v in moments[1].items()
    )


def test_the_clock_stops_a_run_that_then_goes_on(config: TrainConfig, tmp_path: Path) -> None:
    config = replace(config, steps=2000, validate_every=2000)
    path = train(config, tmp_path, minutes=0.01, quiet=True)
    first = read_header(path)["about"]["steps"]
    assert 0 < first < 2000
    train(config, tmp_path, minutes=0.01, quiet=True)
    assert read_header(path)["about"]["steps"] > first


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


def test_training_starts_from_given_weights(config: TrainConfig, tmp_path: Path) -> None:
    first = train(replace(config, steps=4), tmp_path / "first", quiet=True)
    second = train(replace(config, steps=2, start_from=first), tmp_path / "second", quiet=True)
    assert read_header(second)["about"]["start"]["steps"] == 4
    run = alone(replace(config, start_from=first))
    for got, given in zip(tensors(run.state.network), tensors(load_network(first)), strict=True):
        assert torch.equal(got, given)
    assert all(p.requires_grad for p in run.state.network.parameters())
    other = replace(config, start_from=first, network=replace(NETWORK, width=32))
    with pytest.raises(VBRegError, match="holds another network"):
        alone(other)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_recorded_steps_are_the_eager_ones(config: TrainConfig) -> None:
    """Compiled and replayed, a few steps of a small network lose what eager steps lose."""
    device = torch.device("cuda")
    sets = [read_folder(folder) for folder in config.data.shards]
    totals = []
    for compiled in (False, True):
        chosen = replace(config, compile=compiled)
        run = Run(chosen, Workers(0, 1, device), MatchSampler(sets, config.data, device))
        totals.append([float(run.step()["total"]) for _ in range(6)])
    assert totals[1] == pytest.approx(totals[0], rel=1e-2)


def test_records_beyond_the_checkpoint_are_written_again(tmp_path: Path) -> None:
    lines = [json.dumps({"kind": "train", "step": step}) for step in (2, 4, 6)]
    (tmp_path / journal.LOG).write_text("\n".join(lines) + "\n")
    journal.forget_after(tmp_path, 4)
    assert [r["step"] for r in journal.read_log(tmp_path, "train")] == [2, 4]


def test_another_configuration_does_not_go_on(config: TrainConfig, tmp_path: Path) -> None:
    run = alone(config)
    run.save(tmp_path)
    other = replace(config, optimizer=replace(config.optimizer, ema=0.5))
    with pytest.raises(VBRegError, match=r"optimizer\.ema: 0\.999 then, 0\.5 now"):
        alone(other).state.resume(tmp_path, other)
    (tmp_path / checkpoint.NAME).write_bytes(b"no checkpoint")
    with pytest.raises(FileFormatError, match="not a readable checkpoint"):
        run.state.resume(tmp_path, config)


def test_tensorboard_gets_the_same_records(config: TrainConfig, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs vbreg[train]")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(replace(config, steps=4), tmp_path / "run", quiet=True)
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    logged = journal.read_log(tmp_path / "run", "train")
    kl = events.Scalars("train/kl")
    assert [event.step for event in kl] == [2, 4]
    assert [event.value for event in kl] == pytest.approx([record["kl"] for record in logged])
    assert len(events.Scalars("validation/recall")) == 2


def test_a_step_that_is_not_finite_is_skipped_and_counted(config: TrainConfig) -> None:
    run = alone(config)
    before = [t.clone() for t in tensors(run.state.network)]
    run.sampler.points.fill_(float("nan"))
    run.step()
    assert run.state.skipped == 1
    assert all(torch.equal(a, b) for a, b in zip(before, tensors(run.state.network), strict=True))


def test_micro_batches_add_up(config: TrainConfig) -> None:
    """Two workers with a micro-batch each do what one does with both; here without processes."""
    config = replace(config, micro_batches=2)
    whole = alone(config)
    terms = whole.step()
    halves = []
    for rank in range(2):
        run = alone(config)
        run.workers = Pretender(rank, 2, CPU)
        halves.append(run.step())
    for name, value in terms.items():
        torch.testing.assert_close(value, halves[0][name] + halves[1][name])


class Pretender(Workers):
    """One of several workers that never hears of the others."""

    def add_up(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


def test_two_processes_equal_one_with_the_double_batch(config: TrainConfig, tmp_path: Path) -> None:
    config = replace(config, micro_batches=2, steps=3, log_every=1)
    (tmp_path / "config.toml").write_text(as_toml(config))
    command = ["-m", "vbreg", "train", str(tmp_path / "config.toml"), "--device", "cpu", "-q"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    for start, name in (([sys.executable], "one"), (torchrun, "two")):
        arguments = [*start, *command, "-o", str(tmp_path / name)]
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


def test_workers_must_share_evenly(config: TrainConfig) -> None:
    sampler = MatchSampler([match_sets(2)], config.data, CPU)
    with pytest.raises(VBRegError, match="micro_batches = 1 for 2 workers"):
        Run(config, Pretender(0, 2, CPU), sampler)


def test_average_is_a_weighted_mean() -> None:
    a, b = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    expected = 0.9 * a.weight.detach() + 0.1 * b.weight.detach()
    average_weights(a, b, 0.9)
    torch.testing.assert_close(a.weight.detach(), expected)


@pytest.mark.parametrize("decay", ["cosine", "exponential"])
def test_learning_rate_warms_up_and_decays(decay: str) -> None:
    config = from_dict(
        OptimizerConfig, {"decay": decay, "learning_rate": 2.0, "warmup_steps": 10}, "test"
    )
    rates = [learning_rate(step, 100, config) for step in range(101)]
    assert rates[0] == pytest.approx(0.2, rel=0.01)
    assert max(rates) < 2.0
    assert rates[20:] == sorted(rates[20:], reverse=True)
    assert rates[100] == pytest.approx(0.02)


def test_validation_sees_what_is_right(config: TrainConfig) -> None:
    torch.manual_seed(0)
    network = VariationalNonLocalNetwork(NETWORK)
    sets = match_sets(2)
    found = validate(network, sets)
    assert found.recall == 1.0  # three inliers of ten are easy for any features
    shifted = [replace(s, T_target_source=np.eye(4)) for s in sets]
    assert validate(network, shifted).recall == 0.0


# --- the configuration


def as_toml(config: TrainConfig) -> str:
    def value(v: object) -> str:
        return json.dumps(v)

    plain = to_dict(config)
    tables = {k: v for k, v in plain.items() if isinstance(v, dict)}
    lines = [f"{k} = {value(v)}" for k, v in plain.items() if k not in tables]
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{k} = {value(v)}" for k, v in table.items())]
    return "\n".join(lines)


def test_configuration_survives_the_file(config: TrainConfig, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(as_toml(config))
    assert read_config(tmp_path / "config.toml") == config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("step = 3", r"unknown 'step'; expected some of steps"),
        ("steps = '3'", r"steps = '3': expected int"),
        ("steps = 0", r"steps = 0: expected at least 1"),
        ("precision = 'fp16'", r"precision = 'fp16': expected Literal"),
        ("[network]\nwidth = 1.5", r"network: width = 1.5: expected int"),
        ("[network]\nwidth = 0", r"width 0: expected at least 1"),
        ("[data]\nsizes = [2]", r"sizes = \(2,\): expected numbers of matches"),
        ("[data]\ninlier_boost = [1, 2, 3]", r"inlier_boost = \[1, 2, 3\]: expected tuple"),
        ("[data]\nweights = [1.0]", r"weights = \(1.0,\): expected one for each of shards"),
        ("steps = ", r"is not TOML"),
    ],
)
def test_configuration_says_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(VBRegError, match=message):
        read_config(tmp_path / "config.toml")


def test_missing_configuration_and_shards(config: TrainConfig, tmp_path: Path) -> None:
    with pytest.raises(VBRegError, match="no training configuration at"):
        read_config(tmp_path / "none.toml")
    (tmp_path / "empty").mkdir()
    bad = replace(config, data=replace(config.data, shards=(tmp_path / "empty",)))
    with pytest.raises(VBRegError, match="no shards"):
        train(bad, tmp_path / "run")


def test_the_configurations_that_we_ship_are_read() -> None:
    files = sorted((Path(__file__).parents[1] / "configs").glob("*.toml"))
    assert files
    for file in files:
        config = read_config(file)
        assert config.steps > 1000
        assert config.data.shards
