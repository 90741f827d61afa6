"""Every kernel against the function of torch that it stands in for.

Without a GPU, Triton's interpreter runs them line by line, so problems are small.
"""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.conftest import DEVICE, GPU, make_problem
from vbreg import backends, estimation, geometry, voting
from vbreg.backends.plain import Backend
from vbreg.compatibility import attention_rows, spatial_compatibility
from vbreg.estimation import Estimate
from vbreg.model import VBReg
from vbreg.network import LatentBranches, NormedMLP, VariationalNonLocalNetwork
from vbreg.voting import Electorate, HypotheticalInliers, Seeds, VotingConfig

pytest.importorskip("triton", reason="needs Triton, which is for Linux")
from vbreg.backends.triton import MAX_BALLOTS, TritonBackend, layers, nearest, search
from vbreg.backends.triton.beta import coordinates
from vbreg.backends.triton.branches import (
    BranchesTogether,
    joined_layers,
    kept_alive,
    weights_state,
)
from vbreg.backends.triton.precision import rounded_products


def clouds(B: int, N: int, seed: int = 0, moved: float = 0.7) -> tuple[Tensor, Tensor, Tensor]:
    """Source and target (B, N, 3) some thresholds wide, and a mask with holes and a short row."""
    generator = torch.Generator().manual_seed(seed)
    source = 3 * torch.randn(B, N, 3, generator=generator)
    target = source + moved * torch.randn(B, N, 3, generator=generator)
    mask = torch.ones(B, N, dtype=torch.bool)
    mask[-1, 2 * N // 3 :] = False
    mask[0, 3] = False
    return source.to(DEVICE), target.to(DEVICE), mask.to(DEVICE)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("N", [40, 130])
def test_attention_and_its_gradient_are_those_of_torch(masked: bool, N: int) -> None:
    source, target, mask = clouds(2, N)
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(2, N, 16, generator=generator).to(DEVICE) for _ in range(4)]
    query, key, value = (x.requires_grad_() for x in inputs[:3])
    seen = mask if masked else None
    beta = spatial_compatibility(source, target, source, target)
    expected = attention_rows(query, key, beta, seen) @ value
    found = TritonBackend(rounding=False).attention(source, target, seen)(query, key, value)
    close = 1e-4 if GPU else 1e-5  # where distances are rounded by a matrix product
    torch.testing.assert_close(found, expected, atol=close, rtol=1e-4)
    gradients = [torch.autograd.grad(y, (query, key, value), inputs[3]) for y in (expected, found)]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(b, a, atol=close, rtol=1e-3)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("widths", [(6, 32, 32), (32, 16, 16, 32), (24, 70)])
@torch.no_grad()
def test_layers_with_normalisation_are_those_of_torch(
    widths: tuple[int, ...], masked: bool
) -> None:
    _, _, mask = clouds(2, 150)
    mlp = NormedMLP(*widths).to(DEVICE)
    for norm in mlp.norms:
        torch.nn.init.normal_(norm.scale)
        torch.nn.init.normal_(norm.shift)
    x = (5 + torch.randn(2, 150, widths[0], generator=torch.Generator().manual_seed(3))).to(DEVICE)
    seen = mask if masked else None
    found = layers.normed_mlp(x, seen, mlp.linears, mlp.norms)
    torch.testing.assert_close(found, mlp(x, seen), atol=1e-4, rtol=1e-4)
    residual = torch.randn(2, 150, widths[-1]).to(DEVICE)
    added = layers.normed_mlp(x, seen, mlp.linears, mlp.norms, residual)
    torch.testing.assert_close(added, residual + found, atol=1e-6, rtol=1e-6)


