"""The branches at inference against those that carry gradients."""

import copy

import pytest
import torch

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
    found = network(source, target, mask=mask, keep_attention=True)
    with monkeypatch.context() as patch:
        patch.setattr(module, "_in_place", lambda features: False)
        expected = network(source, target, mask=mask, keep_attention=True)
    assert type(network._frozen[1]).__name__ == "BranchesInPlace"  # type: ignore[index]
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
    with torch.no_grad():
        for parameter in network.branches.parameters():
            parameter.mul_(1.1)
    found, expected = both(network, monkeypatch, torch.float64)
    torch.testing.assert_close(found.logits, expected.logits)
    assert (found.logits - before.logits).abs().max() > 1e-3
