"""The quick forms of a CPU against the readable ones, on the sizes where they take another way.

What every backend has to do is tested in test_plain.py and in the tests of the science.
"""

import pytest
import torch
from torch import Tensor

from tests.conftest import make_problem
from vbreg import compatibility, voting
from vbreg.backends import cpu
from vbreg.backends.cpu import CPUBackend
from vbreg.backends.plain import Backend
from vbreg.compatibility import attention_rows, spatial_compatibility
from vbreg.geometry import apply, from_rotation_translation, random_rotation
from vbreg.network import VariationalNonLocalNetwork
from vbreg.voting import Electorate, Seeds, VotingConfig


def random_set(B: int = 2, N: int = 40, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = {"generator": generator, "dtype": dtype}
    points = [4 * torch.rand(B, N, 3, **shape) for _ in range(2)]
    return points + [torch.randn(B, N, 16, **shape) for _ in range(3)]


def short_mask() -> Tensor:
    return torch.arange(40).expand(2, 40) < torch.tensor([[31], [40]])


# --- compatibility --------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (2,), (2, 2)])
def test_maps_made_in_the_cache_are_the_same(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    source, target = (3 * torch.randn(*shape, 70, 3, generator=generator) for _ in range(2))
    rows = slice(3, 40)
    ends = source[..., rows, :], target[..., rows, :], source, target
    whole = spatial_compatibility(*ends)
    torch.testing.assert_close(cpu.compatibility(*ends), whole)
    monkeypatch.setattr(cpu, "CACHED_NUMBERS", 300)  # four rows at a time, and a rest
    torch.testing.assert_close(cpu.compatibility(*ends), whole)
    assert 0.05 < float((whole > 0).float().mean()) < 0.95


def test_distances_made_in_the_cache_are_the_same() -> None:
    points = 3 * torch.randn(70, 3, generator=torch.Generator().manual_seed(0))
    found = cpu._distances_into(torch.empty(37, 70), points[3:40], points.T.contiguous())
    torch.testing.assert_close(found, compatibility.distances(points[3:40], points))


@pytest.mark.parametrize("shape", [(), (2,)])
def test_a_mirrored_map_is_the_whole_one(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    source, target = (3 * torch.randn(*shape, 70, 3, generator=generator) for _ in range(2))
    whole = spatial_compatibility(source, target, source, target)
    monkeypatch.setattr(cpu, "CACHED_NUMBERS", 300)
    monkeypatch.setattr(cpu, "MIRRORED_ROWS", 16)  # four strips, and a rest
    torch.testing.assert_close(cpu.own_compatibility(source, target), whole)


@pytest.mark.parametrize("share", [0.02, 0.5])  # a sparse product, and a dense one
def test_triangles_of_sparse_and_of_dense_graphs_are_counted_alike(share: float) -> None:
    generator = torch.Generator().manual_seed(0)
    graph = torch.rand(80, 80, generator=generator)
    graph = graph * (torch.rand(80, 80, generator=generator) < share)
    graph = (graph + graph.T).fill_diagonal_(0.0)
    found = CPUBackend().triangle_weights(graph)
    assert found.dtype == graph.dtype
    torch.testing.assert_close(found, graph * (graph @ graph))
    assert float(found.max()) > 0


# --- attention ------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("factor", [3, 300])  # the second beyond what exp can take
@pytest.mark.parametrize("masked", [False, True])
@torch.no_grad()
def test_dense_attention_is_the_readable_one(
    keep: bool, factor: int, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "LOGIT_ROWS", 16)
    monkeypatch.setattr(cpu, "MAX_KEPT_BYTES", 2**29 if keep else 0)
    x, y, q, k, v = random_set()
    mask = short_mask() if masked else None
    beta = spatial_compatibility(x, y, x, y)
    expected = attention_rows(factor * q, k, beta, mask) @ v
    found = cpu.dense_attention(x, y, mask)(factor * q, k, v)
    real = torch.ones(2, 40, dtype=torch.bool) if mask is None else mask
    torch.testing.assert_close(found[real], expected[real], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("keep", [False, True])
@torch.no_grad()
def test_sparse_attention_is_the_readable_one(
    keep: bool, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compatibility, "MAX_MAP_BYTES", 4 * 40 * 7 * 4)  # several chunks, uneven
    monkeypatch.setattr(cpu, "MAX_KEPT_BYTES", 2**29 if keep else 0)
    x, y, q, k, v = random_set()
    mask = short_mask() if masked else None
    expected = attention_rows(3 * q, k, spatial_compatibility(x, y, x, y), mask) @ v
    attend = cpu.sparse_attention(x, y, mask, cpu.MAX_SPARSE_PAIRS)
    assert attend is not None
    real = torch.ones(2, 40, dtype=torch.bool) if mask is None else mask
    torch.testing.assert_close(attend(3 * q, k, v)[real], expected[real])


def test_sparse_attention_skips_most_pairs() -> None:
    x, y, *_ = random_set(B=1, N=200)
    beta = cpu._compatibility_csr(10 * x[0], 10 * y[0], cpu.MAX_SPARSE_PAIRS)
    assert beta is not None
    assert beta.values().numel() < 0.3 * 200 * 200
    dense = spatial_compatibility(10 * x, 10 * y, 10 * x, 10 * y)[0]
    torch.testing.assert_close(beta.to_dense(), dense)


@torch.no_grad()
def test_too_many_compatible_pairs_are_computed_densely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nearly all agree, the sparse form would hold N^2 entries."""
    x, _, q, k, v = random_set()
    assert cpu.sparse_attention(x, x, None, max_pairs=100) is None
    monkeypatch.setattr(cpu, "MAX_SPARSE_SHARE", 2.0)  # sparse is tried first, and gives up
    monkeypatch.setattr(cpu, "MAX_SPARSE_PAIRS", 100)
    found = CPUBackend().attention(x, x, None)(q, k, v)
    torch.testing.assert_close(found, Backend().attention(x, x, None)(q, k, v))


@pytest.mark.parametrize(("extent", "kind"), [(1.0, "dense"), (100.0, "sparse")])
@torch.no_grad()
def test_the_share_of_compatible_pairs_chooses_the_form(
    extent: float, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y, q, k, v = random_set(N=150)
    taken = []
    for name in ("dense", "sparse"):
        given = getattr(cpu, f"{name}_attention")
        monkeypatch.setattr(
            cpu, f"{name}_attention", lambda *a, n=name, f=given: taken.append(n) or f(*a)
        )
    found = CPUBackend().attention(extent * x, extent * y, None)(q, k, v)
    assert taken == [kind]
    expected = Backend().attention(extent * x, extent * y, None)(q, k, v)
    torch.testing.assert_close(found, expected)


@torch.no_grad()
def test_many_high_logits_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "MAX_KEPT_BYTES", 0)
    x = 1e-3 * torch.rand(1, 4000, 3, generator=torch.Generator().manual_seed(0))
    q = torch.full((1, 4000, 4), (79.4 / 2) ** 0.5)
    v = torch.full((1, 4000, 4), 100.0)
    torch.testing.assert_close(cpu.dense_attention(x, x, None)(q, q, v), v)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@torch.no_grad()
def test_attention_takes_ends_of_lower_precision(kind: str) -> None:
    x, y, q, k, v = random_set(dtype=torch.float32)
    attend = (
        cpu.dense_attention(x, y, None)
        if kind == "dense"
        else cpu.sparse_attention(x, y, None, cpu.MAX_SPARSE_PAIRS)
    )
    assert attend is not None
    low = [end.bfloat16() for end in (q, k, v)]
    expected = Backend().attention(x, y, None)(*(end.float() for end in low))
    torch.testing.assert_close(attend(*low).float(), expected, atol=2e-2, rtol=2e-2)


# --- the network ----------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 2.0])  # dense attention, and sparse
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@torch.no_grad()
def test_the_network_is_the_same_with_either_attention(
    small_network: VariationalNonLocalNetwork,
    monkeypatch: pytest.MonkeyPatch,
    dtype: torch.dtype,
    share: float,
) -> None:
    """Two problems, one of them shorter; what padding says is never read."""
    monkeypatch.setattr(cpu, "MAX_SPARSE_SHARE", share)
    network = small_network.to(dtype)
    problems = [make_problem(60, 0.5, seed=k) for k in range(2)]
    source, target = (
        torch.stack([torch.as_tensor(getattr(p, end), dtype=dtype) / 0.1 for p in problems])
        for end in ("source", "target")
    )
    real = torch.arange(60) < torch.tensor([[60], [41]])
    found = network(source, target, mask=real, keep_attention=True, steps=CPUBackend())
    expected = network(source, target, mask=real, keep_attention=True)
    close = dict.fromkeys(("atol", "rtol"), 5e-3 if dtype == torch.float32 else 1e-9)
    torch.testing.assert_close(found.logits[real], expected.logits[real], **close)
    for a, b in zip(found.features, expected.features, strict=True):
        torch.testing.assert_close(a[real], b[real], **close)
    for (q, k), (Q, K) in zip(found.attention, expected.attention, strict=True):
        torch.testing.assert_close(
            torch.cat([q[real], k[real]]), torch.cat([Q[real], K[real]]), **close
        )
    assert expected.logits.std() > 0.01


# --- search ---------------------------------------------------------------------------------------


def test_candidates_are_the_compatible_ones() -> None:
    beta = torch.tensor([[[0.0, 0.5, 0.0, 0.9], [0.0, 0.0, 0.0, 0.0], [0.2, 0.3, 0.0, 0.1]]])
    seed = torch.tensor([[0, 1, 2]])
    columns = cpu._compatible_columns(beta, seed, at_least=2)
    assert columns.tolist() == [[[1, 3, 0], [1, 1, 1], [0, 1, 3]]]
    assert torch.equal(beta.gather(-1, columns)[0, 0], torch.tensor([0.5, 0.9, 0.0]))
    places = torch.tensor([[[1], [0], [2]]])
    assert columns.gather(-1, places).tolist() == [[[3], [1], [3]]]


def test_votes_in_pieces_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, *features = random_set(N=60)
    mask = torch.arange(60).expand(2, 60) < torch.tensor([[60], [50]])
    seeds = Seeds(torch.arange(24).view(2, 12), torch.ones(2, 12, dtype=torch.bool))
    electorate, config = Electorate(features, 0.9), VotingConfig(set_size=9)
    whole = cpu.vote(electorate, x, y, seeds, mask, config)
    monkeypatch.setattr(compatibility, "MAX_MAP_BYTES", 4 * 2 * 60 * 6 * 5)  # five seeds at a time
    pieces = cpu.vote(electorate, x, y, seeds, mask, config)
    assert torch.equal(whole.valid, pieces.valid)
    assert torch.equal(whole.indices[whole.valid], pieces.indices[whole.valid])


def test_suppression_by_tree_is_that_of_the_map(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    source = 3 * torch.rand(2, 200, 3, generator=generator)
    confidence = torch.randn(2, 200, generator=generator)
    confidence[0, :20] = 0.3  # equals do not suppress each other
    mask = torch.ones(2, 200, dtype=torch.bool)
    mask[1, 150:] = False
    assert cpu._suppressed(confidence[0], source[0], 0.7) is not None  # the tree is taken
    found = CPUBackend().suppressed(confidence, source, mask, 0.7)
    expected = voting.suppressed_by_neighbors(confidence, source, mask, 0.7)
    assert torch.equal(found, expected)
    assert 0.05 < float(found[0].float().mean()) < 0.95
    monkeypatch.setattr(cpu, "MAX_NEAR", 0)  # too many to list
    assert cpu._suppressed(confidence[0], source[0], 0.7) is None
    assert torch.equal(CPUBackend().suppressed(confidence, source, mask, 0.7), expected)


def test_scores_multiplied_out_hold_in_a_wide_scene() -> None:
    """Multiplied out, a residual is a small difference of large numbers."""
    generator = torch.Generator().manual_seed(0)
    x = 2000 * torch.randn(1, 200, 3, generator=generator, dtype=torch.float64)
    R = random_rotation(1, 3, dtype=torch.float64, generator=generator)
    T = from_rotation_translation(
        R, 500 * torch.randn(1, 3, 3, generator=generator, dtype=torch.float64)
    )
    y = apply(T[:, 0], x) + 0.3 * torch.randn(1, 200, 3, dtype=torch.float64, generator=generator)
    weights = torch.rand(1, 200, generator=generator)
    expected = Backend().inlier_score(T, x, y, weights)
    found = CPUBackend().inlier_score(T, x, y, weights)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    assert 0.3 < float(expected[0, 0]) < 0.95


def test_scores_in_pieces_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, *_ = random_set(N=50)
    R = random_rotation(2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    T = from_rotation_translation(R, torch.zeros(2, 5, 3, dtype=torch.float64))
    weights = torch.ones(2, 50)
    whole = cpu.inlier_score(T, x, y, weights)
    monkeypatch.setattr(compatibility, "MAX_MAP_BYTES", 4 * 2 * 64 * 50 * 2)  # two at a time
    torch.testing.assert_close(cpu.inlier_score(T, x, y, weights), whole)
    torch.testing.assert_close(whole, Backend().inlier_score(T, x, y, weights))