@torch.no_grad()
def test_layers_of_branches_are_those_of_torch() -> None:
    generator = torch.Generator().manual_seed(3)
    first, shared, own = (
        torch.randn(*shape, generator=generator).to(DEVICE)
        for shape in ((3, 150, 70), (150, 24), (3, 150, 24))
    )
    layer = layers.Affine(
        torch.randn(3, 94, 90, generator=generator).to(DEVICE),
        torch.randn(3, 90, generator=generator).to(DEVICE),
    )
    for second in (shared, own):
        expected = torch.cat([first, second.expand(3, -1, -1)], -1) @ layer.weight
        expected += layer.bias.unsqueeze(1)
        torch.testing.assert_close(layer(first, second), expected, atol=1e-4, rtol=1e-4)
        found = layer(first, second, relu=True)
        torch.testing.assert_close(found, expected.relu(), atol=1e-4, rtol=1e-4)
    low = layers.Affine(layer.weight[:, :70].half(), layer.bias)
    found = low(first.half())
    assert found.dtype == torch.float16
    expected = layers.Affine(layer.weight[:, :70].contiguous(), layer.bias)(first)
    torch.testing.assert_close(found.float(), expected, atol=0.1, rtol=1e-2)


@torch.no_grad()
def test_the_gated_update_is_torchs_gru() -> None:
    cells = [torch.nn.GRUCell(70, 24).to(DEVICE) for _ in range(2)]
    x, h = (
        torch.randn(2, 150, width, generator=torch.Generator().manual_seed(width)).to(DEVICE)
        for width in (70, 24)
    )
    of_input, of_state = (
        layers.Affine(
            torch.stack([getattr(c, f"weight_{end}").T for c in cells]).contiguous(),
            torch.stack([getattr(c, f"bias_{end}") for c in cells]),
        )
        for end in ("ih", "hh")
    )
    found, low = layers.gated(x, h, h, of_input, of_state)
    expected = torch.stack([c(a, b) for c, a, b in zip(cells, x, h, strict=True)])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(low, found)


def test_suppression_is_that_of_the_map() -> None:
    source, target, mask = clouds(2, 150)
    confidence = torch.randn(2, 150).to(DEVICE).masked_fill(~mask, -torch.inf)
    confidence[0, 10:20] = 0.3  # equals do not suppress each other
    expected = voting.suppressed_by_neighbors(confidence, source, mask, 1.0)
    found = search.suppressed(confidence, coordinates(source, target), 1.0)
    assert torch.equal(found, expected)
    assert 0.05 < float(found.float().mean()) < 0.95


