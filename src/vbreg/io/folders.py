"""The clouds of a folder, in the order of the numbers in their names."""

from __future__ import annotations

import re
from pathlib import Path

from vbreg.io.formats import FORMATS
from vbreg.io.text import read_text

POSES = "poses.txt"  # beside the clouds of a folder, where these are known
ABOUT = (
    "readme",
    "license",
    "licence",
    "changelog",
)  # what names of texts about a folder begin with


def cloud_files(folder: Path) -> list[Path]:
    """List the files of a folder that `read` takes, cloud_2 before cloud_10.

    Left out are the poses, and texts about the folder such as readme.txt or LICENSE.txt.
    """
    endings = {row.ending for row in FORMATS if row.reads}
    files = (path for path in folder.iterdir() if path.suffix.lower() in endings)
    chosen = (path for path in files if path.is_file() and not _is_no_cloud(path))
    return sorted(chosen, key=lambda path: (natural_key(path.name), path.name))


def _is_no_cloud(path: Path) -> bool:
    """Tell whether a name is of something that lies beside clouds."""
    name = path.name.lower()
    about = name.startswith(ABOUT) and any(
        row.reader is read_text for row in FORMATS if row.ending == path.suffix.lower()
    )
    return about or path.name == POSES or name.startswith(".")


def natural_key(name: str) -> tuple[tuple[str, int], ...]:
    """Return a key that sorts cloud_2 before cloud_10."""
    return tuple((text, int(n or -1)) for text, n in re.findall(r"(\D*)(\d*)", name))
