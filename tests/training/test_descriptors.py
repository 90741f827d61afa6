"""FPFH of the clouds behind match sets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests.training.helpers import CPU, bumpy, match_sets
from vbreg.datasets import matches
from vbreg.datasets.matches import INDOOR, write_shard
from vbreg.training import TrainConfig
from vbreg.training import descriptors as cloud_descriptors
from vbreg.training.batches import read_folder
from vbreg.training.descriptors import CloudDescriptors, clouds_of, fpfh_sets


def likeness(a: torch.Tensor, b: torch.Tensor) -> float:
    """The mean cosine between rows."""
    return float((F.normalize(a.float(), dim=-1) * F.normalize(b.float(), dim=-1)).sum(-1).mean())


def test_stored_clouds_are_described_as_they_were(described: TrainConfig) -> None:
    """A shard rounds points to a millimetre, the table descriptors to half precision."""
    sets = read_folder(described.data.shards[0], "fpfh")
    clouds = CloudDescriptors(clouds_of(sets), CPU)
    assert clouds.table.shape == (sum(len(s) + len(s.target_cloud) for s in sets), 33)
    for k, match_set in enumerate(sets):
        source, target = clouds.of(match_set)
        assert likeness(source, bumpy(k).descriptors) > 0.98
        assert likeness(source, target) > 0.98  # nearest to each other


def test_a_thinned_source_is_described_among_all_its_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the shard has its whole as another set's target; otherwise the set is left out."""
    monkeypatch.setattr(cloud_descriptors, "MAX_MATCHES", 60)
    whole, other = bumpy(0), bumpy(1)
    part, lost = matches.thinned(whole, 60), matches.thinned(bumpy(2), 60)
    stored = [
        matches.match_set(name, source, target, np.eye(4), 1.0, INDOOR)
        for name, source, target in (
            ("patch/0-1 fpfh", part, other),
            ("patch/2-1 fpfh", lost, other),
            ("patch/1-0 code 0.20", other, whole),
        )
    ]
    write_shard(tmp_path / "patch.npz", stored)
    (found,) = fpfh_sets(matches.read_shard(tmp_path / "patch.npz"))
    assert found.name == "patch/0-1 fpfh"
    np.testing.assert_array_equal(found.source_cloud[found.source_index], found.source)
    source, _ = CloudDescriptors(clouds_of([found]), CPU).of(found)
    assert likeness(source, part.descriptors) > 0.98


def test_a_cloud_is_described_once_for_all_sets(described: TrainConfig) -> None:
    """Sets of one shard share their clouds."""
    (first, second) = read_folder(described.data.shards[0], "fpfh")
    clouds = clouds_of([first, second, first])
    assert len(clouds) == 4
    assert {scale.inlier_threshold for _, scale in clouds} == {INDOOR.inlier_threshold}
    table = CloudDescriptors(clouds, CPU)
    for match_set in (first, second):
        ends = table.ends(match_set)
        assert ends.shape == (len(match_set), 2)
        for side, rows in zip(table.of(match_set), ends.T, strict=True):
            assert torch.equal(side, table.table[rows])


def test_descriptors_are_not_made_up_for_other_sets() -> None:
    with pytest.raises(AssertionError, match="for sets that `fpfh_sets` chose"):
        clouds_of(match_sets(1))
    assert fpfh_sets(match_sets(2)) == []
