"""Match sets to train on: what 1-NN matching makes of a pair, and which matches are right.

A shard keeps every cloud once, in whole hundredths of the inlier threshold (millimetres at 10 cm),
and a match as the index of the target point, so that a set of 4000 matches costs about 9 kB.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray

from vbreg.datasets.pairs import Pair
from vbreg.errors import FileFormatError, VBRegError
from vbreg.frames import LocalCloud
from vbreg.io import atomic_path
from vbreg.matching import DescribedCloud, describe, evenly, match_clouds
from vbreg.metrics import right_matches
from vbreg.scale import Scale
from vbreg.types import Bool, Float32, Float64, Int64

VERSION = 2
STEPS_PER_THRESHOLD = 100  # a shard keeps points in hundredths of the inlier threshold
MAX_MATCHES = 8000  # of a set to train on: larger sources are thinned
WAVES = 48  # of a `PlaceCode`
INDOOR = Scale.of_preset("indoor")  # of the matches that lie beside the 3DMatch fragments


@dataclass(frozen=True, eq=False)
class MatchSet:
    """Labelled matches: point n of the source matches `target_cloud[target_index[n]]`."""

    name: str
    source: Float32  # (N, 3) metres
    target_cloud: Float32  # (M, 3)
    target_index: Int64  # (N,)
    labels: Bool  # (N,) the match is right
    T_target_source: Float64  # (4, 4)
    overlap: float
    inlier_threshold: float = INDOOR.inlier_threshold  # metres

    @property
    def target(self) -> Float32:
        """The target ends (N, 3), row by row with `source`."""
        return self.target_cloud[self.target_index]

    @property
    def matched_by_fpfh(self) -> bool:
        """Whether FPFH alone matched it: scripts/make_training_matches.py ends the name so."""
        return self.name.endswith(" fpfh")

    def __len__(self) -> int:
        return len(self.source)


def described(points: Float64, scale: Scale) -> DescribedCloud:
    """Describe a cloud (N, 3) as `register` does, on the CPU, without its lone points."""
    cloud = describe(LocalCloud.of(points, "a cloud"), scale, descriptor="fpfh")
    return cloud.take(cloud.descriptors.any(-1).nonzero().squeeze(-1))


class PlaceCode:
    """Stands in for a learned descriptor where none may be used: it knows, roughly, the place.

    A learned descriptor tells corners of a room apart that look alike to FPFH, by context. Here
    random waves over the world's coordinates give that knowledge, more of it in some spots than in
    others, blurred anew for every cloud; `strength` (0 to 1) says how much of it joins FPFH. So
    matches get better the way learned ones are, and wrong ones still lead to what looks alike.
    """

    def __init__(self, generator: np.random.Generator, unit: float) -> None:
        """Draw the waves, whose lengths are multiples of `unit`, the voxel size."""
        length = unit * np.exp(generator.uniform(np.log(2), np.log(8), WAVES))
        self.waves = generator.normal(size=(3, WAVES)) / length
        self.phases = generator.uniform(0, 2 * np.pi, WAVES)
        self.spots = generator.normal(size=(3, 32)) / (8 * unit)
        self.spot_phases = generator.uniform(0, 2 * np.pi, 32)

    def join(
        self,
        cloud: DescribedCloud,
        T_world_cloud: Float64,
        strength: float,
        generator: np.random.Generator,
    ) -> DescribedCloud:
        """Return the cloud with descriptors that know the place as well."""
        world = cloud.in_user_frame() @ T_world_cloud[:3, :3].T + T_world_cloud[:3, 3]
        code = np.cos(world @ self.waves + self.phases)
        code += 0.5 * generator.normal(size=code.shape)
        distinct = np.sin(world @ self.spots + self.spot_phases).sum(-1, keepdims=True) / 4
        known = strength / (1 + np.exp(4 * (0.3 - distinct)))
        fpfh, code = (
            d / np.linalg.norm(d, axis=-1, keepdims=True).clip(1e-9)
            for d in (cloud.descriptors.numpy(), code)
        )
        joined = np.concatenate([(1 - known) * fpfh, known * code], axis=-1)
        return replace(cloud, descriptors=torch.from_numpy(joined.astype(np.float32)))


def match_set(
    name: str,
    source: DescribedCloud,
    target: DescribedCloud,
    T_target_source: Float64,
    overlap: float,
    scale: Scale,
) -> MatchSet:
    """Match two described clouds as `register` does, and label what is right."""
    matched = match_clouds(source, target, scale, max_matches=None)
    found = matched.correspondences
    right = right_matches(
        torch.from_numpy(found.source),
        torch.from_numpy(found.target),
        torch.from_numpy(T_target_source),
        scale.inlier_threshold,
    )
    return MatchSet(
        name,
        found.source.astype(np.float32),
        target.in_user_frame().astype(np.float32),
        matched.target_index.numpy(),
        right.numpy(),
        T_target_source,
        overlap,
        scale.inlier_threshold,
    )


def thinned(cloud: DescribedCloud, most: int) -> DescribedCloud:
    """Return at most `most` of the points, chosen evenly; described as they were among all."""
    return cloud if len(cloud) <= most else cloud.take(evenly(len(cloud), most))


def stored_folder(root: str | Path, name: str) -> Path:
    """Return where the matches of a descriptor are stored below the root of 3DMatch."""
    return Path(root) / f"{name}_matches"


def stored_matches(root: str | Path, name: str, benchmark: str, pair: Pair) -> MatchSet:
    """Read the matches of another descriptor that lie beside the 3DMatch fragments below `root`.

    `<name>_matches/<scene>_keypoints.npz` holds the keypoints of every fragment in whole
    millimetres; `<scene>_<benchmark>.npz` says, pair after pair, which target each source has.
    """
    folder = stored_folder(root, name)
    rows, keypoints = _stored_files(folder, pair.scene, benchmark)
    if pair.ids is None or pair.ids not in rows:
        raise FileFormatError(f"no stored matches of {pair.name} in {folder}")
    index = rows[pair.ids].astype(np.int64)
    source, target = (keypoints[k].astype(np.float32) / np.float32(1000) for k in pair.ids)
    source, T = source[: len(index)], pair.T_target_source
    right = right_matches(
        torch.from_numpy(source).double(),
        torch.from_numpy(target[index]).double(),
        torch.from_numpy(T),
        INDOOR.inlier_threshold,
    )
    overlap = np.nan if pair.overlap is None else pair.overlap
    return MatchSet(
        pair.name, source, target, index, right.numpy(), T, overlap, INDOOR.inlier_threshold
    )


@lru_cache(maxsize=2)  # pairs come scene by scene
def _stored_files(
    folder: Path, scene: str, benchmark: str
) -> tuple[dict[tuple[int, int], NDArray[np.uint16]], dict[int, NDArray[np.int16]]]:
    files = folder / f"{scene}_{benchmark}.npz", folder / f"{scene}_keypoints.npz"
    for file in files:
        if not file.exists():
            raise FileFormatError(f"no stored matches: looked for {file.absolute()}")
    with np.load(files[0], allow_pickle=False) as data:
        groups = np.split(data["target_index"], np.cumsum(data["count"])[:-1])
        rows = {(int(i), int(j)): g for (i, j), g in zip(data["pairs"], groups, strict=True)}
    with np.load(files[1], allow_pickle=False) as data:
        keypoints = {int(name.removeprefix("cloud_bin_")): data[name] for name in data.files}
    return rows, keypoints


def write_stored_keypoints(folder: Path, scene: str, keypoints: Mapping[int, Float64]) -> None:
    """Write the keypoints (N, 3) of every fragment of a scene, in metres, by its number.

    `stored_matches` reads them, in whole millimetres.
    """
    file = folder / f"{scene}_keypoints.npz"
    whole = {f"cloud_bin_{k}": np.round(1000 * points) for k, points in keypoints.items()}
    for name, points in whole.items():
        if len(points) > np.iinfo(np.uint16).max + 1:
            raise VBRegError(f"{file}: {name} has {len(points)} keypoints, expected at most 65536")
        if np.abs(points).max(initial=0) > np.iinfo(np.int16).max:
            raise VBRegError(f"{file}: {name} reaches further than 32.767 m from its origin")
    arrays: dict[str, Any] = {name: points.astype(np.int16) for name, points in whole.items()}
    with atomic_path(file) as temporary:
        np.savez_compressed(temporary, **arrays)


def write_stored_rows(
    folder: Path, scene: str, benchmark: str, rows: Mapping[tuple[int, int], Int64]
) -> None:
    """Write which target keypoint each source keypoint of a pair has, by the numbers of both.

    `stored_matches` reads them; the source keypoints are the first of their fragment, in order.
    """
    largest = max((int(row.max(initial=0)) for row in rows.values()), default=0)
    if largest > np.iinfo(np.uint16).max:
        raise VBRegError(f"{scene}: a match leads to keypoint {largest}, expected at most 65535")
    with atomic_path(folder / f"{scene}_{benchmark}.npz") as temporary:
        np.savez_compressed(
            temporary,
            pairs=np.array(list(rows), dtype=np.int16).reshape(-1, 2),
            count=np.array([len(row) for row in rows.values()], dtype=np.int32),
            target_index=np.concatenate(list(rows.values())).astype(np.uint16),
        )


def write_shard(path: str | Path, sets: Sequence[MatchSet]) -> None:
    """Write one npz for many match sets; a cloud that several sets share is stored once."""
    stored: dict[bytes, int] = {}
    points: list[Float32] = []
    for cloud in (c for s in sets for c in (s.source, s.target_cloud)):
        if cloud.tobytes() not in stored:
            stored[cloud.tobytes()] = len(points)
            points.append(cloud)
    thresholds = np.array([s.inlier_threshold for s in sets])
    whole = np.round(
        np.concatenate(points).astype(np.float64) * (STEPS_PER_THRESHOLD / thresholds[0])
    )
    if (thresholds != thresholds[0]).any():
        raise VBRegError(f"{path}: a shard holds match sets of one inlier threshold")
    if np.abs(whole).max() > np.iinfo(np.int16).max:
        raise VBRegError(f"{path}: a shard holds clouds within 327 thresholds of their origin")
    if max(map(len, points)) > np.iinfo(np.uint16).max:
        raise VBRegError(f"{path}: a shard holds clouds of at most 65535 points")
    with atomic_path(path) as temporary:
        np.savez_compressed(
            temporary,
            version=np.array(VERSION),
            names=np.array([s.name for s in sets]),
            inlier_threshold=thresholds[0],
            points=whole.astype(np.int16),
            cloud_start=np.cumsum([0] + [len(p) for p in points]),
            clouds=np.array(
                [[stored[c.tobytes()] for c in (s.source, s.target_cloud)] for s in sets]
            ),
            target_index=np.concatenate([s.target_index for s in sets]).astype(np.uint16),
            labels=np.packbits(np.concatenate([s.labels for s in sets])),
            T_target_source=np.stack([s.T_target_source for s in sets]),
            overlap=np.array([s.overlap for s in sets], dtype=np.float32),
        )


class Shard(Sequence[MatchSet]):
    """The match sets of one file; the arrays of a set are put together when it is asked for."""

    def __init__(self, path: str | Path) -> None:
        if not Path(path).exists():
            raise FileFormatError(f"no shard of match sets: looked for {Path(path).absolute()}")
        with np.load(path, allow_pickle=False) as data:
            if "version" not in data or int(data["version"]) != VERSION:
                raise FileFormatError(f"{path} is not a shard of match sets, version {VERSION}")
            self.names: tuple[str, ...] = tuple(str(name) for name in data["names"])
            self.overlap: Float32 = data["overlap"]
            self._T: Float64 = data["T_target_source"]
            self.inlier_threshold = float(data["inlier_threshold"])
            points = data["points"].astype(np.float32) * np.float32(
                self.inlier_threshold / STEPS_PER_THRESHOLD
            )
            self._clouds = np.split(points, data["cloud_start"][1:-1])
            self._ends: Int64 = data["clouds"]
            counts = [len(self._clouds[source]) for source, _ in self._ends]
            cuts = np.cumsum(counts)
            self._index = np.split(data["target_index"].astype(np.int64), cuts[:-1])
            labels = np.unpackbits(data["labels"], count=int(cuts[-1])).astype(bool)
            self._labels = np.split(labels, cuts[:-1])

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, index: int) -> MatchSet: ...
    @overload
    def __getitem__(self, index: slice) -> list[MatchSet]: ...
    def __getitem__(self, index: int | slice) -> MatchSet | list[MatchSet]:
        if isinstance(index, slice):
            return [self[k] for k in range(*index.indices(len(self)))]
        source, target = (self._clouds[k] for k in self._ends[index])
        return MatchSet(
            self.names[index],
            source,
            target,
            self._index[index],
            self._labels[index],
            self._T[index],
            float(self.overlap[index]),
            self.inlier_threshold,
        )

    def __iter__(self) -> Iterator[MatchSet]:
        return (self[k] for k in range(len(self)))


def read_shard(path: str | Path) -> Shard:
    """Open the match sets of a file that `write_shard` wrote."""
    return Shard(path)
