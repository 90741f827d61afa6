"""A judge learns from places to choose and to trust, and its numbers mean what they say."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.training.test_ready_places import SCALE, scans
from vbreg.descriptors.prepared import ThinnedCloud
from vbreg.geometry import rotation_angle
from vbreg.metrics import auroc, calibration_error
from vbreg.training import judge_batches, judge_loop
from vbreg.training.config import OptimizerConfig
from vbreg.training.descriptor_config import is_descriptor_config
from vbreg.training.judge_batches import RIGHT, RIGHT_IN_STREETS, JudgeBatches, draw_pairs
from vbreg.training.judge_loop import (
    Judged,
    JudgeRun,
    JudgeTrainConfig,
    fit_logits,
    is_judge_config,
    judge_loss,
    read_judge_config,
)
from vbreg.training.places import PlacesConfig
from vbreg.training.ready_places import (
    DescribedScan,
    ReadyPlace,
    described,
    ready_place,
    to_arrays,
    to_tensors,
)
from vbreg.verification.judge import load_judge
from vbreg.verification.network import JudgeConfig, Judgement

CPU = torch.device("cpu")
CONFIG = JudgeTrainConfig(
    pairs=3,
    candidates=4,
    looked_at=48,
    judge=JudgeConfig(pair_width=8, width=16, pose_width=16, layers=1),
    places=PlacesConfig(kinds=("room_camera",), weights=(1.0,)),
    optimizer=OptimizerConfig(warmup_steps=2, learning_rate=5e-3, ema=0.5),
)
CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.fixture(autouse=True)
def fewer_keypoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step matches a third of the points that it usually does."""
    monkeypatch.setattr(judge_batches, "KEYPOINTS", {"learned": (200, 400), "fpfh": (500,)})


@pytest.fixture(scope="module")
def place() -> ReadyPlace[DescribedScan]:
    return to_tensors(to_arrays(ready_place("corner", scans(), SCALE, 0, described)), CPU)


@pytest.fixture(scope="module")
def run(place: ReadyPlace[DescribedScan]) -> JudgeRun:
    run = JudgeRun(CONFIG, CPU)
    run.places.add(to_arrays(place))
    return run


def test_it_learns_and_is_saved(
    run: JudgeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge_loop, "VALIDATION_BATCHES", 2)
    first = [float(run.take_step()["total"]) for _ in range(3)]
    for _ in range(9):
        last = float(run.take_step()["total"])
    assert last < np.mean(first)
    found = run.validate(list(run.places.held))
    assert 0.0 <= found["first_right"] <= found["best_right"] <= 1.0
    assert found["recall"] <= found["best_right"]
    run.save(tmp_path)
    back = load_judge(tmp_path / "weights.safetensors").network
    torch.testing.assert_close(back.calibration, run.state.averaged.calibration)
    again = JudgeRun(CONFIG, CPU)
    again.state.resume(tmp_path, CONFIG)
    assert again.state.step == 12


def test_candidates_are_labelled_by_the_true_pose(
    run: JudgeRun, place: ReadyPlace[DescribedScan]
) -> None:
    choice = np.random.default_rng(1)
    drawn = draw_pairs([place], 3, choice)
    batch = JudgeBatches(run.batches.model, 4, 48)(drawn, choice, torch.Generator().manual_seed(0))
    assert batch.right.shape == (3, 4)
    assert bool(batch.right.any())  # corners that overlap nearly whole are found
    assert not bool((batch.right & ~batch.evidence.valid).any())


def test_scans_of_two_places_are_never_right(place: ReadyPlace[DescribedScan]) -> None:
    other = replace(place)
    choice = np.random.default_rng(0)
    drawn = draw_pairs([place, other], 60, choice)
    strangers = [pair for pair in drawn if pair.T_target_source is None]
    assert 1 <= len(strangers) <= 20
    assert not any(pair.usual for pair in strangers)


def test_what_is_right_depends_on_the_place(place: ReadyPlace[DescribedScan]) -> None:
    choice = np.random.default_rng(0)
    street = replace(place, kind="street_car")
    wrong_size = replace(place, unit=0.25)
    for given, within in (
        (place, RIGHT),
        (street, RIGHT_IN_STREETS),
        (wrong_size, (RIGHT[0], 0.25 * RIGHT[1])),
    ):
        assert draw_pairs([given], 1, choice)[0].within == within


def test_spoilt_scans_have_no_true_pose(place: ReadyPlace[DescribedScan]) -> None:
    spoilt = replace(place, genuine=(False, True, True))
    drawn = draw_pairs([spoilt], 40, np.random.default_rng(0))
    ends = [(id(pair.source), id(pair.target)) for pair in drawn]
    bad = id(place.clouds[0])
    assert all(
        (bad in pair) == (d.T_target_source is None) for pair, d in zip(ends, drawn, strict=True)
    )


def undescribed(cloud: ThinnedCloud, generator: torch.Generator) -> DescribedScan:
    """Points and normals alone, which are soon made."""
    none = torch.empty(0, 0)
    return DescribedScan(cloud.points / cloud.scale.voxel_size, cloud.normals, none, none)


