"""The latent branches of the network when z is the prior's mean and no gradient is asked for.

Both classes compute what `network.LatentBranch` and the projections after it do: one by kernels,
for a GPU, one by torch, for a CPU. M correspondences, of all problems, in one list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from vbreg.network import VariationalNonLocalNetwork


class TogetherState(NamedTuple):
    """Of all branches; z and `low` in the precision of the products."""

    z: Tensor  # (3, M, latent_width)
    h: Tensor  # (3, M, hidden_width) float32
    low: Tensor  # h once more


class BranchesTogether:
    """By kernels: all branches at once, and each layer in one pass."""

    def __init__(self, network: VariationalNonLocalNetwork, kind: torch.dtype) -> None:
        from vbreg.kernels.layers import Affine

        self.config, self.kind = network.config, kind
        branches = list(network.branches.values())
        z = network.config.latent_width

        def layer(pick: Callable[[Any], tuple[Tensor, Tensor]], each: Sequence[Any]) -> Affine:
            weights, biases = zip(*map(pick, each), strict=True)  # (out, in), (out,)
            weight = torch.stack(weights).transpose(1, 2).to(kind).contiguous()
            return Affine(weight, torch.stack(biases).float())

        self.embed = layer(lambda b: (b.embed.weight, b.embed.bias), branches)
        self.of_input = layer(lambda b: (b.history.weight_ih, b.history.bias_ih), branches)
        self.of_state = layer(lambda b: (b.history.weight_hh, b.history.bias_hh), branches)
        self.prior = layer(lambda b: (b.prior[0].weight, b.prior[0].bias), branches)
        self.mean = layer(lambda b: (b.prior[2].weight[:z], b.prior[2].bias[:z]), branches)
        self.merge = layer(lambda b: (b.merge.weight, b.merge.bias), branches)
        self.project = [
            layer(lambda p: (p.weight, p.bias), list(step.project.values()))  # type: ignore[operator]
            for step in network.steps
        ]

    def start(self, features: Tensor) -> TogetherState:
        M, z, h = len(features), self.config.latent_width, self.config.hidden_width
        low = features.new_zeros(3, M, h, dtype=self.kind)
        return TogetherState(
            features.new_zeros(3, M, z, dtype=self.kind), features.new_zeros(3, M, h), low
        )

    def __call__(
        self, iteration: int, state: TogetherState, features: Tensor
    ) -> tuple[TogetherState, Tensor]:
        """The next state; query, key and value (3, M, d) from features (M, d)."""
        from vbreg.kernels.layers import gated

        x = self.embed(state.z, features, relu=True)
        h, low = gated(x, state.h, state.low, self.of_input, self.of_state)  # Eq. 3
        z = self.mean(self.prior(low, relu=True))
        merged = self.merge(z, low, relu=True)  # Eq. 4
        return TogetherState(z, h, low), self.project[iteration](merged)


class Layers(NamedTuple):
    """Of one branch, each (in, out); the row that a column of ones meets holds the bias."""

    embed: Tensor  # features, z, 1 -> x
    gates: Tensor  # 1, h, x -> reset and keep
    new_h: Tensor  # 1, h
    new_x: Tensor  # x, 1
    prior: Tensor  # 1, h
    mean: Tensor  # hidden, 1 -> z
    merge: Tensor  # z, 1, h -> d
    project: tuple[Tensor, ...]  # merged, 1 -> query, key or value, of each iteration


class BranchesInPlace:
    """By torch, with as little as possible that is written to memory. What goes into the layers of
    a branch stands in one table, so that the input of each is some neighbouring columns of it:

        features | z | 1 | h | x | 1

    A layer is one product, its bias included, and nothing is joined or copied for it."""

    def __init__(self, network: VariationalNonLocalNetwork) -> None:
        self.config = network.config
        steps: Any = network.steps
        self.layers = [
            self._layers(branch, [step.project[name] for step in steps])
            for name, branch in network.branches.items()
        ]

    def _layers(self, branch: Any, projections: Sequence[Any]) -> Layers:
        z, h = self.config.latent_width, self.config.hidden_width

        def joined(*blocks: Tensor) -> Tensor:
            """Of weights (out, in) and biases (out,), in the order of the table."""
            return torch.cat([b.reshape(b.shape[0], -1) for b in blocks], 1).T.contiguous()

        embed, gru, merge = branch.embed, branch.history, branch.merge
        hidden, _, last = branch.prior
        both = gru.bias_ih + gru.bias_hh
        return Layers(
            embed=joined(embed.weight[:, z:], embed.weight[:, :z], embed.bias),
            gates=joined(both[: 2 * h], gru.weight_hh[: 2 * h], gru.weight_ih[: 2 * h]),
            new_h=joined(gru.bias_hh[2 * h :], gru.weight_hh[2 * h :]),
            new_x=joined(gru.weight_ih[2 * h :], gru.bias_ih[2 * h :]),
            prior=joined(hidden.bias, hidden.weight),
            mean=joined(last.weight[:z], last.bias[:z]),
            merge=joined(merge.weight[:, :z], merge.bias, merge.weight[:, z:]),
            project=tuple(joined(p.weight, p.bias) for p in projections),
        )

    def start(self, features: Tensor) -> Tensor:
        """The tables (3, M, columns)."""
        d, z, h = features.shape[-1], self.config.latent_width, self.config.hidden_width
        tables = features.new_zeros(len(self.layers), len(features), d + z + 1 + 2 * h + 1)
        tables[:, :, d + z] = 1.0
        tables[:, :, -1] = 1.0
        return tables

    def __call__(
        self, iteration: int, tables: Tensor, features: Tensor
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """The same tables, changed; query, key and value (M, d) from features (M, d)."""
        hidden = features.new_ones(len(features), self.config.hidden_width + 1)
        merged = features.new_ones(len(features), self.config.width + 1)
        ends = []
        for table, layers in zip(tables, self.layers, strict=True):
            self._advance(table, layers, features, hidden)
            self._merge(table, layers, merged)
            ends.append(merged @ layers.project[iteration])
        return tables, ends

    def _advance(self, table: Tensor, layers: Layers, features: Tensor, hidden: Tensor) -> None:
        """Features and the last z and h -> the next z and h."""
        d = features.shape[-1]
        one = d + self.config.latent_width
        past = one + 1 + self.config.hidden_width  # h
        z, h, x = table[:, d:one], table[:, one + 1 : past], table[:, past:-1]
        table[:, :d] = features
        torch.mm(table[:, : one + 1], layers.embed, out=x).clamp_min_(0.0)
        reset, keep = torch.mm(table[:, one:-1], layers.gates).sigmoid_().chunk(2, dim=-1)
        old = table[:, one:past] @ layers.new_h
        new = torch.mm(table[:, past:], layers.new_x).addcmul_(reset, old).tanh_()
        torch.lerp(new, h, keep, out=h)  # Eq. 3
        torch.mm(table[:, one:past], layers.prior, out=hidden[:, :-1]).clamp_min_(0.0)
        torch.mm(hidden, layers.mean, out=z)

    def _merge(self, table: Tensor, layers: Layers, merged: Tensor) -> None:
        """The next z and h -> features of width d; Eq. 4."""
        d = merged.shape[-1] - 1
        past = d + self.config.latent_width + 1 + self.config.hidden_width
        torch.mm(table[:, d:past], layers.merge, out=merged[:, :-1]).clamp_min_(0.0)
