import dataclasses
import math

import pytest
import torch
from torch.distributions import Bernoulli, Independent, Normal, kl_divergence
from torch.nn.functional import binary_cross_entropy_with_logits

from tests.conftest import make_problem
from vbreg import losses
from vbreg.network import Gaussian, NetworkConfig, NetworkOutput, VariationalNonLocalNetwork

CONFIG = NetworkConfig(iterations=2, width=16, latent_width=8, hidden_width=8, label_width=4)
TINY = NetworkConfig(iterations=2, width=8, latent_width=2, hidden_width=4, label_width=2)
Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def inputs(n: int = 40, seed: int = 0) -> Inputs:
    problem = make_problem(n, seed=seed)
    x, y = (torch.from_numpy(p / 0.1).float()[None] for p in problem[:2])
    return x, y, torch.from_numpy(problem.inliers)[None]


def both_passes(
    network: VariationalNonLocalNetwork,
) -> tuple[NetworkOutput, NetworkOutput, torch.Tensor]:
    x, y, labels = inputs()
    generator = torch.Generator().manual_seed(0)
    return network(x, y, labels=labels, generator=generator), network(x, y), labels


def trained(config: NetworkConfig, steps: int) -> VariationalNonLocalNetwork:
    """After a few steps on labels that are drawn anew each time: geometry does not show them."""
    torch.manual_seed(0)
    network = VariationalNonLocalNetwork(config)
    optimizer = torch.optim.Adam(network.parameters(), lr=5e-3)
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.cat([inputs(30, seed)[end] for seed in range(4)]) for end in (0, 1))
    for _ in range(steps):
        labels = torch.rand(4, 30, generator=generator) < 0.5
        posterior = network(x, y, labels=labels, generator=generator)
        loss = losses.Objective()(posterior, network(x, y), (x, y), labels, network.sigma)
        optimizer.zero_grad()
        loss.total.backward()
        optimizer.step()
    return network


def test_kl_is_torchs() -> None:
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(2, 3, 5, 4, generator=generator)
    std = torch.rand(2, 3, 5, 4, generator=generator) + 0.1
    q, p = Gaussian(mean[0], std[0]), Gaussian(mean[1], std[1])
    expected = kl_divergence(Independent(Normal(*q), 1), Independent(Normal(*p), 1))
    torch.testing.assert_close(losses.kl_divergence(q, p), expected)
    for balance in (0.0, 0.8, 1.0):
        torch.testing.assert_close(losses.balanced_kl(q, p, balance), expected.mean())


def test_kl_loss_is_the_mean_over_branches_and_iterations() -> None:
    posterior, _, _ = both_passes(VariationalNonLocalNetwork(CONFIG))
    terms = [
        losses.kl_divergence(step.posterior, step.prior).mean()
        for branches in posterior.steps
        for step in branches.values()
        if step.posterior is not None
    ]
    assert len(terms) == 3 * CONFIG.iterations
    loss = losses.kl_loss(posterior, 0.8, losses.balanced_kl)
    torch.testing.assert_close(loss, torch.stack(terms).mean())


def test_kl_balance_splits_the_gradient() -> None:
    """Means and deviations of the last iteration, on whose z nothing else depends."""
    posterior, _, _ = both_passes(VariationalNonLocalNetwork(CONFIG))
    step = posterior.steps[-1]["query"]
    assert step.posterior is not None
    leaves = step.prior.mean, step.posterior.mean

    def gradients(balance: float) -> tuple[torch.Tensor, ...]:
        loss = losses.kl_loss(posterior, balance, losses.balanced_kl)
        return torch.autograd.grad(loss, leaves, retain_graph=True)

    whole = gradients(1.0)[0], gradients(0.0)[1]
    assert not gradients(1.0)[1].any()
    assert not gradients(0.0)[0].any()
    for gradient, all_of_it, share in zip(gradients(0.8), whole, (0.8, 0.2), strict=True):
        torch.testing.assert_close(gradient, share * all_of_it)


