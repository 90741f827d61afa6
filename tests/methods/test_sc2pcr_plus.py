"""The choice by descriptors: where the nearest ones mislead, and against naive twins."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.conftest import make_problem
from tests.methods.helpers import TAU, error, moved, opened, posed, random_pose
from vbreg import matching
from vbreg.backends.cpu import CPUBackend
from vbreg.matching import DescribedCloud, MatchedClouds
from vbreg.methods import Problem, sc2pcr_plus
from vbreg.methods.common import Task
from vbreg.scale import Scale
from vbreg.types import Float64

POINTS = 400


def misled(seed: int = 0) -> tuple[Problem, Float64, Float64]:
    """A problem whose matches agree on a wrong pose; with it the true and that pose.

    The descriptor of a point is that of its true partner but for noise. The wrong pose puts a tenth
    of the sources on targets with their very descriptors, and these are matched; of all other
    sources few are matched to their true partners.
    """
    rng = np.random.default_rng(seed)
    source = rng.uniform(-2, 2, (POINTS, 3))
    truth, wrong = random_pose(seed + 1), random_pose(seed + 2)
    few = POINTS // 10
    target = np.concatenate([moved(truth, source), moved(wrong, source[:few])])
    described = rng.normal(size=(POINTS, 16))
    noisy = described + rng.normal(0, 0.4, described.shape)
    ends = [
        DescribedCloud(torch.from_numpy(p).float(), None, torch.from_numpy(d).float(), np.zeros(3))
        for p, d in ((source, described), (target, np.concatenate([noisy, described[:few]])))
    ]
    j = rng.integers(0, POINTS, POINTS)
    j[:few] = POINTS + np.arange(few)
    j[few : few + few // 2] = np.arange(few, few + few // 2)
    index = torch.arange(POINTS), torch.from_numpy(j)
    matched = MatchedClouds(ends[0], ends[1], *index, POINTS, Scale.of_threshold(TAU))
    return Problem.of_clouds(matched), truth, wrong


@pytest.mark.parametrize("seed", [0, 10])
def test_descriptors_choose_the_true_pose_where_nearest_ones_mislead(seed: int) -> None:
    problem, truth, wrong = misled(seed)
    assert error(opened("sc2pcr")(problem).T_target_source, wrong)[1] < 0.01
    assert error(opened("sc2pcr++")(problem).T_target_source, truth)[1] < 0.01


def test_without_clouds_the_choice_is_that_of_sc2pcr() -> None:
    problem, _, wrong = misled()
    given = posed(problem.correspondences.source, problem.correspondences.target)
    result = opened("sc2pcr++")(given)
    assert error(result.T_target_source, wrong)[1] < 0.01
    np.testing.assert_array_equal(result.T_target_source, opened("sc2pcr")(given).T_target_source)


def test_nearest_descriptors_come_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    source, target = (torch.randn(n, 8, generator=generator) for n in (30, 50))
    monkeypatch.setattr(sc2pcr_plus, "MAX_SIMILARITIES", 150)  # three rows at a time
    found = sc2pcr_plus.nearest_descriptors(source, target, 7)
    cosine = torch.nn.functional.cosine_similarity(source[:, None], target[None], dim=-1)
    np.testing.assert_array_equal(found, cosine.argsort(dim=-1, descending=True)[:, :7])
    assert sc2pcr_plus.nearest_descriptors(source, target, 100).shape == (30, 50)
    one_way = matching.match(source, target)[1]
    np.testing.assert_array_equal(found[:, 0], one_way)


def test_a_partner_is_the_most_similar_candidate_nearby() -> None:
    generator = torch.Generator().manual_seed(1)
    points = 3 * torch.rand(200, 3, generator=generator)
    candidates = 6 * torch.rand(200, 6, 3, generator=generator) - 3
    T = torch.from_numpy(random_pose(3, reach=0.2)).float()
    x, y = sc2pcr_plus.partners(T, points, candidates)
    expected = []
    for point, own in zip(points, candidates, strict=True):
        d = (T[:3, :3] @ point + T[:3, 3] - own).norm(dim=-1)
        if float(d.min()) <= 1.0:
            expected.append((point, own[next(k for k in range(6) if d[k] <= 1.5)]))
    assert 20 < len(expected) < 200
    torch.testing.assert_close(x, torch.stack([p for p, _ in expected]))
    torch.testing.assert_close(y, torch.stack([q for _, q in expected]))


def test_consistency_is_the_largest_company_of_one() -> None:
    problem = make_problem(80, inlier_ratio=0.4, noise=0.02)
    task = Task.of(posed(problem.source, problem.target), torch.device("cpu"), CPUBackend())
    x, y = task.source[0], task.target[0]
    gap = (torch.cdist(x, x) - torch.cdist(y, y)).abs()
    expected = int((gap < 0.5).sum(-1).max())
    assert int(sc2pcr_plus.consistency(task, x, y)) == expected
    assert int(sc2pcr_plus.consistency(task, x[:0], y[:0])) == 0


def test_points_without_a_descriptor_have_no_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, *_ = misled()
    matched = problem.matched
    assert matched is not None
    blank = matched.source.descriptors.clone()
    blank[::2] = 0.0
    halved = replace(matched, source=replace(matched.source, descriptors=blank))
    monkeypatch.setattr(sc2pcr_plus, "MAX_POINTS", 150)
    points, candidates = sc2pcr_plus.relaxed_matches(halved, TAU, torch.zeros(1))
    assert points.shape == (150, 3)
    assert candidates.shape == (150, 100, 3)
    kept = {tuple(p) for p in (matched.source.points[1::2] / TAU).tolist()}
    assert all(tuple(p) in kept for p in points.tolist())
