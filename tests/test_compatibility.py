"""The laws of compatibility and attention, with every backend that computes them."""

import pytest
import torch

from tests.conftest import Form
from vbreg import compatibility
from vbreg.compatibility import (
    attention_rows,
    feature_compatibility,
    row_chunks,
    spatial_attention,
    spatial_compatibility,
)
from vbreg.geometry import random_rotation


def random_set(B: int = 2, N: int = 40, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = {"generator": generator, "dtype": dtype}
    points = [4 * torch.rand(B, N, 3, **shape) for _ in range(2)]
    return points + [torch.randn(B, N, 16, **shape) for _ in range(3)]


@torch.no_grad()
def test_beta_is_equation_2(form: Form) -> None:
    x, y = map(form.put, random_set()[:2])
    beta = form.backend.compatibility(x, y, x, y)
    for i, j in [(0, 1), (3, 17), (5, 5)]:
        d = (x[0, i] - x[0, j]).norm() - (y[0, i] - y[0, j]).norm()
        expected = max(0.0, 1.0 - float(d) ** 2)
        assert float(beta[0, i, j]) == pytest.approx(expected, **_approx(form, 1e-9, 1e-5))


def _approx(form: Form, exact: float, rounded: float) -> dict[str, float]:
    return {"abs": form.close(exact, rounded)["atol"]}


@torch.no_grad()
def test_beta_does_not_change_under_motion_of_either_side(form: Form) -> None:
    x, y = map(form.put, random_set()[:2])
    R = form.put(
        random_rotation(2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    )
    moved = form.backend.compatibility(x @ R.mT + 5, y, x @ R.mT + 5, y)
    expected = form.backend.compatibility(x, y, x, y)
    torch.testing.assert_close(moved, expected, **form.close(1e-7, 1e-4))


@torch.no_grad()
def test_wide_scenes_keep_their_compatibility(form: Form) -> None:
    """Neighbours ten thousand thresholds from one origin and beside the other: a matrix product
    would lose them in the first frame and not in the second."""
    x = 1e4 + torch.rand(1, 50, 3, generator=torch.Generator().manual_seed(0)).to(form.device)
    y = x - 1e4  # exact, so both frames hold the same shape
    assert float(form.backend.compatibility(x, y, x, y).min()) > 0.999
    by_product = torch.cdist(x, x, compute_mode="use_mm_for_euclid_dist") - torch.cdist(y, y)
    assert float(by_product.abs().max()) > 0.5


def test_feature_compatibility_is_clipped() -> None:
    f = torch.eye(3)
    f = torch.cat([f, -f])
    S = feature_compatibility(f, f, sigma=1.0)
    assert float(S.min()) == 0.0
    assert float(S.max()) == 1.0
    assert (feature_compatibility(f, f, sigma=0.5) <= S).all()


def test_beta_multiplies_the_logit_and_does_not_mask() -> None:
    q = k = torch.ones(1, 2, 4)
    rows = attention_rows(q, k, beta=torch.zeros(1, 2, 2), mask=None)
    torch.testing.assert_close(rows, torch.full((1, 2, 2), 0.5))


def test_chunks_cover_all_rows_once_within_the_bound() -> None:
    chunks = list(row_chunks(1000, 2**16, batch=2, maps=3))
    assert [row for chunk in chunks for row in range(chunk.start, chunk.stop)] == list(range(1000))
    most = max(chunk.stop - chunk.start for chunk in chunks)
    assert 4 * 2 * 3 * most * 2**16 <= compatibility.MAX_MAP_BYTES
    assert len(chunks) > 1


@pytest.mark.parametrize("masked", [False, True])
@torch.no_grad()
def test_attention_of_some_rows_at_a_time_is_that_of_all(
    masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y, q, k, v = random_set()
    mask = torch.arange(40).expand(2, 40) < torch.tensor([[31], [40]]) if masked else None
    whole = spatial_attention(x, y, mask)(3 * q, k, v)
    monkeypatch.setattr(compatibility, "MAX_MAP_BYTES", 4 * 40 * 7 * 6)  # seven rows, uneven
    torch.testing.assert_close(spatial_attention(x, y, mask)(3 * q, k, v), whole)


@torch.no_grad()
def test_attention_does_not_see_motion_order_or_padding(form: Form) -> None:
    x, y, q, k, v = map(form.put, random_set(N=50))
    close = form.close(1e-7, 1e-4)
    attend = form.backend.attention(x, y, None)
    expected = attend(3 * q, k, v)
    R = form.put(
        random_rotation(2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    )
    moved = form.backend.attention(x @ R.mT + 3, y @ R.mT - 2, None)(3 * q, k, v)
    torch.testing.assert_close(moved, expected, **close)
    order = torch.randperm(50, generator=torch.Generator().manual_seed(2)).to(form.device)
    x_, y_, q_, k_, v_ = (part[:, order] for part in (x, y, q, k, v))
    shuffled = form.backend.attention(x_, y_, None)(3 * q_, k_, v_)
    torch.testing.assert_close(shuffled, expected[:, order], **close)
    x_, y_, q_, k_, v_ = (
        torch.nn.functional.pad(part, (0, 0, 0, 9), value=2.0) for part in (x, y, q, k, v)
    )
    mask = (torch.arange(59) < 50).expand(2, 59).to(form.device)
    padded = form.backend.attention(x_, y_, mask)(3 * q_, k_, v_)
    torch.testing.assert_close(padded[:, :50], expected, **close)


def test_the_gradient_of_the_attention_is_right() -> None:
    x, y, q, k, v = random_set(B=1, N=6)
    leaves = [t.requires_grad_() for t in (q, k, v)]
    assert torch.autograd.gradcheck(spatial_attention(x, y), leaves)


def test_every_backend_carries_gradients_where_they_are_asked_for(form: Form) -> None:
    x, y, q, k, v = map(form.put, random_set())
    leaves = [t.requires_grad_() for t in (q, k, v)]
    found = form.backend.attention(x, y, None)(q, k, v)
    expected = spatial_attention(x, y)(q, k, v)
    gradients = [torch.autograd.grad(out.square().sum(), leaves) for out in (found, expected)]
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs, **form.close(1e-9, 1e-3))


def test_beta_of_tensors_with_gradients_is_the_same(form: Form) -> None:
    x, y = (form.put(part).requires_grad_() for part in random_set()[:2])
    found = form.backend.compatibility(x[:, :7], y[:, :7], x, y)
    assert found.requires_grad
    expected = spatial_compatibility(x[:, :7], y[:, :7], x, y)
    torch.testing.assert_close(found, expected)
