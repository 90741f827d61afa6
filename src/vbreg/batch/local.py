"""Workers on this machine: one process a core, or one a GPU."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from threading import Thread
from typing import Any, NamedTuple, Protocol

import torch

from vbreg.backends.devices import chunk_size
from vbreg.batch.rows import BatchSettings, PairRow
from vbreg.batch.tables import Row
from vbreg.batch.worker import open_worker
from vbreg.errors import VBRegError
from vbreg.model import GIVEN_TOGETHER

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
SECONDS_TO_END = 5.0
MAIN_GUARD = (
    "workers import the script that starts them, so put what it does under "
    '`if __name__ == "__main__":`'
)
CHUNK_CPU, CHUNK_GPU = 4, GIVEN_TOGETHER  # rows


class Done(NamedTuple):
    """A worker has finished its chunk."""

    worker: int
    results: list[Row]


class Died(NamedTuple):
    """A worker ended before its chunk did."""

    worker: int
    reason: str


class Pool(Protocol):
    """Some workers, each with at most one chunk at a time."""

    @property
    def workers(self) -> int:
        """How many there are."""
        ...

    @property
    def chunk(self) -> int:
        """How many rows a worker takes at a time."""
        ...

    def ready(self, worker: int) -> bool:
        """Tell whether a worker may be given a chunk."""
        ...

    def submit(self, worker: int, rows: Sequence[PairRow]) -> None:
        """Give a chunk to a worker that is ready and has none."""
        ...

    def wait(self) -> list[Done | Died]:
        """Return what happened, as soon as something does."""
        ...

    def restart(self, worker: int) -> None:
        """Put a new worker in the place of one that died."""
        ...

    def close(self) -> None:
        """End all workers."""
        ...


class LocalPool:
    """Processes of this machine. They are started anew and not forked, as on every system."""

    def __init__(self, settings: BatchSettings, devices: Sequence[str]) -> None:
        self.settings, self.devices = settings, devices
        self.spawn = multiprocessing.get_context("spawn")
        self.processes: list[BaseProcess] = []
        self.pipes: list[Connection[Any, Any]] = []
        self.begun: set[int] = set()  # those that have said so
        for k in range(len(devices)):
            process, pipe = self._start(k)
            self.processes.append(process)
            self.pipes.append(pipe)

    @property
    def workers(self) -> int:
        """How many processes there are."""
        return len(self.devices)

    @property
    def chunk(self) -> int:
        """How many rows a process takes at a time: a GPU's several batches, of similar sizes."""
        return chunk_size(torch.device(self.devices[0]), cpu=CHUNK_CPU, gpu=CHUNK_GPU)

    def ready(self, worker: int) -> bool:
        """Tell that a process may be given a chunk: it reads it when it has started."""
        return True

    def submit(self, worker: int, rows: Sequence[PairRow]) -> None:
        """Send a chunk to a process."""
        with suppress(OSError):  # a process that died by now is told by `wait`
            self.pipes[worker].send(list(rows))

    def wait(self) -> list[Done | Died]:
        """Return what processes sent, and which of them ended."""
        ready = wait(self.pipes)
        events = [self._event(k) for k, pipe in enumerate(self.pipes) if pipe in ready]
        return [event for event in events if event is not None]

    def restart(self, worker: int) -> None:
        """Start another process for the same device."""
        self.pipes[worker].close()
        self.begun.discard(worker)
        self.processes[worker], self.pipes[worker] = self._start(worker)

    def close(self) -> None:
        """End all processes; those that do not listen are killed."""
        for pipe in self.pipes:
            pipe.close()  # where a process waits for rows, it ends by itself
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.join(SECONDS_TO_END)
            if process.is_alive():
                process.kill()

    def _start(self, k: int) -> tuple[BaseProcess, Connection[Any, Any]]:
        here, there = self.spawn.Pipe()
        process = self.spawn.Process(
            target=serve, args=(there, self.settings, self.devices[k]), daemon=True
        )
        with _one_thread_each():
            process.start()
        there.close()  # the process has its own; so this one hears when it ends
        return process, here

    def _event(self, k: int) -> Done | Died | None:
        try:
            answer = self.pipes[k].recv()
        except (EOFError, OSError):
            self.processes[k].join(SECONDS_TO_END)
            code = self.processes[k].exitcode
            if code == 1 and k not in self.begun:  # an error of Python, which it has printed
                raise VBRegError(
                    f"a worker's process ended with exit code 1 before it began: {MAIN_GUARD}, or "
                    "put right what it says above"
                ) from None
            killed = " (killed: out of memory?)" if code == -9 else ""
            return Died(k, f"its process ended with exit code {code}{killed}")
        if answer is None:
            self.begun.add(k)
            return None
        if isinstance(answer, str):
            raise VBRegError(answer)
        return Done(k, answer)


def serve(pipe: Connection[Any, Any], settings: BatchSettings, device: str) -> None:
    """Answer chunks with results until the other end is closed, after a first None.

    It runs in a worker's process.
    """
    Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    try:
        pipe.send(None)
        worker = open_worker(settings, device)
        while True:
            pipe.send(worker(pipe.recv()))
    except VBRegError as error:  # of the start, since rows raise none
        pipe.send(str(error))
    except (EOFError, OSError, KeyboardInterrupt):
        return


def _end_with_parent() -> None:
    """End this worker when its parent is killed; its results would go nowhere."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Let processes that are started meanwhile compute with one thread."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
