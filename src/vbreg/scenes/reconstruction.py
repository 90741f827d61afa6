"""The recipe: scans in no order -> plausible pairs -> their poses -> graph -> poses in one frame.

    result = vbreg.reconstruct("folder of scans", voxel_size=0.05)
    result.T_world_scan[result.component == 0]

Scans that nothing reliable joins to the others are components of their own: they are never put
into one frame by a guess.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch import nn

from vbreg import __version__, io, pretrained
from vbreg.backends import devices
from vbreg.descriptors import Descriptor, DescriptorChoice, descriptor_named
from vbreg.errors import VBRegError
from vbreg.inputs import Cloud
from vbreg.matching import DescribedCloud, describe
from vbreg.model import VBReg
from vbreg.registrar import usual_viewpoint
from vbreg.scale import PresetName, Scale
from vbreg.scenes.pairs import PairStore, scan_key
from vbreg.scenes.results import Reconstruction
from vbreg.scenes.retrieval import similarities
from vbreg.scenes.search import Progress, SceneSearch, pair_budget
from vbreg.scenes.sizes import KEPT, common_scale
from vbreg.streaming import local_cloud


def reconstruct(
    scans: str | Path | Sequence[Cloud],
    *,
    voxel_size: float | None = None,
    preset: PresetName | None = None,
    weights: str | Path | None = None,
    model: VBReg | None = None,
    descriptor: DescriptorChoice = "learned",
    device: str | torch.device = "auto",
    pair_share: float | None = None,
    refine: bool = True,
    work: str | Path | None = None,
    on_progress: Progress | None = None,
) -> Reconstruction:
    """Find the poses of scans of one place, in no order, or of several places.

    `scans` is a folder of files, or a list of what `register` takes. Pairs that look alike are
    registered, then those that the poses found so far suggest, some of them again: at most as many
    registrations as `pair_share` of all pairs; left out, a quarter, or 56 where that is more. With
    `refine`, overlapping scans are laid onto each other exactly at the end. `work` is a folder for
    results of pairs: the same call goes on where it was ended, and scans may be added; an estimated
    voxel size is kept there, too. The other
    options are those of `register`. `on_progress` is told a stage, how much of it is done and how
    much there is.
    """
    if pair_share is not None and not 0 < pair_share <= 1:
        raise VBRegError(
            f"pair_share {pair_share!r}: expected a share of all pairs, above 0 and at most 1"
        )
    clouds, names = _listed(scans)
    tell = on_progress or (lambda stage, done, total: None)
    if model is None:
        chosen = devices.choose_device(device)
        model = VBReg.from_pretrained(weights or pretrained.DEFAULT, device=chosen)
    elif weights is not None:
        raise VBRegError(f"weights {str(weights)!r} and a model: give one of them")
    compute = descriptor_named(descriptor)
    work = None if work is None else Path(work)
    scale, origin = common_scale(
        *(clouds, names, voxel_size, preset),
        work=work,
        on_sized=lambda done, total: tell("voxel size", done, total),
    )
    described, keys = _described(clouds, names, scale, compute, preset, model, tell)
    settings = {
        "voxel_size": scale.voxel_size,
        "vbreg": __version__,
        "network": _digest(model.network),
        "voting": asdict(model.voting),
        "judge": _digest(model.judge.network),
        "descriptor": [compute.name, compute.fingerprint],
        "preset": preset,
    }
    store = PairStore(work, settings, keys)
    similarity = similarities(described, lambda done: tell("compare", done, len(described)))
    search = SceneSearch(described, scale, model, store, similarity, tell)
    try:
        search.run(pair_budget(len(names), pair_share))
    except VBRegError as error:
        if work is None or origin != "kept":
            raise
        raise VBRegError(
            f"{error}; the voxel size {scale.voxel_size:g} is one that an earlier run estimated: "
            f"delete {work / KEPT} to estimate it anew, or give voxel_size"
        ) from error
    return replace(search.result(names, refine), size_origin=origin)


def scan_files(folder: str | Path) -> list[Path]:
    """Return the files of clouds in a folder, as `vbreg.io.cloud_files` does; at least two."""
    folder = Path(folder)
    if not folder.is_dir():
        raise VBRegError(f"{folder}: no such folder; give one that holds scans")
    files = io.cloud_files(folder)
    if len(files) < 2:
        endings = {row.ending for row in io.FORMATS if row.reads}
        raise VBRegError(
            f"{folder}: {len(files)} files of clouds; expected at least two, with one of the "
            f"endings {', '.join(sorted(endings))}"
        )
    return files


def _listed(scans: str | Path | Sequence[Cloud]) -> tuple[list[Cloud], list[str]]:
    """Return the scans, and names to call them by."""
    if isinstance(scans, str | Path):
        files = scan_files(scans)
        return list(files), [path.name for path in files]
    clouds = list(scans)
    if len(clouds) < 2:
        raise VBRegError(f"{len(clouds)} scans: expected at least two")
    paths = [isinstance(cloud, str | os.PathLike) for cloud in clouds]
    return clouds, [
        Path(str(cloud)).name if path else f"scan {k}"
        for k, (cloud, path) in enumerate(zip(clouds, paths, strict=True))
    ]


def _described(
    clouds: Sequence[Cloud],
    names: Sequence[str],
    scale: Scale,
    descriptor: Descriptor,
    preset: PresetName | None,
    model: VBReg,
    tell: Progress,
) -> tuple[list[DescribedCloud], list[str]]:
    """Read and describe every scan once; return them, and what tells them apart."""
    described, keys = [], []
    for k, (cloud, name) in enumerate(zip(clouds, names, strict=True)):
        local = local_cloud(cloud, name)
        found = describe(
            local,
            scale,
            descriptor=descriptor,
            viewpoint=usual_viewpoint(preset, local),
            device=model.device,
        )
        described.append(found)
        # A function has no fingerprint: what it says tells whether it is what it was.
        own = () if descriptor.fingerprint else (found.descriptors,)
        keys.append(scan_key(name, local.points, torch.from_numpy(local.origin), *own))
        tell("describe", k + 1, len(clouds))
    return described, keys


def _digest(network: nn.Module) -> str:
    """Return what tells the weights of a network from others."""
    digest = hashlib.sha256()
    for name, values in network.state_dict().items():
        digest.update(name.encode())
        digest.update(values.detach().cpu().double().numpy().tobytes())
    return digest.hexdigest()[:12]
