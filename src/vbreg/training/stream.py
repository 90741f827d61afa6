"""Work done ahead by other processes, handed over in order, or as soon as any of it is ready."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from types import TracebackType
from typing import Generic, TypeVar

import torch

AHEAD = 8  # results for each worker, so that a slow one holds up nobody
T = TypeVar("T")


class Stream(Generic[T]):
    """Computes work(first), work(first + 1), ... in worker processes, some ahead of who takes them.

    `take` keeps the order of the numbers; `take_if_ready` lets nobody wait for a slow one. `work`
    must be one that another process can import. Use it in a `with` block: it ends the processes.
    """

    def __init__(
        self, work: Callable[[int], T], workers: int | None = None, *, first: int = 0
    ) -> None:
        count = max(1, (os.cpu_count() or 2) - 1) if workers is None else workers
        self.work, self.next, self.ahead = work, first, AHEAD * count
        self.waiting: deque[Future[T]] = deque()
        self.pool: ProcessPoolExecutor | None = None
        if count:
            self.pool = ProcessPoolExecutor(
                count, get_context("spawn"), initializer=_keep_to_one_core
            )

    def take(self) -> T:
        """Return the next result, as soon as it is there."""
        if self.pool is None:
            self.next += 1
            return self.work(self.next - 1)
        self._ask_ahead(self.pool)
        return self.waiting.popleft().result()

    def take_if_ready(self) -> T | None:
        """Return the first result that is ready, in whatever order, or None where none is."""
        if self.pool is None:
            return self.take()
        self._ask_ahead(self.pool)
        for k, future in enumerate(self.waiting):
            if future.done():
                del self.waiting[k]
                return future.result()
        return None

    def _ask_ahead(self, pool: ProcessPoolExecutor) -> None:
        while len(self.waiting) < self.ahead:
            self.waiting.append(pool.submit(self.work, self.next))
            self.next += 1

    def __enter__(self) -> Stream[T]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.pool is not None:
            self.pool.shutdown(wait=True, cancel_futures=True)


def _keep_to_one_core() -> None:
    torch.set_num_threads(1)
