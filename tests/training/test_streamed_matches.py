"""Batches of matches from places that arrive."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.training.helpers import NETWORK
from tests.training.test_ready_places import SCALE, scans, write_scene
from vbreg.errors import VBRegError
from vbreg.training import TrainConfig, train
from vbreg.training.config import DataConfig, read_config
from vbreg.training.journal import read_log
from vbreg.training.places import PlacesConfig
from vbreg.training.ready_places import DescribedScan, ReadyPlace, described, ready_place, to_arrays
from vbreg.training.stream import Stream
from vbreg.training.streamed_matches import StreamedMatches, held_out_sets, open_streamed_matches

CPU = torch.device("cpu")
PLACES = PlacesConfig(kinds=("fragments",), weights=(1.0,), workers=0, held_out=1)
DATA = DataConfig(
    places=PLACES,
    places_first=1,
    places_held=2,
    sizes=(64,),
    correspondences=256,
    jitter=0.0,
)


@pytest.fixture(scope="module")
def place() -> ReadyPlace[DescribedScan]:
    return to_arrays(ready_place("corner", scans(), SCALE, 0, described))


def sampler_of(place: ReadyPlace[DescribedScan]) -> StreamedMatches:
    return StreamedMatches(DATA, CPU, Stream(lambda k: place, workers=0))


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_keypoints_are_described_as_in_register(place: ReadyPlace[DescribedScan]) -> None:
    cloud = place.clouds[0]
    assert len(cloud.points) == len(cloud.normals) == len(cloud.fpfh)
    assert cloud.fpfh.shape[1] == 33
    assert cloud.learned.shape[1] == 64
    lengths = np.linalg.norm(np.asarray(cloud.learned, dtype=np.float32), axis=1)
    assert np.allclose(lengths[lengths > 0], 1.0, atol=1e-2)


def test_right_matches_move_as_one_body(place: ReadyPlace[DescribedScan]) -> None:
    """Labels are of the true pose: distances among inliers are kept, those of outliers are not."""
    sampler = sampler_of(place)
    for seed in range(6):  # both kinds of descriptors are among them
        batch = sampler.draw(64, seeded(seed))
        assert batch.source.shape == batch.target.shape == (4, 64, 3)
        for x, y, labels in zip(batch.source, batch.target, batch.labels, strict=True):
            difference = (torch.cdist(x, x) - torch.cdist(y, y)).abs()
            assert float(difference[labels][:, labels].max()) < 2.0
    assert 0.05 < float(batch.labels.float().mean()) < 0.95


def test_a_batch_follows_from_its_seed(place: ReadyPlace[DescribedScan]) -> None:
    sampler = sampler_of(place)
    one, same, other = (sampler.draw(64, seeded(seed)).source for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_matches_of_a_pair_are_each_drawn_once(place: ReadyPlace[DescribedScan]) -> None:
    ends = sampler_of(place).draw(64, seeded(3))
    rows = torch.cat([ends.source, ends.target], dim=-1)
    assert all(len(torch.unique(row, dim=0)) == 64 for row in rows)


def test_new_places_join_and_the_oldest_go(place: ReadyPlace[DescribedScan]) -> None:
    sampler = sampler_of(place)
    for _ in range(3):
        sampler.renew()
    assert len(sampler) == 4
    assert len(sampler.places) == 2
    assert len(sampler.pairs) == 2 * len(place.pairs)


def test_half_of_the_pairs_overlap_little(place: ReadyPlace[DescribedScan]) -> None:
    low = place.pairs[0]._replace(overlap=0.15)
    sampler = sampler_of(replace(place, pairs=(low, *place.pairs[1:])))
    assert sampler.weights.tolist() == [0.5, 0.25, 0.25]


def test_sets_to_look_at_have_both_kinds(place: ReadyPlace[DescribedScan]) -> None:
    found = held_out_sets(place)
    assert {s.name for s in found} == {"corner learned", "corner fpfh"}
    for s in found:
        T = s.T_target_source
        moved = s.source.astype(float) @ T[:3, :3].T + T[:3, 3]
        distance = np.linalg.norm(moved - s.target, axis=1)
        assert np.array_equal(distance < s.inlier_threshold, s.labels)
        assert s.labels.any()


def test_a_whole_run_from_scans_to_weights(tmp_path: Path) -> None:
    write_scene(tmp_path / "scans" / "corner", 2)
    data = replace(DATA, places=replace(PLACES, fragments=tmp_path / "scans"))
    config = TrainConfig(
        steps=2, precision="fp32", log_every=1, validate_every=2, data=data, network=NETWORK
    )
    assert train(config, tmp_path, quiet=True).exists()
    assert [record["step"] for record in read_log(tmp_path, "train")] == [1, 2]
    assert 0.0 <= read_log(tmp_path, "validation")[-1]["recall"] <= 1.0


def test_mistakes_are_told(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    places = "[data.places]\nkinds = ['mesh']\nweights = [1.0]\nmeshes = 'here'\n"
    path.write_text(places)
    found = read_config(path).data.places
    assert found is not None
    assert found.meshes == tmp_path / "here"
    path.write_text(f"[data]\nshards = ['x']\n{places}")
    with pytest.raises(VBRegError, match="none beside places"):
        read_config(path)
    nowhere = replace(DATA, places=replace(found, workers=0))
    with ExitStack() as stack, pytest.raises(VBRegError, match="name one"):
        open_streamed_matches(nowhere, CPU, 0, stack)
