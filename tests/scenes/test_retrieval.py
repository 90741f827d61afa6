"""Laws of retrieval: symmetric, the same as written out, and scans of one place are alike."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vbreg.matching import DescribedCloud
from vbreg.scenes import retrieval
from vbreg.scenes.retrieval import ALIKE, SLOPE, first_pairs, similarities


def described(descriptors: torch.Tensor) -> DescribedCloud:
    return DescribedCloud(torch.zeros(len(descriptors), 3), None, descriptors, np.zeros(3))


def scans(counts: tuple[int, ...], seed: int = 0) -> list[DescribedCloud]:
    """Scans that share half of their descriptors with the next, a little changed."""
    generator = torch.Generator().manual_seed(seed)
    world = torch.randn(400, 16, generator=generator)
    found = []
    for k, count in enumerate(counts):
        own = world[40 * k : 40 * k + count]
        found.append(described(own + 0.1 * torch.randn(own.shape, generator=generator)))
    return found


def naive(one: torch.Tensor, other: torch.Tensor) -> float:
    """The share of keypoints with a mutual, alike partner, point by point."""
    a, b = (x / x.norm(dim=1, keepdim=True) for x in (one, other))
    total = 0.0
    for i in range(len(a)):
        j = int((b @ a[i]).argmax())
        if int((a @ b[j]).argmax()) == i:
            total += 1 / (1 + np.exp(-SLOPE * (float(a[i] @ b[j]) - ALIKE)))
    return total / min(len(a), len(b))


def test_it_is_what_it_says_pair_by_pair() -> None:
    given = scans((80, 60, 80))
    found = similarities(given)
    for i in range(3):
        for j in range(3):
            expected = naive(given[i].descriptors, given[j].descriptors) if i != j else 0.0
            assert found[i, j] == pytest.approx(expected, abs=1e-5)
    np.testing.assert_array_equal(found, found.T)
    assert found[0, 1] > 5 * found[0, 2]


def test_pieces_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    given = scans((80, 60, 80, 70, 75))
    whole = similarities(given)
    monkeypatch.setattr(retrieval, "MAX_SIMILARITIES", retrieval.LOOKED_AT**2)
    np.testing.assert_allclose(similarities(given), whole, atol=1e-6)


def test_points_without_a_descriptor_do_not_count() -> None:
    given = scans((80, 60))
    padded = [given[0], described(torch.cat([given[1].descriptors, torch.zeros(30, 16)]))]
    np.testing.assert_allclose(similarities(padded), similarities(given), atol=1e-6)
    nothing = [given[0], described(torch.zeros(50, 16))]
    assert similarities(nothing)[0, 1] == 0.0


def test_one_scan_is_like_no_other() -> None:
    assert similarities(scans((80,))).tolist() == [[0.0]]


def test_every_scan_gets_its_best_partners_within_the_budget() -> None:
    rng = np.random.default_rng(0)
    half = np.triu(rng.random((12, 12)), 1)
    similarity = half + half.T
    pairs = first_pairs(similarity, 3, 1000)
    assert len(set(pairs)) == len(pairs)
    assert all(i < j for i, j in pairs)
    for k in range(12):
        best = np.argsort(-similarity[k])[:3]
        assert all((min(k, b), max(k, b)) in pairs for b in best.tolist())
    values = [similarity[pair] for pair in pairs]
    assert values == sorted(values, reverse=True)
    best_of = [int(row.argmax()) for row in similarity]
    first = {(min(k, b), max(k, b)) for k, b in enumerate(best_of)}
    assert 5 < len(first) < len(pairs)
    for budget in range(1, len(pairs)):
        few = first_pairs(similarity, 3, budget)
        assert len(few) == budget
        assert set(few) <= first or first <= set(few)
    assert first_pairs(np.zeros((1, 1)), 3, 10) == []
