"""Fast steps are the eager ones: on a GPU as they are, on a CPU with stand-ins for its tools."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tests.training.helpers import CPU, KINDS, alone, sampler_of, with_network
from vbreg.losses import Objective
from vbreg.network import LatentBranch
from vbreg.training import TrainConfig, compiled
from vbreg.training.compiled import RecordedPasses, compile_parts
from vbreg.training.loop import NetworkRun
from vbreg.training.passes import TwoPasses
from vbreg.training.workers import Workers


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", KINDS)
def test_recorded_steps_are_the_eager_ones(request: pytest.FixtureRequest, kind: str) -> None:
    """Compiled and replayed, a few steps of a small network lose what eager steps lose."""
    device = torch.device("cuda")
    config = with_network(request, kind)
    config = replace(config, objective=Objective(per_layer=kind == "plain"))
    totals = []
    for compiles in (False, True):
        chosen = replace(config, compile=compiles)
        run = NetworkRun(chosen, Workers(0, 1, device), sampler_of(config, device))
        totals.append([float(run.step()["total"]) for _ in range(6)])
    assert totals[1] == pytest.approx(totals[0], rel=1e-2)


@pytest.mark.parametrize("kind", KINDS)
def test_branches_on_flat_rows_are_the_branches(
    request: pytest.FixtureRequest, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a compiler that changes nothing; names of parameters stay as they are."""
    shapes = []

    def compile_(function: Callable[..., object], dynamic: bool) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            if not dynamic:
                shapes.append(arguments[1].shape)  # type: ignore[attr-defined]
            return function(*arguments)

        return call

    monkeypatch.setattr(torch, "compile", compile_)
    config = with_network(request, kind)
    eager, quick = alone(config), alone(config)
    names = list(quick.state.network.state_dict())
    compile_parts(quick.state.network)
    assert list(quick.state.network.state_dict()) == names
    batch = eager.sampler.draw(40, torch.Generator().manual_seed(0))
    losses = []
    for run in (eager, quick):
        passes = TwoPasses(config, run.state.network)
        losses.append(passes.loss(batch, torch.Generator().manual_seed(0)))
    torch.testing.assert_close(torch.stack([*losses[0]]), torch.stack([*losses[1]]))
    branches = any(isinstance(m, LatentBranch) for m in quick.state.network.modules())
    assert bool(shapes) == branches
    assert {len(shape) for shape in shapes} <= {2}  # rows and channels: no batch
    assert {shape[0] for shape in shapes} <= {240}


class StandIn:
    """A recorder that runs instead of replaying, and counts."""

    def __init__(self, device: torch.device) -> None:
        self.recorded = 0

    def record(
        self, run: Callable[[], torch.Tensor], generator: torch.Generator
    ) -> tuple[SimpleNamespace, torch.Tensor]:
        self.recorded += 1
        run()  # to warm up
        terms = run()
        return SimpleNamespace(replay=lambda: terms.copy_(run())), terms


def test_a_shape_is_recorded_once_and_leaves_no_trace(
    config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients and draws after any batch are those of passes that were never recorded."""
    monkeypatch.setattr(compiled, "Recorder", StandIn)
    eager, quick = alone(config), alone(config)
    passes = TwoPasses(config, quick.state.network)
    recorded = RecordedPasses(passes, quick.state.network)
    quick.passes, eager.passes = recorded, TwoPasses(config, eager.state.network)
    assert quick.generator.device == CPU
    for _ in range(5):
        terms = [run.step() for run in (eager, quick)]
        for name, value in terms[0].items():
            torch.testing.assert_close(value, terms[1][name])
    for a, b in zip(
        eager.state.network.parameters(), quick.state.network.parameters(), strict=True
    ):
        torch.testing.assert_close(a, b)
    assert recorded.recorder.recorded == len(recorded.recordings) == 2  # N of 40 and of 60


def test_terms_of_a_replay_outlive_the_next(
    config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "Recorder", StandIn)
    run = alone(config)
    recorded = RecordedPasses(TwoPasses(config, run.state.network), run.state.network)
    generator = torch.Generator().manual_seed(0)
    first = recorded(run.sampler.draw(40, generator), generator)
    kept = first.clone()
    recorded(run.sampler.draw(40, generator), generator)
    assert torch.equal(first, kept)
