"""The laws of the estimation, with every backend that computes it."""

import math

import numpy as np
import pytest
import torch

from tests.conftest import Form, make_problem
from vbreg import compatibility
from vbreg.estimation import (
    Estimate,
    Limits,
    agreement,
    best_distinct,
    best_hypothesis,
    first_of_same,
    refine,
    same_pose,
    squared_residuals,
    within_limits,
)
from vbreg.geometry import (
    apply,
    cross_matrix,
    from_rotation_translation,
    random_rotation,
    rotation_of_vector,
)
from vbreg.methods.common import is_inlier
from vbreg.metrics import pose_error
from vbreg.voting import HypotheticalInliers


def test_spectral_weights_are_the_leading_eigenvector(form: Form) -> None:
    """Against numpy's eigendecomposition, on members of which half are inliers."""
    problem = make_problem(20, inlier_ratio=0.6)
    x, y = (torch.from_numpy(p / 0.1)[None] for p in problem[:2])
    features = torch.randn(1, 20, 16, generator=torch.Generator().manual_seed(0)).double()
    features[0, torch.from_numpy(problem.inliers)] += 3.0
    members = HypotheticalInliers(torch.arange(20)[None, None], torch.ones(1, 1, 20).bool())
    given = HypotheticalInliers(*map(form.put, members))
    found = form.backend.spectral_weights(*map(form.put, (features, x, y)), given, 1.0)
    w = found[0, 0].cpu().numpy()
    f = torch.nn.functional.normalize(features, dim=-1)
    M = compatibility.feature_compatibility(f, f, 1.0)[0] * compatibility.spatial_compatibility(
        x, y, x, y
    )[0].fill_diagonal_(0)
    leading = np.abs(np.linalg.eigh(M.numpy())[1][:, -1])
    np.testing.assert_allclose(w, leading / leading.sum(), atol=1e-3)
    assert w.sum() == pytest.approx(1.0)
    assert w[problem.inliers].sum() > 0.95


@pytest.mark.parametrize("width", [4, 16])  # a kernel is made for the second
def test_members_that_are_not_valid_weigh_nothing(form: Form, width: int) -> None:
    x = form.put(torch.rand(1, 6, 3))
    members = HypotheticalInliers(
        form.put(torch.arange(6))[None, None],
        form.put(torch.tensor([[[True, True, True, True, False, False]]])),
    )
    features = form.put(torch.rand(1, 6, width))
    w = form.backend.spectral_weights(features, x, x, members, 1.0)[0, 0]
    assert w[4:].tolist() == [0, 0]
    assert float(w.sum()) == pytest.approx(1.0)


def test_spectral_weights_do_not_see_motion_or_order(form: Form) -> None:
    problem = make_problem(20, inlier_ratio=0.6)
    x, y = (form.put(torch.from_numpy(p / 0.1))[None] for p in problem[:2])
    generator = torch.Generator().manual_seed(0)
    features = form.put(1 + torch.rand(1, 20, 16, generator=generator))
    members = HypotheticalInliers(
        form.put(torch.arange(20))[None, None], form.put(torch.arange(20) < 17)[None, None]
    )
    close = form.close(1e-6, 1e-4)
    expected = form.backend.spectral_weights(features, x, y, members, 1.0)
    R = form.put(random_rotation(generator=generator))
    moved = form.backend.spectral_weights(features, x @ R.T - 2, y @ R.T + 1, members, 1.0)
    torch.testing.assert_close(moved, expected, **close)
    order = torch.randperm(20, generator=generator).to(form.device)
    shuffled = HypotheticalInliers(members.indices[..., order], members.valid[..., order])
    found = form.backend.spectral_weights(features, x, y, shuffled, 1.0)
    torch.testing.assert_close(found, expected[..., order], **close)