@pytest.mark.parametrize("trouble", ["mirrored", "noise", "wrong size"])
def test_trouble_is_made(trouble: str) -> None:
    plain = ready_place("corner", scans(), SCALE, 1, undescribed)
    found = ready_place("corner", scans(), SCALE, 1, undescribed, trouble=trouble, min_overlap=0.0)  # type: ignore[arg-type]
    if trouble == "wrong size":
        assert found.unit != 1.0
        assert all(found.genuine)
        return
    assert found.unit == plain.unit == 1.0
    assert not all(found.genuine)
    R = torch.from_numpy(np.stack([pair.T_target_source[:3, :3] for pair in found.pairs]))
    proper = torch.linalg.det(R) > 0
    same = [found.genuine[p.source] == found.genuine[p.target] for p in found.pairs]
    assert proper.tolist() == (same if trouble == "mirrored" else [True] * len(same))
    assert rotation_angle(R[proper]).isfinite().all()


def said(choice: list[list[float]], trust: list[list[float]], right: list[bool]) -> Judged:
    """What a judge says; of the chosen ones, once refined, the same as before."""
    first = Judgement(torch.tensor(choice), torch.tensor(trust))
    chosen = first.choice.argmax(-1)
    again = first.trust.gather(1, chosen.unsqueeze(1)).squeeze(1)
    return Judged(first, chosen, again, torch.tensor(right))


def batch_of(right: list[list[bool]], shown: list[bool]) -> object:
    valid = torch.ones(len(right), len(right[0])).bool()

    class Batch:
        evidence = type("E", (), {"valid": valid})()

    made = Batch()
    made.right, made.shown = torch.tensor(right), torch.tensor(shown)  # type: ignore[attr-defined]
    return made


def test_the_loss_wants_the_right_one_chosen_and_trusted() -> None:
    batch = batch_of([[False, True], [False, False]], [False, False])
    good = judge_loss(
        said([[-4.0, 4.0], [0.0, 0.0]], [[-4.0, 4.0], [-4.0, -4.0]], [True, False]),
        batch,  # type: ignore[arg-type]
    )
    bad = judge_loss(
        said([[4.0, -4.0], [0.0, 0.0]], [[4.0, -4.0], [4.0, 4.0]], [False, False]),
        batch,  # type: ignore[arg-type]
    )
    assert float(good["total"]) < 0.1
    assert float(bad["total"]) > 10
    assert float(good["chosen_right"]) == 1.0


def test_no_trust_is_asked_where_the_truth_was_shown() -> None:
    batch = batch_of([[False, True]], [True])
    terms = judge_loss(said([[0.0, 9.0]], [[9.0, -9.0]], [True]), batch)  # type: ignore[arg-type]
    assert float(terms["trust"]) == float(terms["every"]) == 0.0


def test_logits_are_calibrated() -> None:
    generator = torch.Generator().manual_seed(0)
    true = 2 * torch.randn(20_000, generator=generator)
    right = torch.rand(20_000, generator=generator) < true.sigmoid()
    slope, offset = fit_logits((true + 1) / 3, right)  # told too little, and shifted
    assert float(slope) == pytest.approx(3.0, abs=0.15)
    assert float(offset) == pytest.approx(-1.0, abs=0.1)
    assert calibration_error((slope * (true + 1) / 3 + offset).sigmoid(), right) < 0.015


def test_measures_of_trust() -> None:
    right = torch.tensor([True, True, False, False])
    assert auroc(torch.tensor([0.9, 0.8, 0.3, 0.1]), right) == 1.0
    assert auroc(torch.tensor([0.5, 0.5, 0.5, 0.5]), right) == 0.5
    assert auroc(torch.tensor([0.1, 0.2, 0.8, 0.9]), right) == 0.0
    assert math.isnan(auroc(torch.ones(2), torch.ones(2).bool()))
    assert calibration_error(torch.tensor([1.0, 1.0, 0.0, 0.0]), right) == 0.0
    assert calibration_error(torch.full((4,), 0.9), right) == pytest.approx(0.4)


def test_the_configuration_that_ships_is_read() -> None:
    assert is_judge_config(CONFIGS / "judge.toml")
    assert not is_judge_config(CONFIGS / "descriptor.toml")
    assert not is_descriptor_config(CONFIGS / "judge.toml")
    config = read_judge_config(CONFIGS / "judge.toml")
    assert config.places.troubled > 0
    assert config.places.min_overlap == 0.0


def test_the_chosen_candidates_are_refined(run: JudgeRun, place: ReadyPlace[DescribedScan]) -> None:
    choice = np.random.default_rng(2)
    batch = run.batches(draw_pairs([place], 3, choice), choice, torch.Generator().manual_seed(0))
    first = torch.zeros(3, dtype=torch.int64)
    told, right = batch.refined(first)
    assert told.poses.shape[:2] == (3, 1)
    assert told.poses[..., -1].all()
    assert not batch.evidence.poses[..., -1].any()
    assert right.tolist() == batch.right[:, 0].tolist()  # right ones stay right, wrong ones wrong
    on_surface = [f.landings[0].points[:, 0, :, 6].mean() for f in (batch.evidence, told)]
    assert on_surface[1] > on_surface[0] - 0.02
