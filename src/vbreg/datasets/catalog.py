"""Every data set is opened here by its name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from vbreg.datasets.folder import posed_pairs
from vbreg.datasets.kitti import kitti
from vbreg.datasets.pairs import PairSequence
from vbreg.datasets.synthetic import synthetic
from vbreg.datasets.threedmatch import threedmatch, threedmatch_training
from vbreg.errors import VBRegError

WITH_ROOT: dict[str, Callable[..., PairSequence]] = {
    "3dmatch": partial(threedmatch, benchmark="3DMatch"),
    "3dlomatch": partial(threedmatch, benchmark="3DLoMatch"),
    "3dmatch-train": threedmatch_training,
    "kitti": kitti,
}
KINDS = (*WITH_ROOT, "synthetic")


def open_pairs(kind: str | Path, root: str | Path | None = None, **options: Any) -> PairSequence:
    """Open the pairs of a data set by its name (`KINDS`), or of a folder with `poses.txt`.

    `root` is where a data set lies; "synthetic" and a folder need none. The options are those of
    `threedmatch`, `threedmatch_training`, `kitti`, `synthetic` and `posed_pairs`. A folder that is
    called like a data set is opened as `./kitti`.
    """
    name = str(kind).lower()
    if name in WITH_ROOT:
        if root is None:
            raise VBRegError(f"{name} needs a root, the folder in which the data set lies")
        return _call(name, WITH_ROOT[name], root, options)
    if name == "synthetic":
        return _call(name, synthetic, None, options)
    if Path(kind).is_dir():
        return _call(str(kind), posed_pairs, kind, options)
    raise VBRegError(
        f"no data set {str(kind)!r}; choose from {', '.join(KINDS)}, or name a folder of clouds "
        f"with poses.txt (looked for {Path(kind).absolute()})"
    )


def _call(
    name: str, load: Callable[..., PairSequence], root: str | Path | None, options: dict[str, Any]
) -> PairSequence:
    """Call a loader with the options that it knows, and name those that it does not."""
    known = [
        p for p in inspect.signature(load).parameters if p not in ("root", "folder", "benchmark")
    ]
    if unknown := sorted(set(options) - set(known)):
        raise VBRegError(f"{name} has no options {unknown}; choose from {known}")
    return load(**options) if root is None else load(root, **options)
