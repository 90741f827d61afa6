import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conftest import make_problem
from vbreg.datasets import matches
from vbreg.datasets.matches import Features, MatchSet, write_shard
from vbreg.errors import FileFormatError, VBRegError
from vbreg.losses import Objective
from vbreg.network import NetworkConfig, VariationalNonLocalNetwork
from vbreg.pretrained import load_network, read_header
from vbreg.training import TrainConfig, checkpoint, journal, train
from vbreg.training import descriptors as cloud_descriptors
from vbreg.training.batches import MatchSampler, read_folder
from vbreg.training.config import DataConfig, OptimizerConfig, from_dict, read_config, to_dict
from vbreg.training.descriptors import CloudDescriptors, clouds_of, fpfh_sets
from vbreg.training.loop import Run, average_weights, learning_rate
from vbreg.training.validation import validate
from vbreg.training.workers import Workers

CPU = torch.device("cpu")
DATA = Path(__file__).parents[1] / "data"
NETWORK = NetworkConfig(iterations=2, width=16, latent_width=8, hidden_width=8, label_width=4)
KINDS = {
    "variational": NETWORK,
    "plain": replace(NETWORK, variational=False),
    "feat": replace(NETWORK, input="feat", descriptor_width=33),
}


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


def bumpy(seed: int) -> Features:
    """A patch of 70 cm, described."""
    rng = np.random.default_rng(seed)
    x, y = rng.uniform(0, 0.7, (2, 600))
    waves = rng.normal(0, 8, (2, 3))
    z = 0.05 * np.sin(np.stack([x, y], -1) @ waves + rng.uniform(0, 6, 3)).sum(-1)
    return matches.describe(np.stack([x, y, z], -1))


def described_sets(place: str, first: int, count: int = 2) -> list[MatchSet]:
    """Patches matched by FPFH alone and, in the other direction, by something better."""
    found = []
    for k in range(first, first + count):
        T = make_problem(3, seed=k).T
        cloud = bumpy(k)
        moved = matches.describe(cloud.points @ T[:3, :3].T + T[:3, 3])
        for kind, ends, pose in (
            ("fpfh", (cloud, moved), T),
            ("code 0.30", (moved, cloud), np.linalg.inv(T)),
        ):
            found.append(matches.match_features(f"{place}/{k}-0 {kind}", *ends, pose, 1.0))
    return found


@pytest.fixture
def described(config: TrainConfig, tmp_path: Path) -> TrainConfig:
    """The same plan for shards whose clouds FPFH can describe."""
    for place, folder in enumerate((*config.data.shards, config.data.validation)):
        assert folder is not None
        write_shard(folder / "one.npz", described_sets(folder.name, 10 * place))
    return replace(config, data=replace(config.data, matched_by="fpfh"))


def with_network(request: pytest.FixtureRequest, kind: str) -> TrainConfig:
    """The plan for a network of one of KINDS, on shards that suit it."""
    config = request.getfixturevalue("described" if kind == "feat" else "config")
    return replace(config, network=KINDS[kind])


def sampler_of(config: TrainConfig, device: torch.device = CPU) -> MatchSampler:
    sets = [read_folder(folder, config.data.matched_by) for folder in config.data.shards]
    described = None
    if config.network.input == "feat":
        described = CloudDescriptors(clouds_of(s for source in sets for s in source), device)
    return MatchSampler(sets, config.data, device, described)


def alone(config: TrainConfig, clock: Callable[[], float] = time.monotonic) -> Run:
    return Run(config, Workers(0, 1, CPU), sampler_of(config), clock=clock)


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


# --- descriptors


def test_only_sets_that_fpfh_matched_are_read(described: TrainConfig) -> None:
    folder = described.data.shards[0]
    assert len(read_folder(folder)) == 4
    names = [s.name for s in read_folder(folder, "fpfh")]
    assert names == ["near/0-0 fpfh", "near/1-0 fpfh"]
    write_shard(folder / "one.npz", match_sets(2))
    with pytest.raises(VBRegError, match=r"no match set in .*near has a name that ends in ' fpfh'"):
        read_folder(folder, "fpfh")


def test_stored_clouds_are_described_as_they_were(described: TrainConfig) -> None:
    """A shard rounds points to a millimetre, the table descriptors to half precision."""
    sets = read_folder(described.data.shards[0], "fpfh")
    clouds = CloudDescriptors(clouds_of(sets), CPU)
    assert clouds.table.shape == (sum(len(s) + len(s.target_cloud) for s in sets), 33)
    for k, match_set in enumerate(sets):
        source, target = (d.float() for d in clouds.of(match_set))
        before = torch.from_numpy(bumpy(k).descriptors)
        assert float((source * before).sum(-1).mean()) > 0.98
        assert float((source * target).sum(-1).mean()) > 0.98  # nearest to each other


