"""The branches at inference against those that carry gradients."""

import copy

import pytest
import torch
from vbreg.inference import BranchesInPlace

from tests.conftest import make_problem
from vbreg import network as module
from vbreg.network import NetworkOutput, VariationalNonLocalNetwork


@torch.no_grad()
def both(
    network: VariationalNonLocalNetwork, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> tuple[NetworkOutput, NetworkOutput]:
    """In place and not, of two problems, one of them shorter."""
    problems = [make_problem(60, 0.5, seed=k) for k in range(2)]
    source, target = (
        torch.stack([torch.as_tensor(getattr(p, end), dtype=dtype) / 0.1 for p in problems])
        for end in ("source", "target")
    )
    mask = torch.arange(60) < torch.tensor([[60], [41]])
    made = []
    with monkeypatch.context() as patch:
        patch.setattr(module, "BranchesInPlace", lambda n: made.append(1) or BranchesInPlace(n))
        found = network(source, target, mask=mask, keep_attention=True)
        assert made
        patch.setattr(VariationalNonLocalNetwork, "_in_place", lambda *_: False)
        expected = network(source, target, mask=mask, keep_attention=True)
    assert len(made) == 1
    return found, expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_in_place_is_the_same(
    small_network: VariationalNonLocalNetwork, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    found, expected = both(copy.deepcopy(small_network).to(dtype), monkeypatch, dtype)
    close = dict.fromkeys(("atol", "rtol"), 5e-3 if dtype == torch.float32 else 1e-9)
    torch.testing.assert_close(found.logits, expected.logits, **close)
    for a, b in zip(found.features, expected.features, strict=True):
        torch.testing.assert_close(a, b, **close)
    for (q, k), (Q, K) in zip(found.attention, expected.attention, strict=True):
        torch.testing.assert_close(torch.cat([q, k]), torch.cat([Q, K]), **close)
    assert expected.logits.std() > 0.01


def test_in_place_follows_the_weights(
    small_network: VariationalNonLocalNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = copy.deepcopy(small_network).double()
    before, _ = both(network, monkeypatch, torch.float64)
    for parameter in network.branches.parameters():
        parameter.data.mul_(1.1)
    found, expected = both(network, monkeypatch, torch.float64)
    torch.testing.assert_close(found.logits, expected.logits)
    assert (found.logits - before.logits).abs().max() > 1e-3


@torch.no_grad()
def test_lower_precision_is_left_to_torch(
    small_network: VariationalNonLocalNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = make_problem(60, 0.5, seed=0)
    ends = [torch.as_tensor(p, dtype=torch.float32)[None] / 0.1 for p in problem[:2]]
    with torch.autocast("cpu", torch.bfloat16):
        found = small_network(*ends).logits
        monkeypatch.setattr(VariationalNonLocalNetwork, "_in_place", lambda *_: False)
        expected = small_network(*ends).logits
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, expected)
