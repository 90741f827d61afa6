"""Micro-batches: what is drawn, and how it is moved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.training.helpers import CPU, KINDS, alone, match_sets, sampler_of
from vbreg.datasets.matches import write_shard
from vbreg.errors import VBRegError
from vbreg.training import TrainConfig
from vbreg.training.batches import Batch, MatchSampler, read_folder


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_augmentation_keeps_matches_what_they_are(config: TrainConfig) -> None:
    """Rotated, swapped and jittered, inliers still keep their mutual distances and outliers not.
    Sets of 0.1 m and 0.6 m look alike: both are in units of their threshold."""
    batch = sampler_of(config).draw_pairs(12, 80, seeded())
    for x, y, labels in zip(batch.source, batch.target, batch.labels, strict=True):
        difference = (torch.cdist(x, x) - torch.cdist(y, y)).abs()
        assert float(difference[labels][:, labels].max()) < 2.0
        assert float(difference[~labels][:, ~labels].median()) > 2.0


def test_batches_follow_from_their_seed(config: TrainConfig) -> None:
    def draw(seed: int) -> torch.Tensor:
        return sampler_of(config).draw(40, seeded(seed)).source

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))
    sizes = [sampler_of(config).size_of(seed) for seed in range(20)]
    assert sizes == [sampler_of(config).size_of(seed) for seed in range(20)]
    assert set(sizes) == {40, 60}


@pytest.mark.parametrize("size", [40, 60, 100])
def test_a_batch_holds_as_many_matches_whatever_its_size(config: TrainConfig, size: int) -> None:
    batch = sampler_of(config).draw(size, seeded())
    assert batch.labels.shape == (240 // size, size)
    assert batch.source.shape == batch.target.shape == (240 // size, size, 3)
    assert batch.labels.dtype == torch.bool


def test_the_share_of_inliers_varies(config: TrainConfig) -> None:
    batch = sampler_of(config).draw_pairs(64, 40, seeded())
    ratio = batch.labels.float().mean(-1)
    assert float(ratio.min()) < 0.25  # the sets have 0.3
    assert float(ratio.max()) > 0.6


def test_inliers_are_drawn_as_any_other_without_a_boost(config: TrainConfig) -> None:
    plain = replace(config, data=replace(config.data, inlier_boost=(1.0, 1.0)))
    labels = sampler_of(plain).draw_pairs(400, 40, seeded()).labels
    assert float(labels.float().mean()) == pytest.approx(0.3, abs=0.015)


def test_no_match_is_drawn_twice_where_there_are_enough(config: TrainConfig) -> None:
    rows = sampler_of(config)._choose_rows(16, 90, seeded())
    assert all(len(row.unique()) == 90 for row in rows)


def test_jitter_may_be_left_out(config: TrainConfig) -> None:
    """Then inliers of exact matches keep their distances to rounding."""
    still = replace(config.data, jitter=0.0)
    sets = [replace(s, target_cloud=s.source) for s in match_sets(2)]
    batch = MatchSampler([sets], still, CPU).draw_pairs(6, 50, seeded())
    x, y = batch.source.double(), batch.target.double()
    torch.testing.assert_close(torch.cdist(x, x), torch.cdist(y, y), atol=1e-3, rtol=1e-4)


def test_sources_are_drawn_by_weight(config: TrainConfig) -> None:
    sets = [match_sets(2), match_sets(1, first=5)]
    data = replace(config.data, weights=(1.0, 9.0))
    sampler = MatchSampler(sets, data, CPU)
    torch.testing.assert_close(sampler.weights, torch.tensor([0.5, 0.5, 9.0]))
    assert len(sampler) == 3


def test_sets_smaller_than_asked_repeat_their_own_rows(config: TrainConfig) -> None:
    sampler = MatchSampler([match_sets(2)], config.data, CPU)
    batch = sampler.draw_pairs(4, 300, seeded())
    assert batch.source.shape == (4, 300, 3)
    assert torch.isfinite(batch.source).all()
    large = sampler._choose_rows(8, 110, seeded())
    assert int(large.min()) >= 100  # only the second set has 110 rows


def test_descriptors_go_with_their_points(described: TrainConfig) -> None:
    """Whichever end comes first. Here a descriptor tells how far from the origin its point is,
    which no rotation changes."""
    config = replace(described, network=KINDS["feat"], data=replace(described.data, jitter=0.0))
    sampler = sampler_of(config)
    assert sampler.descriptors is not None
    length = sampler.points.unflatten(-1, (2, 3)).norm(dim=-1)  # (M, 2)
    sampler.descriptors.table[sampler.ends, 0] = length.half()
    batch = sampler.draw_pairs(16, 40, seeded())
    assert batch.descriptors is not None
    ends = batch.descriptors.unflatten(-1, (2, 33))[..., 0].unbind(-1)
    for points, told in zip((batch.source, batch.target), ends, strict=True):
        torch.testing.assert_close(points.norm(dim=-1), told, rtol=2e-3, atol=1e-3)


def test_a_batch_lists_what_it_holds_in_the_order_of_its_fields(config: TrainConfig) -> None:
    batch = alone(config).sampler.draw(40, seeded())
    assert batch.descriptors is None
    again = Batch(*batch.tensors())
    for name in ("source", "target", "labels"):
        assert getattr(again, name) is getattr(batch, name)
    described = replace(batch, descriptors=torch.zeros(6, 40, 66))
    assert described.tensors()[-1] is described.descriptors


def test_only_sets_that_fpfh_matched_are_read(described: TrainConfig) -> None:
    folder = described.data.shards[0]
    assert len(read_folder(folder)) == 4
    names = [s.name for s in read_folder(folder, "fpfh")]
    assert names == ["near/0-0 fpfh", "near/1-0 fpfh"]
    write_shard(folder / "one.npz", match_sets(2))
    with pytest.raises(VBRegError, match=r"no match set in .*near has a name that ends in ' fpfh'"):
        read_folder(folder, "fpfh")


def test_the_shards_of_a_folder_are_read_in_order(tmp_path: Path) -> None:
    for name, first in (("b", 2), ("a", 0)):
        write_shard(tmp_path / f"{name}.npz", match_sets(2, first=first))
    assert [s.name for s in read_folder(tmp_path)] == ["0", "1", "2", "3"]


def test_nothing_to_train_on_is_said(config: TrainConfig, tmp_path: Path) -> None:
    with pytest.raises(VBRegError, match=r"name folders of shards in data\.shards"):
        MatchSampler([], config.data, CPU)
    (tmp_path / "empty").mkdir()
    with pytest.raises(VBRegError, match=r"no shards \(\*\.npz\) of match sets in .*empty"):
        read_folder(tmp_path / "empty")
