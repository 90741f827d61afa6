"""What a machine has: devices, their names, free memory, and how to wait for them."""

from __future__ import annotations

import contextlib
import ctypes
import os
from contextlib import AbstractContextManager
from copy import deepcopy
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import Lock, RLock
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from vbreg.errors import VBRegError

OutOfMemoryError = torch.cuda.OutOfMemoryError

MIN_CAPABILITY = (8, 0)  # of the first GPU that the kernels are made for
MIN_TRITON = 3  # major version
ASSUMED_FREE = 4 * 2**30  # bytes, where the system does not say
ENOUGH_FREE = (
    16 * 2**30
)  # of free bytes on a GPU: what torch holds in reserve need not be asked for
Network = TypeVar("Network", bound=nn.Module)

# Held while a run is recorded: a thread that waited for the whole GPU meanwhile would spoil it.
recording_lock = RLock()
_copying = Lock()
_copies: WeakKeyDictionary[nn.Module, dict[str, Any]] = WeakKeyDictionary()  # by device

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def choose_device(device: str | torch.device) -> torch.device:
    """Return the device of that name; 'auto' is the GPU where there is one, else the CPU."""
    if isinstance(device, bool) or not isinstance(device, str | torch.device | int):
        raise VBRegError(f"device {device!r}: expected 'auto', 'cpu', 'cuda' or 'cuda:N'")
    if str(device) == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise VBRegError(
            f"device {device!r}: expected 'auto', 'cpu', 'cuda' or 'cuda:N'"
        ) from error
    if chosen.type not in ("cpu", "cuda"):
        raise VBRegError(
            f"device {str(device)!r}: vbreg runs on 'cpu' and 'cuda'; use one of these"
        )
    if is_gpu(chosen) and (chosen.index or 0) >= torch.cuda.device_count():
        raise VBRegError(
            f"device {str(device)!r}: this torch sees {torch.cuda.device_count()} GPUs; "
            "use 'cpu' or 'auto'"
        )
    return chosen


def is_cpu(device: torch.device) -> bool:
    """Tell whether tensors of the device lie in the memory of the host."""
    return device.type == "cpu"


def chunk_size(device: torch.device, *, cpu: int, gpu: int) -> int:
    """Return how many things to work on at a time: what fits a CPU's cache, or fills a GPU."""
    return gpu if is_gpu(device) else cpu


def is_gpu(device: torch.device) -> bool:
    """Tell whether the device is a GPU that torch reaches through CUDA."""
    return device.type == "cuda"


def network_on(network: Network, device: torch.device) -> Network:
    """Return a network on a device: itself where it lies there, else a copy that is made once.

    The network stays where it is, so that threads may ask for it on several devices. It is for
    networks that are no longer trained.
    """
    if next(network.parameters()).device == device:
        return network
    with _copying:
        copies = _copies.setdefault(network, {})
        if str(device) not in copies:
            with torch.inference_mode(False):  # else nobody could train the copy
                copies[str(device)] = deepcopy(network).to(device)
        found: Network = copies[str(device)]
        return found


def device_name(device: torch.device) -> str:
    """Return the GPU's name, or 'cpu'."""
    return torch.cuda.get_device_name(device) if is_gpu(device) else "cpu"


@lru_cache(maxsize=16)
def runs_triton(device: torch.device) -> bool:
    """Tell whether Triton is installed and the device is a GPU that the kernels are made for."""
    try:
        major = int(version("triton").partition(".")[0])
    except (PackageNotFoundError, ValueError):
        return False
    return (
        is_gpu(device)
        and major >= MIN_TRITON
        and torch.version.hip is None
        and torch.cuda.get_device_capability(device) >= MIN_CAPABILITY
    )


def current(tensor: Tensor) -> AbstractContextManager[object]:
    """Make the GPU of the tensor the current one, where there are several."""
    return torch.cuda.device_of(tensor)


def can_record(device: torch.device) -> bool:
    """Tell whether work of the device can be recorded and replayed (CUDA graphs)."""
    return is_gpu(device)