def test_score_is_equation_10(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compatibility, "MAX_MAP_BYTES", 4 * 8 * 50 * 2)  # two hypotheses at a time
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.rand(1, 50, 3, generator=generator) for _ in range(2))
    R = random_rotation(1, 5, generator=generator)
    T = from_rotation_translation(R, torch.zeros(1, 5, 3))
    mask = torch.arange(50)[None] < 45
    score = form.backend.inlier_score(*map(form.put, (T, x, y, mask)))
    for k in range(5):
        d = [float((R[0, k] @ x[0, n] - y[0, n]).norm()) for n in range(45)]
        expected = sum(1 - v * v for v in d if v < 1) / 45
        assert float(score[0, k]) == pytest.approx(expected, abs=1e-5)


def test_another_gain_is_scored_alike(form: Form) -> None:
    """The share of inliers, as SC2-PCR counts."""
    generator = torch.Generator().manual_seed(0)
    x, y = (form.put(torch.rand(1, 50, 3, generator=generator)) for _ in range(2))
    R = random_rotation(1, 5, generator=generator)
    T = form.put(from_rotation_translation(R, torch.zeros(1, 5, 3)))
    mask = form.put(torch.arange(50)[None] < 45)
    score = form.backend.inlier_score(T, x, y, mask, is_inlier)
    d2 = squared_residuals(T, x[:, None], y[:, None])
    expected = ((d2 < 1) & mask[:, None]).sum(-1) / 45
    torch.testing.assert_close(score, expected.to(score.dtype))
    assert len(expected.unique()) == 5


def test_score_of_a_wide_scene(form: Form) -> None:
    """Multiplied out, a residual is a small difference of large numbers."""
    generator = torch.Generator().manual_seed(0)
    x = 2000 * torch.randn(1, 200, 3, generator=generator)
    R = random_rotation(1, 1, generator=generator)
    T = from_rotation_translation(R, 500 * torch.randn(1, 1, 3, generator=generator))
    y = apply(T.double(), x.double().unsqueeze(1)).squeeze(1)
    y = y + 0.3 * torch.randn(1, 200, 3, dtype=torch.float64, generator=generator)
    d2 = squared_residuals(T[:, 0].double(), x.double(), y)
    expected = (1 - d2).clamp_min(0).mean()
    assert 0.3 < float(expected) < 0.95
    exact = apply(T.double(), x.double().unsqueeze(1)).squeeze(1)
    x, y, exact, T = (part.double().to(form.device) for part in (x, y, exact, T))
    ones = torch.ones(1, 200, device=form.device)
    for poses in (T, T.repeat(1, 3, 1, 1)):  # a single one is not multiplied out
        score = form.backend.inlier_score(poses, x, y, ones)
        torch.testing.assert_close(score.cpu(), expected.expand(score.shape), atol=1e-6, rtol=0)
        whole = form.backend.inlier_score(poses, x, exact, ones)
        assert float(whole.max()) <= 1.0
        assert float(whole.min()) > 1.0 - 1e-6


