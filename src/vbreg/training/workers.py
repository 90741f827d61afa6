"""One process or several: `torchrun` starts them, gradients are summed over them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module

import torch
import torch.distributed as dist
from torch import Tensor, nn

from vbreg.backends import devices


@dataclass(frozen=True)
class Workers:
    """The processes of a training run, as one of them sees them."""

    rank: int
    count: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def share(self, items: int) -> range:
        """Return which of `items` are this worker's."""
        return range(self.rank, items, self.count)

    def add_up(self, tensor: Tensor) -> Tensor:
        """Sum the workers' tensors, in place."""
        if self.count > 1:
            dist.all_reduce(tensor)
        return tensor

    def any(self, condition: bool) -> bool:
        """Tell whether it holds for some worker: clocks differ, and all must stop together."""
        if self.count == 1:
            return condition
        return bool(self.add_up(torch.tensor(float(condition), device=self.device)) > 0)

    def of_first(self, value: float) -> float:
        """Return the first worker's value, on all: what follows from a clock must be the same."""
        if self.count == 1:
            return value
        shared = torch.tensor(value if self.is_first else 0.0, dtype=torch.float64)
        return float(self.add_up(shared.to(self.device)))

    def add_up_gradients(self, module: nn.Module) -> None:
        """Sum all gradients in one transfer; a parameter without one counts as zero."""
        if self.count == 1:
            return
        parameters = list(module.parameters())
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        flat = self.add_up(torch.cat([g.flatten() for g in gradients]))
        sums = flat.split([p.numel() for p in parameters])
        for parameter, total in zip(parameters, sums, strict=True):
            parameter.grad = total.view_as(parameter)


@contextmanager
def joined(device: str | torch.device) -> Iterator[Workers]:
    """Join the workers that torchrun started, or be the only one."""
    count, rank = (
        int(os.environ.get(key, value)) for key, value in (("WORLD_SIZE", 1), ("RANK", 0))
    )
    chosen = torch.device(device)
    if count == 1:
        yield Workers(0, 1, chosen)
        return
    chosen, talk = devices.of_process(chosen, int(os.environ.get("LOCAL_RANK", rank)))
    # If it were loaded later, its default arguments would keep the group's threads alive beyond the
    # group, and a process that ends soon after a sum would now and then abort.
    import_module("torch.distributed.nn")
    dist.init_process_group(talk)
    try:
        yield Workers(rank, count, chosen)
    finally:
        dist.destroy_process_group()