def test_a_thinned_source_is_described_among_all_its_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the shard has its whole as another set's target; otherwise the set is left out."""
    monkeypatch.setattr(cloud_descriptors, "MAX_MATCHES", 60)
    whole, other = bumpy(0), bumpy(1)
    part = matches.thinned(whole, 60, np.random.default_rng(0))
    lost = matches.thinned(bumpy(2), 60, np.random.default_rng(0))
    stored = [
        matches.match_features(name, source, target, np.eye(4), 1.0)
        for name, source, target in (
            ("patch/0-1 fpfh", part, other),
            ("patch/2-1 fpfh", lost, other),
            ("patch/1-0 code 0.20", other, whole),
        )
    ]
    write_shard(tmp_path / "patch.npz", stored)
    (found,) = fpfh_sets(matches.read_shard(tmp_path / "patch.npz"))
    assert found.name == "patch/0-1 fpfh"
    np.testing.assert_array_equal(found.source_cloud[found.source_index], found.source)
    source, _ = CloudDescriptors(clouds_of([found]), CPU).of(found)
    likeness = (source.float() * torch.from_numpy(part.descriptors)).sum(-1)
    assert float(likeness.mean()) > 0.98


def test_descriptors_go_with_their_points(described: TrainConfig) -> None:
    """Whichever end comes first. Here a descriptor tells how far from the origin its point is,
    which no rotation changes."""
    config = replace(described, network=KINDS["feat"], data=replace(described.data, jitter=0.0))
    sampler = sampler_of(config)
    assert sampler.descriptors is not None
    length = sampler.points.unflatten(-1, (2, 3)).norm(dim=-1)  # (M, 2)
    sampler.descriptors.table[sampler.ends, 0] = length.half()
    batch = sampler.draw_pairs(16, 40, torch.Generator().manual_seed(0))
    assert batch.descriptors is not None
    ends = batch.descriptors.unflatten(-1, (2, 33))[..., 0].unbind(-1)
    for points, told in zip((batch.source, batch.target), ends, strict=True):
        torch.testing.assert_close(points.norm(dim=-1), told, rtol=2e-3, atol=1e-3)


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


@pytest.mark.parametrize("kind", KINDS)
def test_a_stopped_run_goes_on_to_the_bit(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    config = with_network(request, kind)
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

    def go_on(folder: str, stop: int | None) -> Run:
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


def test_all_workers_follow_the_first_ones_clock() -> None:
    told = [Pretender(rank, 2, CPU).of_first(3.0 + rank) for rank in range(2)]
    assert sum(told) == 3.0
    assert Workers(0, 1, CPU).of_first(3.0) == 3.0


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
@pytest.mark.parametrize("kind", KINDS)
def test_recorded_steps_are_the_eager_ones(request: pytest.FixtureRequest, kind: str) -> None:
    """Compiled and replayed, a few steps of a small network lose what eager steps lose."""
    device = torch.device("cuda")
    config = with_network(request, kind)
    config = replace(config, objective=Objective(per_layer=kind == "plain"))
    totals = []
    for compiled in (False, True):
        chosen = replace(config, compile=compiled)
        run = Run(chosen, Workers(0, 1, device), sampler_of(config, device))
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


@pytest.mark.parametrize("kind", ["variational", "feat"])
def test_two_processes_equal_one_with_the_double_batch(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    config = with_network(request, kind)
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
    rates = [learning_rate(step, step / 100, config) for step in range(101)]
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
        ("minutes = 0", r"minutes = 0.0: expected a positive number"),
        ("[data]\nmatched_by = 'orb'", r"matched_by = 'orb': expected Literal"),
        (
            "[network]\ninput = 'feat'\ndescriptor_width = 33",
            r"matched_by = 'any': expected 'fpfh' with network.input = 'feat'",
        ),
        (
            "[data]\nmatched_by = 'fpfh'\n[network]\ninput = 'feat'\ndescriptor_width = 32",
            r"descriptor_width = 32: expected 33",
        ),
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
    files = sorted((Path(__file__).parents[1] / "configs").rglob("*.toml"))
    assert files
    for file in files:
        config = read_config(file)
        assert config.steps > 1000
        assert {shard.resolve().parent for shard in config.data.shards} == {DATA}


def test_the_networks_of_table_3_are_trained_alike() -> None:
    found = {f.stem: read_config(f) for f in (DATA.parent / "configs" / "ablation").glob("*.toml")}
    assert len(found) == 9
    like = found["vb_xyz"]
    assert like.minutes is not None
    assert like.network == NetworkConfig()
    assert [name for name, c in found.items() if c.objective.per_layer] == ["sc_cls"]
    for config in found.values():
        assert replace(config, network=like.network, objective=like.objective) == like