def test_scores_do_not_see_motion_order_or_padding(form: Form) -> None:
    problem = make_problem(60, 0.5)
    x, y = (form.put(torch.from_numpy(p / 0.1))[None] for p in problem[:2])
    T = torch.from_numpy(problem.T)[None, None].repeat(1, 3, 1, 1)
    T[..., :3, 3] = T[..., :3, 3] / 0.1 + torch.tensor([0.0, 0.2, 0.4]).view(1, 3, 1)
    T = form.put(T)
    weights = form.put(torch.rand(1, 60, generator=torch.Generator().manual_seed(0)))
    close = form.close(1e-9, 1e-4)
    expected = form.backend.inlier_score(T, x, y, weights)
    assert float(expected.min()) > 0.1
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1)).to(form.device)
    shuffled = form.backend.inlier_score(T, x[:, order], y[:, order], weights[:, order])
    torch.testing.assert_close(shuffled, expected, **close)
    M = torch.eye(4, dtype=torch.float64)
    M[:3, :3] = random_rotation(generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    M = form.put(M)  # of the target: poses are carried along
    moved = form.backend.inlier_score(M @ T, x, apply(M, y), weights)
    torch.testing.assert_close(moved, expected, **close)
    longer = (torch.nn.functional.pad(part, (0, 0, 0, 9), value=1.0) for part in (x, y))
    padded = form.backend.inlier_score(T, *longer, torch.nn.functional.pad(weights, (0, 9)))
    torch.testing.assert_close(padded, expected, **close)


def test_a_crowd_counts_less_than_as_many_of_their_own(form: Form) -> None:
    x = form.put(torch.rand(2, 6, 3, generator=torch.Generator().manual_seed(0)))
    y = form.put(torch.rand(2, 6, 3, generator=torch.Generator().manual_seed(1)))
    y[0, 1:5] = y[0, 1]  # four matches go to one place
    mask = form.put(torch.ones(2, 6, dtype=torch.bool))
    mask[0, 4], y[1, 0] = False, y[1, 5]  # and one of them is padding
    third, half = 3**-0.5, 2**-0.5
    expected = form.put(torch.tensor([[1, third, third, third, 0, 1], [half, 1, 1, 1, 1, half]]))
    close = {"atol": 1e-6, "rtol": 1e-5}
    torch.testing.assert_close(form.backend.crowd_weights(x, y, mask), expected, **close)
    torch.testing.assert_close(form.backend.crowd_weights(y, x, mask), expected, **close)
    order = torch.tensor([3, 0, 5, 1, 4, 2], device=form.device)
    shuffled = form.backend.crowd_weights(x[:, order], y[:, order], mask[:, order])
    torch.testing.assert_close(shuffled, expected[:, order], **close)


def test_an_unsound_pose_never_beats_a_sound_one() -> None:
    T = torch.eye(4).repeat(1, 3, 1, 1)
    T[0, :, 0, 3] = torch.tensor([0.0, 1.0, 2.0])
    score = torch.tensor([[0.9, 0.1, 0.0]])
    chosen = best_hypothesis(T, torch.tensor([[False, True, True]]), score)
    assert float(chosen.T[0, 0, 3]) == 1.0
    assert chosen.determined.tolist() == [True]
    chosen = best_hypothesis(T, torch.tensor([[False, False, False]]), score)
    assert float(chosen.T[0, 0, 3]) == 0.0
    assert chosen.determined.tolist() == [False]


def test_refinement_reaches_the_least_squares_pose_of_the_inliers(form: Form) -> None:
    problem = make_problem(200, inlier_ratio=0.4, noise=0.02)
    x, y = (torch.from_numpy(p / 0.1)[None].to(form.device) for p in problem[:2])
    T = torch.from_numpy(problem.T).clone()
    T[:3, 3] = T[:3, 3] / 0.1 + 0.4  # off by 7 cm
    mask = torch.ones(1, 200, dtype=torch.bool, device=form.device)
    start = Estimate(T[None].to(form.device), torch.tensor([True], device=form.device))
    refined = form.backend.refine(start, x, y, mask)
    truth = torch.from_numpy(problem.T).clone()
    truth[:3, 3] /= 0.1
    before, after = (pose_error(found.T[0].cpu(), truth) for found in (start, refined))
    assert after.translation < 0.1 * before.translation
    again = form.backend.refine(refined, x, y, mask)
    torch.testing.assert_close(again.T, refined.T, atol=1e-5, rtol=0)


def test_refinement_of_a_batch_equals_its_singles(form: Form) -> None:
    problems = [make_problem(80, seed=s, inlier_ratio=0.2 + 0.3 * s) for s in range(3)]
    x, y = (
        torch.stack([torch.from_numpy(p[i] / 0.1) for p in problems]).to(form.device)
        for i in range(2)
    )
    T = torch.stack([torch.from_numpy(p.T) for p in problems])
    T[:, :3, 3] = T[:, :3, 3] / 0.1 + 0.3
    start = Estimate(T.to(form.device), torch.ones(3, device=form.device).bool())
    mask = torch.ones(3, 80, dtype=torch.bool, device=form.device)
    together = form.backend.refine(start, x, y, mask)
    for b in range(3):
        s = slice(b, b + 1)
        alone = form.backend.refine(Estimate(*(part[s] for part in start)), x[s], y[s], mask[s])
        torch.testing.assert_close(together.T[s], alone.T)


def test_refinement_keeps_a_pose_that_no_inlier_supports(form: Form) -> None:
    x = torch.rand(1, 10, 3, dtype=torch.float64, device=form.device)
    T = torch.eye(4, dtype=torch.float64, device=form.device)[None].clone()
    T[0, 0, 3] = 1e6
    start = Estimate(T, torch.tensor([False], device=form.device))
    mask = torch.ones(1, 10, dtype=torch.bool, device=form.device)
    kept = form.backend.refine(start, x, x, mask)
    assert torch.equal(kept.T, T)
    assert not kept.determined


def test_refinement_moves_with_the_points_and_does_not_see_padding(form: Form) -> None:
    problem = make_problem(80, inlier_ratio=0.5)
    x, y = (torch.from_numpy(p / 0.1)[None].to(form.device) for p in problem[:2])
    T = torch.from_numpy(problem.T)[None].clone()
    T[:, :3, 3] = T[:, :3, 3] / 0.1 + 0.3
    start = Estimate(T.to(form.device), torch.ones(1, device=form.device).bool())
    mask = torch.ones(1, 80, dtype=torch.bool, device=form.device)
    expected = form.backend.refine(start, x, y, mask).T
    M = torch.eye(4, dtype=torch.float64)
    M[:3, :3] = random_rotation(generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    M = M.to(form.device)
    moved = form.backend.refine(start._replace(T=M @ start.T), x, apply(M, y), mask).T
    torch.testing.assert_close(moved, M @ expected, atol=1e-6, rtol=0)
    longer = (torch.nn.functional.pad(part, (0, 0, 0, 9), value=1.0) for part in (x, y))
    padded = form.backend.refine(start, *longer, torch.nn.functional.pad(mask, (0, 9))).T
    torch.testing.assert_close(padded, expected, atol=1e-9, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_hypotheses_solve_all_sets_at_once(form: Form, dtype: torch.dtype) -> None:
    problem = make_problem(50, inlier_ratio=1.0, noise=0.0)
    x, y = (torch.from_numpy(p)[None].to(form.device, dtype) for p in problem[:2])
    generator = torch.Generator().manual_seed(0)
    indices = torch.randint(0, 50, (1, 7, 12), generator=generator).to(form.device)
    members = HypotheticalInliers(indices, torch.ones_like(indices, dtype=torch.bool))
    weights = torch.rand(1, 7, 12, dtype=dtype, generator=generator).to(form.device)
    T, sound = form.backend.hypotheses(x, y, members, weights)
    assert sound.all()
    expected = torch.from_numpy(problem.T).expand(1, 7, 4, 4).to(form.device, dtype)
    single = dtype == torch.float32
    close = {"atol": 1e-5, "rtol": 1e-5} if single else {"atol": 1e-7, "rtol": 1e-7}
    torch.testing.assert_close(T, expected, **close)
    assert float(squared_residuals(T[:, 0], x, y).max()) < (1e-9 if single else 1e-12)


# --- within limits


def limits(angle: float = math.inf, length: float = math.inf) -> Limits:
    return Limits(torch.eye(4, dtype=torch.float64), angle, length)


def shifted(*lengths: float) -> torch.Tensor:
    """One problem whose poses are shifts along x."""
    T = torch.eye(4, dtype=torch.float64).repeat(1, len(lengths), 1, 1)
    T[0, :, 0, 3] = torch.tensor(lengths)
    return T


def test_limits_tell_which_poses_they_allow() -> None:
    T = shifted(0.0, 1.0, 3.0)
    assert limits(length=2.0).allow(T).tolist() == [[True, True, False]]
    T[0, 1, :3, :3] = torch.linalg.matrix_exp(cross_matrix(torch.tensor([0.0, 0.0, 0.5]).double()))
    assert limits(angle=0.4).allow(T).tolist() == [[True, False, True]]
    assert limits(angle=0.6, length=2.0).allow(T).tolist() == [[True, True, False]]
    assert limits().allow(T).all()


def test_a_limit_of_half_a_turn_is_none() -> None:
    T = shifted(1.0)[0, 0]
    T[:3, :3] = rotation_of_vector(torch.tensor([0.0, 0.0, 3.0]))
    assert limits(angle=3.2, length=2.0).used(T) == (0.5, 0.0)
    length, angle = limits(angle=3.1, length=2.0).used(T)
    assert length == 0.5
    assert angle == pytest.approx(3.0 / 3.1)


def test_the_best_within_limits_is_chosen() -> None:
    T, score = shifted(5.0, 1.0, 0.5), torch.tensor([[0.9, 0.3, 0.6]], dtype=torch.float64)
    sound = torch.tensor([[True, True, False]])
    found = best_hypothesis(*within_limits(T, sound, score, limits(length=2.0)))
    assert float(found.T[0, 0, 3]) == 1.0
    assert found.determined.tolist() == [True]
    everything = best_hypothesis(*within_limits(T, sound, score, limits()))
    assert torch.equal(everything.T, best_hypothesis(T, sound, score).T)


def test_where_no_pose_is_allowed_the_guess_stands() -> None:
    T, score = shifted(5.0, 6.0), torch.tensor([[0.9, 0.3]], dtype=torch.float64)
    found = best_hypothesis(*within_limits(T, torch.ones(1, 2).bool(), score, limits(length=2.0)))
    torch.testing.assert_close(found.T[0], torch.eye(4, dtype=torch.float64))
    assert found.determined.tolist() == [False]


def test_refinement_does_not_leave_the_limits() -> None:
    problem = make_problem(100, 1.0, noise=0.001)
    x, y = (torch.from_numpy(p / 0.1)[None] for p in problem[:2])
    T = torch.from_numpy(problem.T)[None].clone()
    T[:, :3, 3] /= 0.1
    start, mask = T.clone(), torch.ones(1, 100).bool()
    start[:, 0, 3] += 0.5
    given = Estimate(start, torch.ones(1).bool())
    narrow = Limits(start[0], max_length=0.2)
    assert torch.equal(refine(given, x, y, mask, narrow).T, start)
    wide = refine(given, x, y, mask, Limits(start[0], max_length=1.0))
    torch.testing.assert_close(wide.T, refine(given, x, y, mask).T)
    assert float((wide.T - T).abs().max()) < 0.05


def turned_and_shifted(*motions: tuple[float, float]) -> torch.Tensor:
    """Poses (1, K, 4, 4) that turn about z by so many degrees and go along x."""
    T = torch.eye(4).repeat(1, len(motions), 1, 1)
    for k, (degrees, shift) in enumerate(motions):
        T[0, k, :3, :3] = rotation_of_vector(torch.tensor([0.0, 0.0, math.radians(degrees)]))
        T[0, k, 0, 3] = shift
    return T


def test_distinct_poses_come_by_score_and_none_twice() -> None:
    T = turned_and_shifted((0, 0), (5, 0), (0, 1.5), (20, 0), (0, 3), (90, 0))
    score = torch.tensor([[0.5, 0.9, 0.6, 0.3, 0.4, 0.8]])
    sound = torch.tensor([[True, True, True, True, True, False]])
    found, valid = best_distinct(T, sound, score, 5)
    # The best is the second; the first and third are like it, the last is not sound.
    torch.testing.assert_close(found[0, :3], T[0, [1, 4, 3]])
    assert valid.tolist() == [[True, True, True, False, False]]


def test_the_first_of_like_poses_stays() -> None:
    T = turned_and_shifted((0, 0), (0, 5), (3, 0), (1, 5.5), (40, 0))
    assert first_of_same(T).tolist() == [[True, True, False, False, True]]
    assert same_pose(T[:, 0], T[:, 2]).all()
    assert not same_pose(T[:, 0], T[:, 4]).any()


def test_agreement_is_that_of_the_inliers() -> None:
    source = torch.zeros(1, 4, 3)
    target = torch.tensor([[[0.0, 0, 0], [0.6, 0, 0], [3, 0, 0], [0, 0, 0]]])
    mask = torch.tensor([[True, True, True, False]])
    found = agreement(torch.eye(4)[None], source, target, mask)
    assert found.inliers.tolist() == [[True, True, False, False]]
    assert float(found.score) == pytest.approx((1 + 0.64) / 3)
    assert float(found.rmse) == pytest.approx(math.sqrt(0.36 / 2))
