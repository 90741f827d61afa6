"""Decoders that a damaged file can make take any memory or time, run in a process of their own.

The process has a limit of memory where the system has one (Linux), and a limit of time.
What it read comes back through a pipe: a line of JSON that lists the arrays, then their bytes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from vbreg.errors import FileFormatError
from vbreg.io.columns import problem
from vbreg.types import Float64, PointCloud

_SECONDS = 60.0  # that a decoder always has,
_BYTES_PER_SECOND = 200_000  # and what it reads at the least beyond
_POINTS = "points"
_SETTINGS = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def decode_in_child(path: Path, module: str, limit: int, size: int | None = None) -> PointCloud:
    """Run `decode(path)` of a module of vbreg.io in a process that gets `limit` bytes of memory.

    Its time follows from the size of the file, which is given where the path is no file's.
    """
    if not sys.executable:  # Python within another program: nothing to start
        return _decoder(module)(path)
    with _decoding(path, [module, str(path.absolute()), str(limit)], size) as pipe:
        return _receive(path, pipe, limit)


def blocks_from_child(path: Path, module: str, limit: int, rows: int) -> Iterator[Float64]:
    """Yield the points that `decode_blocks(path, rows)` of a module gives in another process."""
    if not sys.executable:
        yield from _block_decoder(module)(path, rows)
        return
    with _decoding(path, [module, str(path.absolute()), str(limit), str(rows)], None) as pipe:
        while len(block := _receive(path, pipe, limit).points):
            yield block


@contextmanager
def _decoding(path: Path, arguments: list[str], size: int | None) -> Iterator[IO[bytes]]:
    """Yield the pipe from a process that decodes a file; the process ends with the block."""
    size = path.stat().st_size if size is None else size
    seconds = _SECONDS + size / _BYTES_PER_SECOND
    package = str(Path(__file__).parents[2])
    search = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    process = subprocess.Popen(
        [sys.executable, "-m", "vbreg.io.child", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **_SETTINGS, "PYTHONPATH": search},
    )
    assert process.stdout is not None
    timer = _Timer(process, seconds)
    try:
        with timer, process.stdout as pipe:
            yield pipe
    except EOFError:
        reason = "needs too long" if timer.expired else "needs too much memory, or fails"
        raise problem(path, f"damaged data (its decoder {reason})", "a sound file") from None
    finally:
        with suppress(OSError):
            process.kill()
        process.wait()


class _Timer:
    """Ends the process when its time is up."""

    def __init__(self, process: subprocess.Popen[bytes], seconds: float) -> None:
        import threading

        self.expired = False
        self._process = process
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def _end(self) -> None:
        self.expired = True
        self._process.kill()

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()


def _receive(path: Path, pipe: IO[bytes], limit: int) -> PointCloud:
    """Return what the other process sends: a cloud, or the error that it met."""
    line = pipe.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    held = json.loads(line)
    if "error" in held:
        raise FileFormatError(held["error"])
    arrays: dict[str, NDArray[Any]] = {}
    total = 0
    for name, dtype, shape in held["arrays"]:
        array = np.empty(shape, dtype)
        total += array.nbytes
        if total > limit:
            raise problem(path, f"more than {limit} bytes of points", "fewer in such a file")
        view = memoryview(array.reshape(-1).view(np.uint8).data)
        while len(view):
            count = pipe.readinto(view)  # type: ignore[attr-defined]  # a buffered reader has it
            if not count:
                raise EOFError
            view = view[count:]
        arrays[name] = array
    return PointCloud(arrays.pop(_POINTS), {name[1:]: values for name, values in arrays.items()})


def _send(pipe: IO[bytes], cloud: PointCloud) -> None:
    arrays = {_POINTS: cloud.points} | {f".{name}": v for name, v in cloud.attributes.items()}
    listed = [(name, values.dtype.str, values.shape) for name, values in arrays.items()]
    pipe.write(json.dumps({"arrays": listed}).encode() + b"\n")
    for values in arrays.values():
        pipe.write(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)


def _decoder(module: str) -> Callable[[Path], PointCloud]:
    from vbreg.io import bags, e57, las, meshes

    return {"las": las, "e57": e57, "meshes": meshes, "bags": bags}[module].decode


def _block_decoder(module: str) -> Callable[[Path, int], Iterator[Float64]]:
    from vbreg.io import las

    return {"las": las}[module].decode_blocks


def _limit_memory(limit: int) -> None:
    """Let the process have so many bytes beyond those that it has now, where the system can."""
    if sys.platform != "linux":  # macOS takes the limit and does not keep it; Windows has none
        return
    import resource

    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
    most = pages * resource.getpagesize() + limit
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _main(module: str, path: str, limit: str, rows: str | None = None) -> None:
    # Libraries print as they like; what they say must not come between the arrays.
    with os.fdopen(os.dup(1), "wb") as pipe:
        os.dup2(2, 1)
        decode = _decoder(module)
        with suppress(OSError, ValueError):
            _limit_memory(int(limit))
        try:
            if rows is None:
                _send(pipe, decode(Path(path)))
            else:
                for block in _block_decoder(module)(Path(path), int(rows)):
                    _send(pipe, PointCloud(block))
                _send(pipe, PointCloud(np.empty((0, 3))))  # the end
        except FileFormatError as exc:
            pipe.write(json.dumps({"error": str(exc)}).encode() + b"\n")


if __name__ == "__main__":
    _main(*sys.argv[1:])
