"""The one seam for hardware: the steps that exist in more than one form, and who chooses the form.

The science (`network`, `compatibility`, `voting`, `estimation`, `alignment`) is written once, in
torch, for any device. A backend is a `Backend`: the same few functions, each either that readable
form or a quicker one with the same answer.

| backend | runs on | what it is |
|---|---|---|
| `plain` | any device | calls the science as it stands; every other form is tested against it |
| `cpu` | a CPU | maps in pieces that stay in the cache, sparse arithmetic, a k-d tree |
| `triton` | an NVIDIA GPU | kernels, and a recording of the whole run |

Nobody else asks what a device is: `devices` tells what a machine has, `neighbors` searches points.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, TypeVar, get_args

from vbreg.errors import VBRegError, warn

if TYPE_CHECKING:
    import torch

    from vbreg.backends.plain import Backend
    from vbreg.types import BackendUsed

BackendName = Literal["auto", "plain"]
VARIABLE = "VBREG_BACKEND"  # of the environment: `plain` asks a whole process for plain torch

T = TypeVar("T")
_failed: set[str] = set()  # names of backends that did not run in this process


def choose(device: torch.device, wanted: BackendName = "auto") -> Backend:
    """Return the quickest backend that runs on tensors of `device`, or the plain one if wanted."""
    if wanted not in get_args(BackendName):
        choices = ", ".join(map(repr, get_args(BackendName)))
        raise VBRegError(f"backend {wanted!r}: expected one of {choices}")
    from vbreg.backends.devices import is_cpu, runs_triton

    asked = os.environ.get(VARIABLE, "auto")
    if asked not in get_args(BackendName):
        raise VBRegError(f"{VARIABLE} is {asked!r} in the environment: expected 'auto' or 'plain'")
    name = "cpu" if is_cpu(device) else "triton" if runs_triton(device) else "plain"
    if wanted == "plain" or asked == "plain" or name in _failed:
        name = "plain"
    return _load(name)


@lru_cache(maxsize=3)
def _load(name: str) -> Backend:
    """Import the file of a backend, which may need packages that others do without."""
    if name == "cpu":
        from vbreg.backends.cpu import CPUBackend

        return CPUBackend()
    if name == "triton":
        from vbreg.backends.triton import TritonBackend

        return TritonBackend()
    from vbreg.backends.plain import Backend

    return Backend()


def for_training(device: torch.device, *, quick: bool) -> Backend:
    """Return a backend whose steps carry gradients; the quick one where the device has it.

    Its kernels do not round: training has a precision of its own. What fails in training is an
    error; nothing takes over in the middle of a run.
    """
    from vbreg.backends.devices import runs_triton

    if not (quick and runs_triton(device)):
        return _load("plain")
    from vbreg.backends.triton import TritonBackend

    return TritonBackend(rounding=False)


def run(
    work: Callable[[Backend], T], device: torch.device, wanted: BackendName = "auto"
) -> tuple[T, BackendUsed]:
    """Return what `work` gives with the backend of the device, and that backend's name.

    Where a quick backend does not run on this machine (no C compiler for Triton, too little shared
    memory), plain torch takes over for the rest of the process, for every caller, with a warning.
    """
    from vbreg.backends.devices import OutOfMemoryError

    backend = choose(device, wanted)
    try:
        return work(backend), backend.name
    except (VBRegError, OutOfMemoryError, MemoryError):  # plain torch would do no better
        raise
    except Exception as error:
        if backend.name == "plain":
            raise
        result = work(_load("plain"))  # what fails here, too, is no fault of the backend
        _failed.add(backend.name)
        warn(
            f"vbreg's backend '{backend.name}' does not run here, so that plain torch is used, "
            f"which is slower ({VARIABLE}=plain in the environment asks for it from the start): "
            f"{type(error).__name__}: {error}"
        )
        return result, "plain"
