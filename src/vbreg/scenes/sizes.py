"""The one voxel size of many clouds: the one that is asked for, kept from before, or estimated."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from vbreg.clouds import estimate_voxel_size
from vbreg.errors import VBRegError
from vbreg.inputs import Cloud
from vbreg.io import atomic_path
from vbreg.scale import PresetName, Scale
from vbreg.streaming import local_cloud

MAX_SIZED = 12  # clouds that the voxel size is estimated from
KEPT = "voxel_size.json"  # in the folder for results of pairs


def common_scale(
    clouds: Sequence[Cloud],
    names: Sequence[str],
    voxel_size: float | None,
    preset: PresetName | None,
    *,
    work: Path | None = None,
    on_sized: Callable[[int, int], object] = lambda done, total: None,
) -> Scale:
    """Return the given scale, or the middle one of those that suit some of the clouds.

    In the folder `work` an estimate is kept, so that clouds may be added without another size.
    """
    if voxel_size is not None:
        return Scale(voxel_size)
    if preset is not None:
        return Scale.of_preset(preset)
    known = None if work is None else _kept(work / KEPT, names)
    if known is not None:
        return known
    some = range(0, len(clouds), -(-len(clouds) // MAX_SIZED))
    sizes = []
    for k in some:
        points = local_cloud(clouds[k], f"cloud {names[k]}").points
        sizes.append(estimate_voxel_size(points, points))
        on_sized(len(sizes), len(some))
    scale = Scale(float(f"{np.median(sizes):.1e}"))
    if work is not None:
        work.mkdir(parents=True, exist_ok=True)
        with atomic_path(work / KEPT) as temporary:
            said = {"voxel_size": scale.voxel_size, "scans": list(names)}
            temporary.write_text(json.dumps(said) + "\n", encoding="utf-8")
    return scale


def _kept(path: Path, names: Sequence[str]) -> Scale | None:
    """Return the scale that was estimated before; None where it was not, or of other scans."""
    if not path.is_file():
        return None
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        return Scale(said["voxel_size"]) if set(said["scans"]) <= set(names) else None
    except (ValueError, TypeError, LookupError, VBRegError) as error:
        raise VBRegError(
            f"{path}: no voxel size in it ({type(error).__name__}: {error}); delete it, or give "
            "voxel_size"
        ) from error
