"""Workers on a cluster, through Ray (installed by vbreg[scale]): one actor a core, or one a GPU.

Clouds go by their paths, so every machine must see the same files, and have vbreg installed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch

from vbreg.batch.local import CHUNK_CPU, CHUNK_GPU, Died, Done
from vbreg.batch.rows import BatchSettings, PairRow
from vbreg.batch.tables import Row
from vbreg.batch.worker import Worker, open_worker
from vbreg.errors import MissingExtraError, VBRegError, warn

PATIENCE = 60  # seconds without any worker, after which that is told


def import_ray() -> ModuleType:
    """Import Ray."""
    try:
        import ray
    except ImportError:
        raise MissingExtraError("ray", "scale", "running on a cluster") from None
    module: ModuleType = ray
    return module


class OneThreadWorker:
    """A worker that computes with one thread, since there is one on every core."""

    def __init__(self, settings: BatchSettings, device: str) -> None:
        torch.set_num_threads(1)
        self.settings, self.device = settings, device
        self.worker: Worker | None = None  # opened by the first rows: only answers reach the user

    def solve(self, rows: Sequence[PairRow]) -> list[Row] | str:
        """Return the result of each row, or why the worker could not start."""
        try:
            self.worker = self.worker or open_worker(self.settings, self.device)
        except VBRegError as error:
            return str(error)
        return self.worker(rows)

    def process_id(self) -> int:
        """Return the number of the process on its machine."""
        return os.getpid()


class RayPool:
    """Actors of a cluster. One that is lost with its machine is made anew on another."""

    def __init__(
        self,
        settings: BatchSettings,
        *,
        address: str | None = None,
        workers: int | None = None,
        device: str = "auto",
    ) -> None:
        """Join the cluster at an address, or start Ray on this machine where none is given."""
        self.ray = ray = import_ray()
        self.settings = settings
        self.started = not ray.is_initialized()
        if self.started:
            ray.init(address=address, log_to_driver=False, include_dashboard=False)
        held = ray.cluster_resources()
        cpus = int(held.get("CPU", 0))
        gpus = 0 if device == "cpu" else int(held.get("GPU", 0))
        if device not in ("auto", "cpu", "cuda") or (device == "cuda" and not gpus):
            raise VBRegError(
                f"device {device!r} on a cluster with {gpus} GPUs: expected auto, cpu or cuda; "
                "Ray chooses which GPU a worker has"
            )
        self.device = "cuda" if gpus else "cpu"
        self.count = _count(workers, cpus, gpus)
        self.waiting: dict[Any, int] = {}  # the worker of every reference
        self.starting: set[int] = set()  # workers that have not answered yet
        self.told = False  # that none of them has
        self.actors = [self._start(worker) for worker in range(self.count)]

    @property
    def workers(self) -> int:
        """How many actors there are."""
        return self.count

    @property
    def chunk(self) -> int:
        """How many rows an actor takes at a time."""
        return CHUNK_CPU if self.device == "cpu" else CHUNK_GPU

    def process_id(self, worker: int) -> int:
        """Return the process of an actor on its machine, to look at it or to end it."""
        number: int = self.ray.get(self.actors[worker].process_id.remote())
        return number

    def ready(self, worker: int) -> bool:
        """Tell whether an actor has started: some wait while others use the cluster."""
        return worker not in self.starting

    def submit(self, worker: int, rows: Sequence[PairRow]) -> None:
        """Give a chunk to an actor."""
        self.waiting[self.actors[worker].solve.remote(list(rows))] = worker

    def wait(self) -> list[Done | Died]:
        """Return what actors found, and which were lost; nothing where one has started."""
        none_has = len(self.starting) == self.count and not self.told
        seconds = PATIENCE if none_has else None
        answered, _ = self.ray.wait(list(self.waiting), num_returns=1, timeout=seconds)
        if not answered:
            self._tell_of_waiting()
        events = [self._event(reference, self.waiting.pop(reference)) for reference in answered]
        return [event for event in events if event is not None]

    def restart(self, worker: int) -> None:
        """Make another actor, wherever the cluster has room."""
        self.actors[worker] = self._start(worker)

    def close(self) -> None:
        """End all actors, and Ray if it was started for them."""
        for actor in self.actors:
            self.ray.kill(actor)
        if self.started:
            self.ray.shutdown()

    def _start(self, worker: int) -> Any:
        # Lost actors come back through `restart`: only there is it known which row to suspect.
        options = {"num_cpus": 1, "num_gpus": int(self.device != "cpu"), "max_restarts": 0}
        actor = self.ray.remote(**options)(OneThreadWorker).remote(self.settings, self.device)
        self.starting.add(worker)
        self.waiting[actor.process_id.remote()] = worker  # answered as soon as it has started
        return actor

    def _event(self, reference: Any, worker: int) -> Done | Died | None:
        lost = self.ray.exceptions.RayActorError, self.ray.exceptions.OutOfMemoryError
        try:
            answer = self.ray.get(reference)
        except lost as error:
            return Died(worker, f"its actor was lost ({' '.join(str(error).split())[-300:]})")
        if worker in self.starting:
            self.starting.remove(worker)
            return None
        if isinstance(answer, str):
            raise VBRegError(answer)
        return Done(worker, answer)

    def _tell_of_waiting(self) -> None:
        self.told = True
        warn(
            f"no worker has started in {PATIENCE} seconds, since the cluster has no free cores or "
            "cannot start one (`ray status` tells): the run waits for the first"
        )


def _count(workers: int | None, cpus: int, gpus: int) -> int:
    """Return how many workers to start: a CPU each and, where there are any, a GPU each."""
    most = min(cpus, gpus) if gpus else cpus
    wanted = most if workers is None else workers
    if most < 1 or wanted > most:
        raise VBRegError(
            f"{max(1, wanted)} workers on a cluster with {cpus} CPUs and {gpus} GPUs that they may "
            f"use: expected at most {most}, a CPU and, if any, a GPU for each; ask for fewer, or "
            "add machines to the cluster"
        )
    return wanted
