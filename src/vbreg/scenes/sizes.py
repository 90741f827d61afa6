"""The one voxel size of many clouds: the one that is asked for, kept from before, or estimated."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from vbreg.clouds import estimate_voxel_size
from vbreg.errors import VBRegError
from vbreg.inputs import Cloud
from vbreg.io import atomic_path
from vbreg.scale import PresetName, Scale
from vbreg.scenes.pairs import scan_key
from vbreg.streaming import local_cloud

MAX_SIZED = 12  # clouds that the voxel size is estimated from
KEPT = "voxel_size.json"  # in the folder for results of pairs

# Asked for (also by a preset), estimated by this run, or kept from an earlier one.
SizeOrigin: TypeAlias = Literal["given", "estimated", "kept"]


def common_scale(
    clouds: Sequence[Cloud],
    names: Sequence[str],
    voxel_size: float | None,
    preset: PresetName | None,
    *,
    work: Path | None = None,
    on_sized: Callable[[int, int], object] = lambda done, total: None,
) -> tuple[Scale, SizeOrigin]:
    """Return the given scale, or the middle one of those that suit some of the clouds.

    In the folder `work` an estimate is kept, so that clouds may be added without another size. It
    holds while most of the clouds that it was estimated from are what they were.
    """
    if voxel_size is not None:
        return Scale(voxel_size), "given"
    if preset is not None:
        return Scale.of_preset(preset), "given"
    known = None if work is None else _kept(work / KEPT, clouds, names)
    if known is not None:
        return known, "kept"
    some = range(0, len(clouds), -(-len(clouds) // MAX_SIZED))
    sizes, keys = [], []
    for k in some:
        local = local_cloud(clouds[k], f"cloud {names[k]}")
        sizes.append(estimate_voxel_size(local.points, local.points))
        keys.append(scan_key(names[k], local.points))
        on_sized(len(sizes), len(some))
    scale = Scale(float(f"{np.median(sizes):.1e}"))
    if work is not None:
        work.mkdir(parents=True, exist_ok=True)
        with atomic_path(work / KEPT) as temporary:
            said = {"voxel_size": scale.voxel_size, "scans": keys}
            temporary.write_text(json.dumps(said) + "\n", encoding="utf-8")
    return scale, "estimated"


def _kept(path: Path, clouds: Sequence[Cloud], names: Sequence[str]) -> Scale | None:
    """Return the scale that was estimated before; None where it was not, or of other scans."""
    if not path.is_file():
        return None
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        scale, keys = Scale(said["voxel_size"]), set(map(str, said["scans"]))
    except (ValueError, TypeError, LookupError, VBRegError) as error:
        raise VBRegError(
            f"{path}: no voxel size in it ({type(error).__name__}: {error}); delete it, or give "
            "voxel_size"
        ) from error
    known = {key.rpartition(" ")[0] for key in keys}
    unchanged = {
        scan_key(name, local_cloud(cloud, f"cloud {name}").points)
        for cloud, name in zip(clouds, names, strict=True)
        if name in known
    }
    return scale if 2 * len(keys & unchanged) > len(keys) else None
