"""Clouds that are kept: each described once, within a limit, and never an old one."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch

from vbreg import io
from vbreg.batch.cache import CloudCache
from vbreg.descriptors import descriptor_named
from vbreg.frames import LocalCloud
from vbreg.matching import describe
from vbreg.scale import Scale

OPTIONS = {"descriptor": descriptor_named("fpfh"), "device": torch.device("cpu")}


def test_a_cloud_is_described_once_a_scale_and_viewpoint(table: Path) -> None:
    cache, path = CloudCache(2**30), str(table.parent / "0.ply")
    for size in (0.1, 0.1, 0.2):
        for viewpoint in ("unknown", "unknown", np.zeros(3), (0.0, 0.0, 0.0)):
            found = cache.describe(cache.cloud(path), Scale(size), viewpoint=viewpoint, **OPTIONS)
            alone = describe(path, Scale(size), viewpoint=viewpoint, **OPTIONS)
            assert torch.equal(found.descriptors, alone.descriptors)
    assert cache.read == 1
    assert cache.described == 4


def test_memory_is_bounded_and_the_last_used_stays(table: Path) -> None:
    paths = [str(table.parent / f"{k}.ply") for k in range(4)]
    one = LocalCloud.of(paths[0], "a cloud").points.nbytes
    cache = CloudCache(2 * one)
    for path in [*paths, paths[2], paths[3]]:
        cache.cloud(path)
        assert sum(held.bytes for held in cache.held.values()) <= 2 * one
        assert len(cache.files) == len(cache.held)
    assert cache.read == 4
    CloudCache(0).cloud(paths[0])  # one is always kept


def test_a_file_that_changed_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "cloud.ply"
    cache = CloudCache(2**30)
    for k in range(2):
        io.write(path, np.random.default_rng(k).random((50, 3)))
        os.utime(path, ns=(0, k))
        cloud = cache.cloud(str(path))
    expected = LocalCloud.of(path, "a cloud")
    assert torch.equal(cloud.points, expected.points)
    assert cache.read == 2


def test_a_cloud_of_no_file_is_described(table: Path) -> None:
    cache = CloudCache(2**30)
    cloud = cache.cloud(str(table.parent / "0.ply")).multiplied(np.array([-1.0, 1, 1]))
    cache.describe(cloud, Scale(0.1), viewpoint="unknown", **OPTIONS)
    assert cache.described == 1
    assert not cache.held[next(iter(cache.held))].described
