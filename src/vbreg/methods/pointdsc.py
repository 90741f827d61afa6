"""PointDSC (Bai et al., CVPR 2021): a non-local network guided by spatial consistency, then neural
spectral matching round confident seeds.

The network is ours without its latent branches (SCNonlocal), trained as the universal one is. Other
weights go with this search, too: those of the paper's ablations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vbreg import pretrained
from vbreg.compatibility import row_chunks
from vbreg.estimation import best_hypothesis, hypotheses, spectral_weights
from vbreg.frames import as_descriptors
from vbreg.methods.common import Answer, LocalMethod, Task, consensus, is_inlier
from vbreg.methods.interface import Method
from vbreg.network import VariationalNonLocalNetwork
from vbreg.voting import HypotheticalInliers, VotingConfig, select_seeds

SEEDS = VotingConfig(seed_ratio=0.1, min_seeds=1, nms_radius=1.0)
SET_SIZE = 40  # kappa


def nearest_in_features(features: Tensor, seeds: Tensor) -> HypotheticalInliers:
    """For each of K seeds (K,) the kappa matches whose features (n, d) are most alike to its own.

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
    network: VariationalNonLocalNetwork

    def __call__(self, task: Task) -> Answer:
        source, target = task.source, task.target
        output = self.network(source, target, descriptors=self._descriptors(task))
        features, sigma = output.features[-1], self.network.sigma
        seeds = select_seeds(output.logits, source, task.mask, SEEDS)
        members = nearest_in_features(features[0], seeds.indices[0])
        weights = spectral_weights(features, source, target, members, sigma)
        T, sound = hypotheses(source, target, members, weights)
        best = best_hypothesis(T, sound, consensus(T, source, target, is_inlier))
        return Answer(task.refined(best), output.logits[0].float().sigmoid())

    def _descriptors(self, task: Task) -> Tensor | None:
        """(1, n, 2 D) of the usable matches, for a network that sees them."""
        given = task.problem.matched_descriptors()
        width = self.network.config.descriptor_width
        rows = (given[0][task.usable], given[1][task.usable]) if given and width else None
        usable = np.ones(len(task), dtype=bool)
        described = as_descriptors(rows, usable, width)
        return None if described is None else torch.from_numpy(described).to(task.source)[None]


@dataclass(frozen=True)
class PointDSC(LocalMethod):
    fingerprint: str | None = None  # of the weights, so that cached poses are not mixed


def open_(device: torch.device) -> Method:
    return open_weights(device, str(pretrained.FOLDER / pretrained.PLAIN))


def open_weights(device: torch.device, path: str) -> Method:
    network = pretrained.load_network(path).to(device)
    return PointDSC(NeuralSpectralMatching(network), device, pretrained.fingerprint(path))
