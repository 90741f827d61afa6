"""Every function of a backend against the readable form, on the same inputs.

The laws that hold for each form by itself are tested in the tests of the science.
"""

import inspect

import pytest
import torch
from torch import Tensor

from tests.backends.corners import corner_pairs
from tests.conftest import GPU, SMALL, Form, fresh, make_problem
from vbreg import alignment, estimation, geometry, voting
from vbreg.backends.plain import Backend
from vbreg.compatibility import spatial_attention, spatial_compatibility
from vbreg.estimation import Estimate
from vbreg.methods.common import is_inlier
from vbreg.network import NormedMLP
from vbreg.refinement import exact_surfaces
from vbreg.voting import Electorate, HypotheticalInliers, Seeds, VotingConfig

TESTED = {
    "attention",
    "branches",
    "normed_mlp",
    "compatibility",
    "triangle_weights",
    "suppressed",
    "vote",
    "spectral_weights",
    "hypotheses",
    "crowd_weights",
    "inlier_score",
    "refine",
    "aligned",
    "alignment_gain",
    "nearest",
    "gathered_product",
    "gathered_outer",
}
FOR_RECORDINGS = {"weights_state", "kept_alive"}  # what they keep: test_triton, test_recording
MASKED = pytest.mark.parametrize("masked", [False, True])


def test_every_function_of_a_backend_is_tested_here() -> None:
    functions = inspect.getmembers(Backend, inspect.isfunction)
    assert {name for name, _ in functions if not name.startswith("_")} == TESTED | FOR_RECORDINGS


def test_a_backend_overrides_nothing_but_these(form: Form) -> None:
    own = {name for name, _ in inspect.getmembers(type(form.backend), inspect.isfunction)}
    assert {name for name in own if not name.startswith("_")} == TESTED | FOR_RECORDINGS


