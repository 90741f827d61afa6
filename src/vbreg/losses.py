"""The training objective as named terms: label likelihood and KL (the ELBO), spectral matching."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from vbreg.compatibility import feature_compatibility, spatial_compatibility
from vbreg.network import BranchStep, Gaussian, NetworkOutput

Likelihood = Literal["bernoulli", "gaussian"]
Spectral = Literal["mean", "balanced", "compatible"]
KL = Callable[[Gaussian, Gaussian, float], Tensor]


class Loss(NamedTuple):
    """The terms of the objective; their sum, halved, is minimised."""

    label_posterior: Tensor
    label_prior: Tensor
    spectral_posterior: Tensor
    spectral_prior: Tensor
    kl: Tensor

    @property
    def total(self) -> Tensor:
        """Half of the sum of all terms."""
        label = self.label_posterior + self.label_prior
        spectral = self.spectral_posterior + self.spectral_prior
        return 0.5 * (label + spectral + self.kl)


@dataclass(frozen=True)
class Objective:
    """What is minimised. SCNonlocal has no posterior pass: the terms of that pass are zero."""

    likelihood: Likelihood = "bernoulli"  # "gaussian" as in the paper
    spectral: Spectral = "mean"  # as in the paper; the others are for few inliers
    balance: float = 0.8  # share of the KL's gradient that pulls the prior to the posterior
    per_layer: bool = False  # labels are read from every iteration's features: SCNonlocal^cls

    def __post_init__(self) -> None:
        for name, kinds in (("likelihood", Likelihood), ("spectral", Spectral)):
            if getattr(self, name) not in get_args(kinds):
                choices = " or ".join(map(repr, get_args(kinds)))
                raise ValueError(f"{name} {getattr(self, name)!r}: expected {choices}")
        if not 0.0 <= self.balance <= 1.0:
            raise ValueError(f"balance {self.balance}: expected a number from 0 to 1")

    def __call__(
        self,
        posterior: NetworkOutput | None,  # its pass was given the labels
        prior: NetworkOutput,
        ends: tuple[Tensor, Tensor],  # source, target (B, N, 3) in inlier thresholds
        labels: Tensor,  # (B, N) bool
        sigma: Tensor,
        kl: KL | None = None,  # `balanced_kl`, or what a compiler makes of it
    ) -> Loss:
        zero = sigma.new_zeros(())
        weights = pair_weights(self.spectral, ends, labels)

        def spectral(output: NetworkOutput) -> Tensor:
            return spectral_loss(output.features[-1], labels, sigma, weights)

        return Loss(
            label_posterior=self._label(posterior, labels) if posterior else zero,
            label_prior=self._label(prior, labels),
            spectral_posterior=spectral(posterior) if posterior else zero,
            spectral_prior=spectral(prior),
            kl=kl_loss(posterior, self.balance, kl or balanced_kl) if posterior else zero,
        )

    def _label(self, output: NetworkOutput, labels: Tensor) -> Tensor:
        """Return the label term of the last features, or its mean over those of all iterations."""
        judged = output.logits_of_each if self.per_layer else (output.logits,)
        if not judged:
            raise ValueError("per_layer: run the network with classify_each=True")
        terms = [-log_likelihood(logits, labels, self.likelihood).mean() for logits in judged]
        return torch.stack(terms).mean()


def elbo(posterior: NetworkOutput, labels: Tensor, likelihood: Likelihood = "bernoulli") -> Tensor:
    """Return (B, N) in nats: the point-wise lower bound of the paper's supplement, one sample of z.

    Its sum over the correspondences is the cloud-wise bound on ln p(labels | correspondences).
    """
    divergence = sum(kl_divergence(*_ends(step)) for step in _steps(posterior))
    return log_likelihood(posterior.logits, labels, likelihood) - divergence


def log_likelihood(logits: Tensor, labels: Tensor, likelihood: Likelihood) -> Tensor:
    """Return (B, N): ln p(label); the Gaussian has unit variance about the prediction."""
    truth = labels.to(torch.float32)
    if likelihood == "gaussian":
        return -0.5 * ((logits.float() - truth).square() + math.log(2 * math.pi))
    return -F.binary_cross_entropy_with_logits(logits.float(), truth, reduction="none")


def spectral_loss(features: Tensor, labels: Tensor, sigma: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted squared error between feature compatibility and "both are inliers".

    Call it outside of any autocast: 1 - cos needs its digits.
    """
    unit = F.normalize(features.float(), dim=-1)
    error = (feature_compatibility(unit, unit, sigma) - _both(labels).float()).square()
    return (error * weights).sum() / len(labels)


def pair_weights(kind: Spectral, ends: tuple[Tensor, Tensor], labels: Tensor) -> Tensor:
    """Return (B, N, N): what each pair of matches counts; a problem's sum to one, diagonal zero.

    `mean`: all alike. `balanced`: pairs of inliers count half, however few they are; otherwise
    features of a rare inlier, which most likely is none, learn to resemble nothing. `compatible`:
    balanced, and among the others only pairs that look compatible count, the only ones that vote.
    """
    both = _both(labels)
    counted = ~torch.eye(labels.shape[-1], dtype=torch.bool, device=labels.device)
    if kind == "mean":
        return (counted / labels.shape[-1] ** 2).expand_as(both)
    if kind == "compatible":
        counted = counted & (both | (spatial_compatibility(*ends, *ends) > 0))
    groups = torch.stack([both & counted, ~both & counted])  # (2, B, N, N)
    sizes = groups.sum((-1, -2), keepdim=True).clamp_min(1)
    return (groups / (2 * sizes)).sum(0)


def _both(labels: Tensor) -> Tensor:
    return labels.unsqueeze(-1) & labels.unsqueeze(-2)


def kl_loss(posterior: NetworkOutput, balance: float, kl: KL) -> Tensor:
    """Return KL(q || p) summed over latent dimensions, mean over points, branches, iterations."""
    return torch.stack([kl(*_ends(step), balance) for step in _steps(posterior)]).mean()


def balanced_kl(q: Gaussian, p: Gaussian, balance: float) -> Tensor:
    """Return mean KL(q || p); `balance` of its gradient reaches the prior p, the rest q."""
    pulled_q = Gaussian(*(_share_gradient(x, 1.0 - balance) for x in q))
    pulled_p = Gaussian(*(_share_gradient(x, balance) for x in p))
    return kl_divergence(pulled_q, pulled_p).mean()


def kl_divergence(q: Gaussian, p: Gaussian) -> Tensor:
    """Return (B, N): KL between diagonal Gaussians, summed over the latent dimensions."""
    q_mean, q_std, p_mean, p_std = (x.float() for x in (*q, *p))
    ratio = (q_std / p_std).square()
    distance = ((q_mean - p_mean) / p_std).square()
    return 0.5 * (ratio + distance - 1.0 - ratio.log()).sum(-1)


def _share_gradient(x: Tensor, share: float) -> Tensor:
    x = x.float()
    return share * x + (1.0 - share) * x.detach()


def _steps(posterior: NetworkOutput) -> list[BranchStep]:
    return [step for branches in posterior.steps for step in branches.values()]


def _ends(step: BranchStep) -> tuple[Gaussian, Gaussian]:
    assert step.posterior is not None, "the posterior pass needs labels"
    assert step.prior is not None
    return step.posterior, step.prior
