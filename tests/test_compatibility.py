import pytest
import torch

from vbreg import compatibility
from vbreg.compatibility import (
    attention_rows,
    feature_compatibility,
    spatial_attention,
    spatial_compatibility,
)


def random_set(B: int = 2, N: int = 40, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = {"generator": generator, "dtype": dtype}
    points = [4 * torch.rand(B, N, 3, **shape) for _ in range(2)]
    return points + [torch.randn(B, N, 16, **shape) for _ in range(3)]


def test_beta_is_equation_2() -> None:
    x, y, *_ = random_set()
    beta = spatial_compatibility(x, y, x, y)
    for i, j in [(0, 1), (3, 17), (5, 5)]:
        d = (x[0, i] - x[0, j]).norm() - (y[0, i] - y[0, j]).norm()
        assert float(beta[0, i, j]) == pytest.approx(max(0.0, 1.0 - float(d) ** 2), abs=1e-9)


def test_beta_does_not_change_under_motion_of_either_side() -> None:
    from vbreg.geometry import random_rotation

    x, y, *_ = random_set()
    R = random_rotation(2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    moved = spatial_compatibility(x @ R.mT + 5, y, x @ R.mT + 5, y)
    torch.testing.assert_close(moved, spatial_compatibility(x, y, x, y))


def test_feature_compatibility_is_clipped() -> None:
    f = torch.eye(3)
    f = torch.cat([f, -f])
    S = feature_compatibility(f, f, sigma=1.0)
    assert float(S.min()) == 0.0
    assert float(S.max()) == 1.0
    assert (feature_compatibility(f, f, sigma=0.5) <= S).all()


@pytest.mark.parametrize("form", ["chunked", "sparse"])
@pytest.mark.parametrize("masked", [False, True])
def test_every_form_of_the_attention_is_the_dense_one(
    form: compatibility.AttentionForm, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compatibility, "MAP_BYTES", 4 * 40 * 7 * 4)  # several chunks, uneven
    x, y, q, k, v = random_set()
    mask = torch.arange(40).expand(2, 40) < torch.tensor([[31], [40]]) if masked else None
    dense = spatial_attention(x, y, mask, "dense")(3 * q, k, v)
    other = spatial_attention(x, y, mask, form)(3 * q, k, v)
    real = torch.ones(2, 40, dtype=torch.bool) if mask is None else mask
    torch.testing.assert_close(other[real], dense[real])


def test_sparse_form_skips_most_pairs() -> None:
    x, y, *_ = random_set(B=1, N=200)
    beta = compatibility._compatibility_csr(10 * x[0], 10 * y[0])
    assert beta is not None
    assert beta.values().numel() < 0.3 * 200 * 200
    dense = spatial_compatibility(10 * x, 10 * y, 10 * x, 10 * y)[0]
    torch.testing.assert_close(beta.to_dense(), dense)


def test_beta_multiplies_the_logit_and_does_not_mask() -> None:
    q = k = torch.ones(1, 2, 4)
    rows = attention_rows(q, k, beta=torch.zeros(1, 2, 2), mask=None)
    torch.testing.assert_close(rows, torch.full((1, 2, 2), 0.5))


def test_attention_gradient() -> None:
    x, y, q, k, v = random_set(B=1, N=6)
    leaves = [t.requires_grad_() for t in (q, k, v)]
    assert torch.autograd.gradcheck(spatial_attention(x, y), leaves)


def test_unknown_form_lists_the_choices() -> None:
    with pytest.raises(ValueError, match="dense, fused, kernel, chunked or sparse"):
        spatial_attention(*random_set()[:2], None, "fast")  # type: ignore[arg-type]


def test_too_many_compatible_pairs_fall_back_to_chunks() -> None:
    """Where nearly all agree, the sparse form would hold N^2 entries."""
    x, _, q, k, v = random_set()
    with torch.no_grad():
        assert compatibility._sparse(x, x, None, most=100) is None
        out = spatial_attention(x, x)(q, k, v)
    torch.testing.assert_close(out, spatial_attention(x, x, None, "dense")(q, k, v))


def test_wide_scenes_keep_their_compatibility() -> None:
    """Neighbours ten thousand thresholds from one origin and beside the other: a matrix product
    would lose them in the first frame and not in the second."""
    x = 1e4 + torch.rand(1, 50, 3, generator=torch.Generator().manual_seed(0))
    y = x - 1e4  # exact, so both frames hold the same shape
    assert float(spatial_compatibility(x, y, x, y).min()) > 0.999
    by_product = torch.cdist(x, x, compute_mode="use_mm_for_euclid_dist") - torch.cdist(y, y)
    assert float(by_product.abs().max()) > 0.5


@pytest.mark.parametrize("shape", [(), (2,), (2, 2)])
def test_maps_made_in_the_cache_are_the_same(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    source, target = (3 * torch.randn(*shape, 70, 3, generator=generator) for _ in range(2))
    rows = slice(3, 40)
    ends = source[..., rows, :], target[..., rows, :], source, target
    whole = compatibility.spatial_compatibility(*ends)
    apart = compatibility.distances(source[..., rows, :], source)
    monkeypatch.setattr(compatibility, "CACHED", 300)  # four rows at a time, and a rest
    torch.testing.assert_close(compatibility.spatial_compatibility(*ends), whole)
    torch.testing.assert_close(compatibility.distances(source[..., rows, :], source), apart)
    assert 0.05 < float((whole > 0).float().mean()) < 0.95


@pytest.mark.parametrize("shape", [(), (2,)])
def test_a_mirrored_map_is_the_whole_one(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    source, target = (3 * torch.randn(*shape, 70, 3, generator=generator) for _ in range(2))
    whole = compatibility.spatial_compatibility(source, target, source, target)
    monkeypatch.setattr(compatibility, "CACHED", 300)
    monkeypatch.setattr(compatibility, "MIRRORED_ROWS", 16)  # four strips, and a rest
    torch.testing.assert_close(compatibility.own_compatibility(source, target), whole)


@torch.no_grad()
def test_many_high_logits_add_up() -> None:
    x = 1e-3 * torch.rand(1, 4000, 3, generator=torch.Generator().manual_seed(0))
    q = torch.full((1, 4000, 4), (79.4 / 2) ** 0.5)
    v = torch.full((1, 4000, 4), 100.0)
    found = compatibility._on_cpu(x, x, None, keep=False)(q, q, v)
    torch.testing.assert_close(found, v)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("factor", [3, 300])  # the second beyond what exp can take
@pytest.mark.parametrize("masked", [False, True])
def test_a_cpu_computes_the_dense_attention(
    keep: bool, factor: int, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compatibility, "KEPT_ROWS", 16)
    x, y, q, k, v = random_set()
    mask = torch.arange(40).expand(2, 40) < torch.tensor([[31], [40]]) if masked else None
    dense = spatial_attention(x, y, mask, "dense")(factor * q, k, v)
    with torch.no_grad():
        found = compatibility._on_cpu(x, y, mask, keep=keep)(factor * q, k, v)
    real = torch.ones(2, 40, dtype=torch.bool) if mask is None else mask
    torch.testing.assert_close(found[real], dense[real], atol=1e-5, rtol=1e-4)