def clouds(form: Form, N: int, seed: int = 0, moved: float = 0.7) -> tuple[Tensor, ...]:
    """Source and target (2, N, 3) some thresholds wide, and a mask with holes and a short row."""
    generator = torch.Generator().manual_seed(seed)
    source = 3 * torch.randn(2, N, 3, generator=generator)
    target = source + moved * torch.randn(2, N, 3, generator=generator)
    mask = torch.ones(2, N, dtype=torch.bool)
    mask[1, 2 * N // 3 :] = False
    mask[0, 3] = False
    return tuple(part.to(form.device) for part in (source, target, mask))


def random(form: Form, *shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(form.device)


@MASKED
@pytest.mark.parametrize("width", [12, 16])  # a kernel is made for the second
@torch.no_grad()
def test_attention(form: Form, masked: bool, width: int) -> None:
    source, target, mask = clouds(form, 70)
    ends = [random(form, 2, 70, width, seed=seed) for seed in range(3)]
    seen = mask if masked else None
    found = form.backend.attention(source, target, seen)(*ends)
    expected = spatial_attention(source, target, seen)(*ends)
    real = mask if masked else torch.ones_like(mask)
    torch.testing.assert_close(found[real], expected[real], atol=1e-4, rtol=1e-4)


@MASKED
@torch.no_grad()
def test_branches_through_the_network(form: Form, masked: bool) -> None:
    network = fresh(SMALL).to(form.device)
    source, target, mask = clouds(form, 40)
    given = {"mask": mask if masked else None, "keep_attention": True, "classify_each": True}
    found = network(source, target, steps=form.backend, **given)
    expected = network(source, target, **given)
    real = mask if masked else torch.ones_like(mask)
    close = {"atol": 5e-3, "rtol": 5e-3}
    torch.testing.assert_close(found.logits[real], expected.logits[real], **close)
    for mine, theirs in zip(found.logits_of_each, expected.logits_of_each, strict=True):
        torch.testing.assert_close(mine[real], theirs[real], **close)
    for mine, theirs in zip(found.features, expected.features, strict=True):
        torch.testing.assert_close(mine[real], theirs[real], **close)
    for pairs in zip(found.attention, expected.attention, strict=True):
        for mine, theirs in zip(*pairs, strict=True):
            torch.testing.assert_close(mine[real], theirs[real], **close)
    assert expected.logits.std() > 0.01
    assert found.steps == ()


@MASKED
@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize("widths", [(6, 32, 32), (32, 16, 16, 32), (24, 70), (16, 160)])
@torch.no_grad()
def test_normed_mlp(form: Form, widths: tuple[int, ...], masked: bool, with_residual: bool) -> None:
    torch.manual_seed(0)
    mlp = NormedMLP(*widths).to(form.device)
    for norm in mlp.norms:
        torch.nn.init.normal_(norm.scale)
        torch.nn.init.normal_(norm.shift)
    mask = clouds(form, 70)[2] if masked else None
    x = 5 + random(form, 2, 70, widths[0])
    residual = random(form, 2, 70, widths[-1], seed=1) if with_residual else None
    found = form.backend.normed_mlp(mlp, x, mask, residual)
    torch.testing.assert_close(found, mlp(x, mask, residual), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("N", [70, 400])  # the second does not fit into a cache
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@torch.no_grad()
def test_compatibility(form: Form, N: int, dtype: torch.dtype) -> None:
    source, target = (end.to(dtype) for end in clouds(form, N)[:2])
    for rows in (slice(None), slice(3, 40)):
        ends = source[:, rows], target[:, rows], source, target
        found = form.backend.compatibility(*ends)
        assert found.dtype == dtype
        product = form.backend.name == "triton" and dtype == torch.float32  # it rounds
        close = dict.fromkeys(("atol", "rtol"), 1e-3) if product else {}
        torch.testing.assert_close(found, spatial_compatibility(*ends), **close)
        one = [end[0] for end in ends]  # without a batch
        torch.testing.assert_close(form.backend.compatibility(*one), found[0])


@pytest.mark.parametrize("moved", [0.3, 3.0])  # nearly all edges there, and few
def test_triangle_weights(form: Form, moved: float) -> None:
    source, target, _ = clouds(form, 80, moved=moved)
    graph = spatial_compatibility(source[0], target[0], source[0], target[0]).fill_diagonal_(0.0)
    graph = graph * (graph > 0.95)
    found = form.backend.triangle_weights(graph)
    torch.testing.assert_close(found, graph * (graph @ graph), atol=1e-4, rtol=1e-4)
    assert found.count_nonzero() > 0


@MASKED
def test_suppressed(form: Form, masked: bool) -> None:
    source, _, mask = clouds(form, 150)
    mask = mask if masked else torch.ones_like(mask)
    confidence = random(form, 2, 150, seed=4)
    confidence[0, 10:20] = 0.3  # equals do not suppress each other
    found = form.backend.suppressed(confidence, source, mask, 1.0)
    assert torch.equal(found, voting.suppressed_by_neighbors(confidence, source, mask, 1.0))
    assert 0.05 < float(found.float().mean()) < 0.95


@MASKED
@pytest.mark.parametrize("with_attention", [False, True])
@pytest.mark.parametrize("N", [30, 90])  # fewer than a set holds, and more
def test_vote(form: Form, N: int, masked: bool, with_attention: bool) -> None:
    source, target, mask = clouds(form, N, moved=0.4)
    mask = mask if masked else torch.ones_like(mask)
    common = random(form, 2, 1, 8, seed=2)
    features = [common + 0.7 * random(form, 2, N, 8, seed=3 + step) for step in range(3)]
    pairs = [(features[0], features[1])] * 3 if with_attention else []
    generator = torch.Generator().manual_seed(2)
    indices = torch.stack([torch.randperm(N // 2, generator=generator)[:6] for _ in range(2)])
    valid = torch.ones(2, 6, dtype=torch.bool)
    valid[1, 5] = False
    seeds = Seeds(indices.to(form.device), valid.to(form.device))
    electorate = Electorate(features, torch.tensor(0.8, device=form.device), pairs)
    given = electorate, source, target, seeds, mask, VotingConfig()
    found, expected = form.backend.vote(*given), voting.vote(*given)
    assert found.indices.shape == expected.indices.shape
    for a, b in zip(sets_of(found), sets_of(expected), strict=True):
        assert len(a & b) >= (0.9 if GPU else 1.0) * len(a | b)
    assert torch.equal(found.indices[..., 0], seeds.indices)
    assert torch.equal(found.valid.sum(-1) > 0, seeds.valid)
    assert expected.valid.sum() > 2 * 5 * 3


def sets_of(found: HypotheticalInliers) -> list[set[int]]:
    rows, real = found.indices.flatten(0, 1), found.valid.flatten(0, 1)
    return [set(row[there].tolist()) for row, there in zip(rows, real, strict=True)]


def some_members(form: Form, N: int) -> HypotheticalInliers:
    """Sets (2, 4, 20) of which some members, and one whole set, are not valid."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.stack([torch.randperm(N, generator=generator)[:20] for _ in range(2 * 4)])
    valid = torch.rand(2, 4, 20, generator=generator) < 0.8
    valid[0, 0] = False
    return HypotheticalInliers(rows.view(2, 4, 20).to(form.device), valid.to(form.device))


@pytest.mark.parametrize("width", [1, 16])  # a kernel is made for the second
def test_spectral_weights(form: Form, width: int) -> None:
    source, target, _ = clouds(form, 80, moved=0.3)
    features = random(form, 2, 1, width, seed=1) + 0.5 * random(form, 2, 80, width, seed=2)
    members = some_members(form, 80)
    for sigma in (0.9, torch.tensor(0.9, device=form.device)):
        found = form.backend.spectral_weights(features, source, target, members, sigma)
        expected = estimation.spectral_weights(features, source, target, members, sigma)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-3)
    assert (expected.sum(-1) > 0.99).sum() >= 6


def test_hypotheses(form: Form) -> None:
    source, target, _ = clouds(form, 80, moved=0.3)
    members = some_members(form, 80)
    weights = random(form, 2, 4, 20, seed=5).abs() * members.valid
    T, sound = form.backend.hypotheses(source, target, members, weights)
    expected, expected_sound = estimation.hypotheses(source, target, members, weights)
    assert torch.equal(sound, expected_sound)
    assert sound.flatten().tolist() == [False] + [True] * 7
    torch.testing.assert_close(T[sound], expected[sound], atol=2e-5, rtol=0)
    assert torch.isfinite(T).all()


@MASKED
def test_crowd_weights(form: Form, masked: bool) -> None:
    source, target, mask = clouds(form, 90)
    mask = mask if masked else torch.ones_like(mask)
    source[:, 10:14] = source[:, 10:11]
    target[:, 5:12] = target[:, 5:6]
    found = form.backend.crowd_weights(source, target, mask)
    expected = estimation.crowd_weights(source, target, mask)
    torch.testing.assert_close(found, expected)
    assert len(expected.unique()) >= 4


@pytest.mark.parametrize("poses", [1, 5])
@pytest.mark.parametrize("gain", [estimation.quadratic_gain, is_inlier])
@MASKED
def test_inlier_score(form: Form, masked: bool, gain: object, poses: int) -> None:
    source, target, mask = clouds(form, 90)
    R = torch.eye(3, device=form.device).expand(2, poses, 3, 3)
    T = geometry.from_rotation_translation(R, 0.3 * random(form, 2, poses, 3, seed=6))
    weights = random(form, 2, 90, seed=7).abs() * mask if masked else mask
    found = form.backend.inlier_score(T, source, target, weights, gain)  # type: ignore[arg-type]
    expected = estimation.inlier_score(T, source, target, weights, gain)  # type: ignore[arg-type]
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
    assert 0.01 < float(expected.min()) < 0.9


def test_scores_of_no_matches_are_zero(form: Form) -> None:
    source, target, mask = clouds(form, 40)
    T = torch.eye(4, device=form.device).expand(2, 3, 4, 4)
    score = form.backend.inlier_score(T, source, target, torch.zeros_like(mask))
    assert score.tolist() == [[0.0] * 3] * 2


@MASKED
def test_refine(form: Form, masked: bool) -> None:
    problem = make_problem(150, 0.4, seed=5)
    source, target = (torch.from_numpy(x / 0.1).unsqueeze(0).to(form.device) for x in problem[:2])
    source, target = source - source.mean(1, keepdim=True), target - target.mean(1, keepdim=True)
    mask = torch.ones(1, 150, dtype=torch.bool, device=form.device)
    mask[0, :30] = not masked
    R = torch.from_numpy(problem.T[:3, :3]).to(form.device)
    inliers = torch.from_numpy(problem.inliers).to(form.device)
    t = (target[0] - source[0] @ R.T)[inliers].mean(0) + 0.3
    start = geometry.from_rotation_translation(R, t).unsqueeze(0)
    none = torch.zeros(1, dtype=torch.bool, device=form.device)
    found = form.backend.refine(Estimate(start, none), source, target, mask)
    expected = estimation.refine(Estimate(start, none), source, target, mask)
    torch.testing.assert_close(found.T, expected.T, atol=1e-9, rtol=0)
    assert bool(found.determined)
    assert bool(expected.determined)
    assert (expected.T - start).abs().max() > 0.05  # there was something to refine


@pytest.mark.parametrize("up", [None, (0.0, 0.6, 0.8)])
@pytest.mark.parametrize("reach", [4.0, 2.0])
def test_steps_on_clouds(form: Form, reach: float, up: tuple[float, ...] | None) -> None:
    pair, T = corner_pairs(2, form.device)
    axis = None if up is None else torch.tensor(up, device=form.device)
    surfaces = exact_surfaces(pair)
    found = form.backend.aligned(surfaces, T, reach, axis)
    expected = alignment.aligned(surfaces, T, reach, axis)
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)
    assert ((expected - T).abs().amax((1, 2)) > 0.01).all()
    gain = form.backend.alignment_gain(surfaces, T, reach)
    torch.testing.assert_close(gain, alignment.alignment_gain(surfaces, T, reach))
    assert (gain > 0.05).all()


@pytest.mark.parametrize(("k", "radius"), [(1, torch.inf), (3, 2.0), (12, 4.0)])
def test_nearest(form: Form, k: int, radius: float) -> None:
    points, queries, real = clouds(form, 60)
    index, distance2 = form.backend.nearest(points, queries[:, :25], real, k, radius)
    apart = torch.cdist(queries[:, :25], points).masked_fill(~real.unsqueeze(1), torch.inf)
    nearest = apart.sort(-1)
    expected, row = nearest.values[..., :k], nearest.indices[..., :k]
    away = (expected > radius) | expected.isinf()
    expected = expected.masked_fill(away, torch.inf)
    torch.testing.assert_close(distance2.sqrt(), expected, atol=1e-4, rtol=1e-4)
    assert torch.equal(index, row.masked_fill(away, 0))


@pytest.mark.parametrize(("C", "D"), [(16, 32), (96, 64), (256, 16), (3, 5)])  # the last in torch
@pytest.mark.parametrize("M", [0, 150])
@torch.no_grad()
def test_products_of_gathered_rows(form: Form, C: int, D: int, M: int) -> None:
    N, K = 100, 8
    x, kernel, y = (random(form, *shape) for shape in ((N, C), (K, C, D), (M, D)))
    index = torch.randint(0, N + 1, (M, K), generator=torch.Generator().manual_seed(1)).int()
    index[: M // 2, 3] = N  # whole tiles without a row
    padded = torch.cat([x, x.new_zeros(1, C)])[index.to(form.device).long()]  # (M, K, C)
    index = index.to(form.device)
    close = {"atol": 1e-3, "rtol": 1e-4}
    found = form.backend.gathered_product(x, index, kernel)
    torch.testing.assert_close(found, torch.einsum("mkc,kcd->md", padded, kernel), **close)
    found = form.backend.gathered_outer(x, index, y)
    torch.testing.assert_close(found, torch.einsum("mkc,md->kcd", padded, y), **close)