@pytest.mark.parametrize("likelihood", ["bernoulli", "gaussian"])
@pytest.mark.parametrize("steps", [0, 30])
def test_the_bound_stays_below_the_likelihood(likelihood: losses.Likelihood, steps: int) -> None:
    """Cloud-wise ELBO <= importance-weighted estimates <= ln p(labels), which more samples raise.

    64 samples of the same z serve all three, so that the order holds but for the average over the
    remaining draws; 40 repetitions make that small.
    """
    network = trained(TINY, steps)
    x, y, labels = inputs(6)
    draws, samples = 40, 64
    generator = torch.Generator().manual_seed(1)
    many = [t.expand(draws * samples, *t.shape[1:]) for t in (x, y, labels)]
    with torch.no_grad():
        posterior = network(many[0], many[1], labels=many[2], generator=generator)
    bound = losses.elbo(posterior, many[2], likelihood)
    assert bound.shape == (draws * samples, 6)  # point-wise
    log_weight = losses.log_likelihood(posterior.logits, many[2], likelihood).sum(-1)
    for branches in posterior.steps:
        for step in branches.values():
            assert step.posterior is not None
            p, q = Normal(*step.prior), Normal(*step.posterior)
            log_weight += (p.log_prob(step.state.z) - q.log_prob(step.state.z)).sum((-1, -2))
    log_weight = log_weight.view(draws, samples)
    tight = (log_weight.logsumexp(-1) - math.log(samples)).mean()
    loose = (log_weight.view(draws, 8, 8).logsumexp(-1) - math.log(8)).mean()
    cloud = bound.sum(-1)
    error = float(log_weight.std() / math.sqrt(log_weight.numel()))
    torch.testing.assert_close(cloud.mean(), log_weight.mean(), atol=5 * error, rtol=0)
    assert float(cloud.mean()) < float(loose) < float(tight)


@pytest.mark.slow
def test_the_posterior_knows_more_than_the_prior() -> None:
    """Labels that geometry does not show: only the pass that is told them can predict them."""
    network = trained(CONFIG, 160)
    x, y, _ = inputs(30)
    generator = torch.Generator().manual_seed(2)
    labels = torch.rand(1, 30, generator=generator) < 0.5
    with torch.no_grad():
        told = network(x, y, labels=labels, generator=generator).logits
        untold = network(x, y, generator=generator).logits
    scores = [float(losses.log_likelihood(t, labels, "bernoulli").mean()) for t in (told, untold)]
    assert scores[0] > -0.4  # ln 2 = 0.69 is what a coin gives
    assert scores[0] > scores[1] + 0.2


def test_every_parameter_is_trained() -> None:
    network = VariationalNonLocalNetwork(CONFIG)
    posterior, prior, labels = both_passes(network)
    ends = inputs()[:2]
    losses.Objective()(posterior, prior, ends, labels, network.sigma).total.backward()
    assert not [n for n, p in network.named_parameters() if p.grad is None or not p.grad.any()]


def test_without_latent_branches_only_the_prior_pass_counts() -> None:
    network = VariationalNonLocalNetwork(NetworkConfig(iterations=2, width=16, variational=False))
    x, y, labels = inputs()
    loss = losses.Objective()(None, network(x, y), (x, y), labels, network.sigma)
    loss.total.backward()
    assert float(loss.kl) == float(loss.label_posterior) == float(loss.spectral_posterior) == 0.0
    assert not [n for n, p in network.named_parameters() if p.grad is None or not p.grad.any()]


