"""One run writes an output at a time: another is refused while the first holds a lock beside it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vbreg.errors import VBRegError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

ENDING = ".lock"


@contextmanager
def sole_writer(output: Path) -> Iterator[None]:
    """Keep the lock of an output; raise where another run has it.

    The system frees a lock however its process ends: a file that a kill left says nothing.
    """
    path = output.with_name(output.name + ENDING)
    handle = _locked(path, output)
    try:
        yield
    finally:
        if sys.platform == "win32":  # what is open cannot be removed
            os.close(handle)
            with suppress(OSError):
                path.unlink()
        else:
            path.unlink(missing_ok=True)
            os.close(handle)


def _locked(path: Path, output: Path) -> int:
    """Return the lock file, open and locked."""
    while True:
        handle = _open(path)
        try:
            _lock(handle)
        except BlockingIOError:
            os.close(handle)
            raise VBRegError(
                f"another run is writing {output}: wait until it has ended, or choose another "
                "output"
            ) from None
        if not _removed(handle, path):
            return handle
        os.close(handle)  # its holder removed it between opening and locking


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise VBRegError(
            f"{path}: not writable ({error.strerror}); check the permissions of the folder, or "
            "choose another place for the output"
        ) from error


def _lock(handle: int) -> None:
    """Lock an open file, or raise where another one holds it."""
    if sys.platform == "win32":
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            raise BlockingIOError from error
    else:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            return  # a file system without locks: as good as it gets there


def _removed(handle: int, path: Path) -> bool:
    """Tell whether a locked file is no longer the one of that name."""
    if sys.platform == "win32":
        return False
    try:
        return not os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return True
