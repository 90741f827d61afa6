"""The training objective as named terms: label likelihood and KL (the ELBO), spectral matching."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from vbreg.compatibility import feature_compatibility
from vbreg.network import Gaussian, NetworkOutput

Likelihood = Literal["bernoulli", "gaussian"]


class Loss(NamedTuple):
    label_posterior: Tensor
    label_prior: Tensor
    spectral_posterior: Tensor
    spectral_prior: Tensor
    kl: Tensor

    @property
    def total(self) -> Tensor:
        label = self.label_posterior + self.label_prior
        spectral = self.spectral_posterior + self.spectral_prior
        return 0.5 * (label + spectral + self.kl)


def loss(
    posterior: NetworkOutput,
    prior: NetworkOutput,
    labels: Tensor,  # (B, N) bool
    sigma: Tensor,
    likelihood: Likelihood = "bernoulli",
) -> Loss:
    """Both passes of one step: the posterior pass was given the labels, the prior pass was not."""
    return Loss(
        label_posterior=label_loss(posterior.logits, labels, likelihood),
        label_prior=label_loss(prior.logits, labels, likelihood),
        spectral_posterior=spectral_loss(posterior.features[-1], labels, sigma),
        spectral_prior=spectral_loss(prior.features[-1], labels, sigma),
        kl=kl_loss(posterior),
    )


def label_loss(logits: Tensor, labels: Tensor, likelihood: Likelihood) -> Tensor:
    """Negative log likelihood of the labels, mean over correspondences, constants left out."""
    truth = labels.to(torch.float32)
    if likelihood == "gaussian":  # unit variance about the prediction, as in the paper
        return 0.5 * F.mse_loss(logits.float(), truth)
    return F.binary_cross_entropy_with_logits(logits.float(), truth)


def spectral_loss(features: Tensor, labels: Tensor, sigma: Tensor) -> Tensor:
    """Mean squared error between feature compatibility and "both are inliers", zero diagonal."""
    both = (labels.unsqueeze(-1) & labels.unsqueeze(-2)).float()
    with torch.autocast(features.device.type, enabled=False):  # 1 - cos needs its digits
        unit = F.normalize(features.float(), dim=-1)
        error = (feature_compatibility(unit, unit, sigma) - both).square()
    diagonal = error.diagonal(dim1=-2, dim2=-1).sum()
    return (error.sum() - diagonal) / error.numel()


def kl_loss(posterior: NetworkOutput, balance: float = 0.8) -> Tensor:
    """KL(q || p) summed over latent dimensions, mean over points, branches and iterations.

    `balance` of the gradient pulls the prior to the posterior, the rest the posterior to the prior.
    """
    terms = []
    for branches in posterior.steps:
        for step in branches.values():
            assert step.posterior is not None, "the posterior pass needs labels"
            q, p = step.posterior, step.prior
            pull_prior = kl_divergence(Gaussian(q.mean.detach(), q.std.detach()), p)
            pull_posterior = kl_divergence(q, Gaussian(p.mean.detach(), p.std.detach()))
            terms.append(balance * pull_prior.mean() + (1 - balance) * pull_posterior.mean())
    return torch.stack(terms).mean()


def kl_divergence(q: Gaussian, p: Gaussian) -> Tensor:
    """(B, N): KL between diagonal Gaussians, summed over the latent dimensions."""
    q_mean, q_std, p_mean, p_std = (x.float() for x in (*q, *p))
    ratio = (q_std / p_std).square()
    distance = ((q_mean - p_mean) / p_std).square()
    return 0.5 * (ratio + distance - 1.0 - ratio.log()).sum(-1)
