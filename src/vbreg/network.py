"""The variational non-local network: correspondences in, features and inlier logits out.

It sees tensors only, in units of the inlier threshold, so one set of weights serves a desk and a
street. Labels given: z comes from the posterior; none: from the prior. A generator given: z is
sampled; none: z is the mean, and the same call gives the same answer.
Shapes: B problems, N correspondences, d = width, L iterations.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vbreg import kernels
from vbreg.compatibility import Attention, AttentionForm, spatial_attention
from vbreg.inference import BranchesInPlace, BranchesTogether

BRANCHES = ("query", "key", "value")
DESCRIPTOR_LENGTH = 10.0  # in inlier thresholds of 10 cm: 1 beside metres, as in the paper


@dataclass(frozen=True)
class NetworkConfig:
    """Sizes of the paper. `input` is what a correspondence is described by: its two points
    (`xyz`) or its two points and two descriptors (`feat`)."""

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
        return 6 + 2 * self.descriptor_width


class Gaussian(NamedTuple):
    """Diagonal; (B, N, latent_width) each."""

    mean: Tensor
    std: Tensor


class BranchState(NamedTuple):
    """What a branch carries from one iteration to the next; zero at the start."""

    z: Tensor  # (B, N, latent_width)
    h: Tensor  # (B, N, hidden_width)


class BranchStep(NamedTuple):
    """One iteration of one branch."""

    state: BranchState
    prior: Gaussian | None  # not where the mean is all that is looked at
    posterior: Gaussian | None  # where labels were given
    merged: Tensor  # (B, N, d)


class NetworkOutput(NamedTuple):
    logits: Tensor  # (B, N)
    features: tuple[Tensor, ...]  # F^1 .. F^L, each (B, N, d)
    attention: tuple[tuple[Tensor, Tensor], ...]  # (Q, K) of each iteration, if kept
    steps: tuple[dict[str, BranchStep], ...]  # of each iteration, by branch, if labels were given
    logits_of_each: tuple[Tensor, ...] = ()  # (B, N) from each of `features`, if asked for


class ContextNorm(nn.Module):
    """Zero mean, unit variance of each channel over the correspondences of one problem.

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


def _by_kernels(x: Tensor) -> bool:
    return x.dtype == torch.float32 and kernels.usable(x.device) and not torch.is_grad_enabled()


def masked_mean(x: Tensor, mask: Tensor | None) -> Tensor:
    """(B, 1, C) of x (B, N, C) over the rows that mask (B, N) marks."""
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
        """Added to the residual, if there is one."""
        if _by_kernels(x):
            from vbreg.kernels import layers

            if layers.supports(*self.widths):
                return layers.normed_mlp(x, mask, self.linears, self.norms, residual)
        for linear, norm in zip(self.linears, self.norms, strict=False):
            x = F.relu(norm(linear(x), mask))
        x = self.linears[-1](x)
        return x if residual is None else residual + x


class GaussianHead(nn.Sequential):
    """Features -> a diagonal Gaussian whose standard deviation has a floor."""

    def __init__(self, width_in: int, hidden: int, latent: int, std_floor: float) -> None:
        super().__init__(nn.Linear(width_in, hidden), nn.ReLU(), nn.Linear(hidden, 2 * latent))
        self.std_floor = std_floor

    def forward(self, x: Tensor) -> Gaussian:
        mean, raw = super().forward(x).chunk(2, dim=-1)
        return Gaussian(mean, F.softplus(raw) + self.std_floor)

    def mean(self, x: Tensor) -> Tensor:
        """Of the Gaussian, without its deviation."""
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
        if labels is None and noise is None and not torch.is_grad_enabled():
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
    """What `cell(x, h)` gives, for any leading dimensions; with gradients in operations that a
    compiler fuses, without them in torch's own kernel."""
    if not torch.is_grad_enabled():
        found: Tensor = cell(x.flatten(0, -2), h.flatten(0, -2))
        return found.view(*x.shape[:-1], -1)
    reset_x, keep_x, new_x = F.linear(x, cell.weight_ih, cell.bias_ih).chunk(3, dim=-1)
    reset_h, keep_h, new_h = F.linear(h, cell.weight_hh, cell.bias_hh).chunk(3, dim=-1)
    new = (new_x + (reset_x + reset_h).sigmoid() * new_h).tanh()
    return new + (keep_x + keep_h).sigmoid() * (h - new)


