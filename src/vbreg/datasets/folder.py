"""Any folder of clouds is read here whose poses are known, by `poses.txt` beside the files."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from scipy.spatial import cKDTree

from vbreg.datasets.pairs import Pair, PairEntry, PairSequence
from vbreg.datasets.poses import inverse_pose
from vbreg.datasets.reading import must_exist, read_points, read_poses
from vbreg.errors import FileFormatError, VBRegError
from vbreg.io.folders import POSES, cloud_files
from vbreg.types import Float64

OVERLAP_STRIDE = 4  # every fourth source point is enough to measure the overlap


def posed_clouds(folder: str | Path) -> list[tuple[Float64, Float64]]:
    """Read every cloud of the folder (see `vbreg.io.cloud_files`) with its T_world_cloud."""
    files, poses = files_and_poses(Path(folder))
    return [(read_points(file), T) for file, T in zip(files, poses, strict=True)]


def posed_pairs(
    folder: str | Path,
    min_overlap: float = 0.1,
    max_overlap: float = 1.0,
    radius: float = 0.05,
) -> PairSequence:
    """Return all pairs i < j of the folder's clouds that overlap enough.

    The overlap is measured here, once, and so every cloud is read: the share of the source's points
    (of every fourth) that have a target point within `radius`, in the unit of the clouds.
    """
    folder = Path(folder)
    files, poses = files_and_poses(folder)
    world = [_moved(read_points(file), T) for file, T in zip(files, poses, strict=True)]
    scene = folder.resolve().name
    entries = []
    for j, tree in enumerate([cKDTree(points) for points in world]):
        for i in range(j):
            overlap = _overlap(world[i], tree, radius)
            if min_overlap <= overlap <= max_overlap:
                T_j_i = inverse_pose(poses[j]) @ poses[i]
                load = partial(_load, files, scene, i, j, T_j_i, overlap)
                entries.append(PairEntry(f"{scene}/{i}-{j}", scene, load))
    return PairSequence(entries)


def files_and_poses(folder: Path, source: Path | None = None) -> tuple[list[Path], Float64]:
    """Return the clouds' files and their poses (K, 4, 4), as many of these as of those.

    The poses are those of the file `source`; left out, of `poses.txt` in the folder.
    """
    must_exist(folder, "a folder of clouds with poses")
    source = source or folder / POSES
    poses = read_poses(source)
    files = cloud_files(folder)
    if len(files) != len(poses):
        raise FileFormatError(
            f"{folder.absolute()}: {len(files)} clouds and {len(poses)} poses in {source}; "
            "expected a row for every cloud, in the order of the numbers in their names"
        )
    return files, poses


def _moved(points: Float64, T: Float64) -> Float64:
    """Return points (N, 3) under the pose T (4, 4)."""
    return np.asarray(points @ T[:3, :3].T + T[:3, 3])


def _overlap(source: Float64, target: cKDTree, radius: float) -> float:
    """Return the share of the source's points near the target; both lie in the world's frame."""
    if not (radius > 0 and np.isfinite(radius)):
        raise VBRegError(f"radius is {radius}: expected a positive length")
    if not len(source) or (source.min(0) > target.maxes + radius).any():
        return 0.0
    if (source.max(0) < target.mins - radius).any():  # apart at a glance
        return 0.0
    distance, _ = target.query(source[::OVERLAP_STRIDE], distance_upper_bound=radius)
    return float(np.isfinite(distance).mean())


def _load(files: list[Path], scene: str, i: int, j: int, T_j_i: Float64, overlap: float) -> Pair:
    """Read the two clouds of a pair."""
    source, target = read_points(files[i]), read_points(files[j])
    return Pair(f"{scene}/{i}-{j}", source, target, T_j_i, overlap, scene, (i, j))
