"""From a micro-batch to gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.training.helpers import KINDS, alone, with_network
from vbreg.losses import Objective
from vbreg.training import TrainConfig
from vbreg.training.batches import Batch
from vbreg.training.passes import TERMS, TwoPasses


def drawn(config: TrainConfig) -> tuple[TwoPasses, Batch]:
    """The passes of a fresh run, and a batch for them."""
    run = alone(config)
    return TwoPasses(config, run.state.network), run.sampler.draw(40, seeded())


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def value(term: torch.Tensor) -> float:
    return float(term.detach())


def gradients(network: torch.nn.Module) -> list[torch.Tensor]:
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in network.parameters()]


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_the_loss(request: pytest.FixtureRequest, kind: str) -> None:
    """Shared out over the micro-batches of a step, and added to what is there."""
    config = replace(with_network(request, kind), micro_batches=4)
    passes, batch = drawn(config)
    terms = passes(batch, seeded())
    found = gradients(passes.network)
    passes.network.zero_grad()
    loss = passes.loss(batch, seeded())
    loss.total.backward()
    for part, whole in zip(found, gradients(passes.network), strict=True):
        torch.testing.assert_close(4 * part, whole)
    named = dict(zip(TERMS, terms.tolist(), strict=True))
    assert named["total"] == pytest.approx(value(loss.total))
    assert not terms.requires_grad
    passes.network.zero_grad()
    for _ in range(2):
        passes(batch, seeded())
    for part, twice in zip(found, gradients(passes.network), strict=True):
        torch.testing.assert_close(2 * part, twice)


def test_the_plain_network_has_one_pass(config: TrainConfig) -> None:
    """No labels go in, so nothing is drawn, and what would compare two passes is zero."""
    passes, batch = drawn(replace(config, network=KINDS["plain"]))
    generator = seeded()
    loss = passes.loss(batch, generator)
    assert torch.equal(generator.get_state(), seeded().get_state())
    assert value(loss.kl) == 0.0
    assert value(loss.label_prior) > 0.0


def test_the_pass_with_labels_samples_and_the_other_need_not(config: TrainConfig) -> None:
    passes, batch = drawn(config)
    first, second = (passes.loss(batch, seeded(seed)) for seed in (0, 1))
    assert value(first.label_prior) == value(second.label_prior)  # on the mean, as inference
    assert value(first.spectral_posterior) != value(second.spectral_posterior)
    passes, batch = drawn(replace(config, prior_mean=False))
    first, second = (passes.loss(batch, seeded(seed)) for seed in (0, 1))
    assert value(first.label_prior) != value(second.label_prior)


def test_labels_reach_the_first_pass_alone(config: TrainConfig) -> None:
    """What the network says without labels does not change with them."""
    passes, batch = drawn(config)
    seen = []
    network = passes.network

    def spy(*arguments: object, **options: object) -> object:
        seen.append(options.get("labels"))
        return network(*arguments, **options)

    passes.network = spy  # type: ignore[assignment]
    spy.sigma = network.sigma  # type: ignore[attr-defined]
    passes.loss(batch, seeded())
    assert seen[0] is batch.labels
    assert seen[1:] == [None]


def test_lowered_precision_changes_the_loss_a_little(config: TrainConfig) -> None:
    """The objective itself is computed in full, on what the network gives in bfloat16."""
    full, batch = drawn(config)
    low, _ = drawn(replace(config, precision="bf16"))
    exact, rounded = (p.loss(batch, seeded()) for p in (full, low))
    assert rounded.total.dtype == torch.float32
    assert value(rounded.total) == pytest.approx(value(exact.total), rel=0.05)
    assert value(rounded.total) != value(exact.total)
    low(batch, seeded())
    assert all(g.dtype == torch.float32 for g in gradients(low.network))


def test_every_layer_is_judged_where_that_is_asked_for(config: TrainConfig) -> None:
    plain = replace(config, network=KINDS["plain"])
    last, batch = drawn(plain)
    every, _ = drawn(replace(plain, objective=Objective(per_layer=True)))
    assert value(every.loss(batch, seeded()).total) != value(last.loss(batch, seeded()).total)
