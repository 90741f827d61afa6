"""Heavy work, one job at a time: others wait in a queue that has an end."""

from __future__ import annotations

import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Condition, Thread
from typing import Any, TypeAlias

from vbreg.errors import VBRegError

Stage: TypeAlias = Callable[[str], None]  # is told the name of each stage as it begins
Work: TypeAlias = Callable[[Stage], None]


class QueueFullError(VBRegError):
    """More jobs wait already than the queue holds."""


class CancelledError(Exception):
    """The user does not want the result of a job any more."""


@dataclass
class HeavyJob:
    """One piece of work and how far it is."""

    name: str
    work: Work
    ended: Callable[[], None]  # is called once the job is done, dropped or failed
    stage: str = "waiting"
    cancelled: bool = False
    started: float = field(default_factory=time.monotonic)

    def enter(self, stage: str) -> None:
        """Take note of a stage; raise where the job is not wanted any more."""
        if self.cancelled:
            raise CancelledError
        self.stage = stage


class Jobs:
    """A thread that does one job after the other, and what there is to tell about them."""

    def __init__(self, most_waiting: int) -> None:
        self.most_waiting = most_waiting
        self.changed = Condition()
        self.version = 0  # grows with every change
        self.error: str | None = None  # of the last job that ended
        self.failures = 0
        self._waiting: deque[HeavyJob] = deque()
        self._current: HeavyJob | None = None
        self._closed = False
        self._thread = Thread(target=self._run, name="vbreg-jobs", daemon=True)
        self._thread.start()

    def submit(self, name: str, work: Work, ended: Callable[[], None] = lambda: None) -> None:
        """Put a job at the end of the queue; raise where that is full.

        `ended` is called once the job is done or failed, and also where it never began.
        """
        with self.changed:
            if len(self._waiting) >= self.most_waiting:
                raise QueueFullError(
                    f"{len(self._waiting)} jobs are waiting already: wait for one to end, or cancel"
                )
            self._waiting.append(HeavyJob(name, work, ended))
            self.error = None
            self.touch()

    def cancel(self) -> None:
        """Drop what waits, and let the current job end at its next stage."""
        with self.changed:
            while self._waiting:
                self._waiting.popleft().ended()
            if self._current is not None:
                self._current.cancelled = True
            self.touch()

    def touch(self) -> None:
        """Tell those who wait that something is new; the caller holds `changed`."""
        self.version += 1
        self.changed.notify_all()

    def describe(self) -> dict[str, Any] | None:
        """Return what is done now; None where nothing is. The caller holds `changed`."""
        job = self._current or (self._waiting[0] if self._waiting else None)
        if job is None:
            return None
        seconds = time.monotonic() - job.started
        waiting = len(self._waiting) - (job is not self._current)
        return {"name": job.name, "stage": job.stage, "seconds": seconds, "waiting": waiting}

    def close(self, seconds: float = 5.0) -> None:
        """Take no more jobs, and wait a while for the current one to end."""
        self.cancel()
        with self.changed:
            self._closed = True
            self.touch()
        self._thread.join(seconds)

    def _run(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                job = self._current = self._waiting.popleft()
                job.started = time.monotonic()
                self.touch()
            error = self._outcome(job)
            with self.changed:
                self._current = None
                if error is not None:
                    self.error = error
                    self.failures += 1
                self.touch()

    def _outcome(self, job: HeavyJob) -> str | None:
        """Do a job; return what went wrong, in a line."""

        def enter(stage: str) -> None:
            with self.changed:
                job.enter(stage)
                self.touch()

        try:
            enter("start")
            job.work(enter)
        except CancelledError:
            return None
        except (VBRegError, OSError) as error:
            return str(error) or type(error).__name__
        except MemoryError:
            return "there is not enough free memory for this: take a larger voxel size, or crop"
        except Exception as error:  # a fault of ours ends the job, not the server
            traceback.print_exc(file=sys.stderr)
            return f"a fault of vbreg: {type(error).__name__}: {error}; please report it"
        finally:
            job.ended()
        return None
