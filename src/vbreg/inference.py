"""The latent branches of the network when z is the prior's mean and no gradient is asked for.

Both classes compute what `network.LatentBranch` and the projections after it do: one by kernels,
for a GPU, one by torch, for a CPU. M correspondences, of all problems, in one list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

Network = Any  # a `VariationalNonLocalNetwork`, which is built on this


class TogetherState(NamedTuple):
    """Of all branches; z and `low` in the precision of the products."""

    z: Tensor  # (3, M, latent_width)
    h: Tensor  # (3, M, hidden_width) float32
    low: Tensor  # h once more


class BranchesTogether:
    """By kernels: all branches at once, and each layer in one pass."""

    def __init__(self, network: Network, kind: torch.dtype) -> None:
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
            layer(lambda p: (p.weight, p.bias), list(step.project.values()))
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


class Workspace(NamedTuple):
    """What the branches of a CPU carry on, and room for what they compute on the way, which is
    given once, since fresh memory takes time."""

    tables: Tensor  # (3, M, columns), one for each branch
    gates: Tensor  # (M, 2 hidden_width)
    old: Tensor  # (M, hidden_width)
    new: Tensor  # (M, hidden_width)
    hidden: Tensor  # (M, hidden_width + 1), the last column 1
    merged: Tensor  # (M, d + 1), the last column 1


class BranchesInPlace:
    """By torch, with as little as possible that is written to memory. What goes into the layers of
    a branch stands in one table, so that the input of each is some neighbouring columns of it:

        features | z | 1 | h | x | 1

    A layer is one product, its bias included, and nothing is joined or copied for it."""

    def __init__(self, network: Network) -> None:
        self.config = network.config
        self.layers = [
            self._layers(branch, [step.project[name] for step in network.steps])
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

    def start(self, features: Tensor) -> Workspace:
        M, d = features.shape
        z, h = self.config.latent_width, self.config.hidden_width
        tables = features.new_zeros(len(self.layers), M, d + z + 1 + 2 * h + 1)
        tables[:, :, d + z] = 1.0
        tables[:, :, -1] = 1.0
        return Workspace(
            tables,
            gates=features.new_empty(M, 2 * h),
            old=features.new_empty(M, h),
            new=features.new_empty(M, h),
            hidden=features.new_ones(M, h + 1),
            merged=features.new_ones(M, d + 1),
        )

    def __call__(
        self, iteration: int, work: Workspace, features: Tensor
    ) -> tuple[Workspace, Sequence[Tensor]]:
        """The same workspace, changed; query, key and value (M, d) from features (M, d)."""
        ends = []
        for table, layers in zip(work.tables, self.layers, strict=True):
            table[:, : features.shape[-1]] = features
            self._advance(table, layers, work, first=iteration == 0)
            ends.append(work.merged @ layers.project[iteration])
        return work, ends

    def _advance(self, table: Tensor, layers: Layers, work: Workspace, *, first: bool) -> None:
        """Features and the last z and h, which are zero at first -> the next z and h, and these
        merged."""
        d = self.config.width
        one = d + self.config.latent_width
        past = one + 1 + self.config.hidden_width  # h
        z, h, x = table[:, d:one], table[:, one + 1 : past], table[:, past:-1]
        if first:
            torch.addmm(layers.embed[-1], table[:, :d], layers.embed[:d], out=x).clamp_min_(0.0)
            torch.addmm(layers.gates[0], x, layers.gates[past - one :], out=work.gates)
            old = layers.new_h[0]
        else:
            torch.mm(table[:, : one + 1], layers.embed, out=x).clamp_min_(0.0)
            torch.mm(table[:, one:-1], layers.gates, out=work.gates)
            old = torch.mm(table[:, one:past], layers.new_h, out=work.old)
        reset, keep = work.gates.sigmoid_().chunk(2, dim=-1)
        new = torch.mm(table[:, past:], layers.new_x, out=work.new)
        torch.lerp(new.addcmul_(reset, old).tanh_(), h, keep, out=h)  # Eq. 3
        torch.mm(table[:, one:past], layers.prior, out=work.hidden[:, :-1]).clamp_min_(0.0)
        torch.mm(work.hidden, layers.mean, out=z)
        torch.mm(table[:, d:past], layers.merge, out=work.merged[:, :-1]).clamp_min_(0.0)  # Eq. 4
