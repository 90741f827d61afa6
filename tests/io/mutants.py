"""Damaged files of every format: each is read or refused, in little memory and time.

`python -m tests.io.mutants 400` makes that many of each; the tests make a few.
"""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
from tests.io.test_formats import ENDINGS, VARIANTS, available, valid_file
from tests.io.test_ptx import HEAD

from vbreg import io
from vbreg.errors import VBRegError

EXTREMES = (0, 1, 255, 2**16 - 1, 2**31 - 1, 2**32 - 1, 2**63 - 1)
HEADER = 400  # bytes at the beginning that most damage is done to
SLOW = (".laz", ".e57")  # a process each, so that fewer are made


def mutant(rng: np.random.Generator, data: bytes) -> bytes:
    """The bytes cut off, cut out, added to, or changed in some places to chance or extremes."""
    kind = rng.integers(6)
    first, second = sorted(int(k) for k in rng.integers(0, len(data), 2))
    if kind == 0:
        return data[:first]
    if kind == 1:
        return data[:first] + data[second:]
    if kind == 2:
        return data[:first] + rng.bytes(int(rng.integers(1, 40))) + data[first:]
    changed = bytearray(data)
    for _ in range(rng.integers(1, 8)):
        at = int(rng.integers(len(data) if kind == 5 else min(HEADER, len(data))))
        width = int(rng.choice([1, 2, 4, 8]))
        value = int(rng.choice(EXTREMES)) if rng.random() < 0.3 else int(rng.integers(256))
        changed[at : at + width] = (value % 256**width).to_bytes(width, "little")
    return bytes(changed)


def try_all(each: int) -> list[str]:
    """Read mutants of every format; say which raised something else than our error."""
    rng = np.random.default_rng(0)
    seeds = {name: valid_file(name) for name in [*ENDINGS, *VARIANTS] if available(name)}
    seeds[".ptx"] = f"2\n1\n{HEAD}1 2 3 0.5 255 0 7\n0 0 0 0.5 0 0 0\n".encode()
    faults: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, data in seeds.items():
            path = Path(folder) / f"a{Path(name).suffix or name}"
            start = time.perf_counter()
            count = each if name not in SLOW else max(1, each // 10)
            for k in range(count):
                path.write_bytes(mutant(rng, data))
                try:
                    io.read(path)
                except VBRegError:
                    pass
                except Exception as error:
                    faults.append(f"{name}, mutant {k}: {type(error).__name__} {error}")
            print(f"{name:<16}{count:>6} mutants {time.perf_counter() - start:7.1f} s")
    return faults


def highest_memory() -> float:
    """The most gigabytes that this process or one that it started had."""
    import resource

    who = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
    unit = 2**30 if sys.platform == "darwin" else 2**20  # bytes there, kilobytes elsewhere
    return max(resource.getrusage(each).ru_maxrss for each in who) / unit


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    found = try_all(int(sys.argv[1]))
    print("\n".join(found))
    if sys.platform != "win32":
        print(f"most memory {highest_memory():.2f} GB")
        found += ["more than 1 GB"] if highest_memory() > 1 else []
    sys.exit(bool(found))
