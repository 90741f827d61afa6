"""The variational non-local network: correspondences in, features and inlier logits out.

It sees tensors only, in units of the inlier threshold, so one set of weights serves a desk and a
street. Labels given: z comes from the posterior; none: from the prior. A generator given: z is
sampled; none: z is the mean, and the same call gives the same answer.
Shapes: B problems, N correspondences, d = width, L iterations.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vbreg.compatibility import Attention, spatial_attention

BRANCHES = ("query", "key", "value")
DESCRIPTOR_LENGTH = 10.0  # in inlier thresholds of 10 cm: 1 beside metres, as in the paper


@dataclass(frozen=True)
class NetworkConfig:
    """Sizes of the network; those of the paper are the defaults.

    `input` is what a correspondence is described by: its two points (`xyz`), or its two points and
    two descriptors (`feat`).
    """

    input: Literal["xyz", "feat"] = "xyz"
    descriptor_width: int = 0  # per cloud; 0 with `xyz`
    iterations: int = 12  # L
    width: int = 128  # d
    latent_width: int = 128  # of z
    hidden_width: int = 256  # of h
    label_width: int = 64
    std_floor: float = 0.1
    variational: bool = True  # False: SCNonlocal, where features are query, key and value at once

    def __post_init__(self) -> None:
        if self.input not in ("xyz", "feat"):
            raise ValueError(f"input {self.input!r}: expected 'xyz' or 'feat'")
        if (self.input == "feat") != (self.descriptor_width > 0):
            raise ValueError(
                f"input {self.input!r} with descriptor_width {self.descriptor_width}: "
                "'feat' needs a positive width, 'xyz' takes 0"
            )
        for name in ("iterations", "width", "latent_width", "hidden_width", "label_width"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)}: expected at least 1")

    @property
    def input_width(self) -> int:
        """The number of channels that describe a correspondence."""
        return 6 + 2 * self.descriptor_width


class Gaussian(NamedTuple):
    """A diagonal Gaussian for each correspondence; (B, N, latent_width) each."""

    mean: Tensor
    std: Tensor


class BranchState(NamedTuple):
    """What a branch carries from one iteration to the next; it is zero at the start."""

    z: Tensor  # (B, N, latent_width)
    h: Tensor  # (B, N, hidden_width)


class BranchStep(NamedTuple):
    """What one iteration of one branch gives."""

    state: BranchState
    prior: Gaussian | None  # not where its mean is all that is looked at
    posterior: Gaussian | None  # where labels were given
    merged: Tensor  # (B, N, d)


class Ends(NamedTuple):
    """What the attention of one iteration is computed from; (B, N, d) each."""

    query: Tensor
    key: Tensor
    value: Tensor


class NetworkOutput(NamedTuple):
    """What the network says about correspondences."""

    logits: Tensor  # (B, N)
    features: tuple[Tensor, ...]  # F^1 .. F^L, each (B, N, d)
    attention: tuple[tuple[Tensor, Tensor], ...]  # (Q, K) of each iteration, if kept
    steps: tuple[dict[str, BranchStep], ...]  # of each iteration, by branch, if labels were given
    logits_of_each: tuple[Tensor, ...] = ()  # (B, N) from each of `features`, if asked for


class ContextNorm(nn.Module):
    """Gives each channel zero mean and unit variance over the correspondences of one problem.

    The softmax of Eq. 1 is nearly uniform, so messages are a large common part plus a small part
    that tells inliers from outliers; this removes the one and scales up the other, for any N.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        y = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
        centred = y - masked_mean(y, mask)
        factor = (masked_mean(centred.square(), mask) + 1e-5).rsqrt() * self.scale
        return torch.addcmul(self.shift, centred, factor).to(x.dtype)


