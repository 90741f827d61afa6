"""The laws of the network, with every backend that computes its steps."""

import dataclasses

import pytest
import torch

from tests.conftest import Form, make_problem
from vbreg import compatibility
from vbreg.network import (
    ContextNorm,
    NetworkConfig,
    NetworkOutput,
    VariationalNonLocalNetwork,
)

Network = VariationalNonLocalNetwork


def inputs(n: int = 50, seed: int = 0, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    problem = make_problem(n, seed=seed)
    return [torch.from_numpy(p / 0.1).to(dtype).unsqueeze(0) for p in problem[:2]]


def test_the_papers_size() -> None:
    network = Network()
    parameters = {name: p.numel() for name, p in network.named_parameters()}
    posterior = sum(n for name, n in parameters.items() if "posterior" in name or "label" in name)
    assert sum(parameters.values()) == pytest.approx(3.25e6, rel=0.01)
    assert posterior == pytest.approx(0.44e6, rel=0.02)


def said(form: Form, network: Network, *ends: torch.Tensor, **rest: torch.Tensor) -> NetworkOutput:
    """What the network says, computed by a backend in its precision, as when poses are found."""
    network = network.to(form.device, form.dtype)
    given = {name: form.put(part) for name, part in rest.items()}
    with torch.no_grad():
        found: NetworkOutput = network(*map(form.put, ends), **given, steps=form.backend)
    return found


@pytest.mark.parametrize("n", [1, 3, 39, 130])  # the last needs several tiles
def test_any_number_of_correspondences(form: Form, small_network: Network, n: int) -> None:
    output = said(form, small_network, *inputs(n))
    assert output.logits.shape == (1, n)
    assert [f.shape for f in output.features] == [(1, n, 32)] * 3
    assert torch.isfinite(output.logits).all()


def test_labels_choose_the_posterior(small_network: Network) -> None:
    x, y = inputs()
    labels = torch.rand(1, 50, generator=torch.Generator().manual_seed(0)) < 0.5
    prior = small_network(x, y)
    posterior = small_network(x, y, labels=labels)
    other = small_network(x, y, labels=~labels)
    assert not prior.steps  # nothing is kept for inference
    assert [sorted(step) for step in posterior.steps] == [["key", "query", "value"]] * 3
    assert not torch.allclose(posterior.logits, other.logits)
    gaussian = posterior.steps[0]["query"].posterior
    assert gaussian is not None
    assert gaussian.mean.shape == (1, 50, 16)
    assert gaussian.std.min() >= small_network.config.std_floor


def test_randomness_comes_from_the_generator_alone(small_network: Network) -> None:
    x, y = inputs()
    torch.manual_seed(1)
    first = small_network(x, y).logits
    torch.manual_seed(2)
    assert torch.equal(first, small_network(x, y).logits)

    def draw(seed: int) -> torch.Tensor:
        return small_network(x, y, generator=torch.Generator().manual_seed(seed)).logits

    assert torch.equal(draw(3), draw(3))
    assert not torch.equal(draw(3), draw(4))


def test_order_of_correspondences_does_not_matter(form: Form, small_network: Network) -> None:
    x, y = inputs(dtype=torch.float64)
    order = torch.randperm(50, generator=torch.Generator().manual_seed(0))
    shuffled = said(form, small_network, x[:, order], y[:, order]).logits
    expected = said(form, small_network, x, y).logits[:, order.to(form.device)]
    torch.testing.assert_close(shuffled, expected, **form.close(1e-7, 2e-3))


def test_a_padded_batch_equals_its_singles(form: Form, small_network: Network) -> None:
    sizes = (50, 20)
    singles = [inputs(n, seed=n, dtype=torch.float64) for n in sizes]
    together = said(form, small_network, *padded(singles), mask=padding_of(sizes))
    close = form.close(1e-7, 2e-3)
    for b, (x, y) in enumerate(singles):
        alone = said(form, small_network, x, y)
        torch.testing.assert_close(together.logits[b, : sizes[b]], alone.logits[0], **close)
        for mine, theirs in zip(together.features, alone.features, strict=True):
            torch.testing.assert_close(mine[b, : sizes[b]], theirs[0], **close)


def padded(singles: list[list[torch.Tensor]]) -> torch.Tensor:
    """Source and target (2, B, 50, 3), filled up with something that is not zero."""
    batch = torch.full((2, len(singles), 50, 3), 7.0, dtype=torch.float64)
    for b, (x, y) in enumerate(singles):
        batch[0, b, : x.shape[1]], batch[1, b, : y.shape[1]] = x, y
    return batch


def padding_of(sizes: tuple[int, ...]) -> torch.Tensor:
    return torch.arange(50) < torch.tensor(sizes).unsqueeze(-1)


@torch.no_grad()
def test_a_batch_in_pieces_is_the_whole_batch(
    small_network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, mask = small_network.double(), padding_of((50, 20))
    source, target = padded([inputs(n, seed=n, dtype=torch.float64) for n in (50, 20)])
    whole = network(source, target, mask=mask).logits[mask]
    monkeypatch.setattr(compatibility, "MAX_MAP_BYTES", 4 * 2 * 50 * 3 * 7)  # seven rows at a time
    torch.testing.assert_close(network(source, target, mask=mask).logits[mask], whole)


def descriptors(n: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.rand(1, n, 2, 33, generator=generator, dtype=torch.float64)
    return torch.nn.functional.normalize(rows, dim=-1).flatten(2)


def test_laws_hold_with_descriptors(form: Form, feat_network: Network) -> None:
    """Order does not matter, padding is not seen, and descriptors are."""
    network, close = feat_network, form.close(1e-7, 2e-3)
    x, y = inputs(dtype=torch.float64)
    d = descriptors(50)
    alone = said(form, network, x, y, descriptors=d).logits
    order = torch.randperm(50, generator=torch.Generator().manual_seed(0))
    shuffled = said(form, network, x[:, order], y[:, order], descriptors=d[:, order]).logits
    torch.testing.assert_close(shuffled, alone[:, order.to(form.device)], **close)
    longer = (torch.nn.functional.pad(t, (0, 0, 0, 9), value=7.0) for t in (x, y, d))
    source, target, described = longer
    mask = torch.arange(59).unsqueeze(0) < 50
    together = said(form, network, source, target, descriptors=described, mask=mask).logits
    torch.testing.assert_close(together[:, :50], alone, **close)
    other = said(form, network, x, y, descriptors=descriptors(50, 1)).logits
    assert not torch.allclose(other, alone, rtol=0.1)


def test_every_iteration_is_classified_if_asked(small_network: Network) -> None:
    x, y = inputs()
    output = small_network(x, y, classify_each=True)
    assert len(output.logits_of_each) == len(output.features) == 3
    assert torch.equal(output.logits_of_each[-1], output.logits)
    for logits, features in zip(output.logits_of_each, output.features, strict=True):
        assert torch.equal(logits, small_network.classify(features).squeeze(-1))
    assert small_network(x, y).logits_of_each == ()


def test_translation_of_either_cloud_changes_nothing(form: Form, small_network: Network) -> None:
    x, y = inputs(dtype=torch.float64)
    moved = said(form, small_network, x + 9, y - 4).logits
    expected = said(form, small_network, x, y).logits
    torch.testing.assert_close(moved, expected, **form.close(1e-7, 2e-3))


def test_labels_and_samples_are_the_same_with_every_backend(
    form: Form, small_network: Network
) -> None:
    """They are for training, where no backend takes another way."""
    network = small_network.to(form.device)
    x, y = (end.to(form.device) for end in inputs())
    labels = (torch.arange(50)[None] < 20).to(form.device)
    found, expected = (
        network(
            x,
            y,
            labels=labels,
            generator=torch.Generator(form.device).manual_seed(1),
            steps=steps,
        )
        for steps in (form.backend, None)
    )
    torch.testing.assert_close(found.logits, expected.logits, atol=2e-3, rtol=2e-3)
    for mine, theirs in zip(found.steps, expected.steps, strict=True):
        for name in theirs:
            torch.testing.assert_close(
                mine[name].state.z, theirs[name].state.z, atol=2e-3, rtol=2e-3
            )


def test_a_network_without_latent_branches_obeys_the_same_laws(form: Form) -> None:
    torch.manual_seed(0)
    network = Network(NetworkConfig(iterations=2, width=16, variational=False)).eval()
    x, y = inputs(dtype=torch.float64)
    order = torch.randperm(50, generator=torch.Generator().manual_seed(0))
    alone = said(form, network, x, y).logits
    shuffled = said(form, network, x[:, order], y[:, order]).logits
    torch.testing.assert_close(shuffled, alone[:, order.to(form.device)], **form.close(1e-7, 2e-3))
    assert not network.latent_branches()


def test_the_history_is_torchs_gru(small_network: Network) -> None:
    """z and h start at zero, so the first hidden state is one GRU step from zero."""
    x, y = inputs()
    labels = torch.zeros(1, 50, dtype=torch.bool)
    step = small_network(x, y, labels=labels).steps[0]["key"]
    branch = small_network.branches["key"]
    points = torch.cat([x, y], -1)
    features = small_network.embed(points - points.mean(1, keepdim=True), None)
    embedded = branch.embed(torch.cat([torch.zeros(1, 50, 16), features], -1)).relu()
    torch.testing.assert_close(step.state.h[0], branch.history(embedded[0]))


def test_every_parameter_gets_a_gradient() -> None:
    config = NetworkConfig(iterations=2, width=16, latent_width=8, hidden_width=8, label_width=4)
    network = Network(config)
    x, y = inputs()
    labels = torch.arange(50).unsqueeze(0) < 20
    output = network(x, y, labels=labels, generator=torch.Generator().manual_seed(0))
    prior = sum(s.prior.mean.sum() + s.prior.std.sum() for d in output.steps for s in d.values())
    (output.logits.sum() + prior + network.sigma).backward()
    without = [name for name, p in network.named_parameters() if p.grad is None]
    assert not without


def test_descriptors_are_an_input() -> None:
    config = dataclasses.replace(NetworkConfig(iterations=1), input="feat", descriptor_width=33)
    network = Network(config)
    x, y = inputs()
    assert config.input_width == 72
    assert network(x, y, descriptors=torch.rand(1, 50, 66)).logits.shape == (1, 50)
    with pytest.raises(ValueError, match="takes 66"):
        network(x, y)


@pytest.mark.parametrize(
    "wrong", [{"input": "rgb"}, {"input": "feat"}, {"descriptor_width": 33}, {"iterations": 0}]
)
def test_bad_configurations_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"expected|takes"):
        NetworkConfig(**wrong)  # type: ignore[arg-type]


def test_context_norm_is_per_problem() -> None:
    norm = ContextNorm(4)
    x = torch.randn(3, 100, 4) * torch.tensor([1.0, 50.0, 1000.0])[:, None, None] + 5
    y = norm(x, None)
    torch.testing.assert_close(y.mean(1), torch.zeros(3, 4), atol=1e-4, rtol=0)
    torch.testing.assert_close(y.std(1, correction=0), torch.ones(3, 4), atol=1e-3, rtol=0)
