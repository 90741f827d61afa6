"""How many matches can be solved at once."""

from __future__ import annotations

from pathlib import Path

import torch

from vbreg.network import NetworkConfig

FIXED = 3 * 2**28  # a map of all by all matches on a CPU, and some of some rows by all
UNKNOWN = 4 * 2**30  # taken to be free where the system does not say
PLENTY = 16 * 2**30
SHARE = 0.5  # of the free memory that is used
FEWEST = 2000  # matches, however little is free


def available_memory(device: torch.device) -> int:
    """Bytes that are free on the device, what torch holds in reserve included."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        if free > PLENTY:  # what torch holds takes half a millisecond to ask for
            return free
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return UNKNOWN
    sizes = dict(line.split(":", 1) for line in lines)
    return int(sizes["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in sizes else UNKNOWN


def most_matches(config: NetworkConfig, free: int) -> int:
    """That fit into their share of so many free bytes: features of all iterations and, in length 1,
    for the votes; what the branches carry; and what one iteration needs in passing."""
    features = 2 * config.iterations * config.width
    carried = 3 * (config.latent_width + config.hidden_width)
    passing = 14 * config.hidden_width + 12 * config.width
    bytes_each = 4 * (features + carried + passing)
    return max(FEWEST, int(SHARE * free - FIXED) // bytes_each)
