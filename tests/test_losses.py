import pytest
import torch
from torch.distributions import Independent, Normal, kl_divergence

from tests.conftest import make_problem
from vbreg import losses
from vbreg.network import Gaussian, NetworkConfig, NetworkOutput, VariationalNonLocalNetwork

CONFIG = NetworkConfig(iterations=2, width=16, latent_width=8, hidden_width=8, label_width=4)


def both_passes(
    network: VariationalNonLocalNetwork,
) -> tuple[NetworkOutput, NetworkOutput, torch.Tensor]:
    problem = make_problem(40)
    x, y = (torch.from_numpy(p / 0.1).float()[None] for p in problem[:2])
    labels = torch.from_numpy(problem.inliers)[None]
    generator = torch.Generator().manual_seed(0)
    return network(x, y, labels=labels, generator=generator), network(x, y), labels


def test_kl_is_torchs() -> None:
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(2, 3, 5, 4, generator=generator)
    std = torch.rand(2, 3, 5, 4, generator=generator) + 0.1
    q, p = Gaussian(mean[0], std[0]), Gaussian(mean[1], std[1])
    expected = kl_divergence(Independent(Normal(*q), 1), Independent(Normal(*p), 1))
    torch.testing.assert_close(losses.kl_divergence(q, p), expected)


def test_kl_loss_is_the_mean_over_branches_and_iterations() -> None:
    posterior, _, _ = both_passes(VariationalNonLocalNetwork(CONFIG))
    terms = [
        losses.kl_divergence(step.posterior, step.prior).mean()
        for branches in posterior.steps
        for step in branches.values()
        if step.posterior is not None
    ]
    assert len(terms) == 3 * CONFIG.iterations
    torch.testing.assert_close(losses.kl_loss(posterior), torch.stack(terms).mean())


def test_kl_balance_splits_the_gradient() -> None:
    """The last layer of each head is reached by its own share alone."""
    network = VariationalNonLocalNetwork(CONFIG)
    posterior, _, _ = both_passes(network)
    step = posterior.steps[-1]["query"]  # the last iteration: nothing else depends on its z
    assert step.posterior is not None
    for balance, prior_share, posterior_share in [(1.0, True, False), (0.0, False, True)]:
        leaves = step.prior.mean, step.posterior.mean
        grads = torch.autograd.grad(losses.kl_loss(posterior, balance), leaves, retain_graph=True)
        assert [bool(g.any()) for g in grads] == [prior_share, posterior_share]


def test_every_parameter_is_trained() -> None:
    network = VariationalNonLocalNetwork(CONFIG)
    posterior, prior, labels = both_passes(network)
    losses.loss(posterior, prior, labels, network.sigma).total.backward()
    assert not [n for n, p in network.named_parameters() if p.grad is None or not p.grad.any()]


@pytest.mark.parametrize("likelihood", ["bernoulli", "gaussian"])
def test_label_loss_is_lower_for_right_labels(likelihood: losses.Likelihood) -> None:
    labels = torch.arange(10)[None] < 4
    good = torch.where(labels, 1.0, 0.0 if likelihood == "gaussian" else -1.0)
    right = losses.label_loss(good, labels, likelihood)
    wrong = losses.label_loss(good, ~labels, likelihood)
    assert right < wrong


def test_gaussian_likelihood_is_torchs_up_to_its_constant() -> None:
    logits, labels = torch.randn(1, 10), torch.arange(10)[None] < 4
    expected = -Normal(logits, 1.0).log_prob(labels.float()).mean()
    constant = 0.5 * torch.log(torch.tensor(2 * torch.pi))
    torch.testing.assert_close(losses.label_loss(logits, labels, "gaussian") + constant, expected)


def test_spectral_loss_vanishes_for_perfect_features() -> None:
    labels = torch.arange(6)[None] < 3
    features = torch.eye(6)[None].clone()
    features[0, :3] = torch.eye(6)[0]  # inliers alike, outliers unlike everything
    assert float(losses.spectral_loss(features, labels, torch.ones(()))) == pytest.approx(0.0)
    assert float(losses.spectral_loss(torch.ones(1, 6, 6), labels, torch.ones(()))) > 0.5