@pytest.mark.parametrize("N", [30, 150])  # fewer than a set holds, and more
def test_votes_are_those_of_torch(N: int) -> None:
    source, target, mask = clouds(2, N, moved=0.4)
    generator = torch.Generator().manual_seed(2)
    common = torch.randn(2, 1, 8, generator=generator)
    features = [
        (common + 0.7 * torch.randn(2, N, 8, generator=generator)).to(DEVICE) for _ in range(3)
    ]
    indices = torch.stack([torch.randperm(N // 2, generator=generator)[:6] for _ in range(2)])
    seeds = Seeds(indices.to(DEVICE), torch.ones(2, 6, dtype=torch.bool, device=DEVICE))
    electorate = Electorate(features, torch.tensor(0.8, device=DEVICE))
    given = electorate, source, target, seeds, mask, VotingConfig()
    expected, found = voting.vote(*given), TritonBackend().vote(*given)
    pairs = list(zip(sets_of(found), sets_of(expected), strict=True))
    assert all(len(a & b) >= (0.9 if GPU else 1.0) * len(a | b) for a, b in pairs)
    assert torch.equal(found.indices[..., 0], seeds.indices)
    assert expected.valid.sum() > 2 * 6 * 3


def sets_of(found: HypotheticalInliers) -> list[set[int]]:
    rows, real = found.indices.flatten(0, 1), found.valid.flatten(0, 1)
    return [set(row[there].tolist()) for row, there in zip(rows, real, strict=True)]


def test_of_equal_votes_the_first_count() -> None:
    """Forty matches in the seed's very place: all alike, and a set has room for some."""
    N, config = 60, VotingConfig(set_size=20)
    source = torch.zeros(1, N, 3, device=DEVICE)
    source[0, 40:, 0] = torch.arange(20.0)  # away from their targets: not compatible
    target = torch.zeros_like(source)
    features = [torch.ones(1, N, 4, device=DEVICE)]
    seeds = Seeds(*(torch.zeros(1, 1, dtype=t, device=DEVICE) for t in (torch.long, torch.bool)))
    seeds = seeds._replace(valid=~seeds.valid)
    mask = torch.ones(1, N, dtype=torch.bool, device=DEVICE)
    electorate = Electorate(features, torch.tensor(1.0, device=DEVICE))
    found = TritonBackend().vote(electorate, source, target, seeds, mask, config)
    assert found.valid.all()
    assert sorted(found.indices[0, 0].tolist()) == list(range(20))


def test_spectral_weights_are_those_of_torch() -> None:
    source, target, _ = clouds(2, 80, moved=0.3)
    generator = torch.Generator().manual_seed(0)
    common = torch.randn(2, 1, 16, generator=generator)
    features = (common + 0.5 * torch.randn(2, 80, 16, generator=generator)).to(DEVICE)
    rows = torch.stack([torch.randperm(80, generator=generator)[:20] for _ in range(2 * 4)])
    valid = torch.rand(2, 4, 20, generator=generator) < 0.8
    valid[0, 0] = False
    members = HypotheticalInliers(rows.view(2, 4, 20).to(DEVICE), valid.to(DEVICE))
    sigma = torch.tensor(0.9, device=DEVICE)
    expected = estimation.spectral_weights(features, source, target, members, sigma)
    found = search.spectral_weights(
        torch.nn.functional.normalize(features, dim=-1),
        coordinates(source, target),
        *members,
        sigma,
        estimation.POWER_ITERATIONS,
    )
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-3)
    assert (expected.sum(-1) > 0.99).sum() >= 6


def test_crowds_are_those_of_torch() -> None:
    source, target, mask = clouds(2, 90)
    source[:, 10:14] = source[:, 10:11]
    target[:, 5:12] = target[:, 5:6]
    expected = estimation.crowd_weights(source, target, mask)
    found = search.crowd_weights(coordinates(source, target), mask)
    torch.testing.assert_close(found, expected)
    assert len(expected.unique()) >= 5


def sets_of_points() -> tuple[Tensor, Tensor]:
    """Twelve sets of 40 matches (12, 40, 3): in space, in a plane, on a line, in one place; each
    turned by nothing, by half a turn and by any angle."""
    generator = torch.Generator().manual_seed(0)
    cube = torch.randn(40, 3, generator=generator)
    kinds = cube, cube * torch.tensor([1.0, 1, 0]), cube[:, :1] * torch.ones(3), torch.ones(40, 3)
    turns = (
        torch.eye(3),
        torch.diag(torch.tensor([1.0, -1, -1])),
        geometry.random_rotation(generator=generator),
    )
    source = torch.stack([5 * kind for kind in kinds for _ in turns])
    target = torch.stack([5 * kind @ turn.T for kind in kinds for turn in turns])
    noise = 0.05 * torch.randn(source.shape, generator=generator)
    noise[6:] = 0.0  # a line stays a line
    return (source + 2).to(DEVICE), (target + noise - 4).to(DEVICE)


def test_poses_of_sets_are_those_of_procrustes() -> None:
    source, target = sets_of_points()
    weights = torch.rand(12, 1, 40, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    weights[0, 0, 20:] = 0.0
    members = torch.arange(40, device=DEVICE).expand(12, 1, 40)
    T, sound = search.fit(coordinates(source, target), members, weights)
    expected, expected_sound = geometry.procrustes(source, target, weights.squeeze(1))
    assert sound.squeeze(1).tolist() == expected_sound.tolist() == [True] * 6 + [False] * 6
    torch.testing.assert_close(T[:6, 0], expected[:6], atol=2e-5, rtol=0)
    assert torch.isfinite(T).all()
    det = torch.linalg.det(T[..., :3, :3].double())
    torch.testing.assert_close(det, torch.ones_like(det), atol=1e-5, rtol=0)


def test_a_mirrored_set_gets_a_rotation() -> None:
    source, _ = sets_of_points()
    target = source[:1] * torch.tensor([1.0, 1, -1], device=DEVICE)
    weights = torch.ones(1, 1, 40, device=DEVICE)
    members = torch.arange(40, device=DEVICE).view(1, 1, 40)
    T, sound = search.fit(coordinates(source[:1], target), members, weights)
    expected, _ = geometry.procrustes(source[:1], target, weights[0])
    assert bool(sound)
    torch.testing.assert_close(T[:, 0], expected, atol=1e-4, rtol=0)


def test_scores_and_refinement_are_those_of_torch() -> None:
    problem = make_problem(300, 0.4, seed=5)
    unit = 0.1
    source, target = (
        torch.from_numpy(x / unit).unsqueeze(0).to(DEVICE) for x in (problem.source, problem.target)
    )
    source, target = source - source.mean(1, keepdim=True), target - target.mean(1, keepdim=True)
    mask = torch.ones(1, 300, dtype=torch.bool, device=DEVICE)
    mask[0, :30] = False
    R = torch.from_numpy(problem.T[:3, :3]).to(DEVICE)
    inliers = torch.from_numpy(problem.inliers).to(DEVICE)
    t = (target[0] - source[0] @ R.T)[inliers].mean(0) + 0.3
    start = geometry.from_rotation_translation(R, t).unsqueeze(0)
    weights = torch.rand(1, 300, generator=torch.Generator().manual_seed(0)).to(DEVICE) * mask
    low = source.float(), target.float()
    poses = torch.stack([start[0], geometry.from_rotation_translation(R, t + 0.5)]).float()[None]
    torch.testing.assert_close(
        search.score(poses, coordinates(*low), weights),
        estimation.inlier_score(poses, *low, weights),
        atol=1e-6,
        rtol=1e-5,
    )
    none = torch.zeros(1, dtype=torch.bool, device=DEVICE)
    expected = estimation.refine(Estimate(start, none), source, target, mask)
    T, determined = search.refine(
        start, none, coordinates(source, target), mask, 50, estimation.SETTLED
    )
    torch.testing.assert_close(T, expected.T, atol=1e-9, rtol=0)
    assert bool(determined)
    assert bool(expected.determined)
    assert (expected.T - start).abs().max() > 0.05  # there was something to refine
    far = start.clone()
    far[:, :3, 3] += 1e4
    T, determined = search.refine(
        far, none, coordinates(source, target), mask, 50, estimation.SETTLED
    )
    assert torch.equal(T, far)
    assert not bool(determined)


@pytest.fixture
def kernels_without_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels for every device, as on a GPU, but not recorded."""
    chosen = TritonBackend()
    monkeypatch.setattr(chosen, "records", False, raising=False)
    load = backends._load
    monkeypatch.setattr(
        backends, "_load", lambda name: load("plain") if name == "plain" else chosen
    )


@pytest.mark.usefixtures("kernels_without_recording")
def test_the_whole_gives_the_same_pose(small_network: VariationalNonLocalNetwork) -> None:
    """All kernels together, with the rounding that users have."""
    problem = make_problem(70, 0.6, seed=3)
    config = VotingConfig(min_seeds=12, set_size=10)
    plain, quick = (
        VBReg(small_network.to(DEVICE), voting=config, backend=name) for name in ("plain", "auto")
    )
    expected = plain.estimate(problem.source, problem.target, inlier_threshold=0.1)
    found = quick.estimate(problem.source, problem.target, inlier_threshold=0.1)
    assert (expected.backend, found.backend) == ("plain", "triton")
    assert abs(found.T_target_source - expected.T_target_source).max() < 1e-6
    assert (found.inliers == expected.inliers).all()
    assert expected.inliers.sum() > 30


@pytest.mark.parametrize("rounding", [False, True])
@torch.no_grad()
def test_branches_together_follow_the_weights(
    small_network: VariationalNonLocalNetwork, rounding: bool
) -> None:
    network, backend = small_network.to(DEVICE), TritonBackend(rounding=rounding)
    source, target, mask = clouds(2, 40)
    close = {"atol": 2e-2, "rtol": 2e-2} if rounding else {"atol": 2e-4, "rtol": 1e-3}
    for _ in range(2):
        expected = network(source, target, mask=mask)
        found = network(source, target, mask=mask, steps=backend)
        torch.testing.assert_close(found.logits[mask], expected.logits[mask], **close)
        before = found.logits
        for parameter in network.branches.parameters():
            parameter.mul_(1.1)
    assert (network(source, target, mask=mask).logits - before)[mask].abs().max() > 3e-3


@torch.no_grad()
def test_joined_layers_are_made_anew_only_when_weights_change(
    small_network: VariationalNonLocalNetwork,
) -> None:
    first, state = joined_layers(small_network, torch.float16), weights_state(small_network)
    assert joined_layers(small_network, torch.float16) is first
    assert joined_layers(small_network, torch.float32) is not first  # another precision
    small_network.sigma.mul_(2.0)
    assert weights_state(small_network) != state
    assert joined_layers(small_network, torch.float16) is not first
    held = kept_alive(small_network)
    assert isinstance(held, tuple)
    assert len(held) == 2


@torch.no_grad()
def test_joined_layers_are_those_of_the_network_after_it_was_moved(
    small_network: VariationalNonLocalNetwork,
) -> None:
    """Torch replaces the tensors of a module that is turned to another precision and back."""
    first = joined_layers(small_network, torch.float32)
    network = small_network.double().float()
    second = joined_layers(network, torch.float32)
    assert torch.equal(second.embed.weight, first.embed.weight)
    assert torch.equal(second.embed.weight[0].T, network.latent_branches()[0].embed.weight)


def test_branches_with_gradients_labels_or_samples_are_the_readable_ones(
    small_network: VariationalNonLocalNetwork,
) -> None:
    network, features = small_network.to(DEVICE), torch.zeros(1, 9, 32, device=DEVICE)
    backend = TritonBackend()
    assert isinstance(backend.branches(network, features, None, None), LatentBranches)
    with torch.no_grad():
        quick = backend.branches(network, features, None, None)
        assert isinstance(quick, BranchesTogether)
        labels = torch.zeros(1, 9, dtype=torch.bool, device=DEVICE)
        generator = torch.Generator(DEVICE)
        for drawn in ((labels, None), (None, generator)):
            assert isinstance(backend.branches(network, features, *drawn), LatentBranches)


def test_a_refined_pose_far_from_all_matches_stays() -> None:
    source, target, mask = (part[:1] for part in clouds(2, 40))
    far = torch.eye(4, dtype=torch.float64, device=DEVICE)[None].clone()
    far[:, :3, 3] += 1e4
    none = torch.zeros(1, dtype=torch.bool, device=DEVICE)
    ends = source.double(), target.double()
    found = TritonBackend().refine(Estimate(far, none), *ends, mask)
    assert torch.equal(found.T, far)
    assert not bool(found.determined)


def test_more_matches_than_registers_hold_are_voted_on_by_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("vbreg.backends.triton.MAX_BALLOTS", 20)
    source, target, mask = clouds(2, 30, moved=0.4)
    seeds = Seeds(
        torch.arange(6, device=DEVICE).view(2, 3),
        torch.ones(2, 3, dtype=torch.bool, device=DEVICE),
    )
    given = Electorate([source], 1.0), source, target, seeds, mask, VotingConfig(set_size=9)
    found, expected = TritonBackend().vote(*given), voting.vote(*given)
    assert torch.equal(found.indices, expected.indices)
    assert MAX_BALLOTS == 8192


@pytest.mark.usefixtures("kernels_without_recording")
def test_kernels_that_do_not_run_are_done_without(
    small_network: VariationalNonLocalNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no C compiler")

    problem = make_problem(60, 0.6, seed=3)
    model = VBReg(small_network.to(DEVICE))
    monkeypatch.setattr(search, "fit", broken)
    with pytest.warns(UserWarning, match="'triton' does not run here.*no C compiler"):
        found = model.estimate(problem.source, problem.target, inlier_threshold=0.1)
    assert abs(found.T_target_source - problem.T).max() < 0.05
    assert found.backend == "plain"
    assert "triton" in backends._failed


def test_training_has_kernels_that_do_not_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vbreg.backends.devices.runs_triton", lambda device: True)
    quick = backends.for_training(DEVICE, quick=True)
    assert isinstance(quick, TritonBackend)
    assert not quick.rounding
    assert type(backends.for_training(DEVICE, quick=False)) is Backend


@pytest.mark.slow
def test_kernels_compile_for_gpus_that_are_not_here(tmp_path: Path) -> None:
    script = Path(__file__).with_name("compile_kernels.py")
    settings = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    settings["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, script, "90", "89"],  # data centres, and consumer cards of 2022 on
        env=settings,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    large, small = (json.loads(done.stdout)[capability] for capability in ("90", "89"))
    assert len(large) == 20
    assert len(small) == 9  # those with products; the others take as much
    assert max(large.values()) <= 232_448, large  # bytes of a multiprocessor
    assert max((large | small).values()) <= 101_376, small


def test_rounding_is_switched_back_by_the_last_to_leave() -> None:
    before = torch.get_float32_matmul_precision()
    switch = rounded_products
    switch.__enter__()
    switch.__enter__()
    switch.__exit__()
    assert torch.get_float32_matmul_precision() == "high"
    switch.__exit__()
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.parametrize(
    ("k", "radius"), [(1, math.inf), (3, 0.25), (30, 0.25), (40, math.inf), (128, 0.25)]
)
def test_the_nearest_points_are_those_of_torch(k: int, radius: float) -> None:
    generator = torch.Generator().manual_seed(k)
    points, queries = (torch.rand(2, n, 3, generator=generator).to(DEVICE) for n in (290, 4))
    points[0, 7] = points[0, 3]  # equally near: the lower row comes first
    queries[0, 0] = points[0, 3]
    real = (torch.rand(2, 290, generator=generator) < 0.8).to(DEVICE)
    real[0, [3, 7]] = True
    real[1, 2:] = False  # fewer than asked for
    found = TritonBackend().nearest(points, queries, real, k, radius)
    expected = Backend().nearest(points, queries, real, k, radius)
    torch.testing.assert_close(found[1], expected[1])
    assert found[0][0, 0, :2].tolist() == [3, 7][:k]
    there = expected[1].isfinite()
    assert torch.equal(found[1].isfinite(), there)
    assert not found[0][~there].any()
    for b in range(2):
        same = (points[b][index[b]][there[b]] for index in (found[0], expected[0]))
        torch.testing.assert_close(*same)


@pytest.mark.parametrize(("k", "N", "radius"), [(8, 200, 0.5), (40, 150, 0.6), (128, 128, 3.0)])
def test_of_equally_near_points_kernels_take_the_lowest_index(
    k: int, N: int, radius: float
) -> None:
    generator = torch.Generator().manual_seed(k)
    # Eighths, of which nothing is rounded: many are equally near, some at the radius itself.
    points, queries = (
        (torch.randint(0, 9, (2, n, 3), generator=generator) / 8).to(DEVICE) for n in (N, 3)
    )
    real = (torch.rand(2, N, generator=generator) < 0.9).to(DEVICE)
    found = TritonBackend().nearest(points, queries, real, k, radius)
    for a, b in zip(found, Backend().nearest(points, queries, real, k, radius), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(("name", "k"), [("_one", 1), ("_many", 3)])
def test_a_radius_that_is_a_whole_number_reaches_a_kernel_as_a_float(
    monkeypatch: pytest.MonkeyPatch, name: str, k: int
) -> None:
    """A kernel on a GPU would be compiled for a whole number, and could not be."""
    given: list[object] = []

    class Spy:
        def __getitem__(self, grid: object) -> object:
            return lambda *arguments, **options: given.extend(arguments)

    monkeypatch.setattr(nearest, name, Spy())
    points = torch.rand(1, 9, 3)
    nearest.search(points, points, torch.ones(1, 9, dtype=torch.bool), k, 2)
    assert given[-1] == 4.0
    assert isinstance(given[-1], float)


def test_more_neighbors_than_kernels_find_are_found_by_torch() -> None:
    points = torch.rand(1, 400, 3, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    real = torch.ones(1, 400, dtype=torch.bool, device=DEVICE)
    k = nearest.MAX_NEIGHBORS + 1
    found = TritonBackend().nearest(points, points, real, k, 0.5)
    for a, b in zip(found, Backend().nearest(points, points, real, k, 0.5), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(("N", "Q", "k"), [(0, 3, 0), (5, 0, 5), (20, 0, 12)])
def test_kernels_find_nothing_for_nobody(N: int, Q: int, k: int) -> None:
    points, queries = torch.zeros(2, N, 3, device=DEVICE), torch.zeros(2, Q, 3, device=DEVICE)
    real = torch.ones(2, N, dtype=torch.bool, device=DEVICE)
    index, distance2 = TritonBackend().nearest(points, queries, real, k, 1.0)
    assert index.shape == distance2.shape == (2, Q, k)
