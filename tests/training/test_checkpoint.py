"""Where a run stands: what is kept, and what may not have changed meanwhile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.training.helpers import CPU, KINDS, NETWORK, alone, tensors, with_network
from vbreg.errors import FileFormatError, VBRegError
from vbreg.pretrained import load_network, read_header
from vbreg.training import TrainConfig, checkpoint, train
from vbreg.training.checkpoint import State


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


def test_a_start_follows_from_the_seed_alone(config: TrainConfig) -> None:
    """Nor does it touch torch's own generator."""
    before = torch.random.get_rng_state()
    first, second = State.start(config, CPU), State.start(config, CPU)
    assert torch.equal(torch.random.get_rng_state(), before)
    other = State.start(replace(config, seed=1), CPU)
    for a, b in zip(tensors(first.network), tensors(second.network), strict=True):
        assert torch.equal(a, b)
    pairs = zip(tensors(first.network), tensors(other.network), strict=True)
    assert not all(torch.equal(a, b) for a, b in pairs)
    for a, b in zip(tensors(first.network), tensors(first.averaged), strict=True):
        assert torch.equal(a, b)
    assert not any(p.requires_grad for p in first.averaged.parameters())


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


def test_another_configuration_does_not_go_on(config: TrainConfig, tmp_path: Path) -> None:
    run = alone(config)
    run.save(tmp_path)
    other = replace(config, optimizer=replace(config.optimizer, ema=0.5))
    with pytest.raises(VBRegError, match=r"optimizer\.ema: 0\.999 then, 0\.5 now"):
        alone(other).state.resume(tmp_path, other)


def test_folders_may_move_meanwhile(config: TrainConfig, tmp_path: Path) -> None:
    run = alone(config)
    run.step()
    run.save(tmp_path)
    for folder in ("near", "far", "held"):
        (tmp_path / folder).rename(tmp_path / f"moved_{folder}")
    data = replace(
        config.data,
        shards=(tmp_path / "moved_near", tmp_path / "moved_far"),
        validation=tmp_path / "moved_held",
    )
    moved = replace(config, data=data)
    again = alone(moved)
    again.state.resume(tmp_path, moved)
    assert again.state.step == 1


@pytest.mark.parametrize("content", [b"no checkpoint", b""])
def test_a_damaged_file_is_named(config: TrainConfig, tmp_path: Path, content: bytes) -> None:
    (tmp_path / checkpoint.NAME).write_bytes(content)
    with pytest.raises(FileFormatError, match="not a readable checkpoint"):
        State.start(config, CPU).resume(tmp_path, config)


def test_a_file_of_another_version_is_refused(config: TrainConfig, tmp_path: Path) -> None:
    torch.save({"version": checkpoint.VERSION + 1}, tmp_path / checkpoint.NAME)
    with pytest.raises(FileFormatError, match="not a checkpoint of version"):
        State.start(config, CPU).resume(tmp_path, config)


def test_a_save_that_fails_leaves_the_last_one(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = alone(config)
    run.save(tmp_path)
    whole = (tmp_path / checkpoint.NAME).read_bytes()

    def half(content: object, path: Path) -> None:
        Path(path).write_bytes(whole[:100])
        raise OSError("no space left")

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(FileFormatError, match="no space left"):
        run.state.save(tmp_path, config)
    assert (tmp_path / checkpoint.NAME).read_bytes() == whole
    assert not list(tmp_path.glob(".vbreg-*"))
