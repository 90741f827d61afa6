"""The clouds of a folder, in the order of the numbers in their names."""

from __future__ import annotations

import re
from pathlib import Path

from vbreg.io.formats import FORMATS

POSES = "poses.txt"  # beside the clouds of a folder, where these are known


def cloud_files(folder: Path) -> list[Path]:
    """List the files of a folder that `read` takes, cloud_2 before cloud_10, without the poses."""
    endings = {row.ending for row in FORMATS if row.reads}
    files = (path for path in folder.iterdir() if path.suffix.lower() in endings)
    chosen = (p for p in files if p.is_file() and p.name != POSES and not p.name.startswith("."))
    return sorted(chosen, key=lambda path: (natural_key(path.name), path.name))


def natural_key(name: str) -> tuple[tuple[str, int], ...]:
    """Return a key that sorts cloud_2 before cloud_10."""
    return tuple((text, int(n or -1)) for text, n in re.findall(r"(\D*)(\d*)", name))
