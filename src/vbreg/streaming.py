"""Clouds in files that are too large for memory: read in blocks, thinned while they are read.

The file is read once to find out where its points lie, and once for every voxel size that is asked
for (two of them, the points and their finer detail, in one go). Memory holds a block of points, the
voxels and a sample; the voxels are those of the whole cloud.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vbreg import io
from vbreg.clouds import VoxelMeans
from vbreg.frames import (
    LocalCloud,
    check_count,
    stray_limit,
    warn_of_strays,
)
from vbreg.inputs import Cloud, Ignore, ignored_points
from vbreg.types import Float64

MIN_STREAMED_BYTES = 1 << 27  # of a file; a smaller one is read as a whole
MAX_SAMPLE = 1 << 20  # points that tell the scale of a cloud, its viewpoint and its strays


def local_cloud(cloud: Cloud, role: str, ignore: Ignore | None = None) -> LocalCloud:
    """Move a user's cloud to its middle; a large file is thinned while it is read.

    Points to ignore are told by a function, or by a mask, for which the whole file is read.
    """
    if isinstance(cloud, str | os.PathLike) and (ignore is None or callable(ignore)):
        path = Path(cloud)
        if is_large(path):
            return StreamedCloud.of_file(path, role, ignore)
    return LocalCloud.of(cloud, role, ignore)


def is_large(path: Path) -> bool:
    """Tell whether a file is read in blocks: it is large, and its format allows it."""
    try:
        size = path.stat().st_size
    except (OSError, ValueError):  # reading it tells what is wrong
        return False
    return size >= MIN_STREAMED_BYTES and io.streams(path)


@dataclass(frozen=True, eq=False)
class StreamedCloud(LocalCloud):
    """A cloud that stays in its file. Its `points` are an even sample of all."""

    path: Path
    role: str
    ignore: Ignore | None
    factors: Float64  # (3,) that the coordinates in the file are multiplied by
    low: Tensor  # (3,) float32: the least coordinates of all points, about the origin
    high: Tensor  # (3,) the largest
    stray: tuple[Float64, float] | None  # the middle (3,), and how far from it points count
    ignored: int  # of the points read

    @staticmethod
    def of_file(path: Path, role: str, ignore: Ignore | None = None) -> StreamedCloud:
        """Look through a file once; points are left out as `LocalCloud.of` says."""
        found = _look(path, role, ignore, None)
        stray = stray_limit(found.sample, found.low, found.high)
        if stray is not None:
            every = len(found)
            found = _look(path, role, ignore, stray)
            if len(found) < every:
                warn_of_strays(every - len(found), found.read, role)
        check_count(len(found), found.read, found.ignored, role)
        origin = found.total / len(found)
        low, high, sample = (
            torch.from_numpy((part - origin).astype(np.float32))
            for part in (found.low, found.high, found.sample)
        )
        dropped = found.read - len(found) - found.ignored
        held = sample, origin, found.read, dropped
        return StreamedCloud(*held, path, role, ignore, np.ones(3), low, high, stray, found.ignored)

    def thinned(self, sizes: Sequence[float], device: torch.device | None = None) -> list[Tensor]:
        """Read the file, and return one point (M, 3) a voxel, of every voxel size."""
        grids = [VoxelMeans(size, self.low, self.high) for size in sizes]
        for block, _, _ in _kept(self.path, self.role, self.ignore, self.stray):
            local = torch.from_numpy((block * self.factors - self.origin).astype(np.float32))
            for grid in grids:
                grid.add(local)
        return [grid.points().to(device) for grid in grids]

    def multiplied(self, factors: Float64) -> StreamedCloud:
        """Return the cloud with each axis times its factor (3,), about the user's origin."""
        ends = torch.stack([self.low, self.high]) * torch.from_numpy(factors).float()
        return replace(
            self,
            points=self.points * torch.from_numpy(factors).to(self.points),
            origin=self.origin * factors,
            factors=self.factors * factors,
            low=ends.amin(0),
            high=ends.amax(0),
        )

    def without_lone_points(self, voxel_size: float, radius: float) -> LocalCloud:
        """Return the even sample of all points without its lone voxels, as a cloud in memory."""
        kept = super().without_lone_points(voxel_size, radius)
        share = (kept.dropped - self.dropped) / len(self.points)
        counted = self.count - self.dropped - self.ignored
        return replace(kept, dropped=self.dropped + round(share * counted))


class Looked:
    """What a look through a file tells of its points."""

    def __init__(self) -> None:
        self.read = self.ignored = self.kept = 0
        self.total, self.low, self.high = np.zeros(3), np.full(3, np.inf), np.full(3, -np.inf)
        self.sample, self.every = np.empty((0, 3)), 1

    def __len__(self) -> int:
        return self.kept

    def add(self, points: Float64, read: int, ignored: int) -> None:
        """Take in the points (n, 3) of a block that count."""
        self.read, self.ignored = self.read + read, self.ignored + ignored
        if not len(points):
            return
        first = -self.kept % self.every  # so that every so many-th of all is in the sample
        self.sample = np.concatenate([self.sample, points[first :: self.every]])
        while len(self.sample) > 2 * MAX_SAMPLE:
            self.sample, self.every = self.sample[::2].copy(), 2 * self.every
        self.kept += len(points)
        self.total = self.total + points.sum(axis=0)
        self.low = np.minimum(self.low, points.min(axis=0))
        self.high = np.maximum(self.high, points.max(axis=0))


def _look(
    path: Path,
    role: str,
    ignore: Ignore | None,
    stray: tuple[Float64, float] | None,
) -> Looked:
    found = Looked()
    for block, read, ignored in _kept(path, role, ignore, stray):
        found.add(block, read, ignored)
    return found


def _kept(
    path: Path,
    role: str,
    ignore: Ignore | None,
    stray: tuple[Float64, float] | None,
) -> Iterator[tuple[Float64, int, int]]:
    """Yield the points of each block that count, how many were read, and how many ignored."""
    for block in io.read_blocks(path):
        kept = block[np.isfinite(block).all(axis=1)]
        ignored = 0
        if ignore is not None:
            mask = ignored_points(ignore, kept, role)
            kept, ignored = kept[~mask], int(mask.sum())
        if stray is not None:
            with np.errstate(over="ignore"):
                kept = kept[np.linalg.norm(kept - stray[0], axis=1) <= stray[1]]
        yield kept, len(block), ignored
