"""From a micro-batch to gradients: a pass with the labels, a pass without, the objective."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from vbreg import backends, losses
from vbreg.backends.devices import lowered_precision
from vbreg.losses import Loss
from vbreg.network import VariationalNonLocalNetwork
from vbreg.training.batches import Batch
from vbreg.training.compiled import compile_parts
from vbreg.training.config import TrainConfig

TERMS = (*Loss._fields, "total")


class TwoPasses:
    """Runs both passes on the same correspondences. SCNonlocal has the second only."""

    def __init__(self, config: TrainConfig, network: VariationalNonLocalNetwork) -> None:
        self.config, self.network = config, network
        self.kl: losses.KL = losses.balanced_kl
        self.steps = backends.for_training(network.sigma.device, quick=config.compile)
        if config.compile:
            self.kl = torch.compile(self.kl, dynamic=True)
            compile_parts(network)

    def __call__(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Add this batch's share of the gradient -> its loss terms (TERMS,)."""
        loss = self.loss(batch, generator)
        (loss.total / self.config.micro_batches).backward()
        return torch.stack([*loss, loss.total]).detach()

    def loss(self, batch: Batch, generator: torch.Generator) -> Loss:
        """Return the terms of the objective for a batch."""
        config = self.config
        ends = batch.source, batch.target
        network = partial(
            self.network,
            *ends,
            descriptors=batch.descriptors,
            steps=self.steps,
            classify_each=config.objective.per_layer,
        )
        with lowered_precision(ends[0].device, enabled=config.precision == "bf16"):
            posterior = None
            if config.network.variational:
                posterior = network(labels=batch.labels, generator=generator)
            prior = network(generator=None if config.prior_mean else generator)
        sigma = self.network.sigma
        return config.objective(posterior, prior, ends, batch.labels, sigma, self.kl)