def has_fused_optimizer(device: torch.device) -> bool:
    """Tell whether torch updates all weights on the device in one kernel."""
    return is_gpu(device)


def lowered_precision(device: torch.device, *, enabled: bool) -> torch.autocast:
    """Return a context in which torch computes products in bfloat16.

    It keeps no converted weights: these would outlive the recording of a CUDA graph.
    """
    return torch.autocast(device.type, torch.bfloat16, enabled=enabled, cache_enabled=False)


def of_process(device: torch.device, local_rank: int) -> tuple[torch.device, str]:
    """Return the device of one of several processes, and torch's name of their way to talk."""
    if not is_gpu(device):
        return device, "gloo"
    chosen = torch.device("cuda", local_rank)
    torch.cuda.set_device(chosen)
    return chosen, "nccl"


def wait(device: torch.device | None = None) -> None:
    """Return when a GPU has done all that it was given; without a device, when all GPUs have."""
    if not torch.cuda.is_initialized() or (device is not None and not is_gpu(device)):
        return
    with recording_lock:
        for each in [device] if device is not None else range(torch.cuda.device_count()):
            torch.cuda.synchronize(each)


def to_cpu(tensors: tuple[Tensor, ...]) -> list[Tensor]:
    """Copy tensors of one device to the CPU, waiting once for all of them."""
    moved = [tensor.to("cpu", non_blocking=True) for tensor in tensors]
    if is_gpu(tensors[0].device):
        torch.cuda.current_stream(tensors[0].device).synchronize()
    return moved


def free_memory(device: torch.device) -> int:
    """Return how many bytes are free on the device, what torch holds in reserve included."""
    if is_gpu(device):
        free, _ = torch.cuda.mem_get_info(device)
        if free > ENOUGH_FREE:  # the rest takes half a millisecond to ask for
            return free
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ASSUMED_FREE
    sizes = dict(line.split(":", 1) for line in lines)
    return int(sizes["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in sizes else ASSUMED_FREE


def start_peak(device: torch.device, *, give_back: bool = False) -> float | None:
    """Begin to watch the highest memory use; return the megabytes in use now, None if unknown.

    That is the allocator's on a GPU, and the process's on Linux, whose kernel keeps a mark of the
    highest that can be set back. With `give_back`, memory that the process holds but no longer uses
    is first returned to the system.
    """
    if is_gpu(device):
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device) / 2**20
    if give_back:
        with contextlib.suppress(OSError, AttributeError):  # glibc has it, others do not
            ctypes.CDLL("libc.so.6").malloc_trim(0)
    try:
        RESET.write_text("5", encoding="utf-8")
    except OSError:
        return None
    return _status("VmRSS:") if STATUS.exists() else None


def peak(device: torch.device) -> float:
    """Return the highest number of megabytes in use since `start_peak`."""
    if is_gpu(device):
        return torch.cuda.max_memory_allocated(device) / 2**20
    return _status("VmHWM:")


def _status(name: str) -> float:
    """Return the megabytes of a line of /proc/self/status, which counts in kB."""
    for line in STATUS.read_text(encoding="utf-8").splitlines():
        if line.startswith(name):
            return float(line.split()[1]) / 1024
    return float("nan")


def _cores() -> int:
    """Return how many cores this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)  # Linux alone has it
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def for_workers(device: str, workers: int | None) -> list[str]:
    """Return the device of every worker process on this machine.

    That is every GPU for 'auto' where there are some, or the one that is named; on a CPU, as many
    times 'cpu' as there are cores. `workers` go to the GPUs in turn.
    """
    chosen = choose_device(device)
    if not is_gpu(chosen):
        return ["cpu"] * (workers or _cores())
    if chosen.index is not None:
        return [str(chosen)] * (workers or 1)
    names = [f"cuda:{k}" for k in range(torch.cuda.device_count())]
    return [names[k % len(names)] for k in range(workers or len(names))]
