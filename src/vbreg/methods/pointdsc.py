"""PointDSC (Bai et al., CVPR 2021): a non-local network guided by spatial consistency, then neural
spectral matching round confident seeds.

The network is ours without its latent branches (SCNonlocal), trained as the universal one is. Other
weights go with this search, too: those of the paper's ablations.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from vbreg import pretrained
from vbreg.compatibility import row_chunks
from vbreg.errors import VBRegError
from vbreg.estimation import best_hypothesis
from vbreg.methods.common import Answer, LocalMethod, Task, is_inlier
from vbreg.methods.interface import Method
from vbreg.network import VariationalNonLocalNetwork
from vbreg.voting import HypotheticalInliers, VotingConfig, select_seeds

SEEDS = VotingConfig(seed_ratio=0.1, min_seeds=1, nms_radius=1.0)
SET_SIZE = 40  # kappa


def nearest_in_features(features: Tensor, seeds: Tensor) -> HypotheticalInliers:
    """Find for each seed (K,) the kappa matches whose features (n, d) are most alike to its own.

    As in the authors' code the seed is not among them, unless there are too few without it.
    """
    unit = F.normalize(features.float(), dim=-1)
    kappa = min(SET_SIZE, len(unit))
    index = torch.empty(len(seeds), kappa, dtype=torch.long, device=seeds.device)
    for rows in row_chunks(len(seeds), len(unit), maps=2):
        cosine = unit[seeds[rows]] @ unit.T
        if len(unit) > kappa:
            cosine.scatter_(-1, seeds[rows].unsqueeze(-1), -torch.inf)
        index[rows] = cosine.topk(kappa, dim=-1).indices
    return HypotheticalInliers(index.unsqueeze(0), torch.ones_like(index).bool().unsqueeze(0))


@dataclass(frozen=True, eq=False)
class NeuralSpectralMatching:
    """Gathers a set round each confident seed by features, and weighs it by its eigenvector."""

    network: VariationalNonLocalNetwork

    def __call__(self, task: Task) -> Answer:
        source, target, mask, backend = task.source, task.target, task.mask, task.backend
        output = self.network(source, target, descriptors=self._descriptors(task), steps=backend)
        features, logits, sigma = output.features[-1], output.logits, self.network.sigma
        suppressed = backend.suppressed(logits, source, mask, SEEDS.nms_radius)
        seeds = select_seeds(logits, suppressed, mask, SEEDS)
        members = nearest_in_features(features[0], seeds.indices[0])
        weights = backend.spectral_weights(features, source, target, members, sigma)
        T, sound = backend.hypotheses(source, target, members, weights)
        best = best_hypothesis(T, sound, task.scores(T, is_inlier))
        return Answer(task.refined(best), logits[0].float().sigmoid())

    def _descriptors(self, task: Task) -> Tensor | None:
        """Return (1, n, 2 D) of the matches, for a network that sees them."""
        width = self.network.config.descriptor_width
        if width == 0:
            return None
        given = task.matches.descriptors
        if given is None or given.shape[-1] != 2 * width:
            found = 0 if given is None else given.shape[-1] // 2
            raise VBRegError(
                f"this network sees descriptors of {width} columns, and the matches have {found}"
            )
        return given.to(task.source)


@dataclass(frozen=True)
class PointDSC(LocalMethod):
    """The method with its weights' fingerprint, so that cached poses are not mixed."""

    fingerprint: str | None = None


def open_(device: torch.device) -> Method:
    """Open PointDSC with the network that was trained as ours was."""
    return open_weights(device, "plain")


def open_weights(device: torch.device, path: str) -> Method:
    """Open PointDSC's search with the weights of a name or a file."""
    network = pretrained.load_network(pretrained.weights_path(path)).to(device)
    solve = NeuralSpectralMatching(network)
    return PointDSC(solve, device, fingerprint=pretrained.fingerprint(path))