def masked_mean(x: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mean (B, 1, C) of x (B, N, C) over the rows that mask (B, N) marks."""
    if mask is None:
        return x.mean(1, keepdim=True)
    weight = mask.unsqueeze(-1).to(x.dtype)
    return (x * weight).sum(1, keepdim=True) / weight.sum(1, keepdim=True).clamp_min(1.0)


class NormedMLP(nn.Module):
    """Linear layers with context normalisation and ReLU between them."""

    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.widths = widths
        self.linears = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.norms = nn.ModuleList(ContextNorm(b) for b in widths[1:-1])

    def forward(self, x: Tensor, mask: Tensor | None, residual: Tensor | None = None) -> Tensor:
        """Return the layers' output, added to the residual if there is one."""
        for linear, norm in zip(self.linears, self.norms, strict=False):
            x = F.relu(norm(linear(x), mask))
        x = self.linears[-1](x)
        return x if residual is None else residual + x


class GaussianHead(nn.Sequential):
    """Maps features to a diagonal Gaussian whose standard deviation has a floor."""

    def __init__(self, width_in: int, hidden: int, latent: int, std_floor: float) -> None:
        super().__init__(nn.Linear(width_in, hidden), nn.ReLU(), nn.Linear(hidden, 2 * latent))
        self.std_floor = std_floor

    def forward(self, x: Tensor) -> Gaussian:
        mean, raw = super().forward(x).chunk(2, dim=-1)
        return Gaussian(mean, F.softplus(raw) + self.std_floor)

    def mean(self, x: Tensor) -> Tensor:
        """Return the mean of the Gaussian alone, which takes half of the last layer."""
        hidden, activation, last = self
        assert isinstance(last, nn.Linear)
        half = last.out_features // 2
        return F.linear(activation(hidden(x)), last.weight[:half], last.bias[:half])


class LatentBranch(nn.Module):
    """Query, key or value: history, prior, posterior, merge. Shared by all iterations."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        d, z, h = config.width, config.latent_width, config.hidden_width
        self.embed = nn.Linear(z + d, h)
        self.history = nn.GRUCell(h, h)
        self.prior = GaussianHead(h, h, z, config.std_floor)
        self.label = nn.Embedding(2, config.label_width)
        self.posterior = GaussianHead(h + config.label_width, h, z, config.std_floor)
        self.merge = nn.Linear(z + h, d)

    def forward(
        self, state: BranchState, features: Tensor, labels: Tensor | None, noise: Tensor | None
    ) -> BranchStep:
        x = F.relu(self.embed(torch.cat([state.z, features], dim=-1)))
        h = gated_update(self.history, x, state.h)  # Eq. 3
        prior, posterior = None, None
        if labels is None and noise is None:
            z = self.prior.mean(h)
        else:
            prior = self.prior(h)
            if labels is not None:
                posterior = self.posterior(torch.cat([h, self.label(labels.long())], dim=-1))
            mean, std = posterior or prior  # Eq. 5, Eq. 4
            z = mean if noise is None else mean + std * noise
        merged = F.relu(self.merge(torch.cat([z, h], dim=-1)))  # Eq. 4
        return BranchStep(BranchState(z, h), prior, posterior, merged)


def gated_update(cell: nn.GRUCell, x: Tensor, h: Tensor) -> Tensor:
    """Return what `cell(x, h)` gives, for any leading dimensions, written so that it compiles."""
    reset_x, keep_x, new_x = F.linear(x, cell.weight_ih, cell.bias_ih).chunk(3, dim=-1)
    reset_h, keep_h, new_h = F.linear(h, cell.weight_hh, cell.bias_hh).chunk(3, dim=-1)
    new = (new_x + (reset_x + reset_h).sigmoid() * new_h).tanh()
    return new + (keep_x + keep_h).sigmoid() * (h - new)


class NonLocalStep(nn.Module):
    """Holds what is an iteration's own: the three projections and the message.

    Without latent branches it also holds the layer that they stand in for, which sees each
    correspondence by itself.
    """

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        d = config.width
        self.variational = config.variational
        if not config.variational:
            self.point, self.point_norm = nn.Linear(d, d), ContextNorm(d)
        self.project = nn.ModuleDict({name: nn.Linear(d, d) for name in BRANCHES})
        self.message = NormedMLP(d, d // 2, d // 2, d)

    def prepared(self, features: Tensor, mask: Tensor | None) -> Tensor:
        """Return the features (B, N, d) that the iteration starts from."""
        if self.variational:
            return features
        return F.relu(self.point_norm(self.point(features), mask))


class Branches(Protocol):
    """The query, key and value branches during one pass of the network."""

    steps: list[dict[str, BranchStep]]  # of each iteration so far, by branch, if labels were given

    def __call__(self, iteration: int, features: Tensor) -> Ends:
        """Return query, key and value of the next iteration from features (B, N, d)."""


class LatentBranches:
    """Carries the state of the latent branches through the iterations (Eq. 3 to 5).

    Without latent branches (SCNonlocal) the features themselves are projected.
    """

    def __init__(
        self,
        network: VariationalNonLocalNetwork,
        features: Tensor,  # (B, N, d), for their shape
        labels: Tensor | None,
        generator: torch.Generator | None,
    ) -> None:
        self.network, self.labels, self.generator = network, labels, generator
        self.steps: list[dict[str, BranchStep]] = []
        self.states = {name: self._start(features) for name in network.branches}

    def __call__(self, iteration: int, features: Tensor) -> Ends:
        project = self.network.iteration(iteration).project
        if not self.states:
            return Ends(*(project[name](features) for name in BRANCHES))
        steps: dict[str, BranchStep] = {}
        ends = []
        for name, branch in self.network.branches.items():
            step = branch(self.states[name], features, self.labels, self._noise(features))
            self.states[name] = step.state
            ends.append(project[name](step.merged))
            if self.labels is not None:  # else one branch's numbers at a time are in memory
                steps[name] = step
        if self.labels is not None:
            self.steps.append(steps)
        return Ends(*ends)

    def _start(self, features: Tensor) -> BranchState:
        """Return zeros. Like all later states they take a gradient: a compiler sees one kind."""
        config = self.network.config
        zeros = (
            features.new_zeros(*features.shape[:-1], width)
            for width in (config.latent_width, config.hidden_width)
        )
        return BranchState(*(z.requires_grad_(features.requires_grad) for z in zeros))

    def _noise(self, features: Tensor) -> Tensor | None:
        if self.generator is None:
            return None
        shape = *features.shape[:-1], self.network.config.latent_width
        return features.new_empty(shape).normal_(generator=self.generator)


class NetworkSteps:
    """The three steps of the network that a backend may compute in another form.

    Here they are as the paper has them.
    """

    def attention(self, source: Tensor, target: Tensor, mask: Tensor | None) -> Attention:
        """Return the attention of Eq. 1 for one set of correspondences (B, N, 3)."""
        return spatial_attention(source, target, mask)

    def branches(
        self,
        network: VariationalNonLocalNetwork,
        features: Tensor,
        labels: Tensor | None,
        generator: torch.Generator | None,
    ) -> Branches:
        """Return what gives query, key and value of each iteration of one pass (Eq. 3 to 5)."""
        return LatentBranches(network, features, labels, generator)

    def normed_mlp(
        self, mlp: NormedMLP, x: Tensor, mask: Tensor | None, residual: Tensor | None = None
    ) -> Tensor:
        """Return x (B, N, C) after the layers, added to the residual."""
        found: Tensor = mlp(x, mask, residual)
        return found


class VariationalNonLocalNetwork(nn.Module):
    """Tells right correspondences from wrong ones, and gives features that alike ones share."""

    def __init__(self, config: NetworkConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or NetworkConfig()
        self.embed = NormedMLP(config.input_width, config.width, config.width)
        names = BRANCHES if config.variational else ()
        self.branches = nn.ModuleDict({name: LatentBranch(config) for name in names})
        self.steps = nn.ModuleList(NonLocalStep(config) for _ in range(config.iterations))
        self.classify = nn.Sequential(
            nn.Linear(config.width, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1)
        )
        self.sigma = nn.Parameter(torch.ones(()))  # of the feature compatibility, voting included

    def forward(
        self,
        source: Tensor,  # (B, N, 3) in units of the inlier threshold
        target: Tensor,  # (B, N, 3)
        *,
        mask: Tensor | None = None,  # (B, N) True for real rows
        descriptors: Tensor | None = None,  # (B, N, 2 * descriptor_width), each of length 1
        labels: Tensor | None = None,  # (B, N) given: posterior; none: prior
        generator: torch.Generator | None = None,  # given: sample z; none: its mean
        steps: NetworkSteps | None = None,  # a backend; none: the readable form
        keep_attention: bool = False,  # for voters that look at the attention rows
        classify_each: bool = False,  # for a loss on the features of every iteration
    ) -> NetworkOutput:
        """Return logits and the features of every iteration."""
        steps = steps or NetworkSteps()
        attend = steps.attention(source, target, mask)
        described = self._describe(source, target, mask, descriptors)
        features = steps.normed_mlp(self.embed, described, mask)
        branches = steps.branches(self, features, labels, generator)
        all_features, all_attention = [], []
        for k in range(self.config.iterations):
            iteration = self.iteration(k)
            features = iteration.prepared(features, mask)
            query, key, value = branches(k, features)  # Eq. 3 to 5
            message = attend(query, key, value)  # Eq. 1
            features = steps.normed_mlp(iteration.message, message, mask, features)
            all_features.append(features)
            all_attention.extend([(query, key)] if keep_attention else [])
        judged = all_features if classify_each else all_features[-1:]
        logits = tuple(self.classify(f).squeeze(-1) for f in judged)
        return NetworkOutput(
            logits[-1],
            tuple(all_features),
            tuple(all_attention),
            tuple(branches.steps),
            logits if classify_each else (),
        )

    def iteration(self, k: int) -> NonLocalStep:
        """Return what is iteration k's own."""
        return cast(NonLocalStep, self.steps[k])

    def latent_branches(self) -> list[LatentBranch]:
        """Return the branches in the order query, key, value; none without latent features."""
        return [cast(LatentBranch, branch) for branch in self.branches.values()]

    def _describe(
        self, source: Tensor, target: Tensor, mask: Tensor | None, descriptors: Tensor | None
    ) -> Tensor:
        """Return (B, N, input_width): centred coordinates, then the descriptors of both ends."""
        points = torch.cat([source, target], dim=-1)
        points = points - masked_mean(points, mask)
        expected = 2 * self.config.descriptor_width
        given = 0 if descriptors is None else descriptors.shape[-1]
        if given != expected:
            raise ValueError(
                f"{given} descriptor channels: this network was built with input "
                f"{self.config.input!r} and takes {expected}"
            )
        if descriptors is None:
            return points
        return torch.cat([points, DESCRIPTOR_LENGTH * descriptors.to(points.dtype)], dim=-1)