class NonLocalStep(nn.Module):
    """What is an iteration's own: the three projections and the message. Without latent branches
    also the layer that they stand in for, which sees each correspondence by itself."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        d = config.width
        if not config.variational:
            self.point, self.point_norm = nn.Linear(d, d), ContextNorm(d)
        self.project = nn.ModuleDict({name: nn.Linear(d, d) for name in BRANCHES})
        self.message = NormedMLP(d, d // 2, d // 2, d)


class VariationalNonLocalNetwork(nn.Module):
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
        self._weights: list[nn.Parameter] = []
        self._frozen: tuple[object, BranchesTogether] | None = None

    def forward(
        self,
        source: Tensor,  # (B, N, 3) in units of the inlier threshold
        target: Tensor,  # (B, N, 3)
        *,
        mask: Tensor | None = None,  # (B, N) True for real rows
        descriptors: Tensor | None = None,  # (B, N, 2 * descriptor_width), each of length 1
        labels: Tensor | None = None,  # (B, N) given: posterior; none: prior
        generator: torch.Generator | None = None,  # given: sample z; none: its mean
        attention: AttentionForm = "auto",
        keep_attention: bool = False,  # for voters that look at the attention rows
        classify_each: bool = False,  # for a loss on the features of every iteration
    ) -> NetworkOutput:
        with torch.autocast(source.device.type, enabled=False):
            attend = spatial_attention(source, target, mask, attention)
        features = self.embed(self._describe(source, target, mask, descriptors), mask)
        if (
            labels is None
            and generator is None
            and not classify_each
            and self.config.variational
            and (_by_kernels(features) or self._in_place(features))
        ):
            return self._run_frozen(features, attend, mask, keep_attention)
        states = {name: self._initial_state(features) for name in self.branches}
        all_features, all_attention, all_steps = [], [], []
        for iteration in self.steps:
            assert isinstance(iteration, NonLocalStep)
            steps: dict[str, BranchStep] = {
                name: branch(states[name], features, labels, self._noise(features, generator))
                for name, branch in self.branches.items()
            }
            states = {name: step.state for name, step in steps.items()}
            if self.config.variational:
                ends = [steps[b].merged for b in BRANCHES]
            else:
                features = F.relu(iteration.point_norm(iteration.point(features), mask))
                ends = [features] * len(BRANCHES)
            query, key, value = (
                iteration.project[b](end) for b, end in zip(BRANCHES, ends, strict=True)
            )
            features = iteration.message(attend(query, key, value), mask, features)  # Eq. 1
            all_features.append(features)
            all_attention.extend([(query, key)] if keep_attention else [])
            all_steps.extend([steps] if labels is not None else [])
        judged = all_features if classify_each else all_features[-1:]
        logits = tuple(self.classify(f).squeeze(-1) for f in judged)
        return NetworkOutput(
            logits[-1],
            tuple(all_features),
            tuple(all_attention),
            tuple(all_steps),
            logits if classify_each else (),
        )

    def _run_frozen(
        self, features: Tensor, attend: Attention, mask: Tensor | None, keep_attention: bool
    ) -> NetworkOutput:
        """The iterations when z is the prior's mean and no gradient is asked for."""
        branches = self._together() if _by_kernels(features) else BranchesInPlace(self)
        B, N, _ = features.shape
        state: Any = branches.start(features.flatten(0, 1))
        all_features, all_attention = [], []
        for k, iteration in enumerate(self.steps):
            assert isinstance(iteration, NonLocalStep)
            state, ends = branches(k, state, features.flatten(0, 1))
            query, key, value = (end.unflatten(0, (B, N)) for end in ends)
            features = iteration.message(attend(query, key, value), mask, features)  # Eq. 1
            all_features.append(features)
            all_attention.extend([(query, key)] if keep_attention else [])
        logits = self.classify(features).squeeze(-1)
        return NetworkOutput(logits, tuple(all_features), tuple(all_attention), ())

    def _in_place(self, features: Tensor) -> bool:
        """Whether a CPU may; not where it is to compute in another precision than the weights'."""
        own = features.device.type == "cpu" and features.dtype == self.sigma.dtype
        return own and not torch.is_grad_enabled()

    def _together(self) -> BranchesTogether:
        """The branches' weights side by side, made anew when weights have changed."""
        kind = torch.float16 if kernels.rounding() else torch.float32
        now = (*self.state(), kind)
        held = self._frozen
        if held is None or held[0] != now:
            held = self._frozen = now, BranchesTogether(self, kind)
        return held[1]

    def state(self) -> tuple[int, int]:
        """Changes when weights are moved or written to, other than through `.data`."""
        # Kept, since walking through all modules takes a while.
        if not self._weights or self._weights[-1] is not self.sigma:
            self._weights = [p for p in self.parameters() if p is not self.sigma] + [self.sigma]
        places = hash(tuple(p.data_ptr() for p in self._weights))
        return places, sum(p._version for p in self._weights if not p.is_inference())

    def __getstate__(self) -> dict[str, Any]:
        """Without copies of the weights, which are made anew where they are needed."""
        return {**self.__dict__, "_weights": [], "_frozen": None}

    def _initial_state(self, features: Tensor) -> BranchState:
        """Zero. Like all later states it takes a gradient, so that a compiler sees one kind."""
        widths = self.config.latent_width, self.config.hidden_width
        zeros = (features.new_zeros(*features.shape[:-1], width) for width in widths)
        return BranchState(*(z.requires_grad_(features.requires_grad) for z in zeros))

    def _noise(self, features: Tensor, generator: torch.Generator | None) -> Tensor | None:
        if generator is None:
            return None
        shape = *features.shape[:-1], self.config.latent_width
        return features.new_empty(shape).normal_(generator=generator)

    def _describe(
        self, source: Tensor, target: Tensor, mask: Tensor | None, descriptors: Tensor | None
    ) -> Tensor:
        """(B, N, input_width): centred coordinates, then the descriptors of both ends."""
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
