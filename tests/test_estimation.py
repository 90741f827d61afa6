import numpy as np
import pytest
import torch

from tests.conftest import make_problem
from vbreg import compatibility
from vbreg.estimation import (
    Estimate,
    best_hypothesis,
    crowd_weights,
    hypotheses,
    inlier_score,
    refine,
    spectral_weights,
    squared_residuals,
)
from vbreg.geometry import apply, from_rotation_translation, random_rotation
from vbreg.metrics import pose_error
from vbreg.voting import HypotheticalInliers


def test_spectral_weights_are_the_leading_eigenvector() -> None:
    """Against numpy's eigendecomposition, on members of which half are inliers."""
    problem = make_problem(20, inlier_ratio=0.6)
    x, y = (torch.from_numpy(p / 0.1)[None] for p in problem[:2])
    features = torch.randn(1, 20, 8, generator=torch.Generator().manual_seed(0)).double()
    features[0, torch.from_numpy(problem.inliers)] += 3.0
    members = HypotheticalInliers(torch.arange(20)[None, None], torch.ones(1, 1, 20).bool())
    w = spectral_weights(features, x, y, members, sigma=1.0)[0, 0].numpy()
    f = torch.nn.functional.normalize(features, dim=-1)
    M = compatibility.feature_compatibility(f, f, 1.0)[0] * compatibility.spatial_compatibility(
        x, y, x, y
    )[0].fill_diagonal_(0)
    leading = np.abs(np.linalg.eigh(M.numpy())[1][:, -1])
    np.testing.assert_allclose(w, leading / leading.sum(), atol=1e-3)
    assert w.sum() == pytest.approx(1.0)
    assert w[problem.inliers].sum() > 0.95


def test_members_that_are_not_valid_weigh_nothing() -> None:
    x = torch.rand(1, 6, 3)
    members = HypotheticalInliers(
        torch.arange(6)[None, None], torch.tensor([[[True, True, True, True, False, False]]])
    )
    w = spectral_weights(torch.rand(1, 6, 4), x, x, members, sigma=1.0)[0, 0]
    assert w[4:].tolist() == [0, 0]
    assert float(w.sum()) == pytest.approx(1.0)


def test_score_is_equation_10(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compatibility, "MAP_BYTES", 4 * 8 * 50 * 2)  # two hypotheses at a time
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.rand(1, 50, 3, generator=generator) for _ in range(2))
    R = random_rotation(1, 5, generator=generator)
    T = from_rotation_translation(R, torch.zeros(1, 5, 3))
    mask = torch.arange(50)[None] < 45
    score = inlier_score(T, x, y, mask)
    for k in range(5):
        d = [float((R[0, k] @ x[0, n] - y[0, n]).norm()) for n in range(45)]
        expected = sum(1 - v * v for v in d if v < 1) / 45
        assert float(score[0, k]) == pytest.approx(expected, abs=1e-5)


def test_score_of_a_wide_scene() -> None:
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
    for poses in (T, T.repeat(1, 3, 1, 1)):  # a single one is not multiplied out
        score = inlier_score(poses.double(), x.double(), y, torch.ones(1, 200))
        torch.testing.assert_close(score, expected.expand_as(score), atol=1e-6, rtol=0)
        whole = inlier_score(poses.double(), x.double(), exact, torch.ones(1, 200))
        assert float(whole.max()) <= 1.0
        assert float(whole.min()) > 1.0 - 1e-6


def test_a_crowd_counts_less_than_as_many_of_their_own() -> None:
    x = torch.rand(2, 6, 3, generator=torch.Generator().manual_seed(0))
    y = torch.rand(2, 6, 3, generator=torch.Generator().manual_seed(1))
    y[0, 1:5] = y[0, 1]  # four matches go to one place
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[0, 4], y[1, 0] = False, y[1, 5]  # and one of them is padding
    third, half = 3**-0.5, 2**-0.5
    expected = torch.tensor([[1, third, third, third, 0, 1], [half, 1, 1, 1, 1, half]])
    torch.testing.assert_close(crowd_weights(x, y, mask), expected)
    torch.testing.assert_close(crowd_weights(y, x, mask), expected)


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


def test_refinement_reaches_the_least_squares_pose_of_the_inliers() -> None:
    problem = make_problem(200, inlier_ratio=0.4, noise=0.02)
    x, y = (torch.from_numpy(p / 0.1)[None] for p in problem[:2])
    T = torch.from_numpy(problem.T).clone()
    T[:3, 3] = T[:3, 3] / 0.1 + 0.4  # off by 7 cm
    mask = torch.ones(1, 200, dtype=torch.bool)
    start = Estimate(T[None], torch.tensor([True]))
    refined = refine(start, x, y, mask)
    truth = torch.from_numpy(problem.T).clone()
    truth[:3, 3] /= 0.1
    before, after = pose_error(start.T[0], truth), pose_error(refined.T[0], truth)
    assert after.translation < 0.1 * before.translation
    again = refine(refined, x, y, mask)
    torch.testing.assert_close(again.T, refined.T, atol=1e-5, rtol=0)


def test_refinement_of_a_batch_equals_its_singles() -> None:
    problems = [make_problem(80, seed=s, inlier_ratio=0.2 + 0.3 * s) for s in range(3)]
    x, y = (torch.stack([torch.from_numpy(p[i] / 0.1) for p in problems]) for i in range(2))
    T = torch.stack([torch.from_numpy(p.T) for p in problems])
    T[:, :3, 3] = T[:, :3, 3] / 0.1 + 0.3
    mask = torch.ones(3, 80, dtype=torch.bool)
    together = refine(Estimate(T, torch.ones(3).bool()), x, y, mask)
    for b in range(3):
        s = slice(b, b + 1)
        alone = refine(Estimate(T[s], torch.ones(1).bool()), x[s], y[s], mask[s])
        torch.testing.assert_close(together.T[s], alone.T)


def test_refinement_keeps_a_pose_that_no_inlier_supports() -> None:
    x = torch.rand(1, 10, 3, dtype=torch.float64)
    T = torch.eye(4, dtype=torch.float64)[None].clone()
    T[0, 0, 3] = 1e6
    kept = refine(Estimate(T, torch.tensor([False])), x, x, torch.ones(1, 10).bool())
    assert torch.equal(kept.T, T)
    assert not kept.determined


def test_hypotheses_solve_all_sets_at_once() -> None:
    problem = make_problem(50, inlier_ratio=1.0, noise=0.0)
    x, y = (torch.from_numpy(p)[None] for p in problem[:2])
    indices = torch.randint(0, 50, (1, 7, 12), generator=torch.Generator().manual_seed(0))
    members = HypotheticalInliers(indices, torch.ones_like(indices, dtype=torch.bool))
    T, sound = hypotheses(x, y, members, torch.rand(1, 7, 12, dtype=torch.float64))
    assert sound.all()
    torch.testing.assert_close(T, torch.from_numpy(problem.T).expand(1, 7, 4, 4))
    assert float(squared_residuals(T[:, 0], x, y).max()) < 1e-12
