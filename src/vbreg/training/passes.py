"""From a micro-batch to gradients: a pass with the labels, a pass without, the objective."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from vbreg import losses
from vbreg.compatibility import AttentionForm, quickest_with_gradients
from vbreg.losses import Loss
from vbreg.network import VariationalNonLocalNetwork
from vbreg.training.batches import Batch
from vbreg.training.config import TrainConfig
from vbreg.training.fused import compile_parts

TERMS = (*Loss._fields, "total")


class TwoPasses:
    """Both passes see the same correspondences. SCNonlocal has the second only."""

    def __init__(self, config: TrainConfig, network: VariationalNonLocalNetwork) -> None:
        self.config, self.network = config, network
        self.kl: losses.KL = losses.balanced_kl
        self.attention: AttentionForm = "dense"
        if config.compile:
            self.kl = torch.compile(self.kl, dynamic=True)
            self.attention = quickest_with_gradients(network.sigma.device, config.network.width)
            compile_parts(network)

    def __call__(self, batch: Batch, generator: torch.Generator) -> Tensor:
        """Add this batch's share of the gradient -> its loss terms (TERMS,)."""
        loss = self.loss(batch, generator)
        (loss.total / self.config.micro_batches).backward()
        return torch.stack([*loss, loss.total]).detach()

    def loss(self, batch: Batch, generator: torch.Generator) -> Loss:
        config = self.config
        ends = batch.source, batch.target
        network = partial(
            self.network,
            *ends,
            descriptors=batch.descriptors,
            attention=self.attention,
            classify_each=config.objective.per_layer,
        )
        low = config.precision == "bf16"
        # No cache of converted weights: it would outlive the recording of a CUDA graph.
        with torch.autocast(ends[0].device.type, torch.bfloat16, enabled=low, cache_enabled=False):
            posterior = None
            if config.network.variational:
                posterior = network(labels=batch.labels, generator=generator)
            prior = network(generator=None if config.prior_mean else generator)
            sigma = self.network.sigma
            return config.objective(posterior, prior, ends, batch.labels, sigma, self.kl)
