"""The latent branches of the network at the prior's mean: all three at once, a layer in one pass.

M correspondences, of all problems, stand in one list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from vbreg.backends.triton.layers import Affine, gated
from vbreg.network import BRANCHES, BranchStep, Ends, LatentBranch, VariationalNonLocalNetwork

M = TypeVar("M")


class JoinedLayers:
    """The weights of the three branches side by side, in the precision of the products."""

    def __init__(self, network: VariationalNonLocalNetwork, kind: torch.dtype) -> None:
        self.kind = kind
        branches = network.latent_branches()
        z = network.config.latent_width

        def layer(pick: Callable[[M], tuple[Tensor, Tensor]], each: Sequence[M]) -> Affine:
            weights, biases = zip(*map(pick, each), strict=True)  # (out, in), (out,)
            weight = torch.stack(weights).transpose(1, 2).to(kind).contiguous()
            return Affine(weight, torch.stack(biases).float())

        def part(branch: LatentBranch, index: int, rows: int | None) -> tuple[Tensor, Tensor]:
            linear = branch.prior[index]
            assert isinstance(linear, nn.Linear)
            return linear.weight[:rows], linear.bias[:rows]

        self.embed = layer(lambda b: (b.embed.weight, b.embed.bias), branches)
        self.of_input = layer(lambda b: (b.history.weight_ih, b.history.bias_ih), branches)
        self.of_state = layer(lambda b: (b.history.weight_hh, b.history.bias_hh), branches)
        self.prior = layer(lambda b: part(b, 0, None), branches)
        self.mean = layer(lambda b: part(b, 2, z), branches)
        self.merge = layer(lambda b: (b.merge.weight, b.merge.bias), branches)
        self.project = [
            layer(_linear, [network.iteration(k).project[name] for name in BRANCHES])
            for k in range(network.config.iterations)
        ]


def _linear(module: nn.Module) -> tuple[Tensor, Tensor]:
    assert isinstance(module, nn.Linear)
    return module.weight, module.bias


class _Held:
    """What is kept of a network: its parameters, and its joined layers for the weights they had."""

    def __init__(self, network: VariationalNonLocalNetwork) -> None:
        self.weights = list(network.parameters())  # walking through all modules takes a while
        self.joined: dict[torch.dtype, tuple[tuple[int, int], JoinedLayers]] = {}


_held: WeakKeyDictionary[VariationalNonLocalNetwork, _Held] = WeakKeyDictionary()


def _held_of(network: VariationalNonLocalNetwork) -> _Held:
    held = _held.get(network)
    if held is None or not any(w is network.sigma for w in held.weights):
        held = _held[network] = _Held(network)
    return held


def weights_state(network: VariationalNonLocalNetwork) -> tuple[int, int]:
    """Return numbers that change when weights are moved or written to, but through `.data`."""
    weights = _held_of(network).weights
    places = hash(tuple(p.data_ptr() for p in weights))
    return places, sum(p._version for p in weights if not p.is_inference())


def joined_layers(network: VariationalNonLocalNetwork, kind: torch.dtype) -> JoinedLayers:
    """Return the joined layers of a network, made anew when its weights have changed."""
    now, held = weights_state(network), _held_of(network)
    if kind not in held.joined or held.joined[kind][0] != now:
        held.joined[kind] = now, JoinedLayers(network, kind)
    return held.joined[kind][1]


class BranchesTogether:
    """Carries the state of all branches through the iterations, by kernels."""

    def __init__(
        self, network: VariationalNonLocalNetwork, features: Tensor, kind: torch.dtype
    ) -> None:
        self.layers = joined_layers(network, kind)
        self.steps: list[dict[str, BranchStep]] = []
        self.shape = features.shape[:2]
        config, rows = network.config, self.shape.numel()
        self.z = features.new_zeros(3, rows, config.latent_width, dtype=kind)
        self.h = features.new_zeros(3, rows, config.hidden_width)
        self.low = self.h.to(kind)  # h once more, as it goes into products

    def __call__(self, iteration: int, features: Tensor) -> Ends:
        layers = self.layers
        x = layers.embed(self.z, features.flatten(0, 1), relu=True)
        self.h, self.low = gated(x, self.h, self.low, layers.of_input, layers.of_state)  # Eq. 3
        self.z = layers.mean(layers.prior(self.low, relu=True))
        merged = layers.merge(self.z, self.low, relu=True)  # Eq. 4
        return Ends(*(end.unflatten(0, self.shape) for end in layers.project[iteration](merged)))


def kept_alive(network: VariationalNonLocalNetwork) -> object:
    """Return the copies of the weights that a recording reads and nobody else may hold by then."""
    return tuple(_held_of(network).joined.values())
