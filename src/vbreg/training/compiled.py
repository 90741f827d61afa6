"""Fast steps on a GPU: fewer kernels (torch.compile), started without Python (CUDA graphs).

A step is some ten thousand kernels of microseconds each, so that starting them takes longer than
running them. A latent branch sees every correspondence by itself, so it is compiled for flat rows:
micro-batches of any N have the same shape then, and branches and iterations share their kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from vbreg.backends.recorder import Recorder
from vbreg.network import BranchState, BranchStep, LatentBranch, NormedMLP
from vbreg.training.batches import Batch

Branch = Callable[[BranchState, Tensor, Tensor | None, Tensor | None], BranchStep]


def compile_parts(network: torch.nn.Module) -> None:
    """Compile parts of a network in place; parameters and their names stay as they are."""
    for module in network.modules():
        if isinstance(module, LatentBranch):
            module.forward = _on_rows(module.forward)  # type: ignore[method-assign, assignment]
        elif isinstance(module, NormedMLP):
            module.forward = torch.compile(module.forward, dynamic=True)  # type: ignore[method-assign]


def _on_rows(forward: Branch) -> Branch:
    compiled = torch.compile(forward, dynamic=False)

    def call(
        state: BranchState, features: Tensor, labels: Tensor | None, noise: Tensor | None
    ) -> BranchStep:
        shape = features.shape[:2]
        flat: Any = tree_map_only(
            Tensor, lambda t: t.flatten(0, 1).contiguous(), (state, features, labels, noise)
        )
        step: BranchStep = tree_map_only(Tensor, lambda t: t.unflatten(0, shape), compiled(*flat))
        return step

    return call


Accumulate = Callable[[Batch, torch.Generator], Tensor]


class RecordedPasses:
    """Records `accumulate` once for every shape of batch; then the GPU replays it alone."""

    def __init__(self, accumulate: Accumulate, network: torch.nn.Module) -> None:
        self.accumulate = accumulate
        self.parameters = list(network.parameters())
        self.recordings: dict[torch.Size, tuple[torch.cuda.CUDAGraph, Batch, Tensor]] = {}
        self.recorder = Recorder(self.parameters[0].device)

    def __call__(self, batch: Batch, generator: torch.Generator) -> Tensor:
        shape = batch.labels.shape
        if shape not in self.recordings:
            self.recordings[shape] = self._record(batch, generator)
        graph, inputs, terms = self.recordings[shape]
        for held, given in zip(inputs.tensors(), batch.tensors(), strict=True):
            held.copy_(given)
        graph.replay()
        return terms.clone()

    def _record(
        self, batch: Batch, generator: torch.Generator
    ) -> tuple[torch.cuda.CUDAGraph, Batch, Tensor]:
        """Record the passes; gradients so far and the generator are put back to where they were."""
        inputs = Batch(*(tensor.clone() for tensor in batch.tensors()))
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [p.grad.clone() for p in self.parameters if p.grad is not None]
        state = generator.get_state()
        graph, terms = self.recorder.record(lambda: self.accumulate(inputs, generator), generator)
        generator.set_state(state)
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            assert parameter.grad is not None
            parameter.grad.copy_(gradient)
        return graph, inputs, terms