def test_labels_may_be_read_at_every_iteration() -> None:
    """The mean over the iterations, and after a single one the plain loss."""
    x, y, labels = inputs()
    for iterations in (1, 3):
        network = VariationalNonLocalNetwork(dataclasses.replace(CONFIG, iterations=iterations))
        with torch.no_grad():
            posterior = network(x, y, labels=labels, classify_each=True)
            prior = network(x, y, classify_each=True)
        plain, per_layer = (
            losses.Objective(per_layer=chosen)(posterior, prior, (x, y), labels, network.sigma)
            for chosen in (False, True)
        )
        for output, got in (
            (posterior, per_layer.label_posterior),
            (prior, per_layer.label_prior),
        ):
            each = [
                binary_cross_entropy_with_logits(network.classify(f)[..., 0], labels.float())
                for f in output.features
            ]
            torch.testing.assert_close(got, sum(each) / iterations)
        assert torch.equal(per_layer.label_prior, plain.label_prior) == (iterations == 1)
        assert torch.equal(per_layer.spectral_prior, plain.spectral_prior)
        assert torch.equal(per_layer.kl, plain.kl)
    with pytest.raises(ValueError, match="classify_each"):
        losses.Objective(per_layer=True)(None, network(x, y), (x, y), labels, network.sigma)


@pytest.mark.parametrize("likelihood", ["bernoulli", "gaussian"])
def test_likelihoods_are_torchs(likelihood: losses.Likelihood) -> None:
    logits, labels = torch.randn(2, 10), torch.arange(20).view(2, 10) % 3 == 0
    truth = labels.float()
    model = Bernoulli(logits=logits) if likelihood == "bernoulli" else Normal(logits, 1.0)
    torch.testing.assert_close(
        losses.log_likelihood(logits, labels, likelihood), model.log_prob(truth)
    )


@pytest.mark.parametrize(
    "wrong", [{"likelihood": "poisson"}, {"spectral": "max"}, {"balance": 1.5}]
)
def test_objective_says_what_is_wrong(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=str(next(iter(wrong.values())))):
        losses.Objective(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["mean", "balanced", "compatible"])
def test_spectral_loss_is_the_naive_one(kind: losses.Spectral) -> None:
    x, y, labels = inputs(25)
    ends = (torch.cat([x, y]), torch.cat([y, x]))
    labels = torch.cat([labels, torch.zeros_like(labels)])  # the second problem has no inlier
    features = torch.randn(2, 25, 6, generator=torch.Generator().manual_seed(0))
    weights = losses.pair_weights(kind, ends, labels)
    got = losses.spectral_loss(features, labels, torch.tensor(0.8), weights)
    problems = []
    for b in range(2):
        right, wrong = [], []
        for i in range(25):
            for j in range(25):
                cosine = torch.cosine_similarity(features[b, i], features[b, j], dim=0)
                compatibility = float((1 - (1 - cosine) / 0.8**2).clamp(0, 1))
                gap = (ends[0][b, i] - ends[0][b, j]).norm() - (
                    ends[1][b, i] - ends[1][b, j]
                ).norm()
                both = bool(labels[b, i] and labels[b, j])
                if i != j and (both or kind != "compatible" or abs(float(gap)) < 1):
                    (right if both else wrong).append((compatibility - both) ** 2)
        if kind == "mean":
            problems.append((sum(right) + sum(wrong)) / 25**2)
        else:
            problems.append(sum(sum(g) / len(g) for g in (right, wrong) if g) / 2)
    assert float(got) == pytest.approx(sum(problems) / 2, rel=1e-4)


def test_spectral_loss_vanishes_for_perfect_features() -> None:
    x, y, _ = inputs(6)
    labels = torch.arange(6)[None] < 3
    features = torch.eye(6)[None].clone()
    features[0, :3] = torch.eye(6)[0]  # inliers alike, outliers unlike everything
    for kind in ("mean", "balanced", "compatible"):
        weights = losses.pair_weights(kind, (x, y), labels)
        perfect = losses.spectral_loss(features, labels, torch.ones(()), weights)
        assert float(perfect) == pytest.approx(0.0)
        blind = losses.spectral_loss(torch.ones(1, 6, 6), labels, torch.ones(()), weights)
        assert float(blind) > 0.3
