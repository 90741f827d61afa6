"""Work that a GPU replays alone (a CUDA graph), and the sizes that it is recorded for.

A pose is some thousand kernels of microseconds each, so that starting them from Python takes longer
than running them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from vbreg.backends import devices
from vbreg.errors import VBRegError

MAX_RECORDINGS = 48  # of one kind of work; the oldest goes
WARM_UP_RUNS = 2  # in which kernels are compiled and libraries set themselves up

T = TypeVar("T")


class Recorder:
    """Records runs on one GPU. They share their memory, since they never run together."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.pool = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream(device)

    def record(
        self,
        run: Callable[[], T],
        generator: torch.Generator | None = None,
    ) -> tuple[torch.cuda.CUDAGraph, T]:
        """Return a recording of `run`, which may draw from `generator`, and what it writes to.

        Threads record one after the other.
        """
        with devices.recording_lock:
            self._warm_up(run)
            graph = torch.cuda.CUDAGraph()
            if generator is not None:
                if not hasattr(graph, "register_generator_state"):
                    raise VBRegError(
                        f"torch {torch.__version__} cannot record work that draws at random: use "
                        "torch 2.5 or later, or train with compile = false"
                    )
                graph.register_generator_state(generator)
            mode = "thread_local"  # other threads may go on with their own work
            with torch.cuda.graph(
                graph, pool=self.pool, stream=self.stream, capture_error_mode=mode
            ):
                output = run()
        return graph, output

    def _warm_up(self, run: Callable[[], object]) -> None:
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            for _ in range(WARM_UP_RUNS):
                run()
        torch.cuda.current_stream(self.device).wait_stream(self.stream)


def bucket(n: int) -> int:
    """Return the number of rows that n are padded to, at most a quarter more from 1024 on."""
    step = 128 if n <= 1024 else 256 if n <= 4096 else 512
    return -(-n // step) * step


def coarse_bucket(n: int) -> int:
    """Return a number of rows for n of which there are few: powers of two and halfway between."""
    above = max(1024, 1 << (n - 1).bit_length())
    return 3 * above // 4 if 1024 < n <= 3 * above // 4 else above
