"""Where the places come from that are trained on: the simulator, meshes, real scans."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Generic

import numpy as np

from vbreg.datasets.folder import posed_clouds
from vbreg.datasets.poses import inverse_pose
from vbreg.errors import VBRegError
from vbreg.scale import Scale
from vbreg.simulator.places import MESH, PLACE_KINDS, make_place
from vbreg.training.ready_places import (
    DETAILED,
    MIN_OVERLAP,
    C,
    MakeReady,
    ReadyPlace,
    Scan,
    Trouble,
    ready_place,
    to_arrays,
)

FRAGMENTS, SCAN_PAIRS = "fragments", "scan_pairs"  # kinds beside the simulator's
GROUP = 8  # real scans of a place that are looked at together
HELD_OUT = 1 << 40  # the seed of the maker whose places are only looked at
MAX_SEED = 1 << 40  # of a place
# A mirrored scan looks right to whoever sees walls alone, so that many of them are needed.
TROUBLES: tuple[Trouble, ...] = (
    "mirrored",
    "mirrored",
    "mirrored",
    "wrong size",
    "wrong size",
    "noise",
)


@dataclass(frozen=True)
class PlacesConfig:
    """Kinds of places, drawn in proportion to their weights, and the folders of what is given."""

    kinds: tuple[str, ...] = ()
    weights: tuple[float, ...] = ()
    meshes: Path | None = None  # a folder of npz files with `vertices` and `faces`
    fragments: Path | None = None  # a folder of folders with clouds and poses.txt
    scan_pairs: Path | None = None  # npz files below it with `xyz0`, `xyz1` and `gt_trans`
    voxel_size: float | None = None  # of fragments; none given: that of the preset 'indoor'
    workers: int | None = None  # processes; none given: one less than there are cores
    held_out: int = 24  # places that are only looked at
    troubled: float = 0.0  # share of the places whose voxel size is wrong, or scans are spoilt
    min_overlap: float = MIN_OVERLAP  # of the pairs
    detailed: float = DETAILED  # share of the clouds whose finer points are seen

    def __post_init__(self) -> None:
        if len(self.kinds) != len(self.weights) or not self.kinds:
            raise ValueError(f"weights = {self.weights!r}: expected one for each of kinds")
        if not all(weight > 0 for weight in self.weights):
            raise ValueError(f"weights = {self.weights!r}: expected positive numbers")
        known = (*PLACE_KINDS, FRAGMENTS, SCAN_PAIRS)
        if unknown := [kind for kind in self.kinds if kind not in known]:
            raise ValueError(f"kinds = {unknown!r}: expected some of {', '.join(known)}")
        if self.voxel_size is not None and not self.voxel_size > 0:
            raise ValueError(f"voxel_size = {self.voxel_size!r}: expected a positive number")

    def below(self, folder: Path) -> PlacesConfig:
        """Return the same with its folders taken relative to a folder."""
        names = ("meshes", "fragments", "scan_pairs")
        given = {name: getattr(self, name) for name in names}
        return replace(self, **{k: v and folder / v for k, v in given.items()})


@dataclass(frozen=True)
class PlaceMaker(Generic[C]):
    """Makes place number k of a run; a worker process holds one."""

    places: PlacesConfig
    make_ready: MakeReady[C]
    seed: int = 0

    def __call__(self, k: int) -> ReadyPlace[C]:
        kind, seed, scans, scale = self.scans(k)
        place = ready_place(
            kind,
            scans,
            scale,
            seed,
            self.make_ready,
            trouble=self._trouble(k),
            min_overlap=self.places.min_overlap,
            detailed=self.places.detailed,
        )
        return to_arrays(place)

    def _trouble(self, k: int) -> Trouble | None:
        """Draw what is wrong with place number k, if anything is."""
        generator = np.random.default_rng([self.seed, k, 1])
        if generator.random() >= self.places.troubled:
            return None
        return TROUBLES[int(generator.integers(len(TROUBLES)))]

    def scans(self, k: int) -> tuple[str, int, list[Scan], Scale]:
        """Return kind, seed, scans and scale of place number k, before it is made ready."""
        generator = np.random.default_rng([self.seed, k])
        weights = np.array(self.places.weights)
        kind = self.places.kinds[int(generator.choice(len(weights), p=weights / weights.sum()))]
        seed = int(generator.integers(MAX_SEED))
        try:
            scans, scale = self._scans(kind, seed, generator)
        except Exception as error:
            what = f"place {k} of kind {kind!r} with seed {seed}"
            raise VBRegError(f"{what} failed: {error}") from error
        return kind, seed, scans, scale

    def _scans(
        self, kind: str, seed: int, generator: np.random.Generator
    ) -> tuple[list[Scan], Scale]:
        if kind == FRAGMENTS:
            scenes = _real_scenes(_given(self.places.fragments, kind))
            clouds = scenes[int(generator.integers(len(scenes)))]
            first = int(generator.integers(max(1, len(clouds) - 2 * GROUP)))
            near = clouds[first : first + 3 * GROUP]
            rows = generator.permutation(len(near))[:GROUP]
            size = self.places.voxel_size
            scale = Scale.of_preset("indoor") if size is None else Scale(size)
            return [near[row] for row in rows], scale
        if kind == SCAN_PAIRS:
            files = sorted(_given(self.places.scan_pairs, kind).rglob("*.npz"))
            with np.load(files[int(generator.integers(len(files)))], allow_pickle=False) as data:
                first, second, T = (data[k].astype(float) for k in ("xyz0", "xyz1", "gt_trans"))
            return [Scan(first, np.eye(4)), Scan(second, inverse_pose(T))], Scale.of_preset(
                "outdoor"
            )
        mesh = None
        if kind == MESH:
            meshes = sorted(_given(self.places.meshes, kind).glob("*.npz"))
            mesh = meshes[int(generator.integers(len(meshes)))]
        place = make_place(kind, seed, mesh=mesh)
        scans = [
            Scan(scan.points.astype(float), scan.T_world_scan, scan.viewpoint)
            for scan in place.scans
        ]
        return scans, Scale(place.voxel_size)


def _given(folder: Path | None, kind: str) -> Path:
    if folder is None or not folder.is_dir():
        raise VBRegError(f"kind {kind!r} is asked for, but its folder is {folder}: name one")
    return folder


@lru_cache(maxsize=2)
def _real_scenes(folder: Path) -> list[list[Scan]]:
    folders = [path.parent for path in sorted(folder.glob("*/poses.txt"))]
    found = [[Scan(*cloud) for cloud in posed_clouds(path)] for path in folders]
    if not found:
        raise VBRegError(f"no poses.txt in the folders of {folder}")
    return found
