import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import make_problem
from vbreg import compatibility, voting
from vbreg.voting import (
    Seeds,
    VotingConfig,
    seed_count,
    select_seeds,
    vote,
    wilson_lower_bound,
    wilson_ranks,
)


def wilson_closed_form(c: int, n: int, z: float) -> float:
    """The smaller root p of (c/n - p)^2 = z^2 p (1 - p) / n."""
    phat = c / n
    a, b, d = 1 + z * z / n, -(2 * phat + z * z / n), phat * phat
    return (-b - math.sqrt(max(0.0, b * b - 4 * a * d))) / (2 * a)


@given(n=st.integers(1, 40), data=st.data(), z=st.floats(0.5, 3.0))
def test_wilson_bound_is_its_closed_form(n: int, data: st.DataObject, z: float) -> None:
    c = data.draw(st.integers(0, n))
    bound = float(wilson_lower_bound(torch.tensor(c), n, z))
    assert bound == pytest.approx(wilson_closed_form(c, n, z), abs=1e-9)
    assert -1e-12 <= bound <= c / n + 1e-12


def test_wilson_bound_falls_with_more_voters_and_rises_with_more_votes() -> None:
    """What lets the tally look only at entries that were voted for."""
    for c in range(1, 24):
        bounds = [float(wilson_lower_bound(torch.tensor(c), n, 1.96)) for n in range(c, 25)]
        assert bounds == sorted(bounds, reverse=True)
    full = [float(wilson_lower_bound(torch.tensor(n), n, 1.96)) for n in range(1, 25)]
    assert full == sorted(full)


def test_wilson_ranks_order_as_the_bounds_do() -> None:
    ranks = wilson_ranks(12, 1.96)
    entries = [(n, c) for n in range(1, 13) for c in range(n + 1)]
    by_rank = sorted(entries, key=lambda e: float(ranks[e]))
    bounds = [wilson_closed_form(c, n, 1.96) for n, c in by_rank]
    assert all(a <= b + 1e-9 for a, b in pairwise(bounds))
    assert all(ranks[n, 0] == 0 for n in range(1, 13))


@pytest.mark.parametrize(("n", "expected"), [(3, 3), (900, 900), (5000, 1000), (20_000, 2000)])
def test_seed_count_is_conservative(n: int, expected: int) -> None:
    assert int(seed_count(torch.tensor(n), VotingConfig())) == expected


@pytest.mark.parametrize("shift", [0.0, -100.0])
def test_local_maxima_come_first_whatever_the_sign(shift: float) -> None:
    """Two clusters; every confidence is negative with the shift."""
    source = torch.tensor([[0.0, 0, 0], [0.1, 0, 0], [0.2, 0, 0], [5, 0, 0], [5.1, 0, 0]])
    confidence = torch.tensor([[-1.0, 3.0, 2.0, -5.0, -6.0]]) + shift
    config = VotingConfig(min_seeds=1, seed_ratio=0.4)
    seeds = select_seeds(confidence, source[None], torch.ones(1, 5, dtype=torch.bool), config)
    assert seeds.indices.tolist() == [[1, 3]]
    config = VotingConfig(min_seeds=5)
    seeds = select_seeds(confidence, source[None], torch.ones(1, 5, dtype=torch.bool), config)
    assert seeds.indices.tolist() == [[1, 3, 2, 0, 4]]


def test_padding_is_never_a_seed() -> None:
    confidence = torch.tensor([[-5.0, -6.0, 100.0], [1.0, 2.0, 3.0]])
    mask = torch.tensor([[True, True, False], [True, True, True]])
    seeds = select_seeds(confidence, torch.zeros(2, 3, 3), mask, VotingConfig())
    assert seeds.valid.tolist() == [[True, True, False], [True, True, True]]
    assert seeds.indices[0, :2].tolist() == [0, 1]


def naive_vote(features, x, y, seed, mask, sigma, config):  # type: ignore[no-untyped-def]
    """One seed, dictionaries and loops, all n of Eq. 7."""
    N = len(x)
    votes: dict[int, list[bool]] = {j: [] for j in range(N)}
    support = dict.fromkeys(range(N), 0.0)
    for f in reversed(features):
        f = torch.nn.functional.normalize(f, dim=-1)
        S = {}
        for j in range(N):
            d = abs(float((x[seed] - x[j]).norm()) - float((y[seed] - y[j]).norm()))
            cosine = float(f[seed] @ f[j])
            feature = min(1.0, max(0.0, 1 - (1 - cosine) / sigma**2))
            S[j] = feature * max(0.0, 1 - d * d) if j != seed and mask[j] else 0.0
        top = sorted(S, key=lambda j: -S[j])[: config.set_size - 1]
        for j in range(N):
            voted = j in top and S[j] > 0
            votes[j].append(voted)
            support[j] += S[j] if voted else 0.0
    score = {}
    for j, v in votes.items():
        bounds = [wilson_closed_form(sum(v[:n]), n, config.z_score) for n in range(1, len(v) + 1)]
        score[j] = (round(max(bounds), 9), support[j])
    best = sorted(score, key=lambda j: score[j], reverse=True)[: config.set_size - 1]
    return {seed} | {j for j in best if any(votes[j])}


@pytest.mark.parametrize("seed", range(5))
def test_vote_agrees_with_its_naive_twin(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compatibility, "MAP_BYTES", 4 * 60 * 6 * 5)  # five seeds at a time
    problem = make_problem(60, seed=seed)
    x, y = (torch.from_numpy(p / 0.3) for p in problem[:2])
    generator = torch.Generator().manual_seed(seed)
    features = [torch.randn(60, 8, generator=generator, dtype=torch.float64) for _ in range(6)]
    config = VotingConfig(set_size=9, min_seeds=12)
    mask = torch.arange(60) < 55
    seeds = select_seeds(torch.randn(1, 60, generator=generator), x[None], mask[None], config)
    members = vote(
        [f[None] for f in features], x[None], y[None], seeds, mask[None], sigma=1.2, config=config
    )
    for k, s in enumerate(seeds.indices[0].tolist()):
        mine = set(members.indices[0, k][members.valid[0, k]].tolist())
        assert mine == naive_vote(features, x, y, s, mask, 1.2, config)


def test_sets_shrink_with_small_n() -> None:
    problem = make_problem(3, inlier_ratio=1.0)
    x, y = (torch.from_numpy(p / 0.1)[None].float() for p in problem[:2])
    mask = torch.ones(1, 3, dtype=torch.bool)
    seeds = select_seeds(torch.zeros(1, 3), x, mask, VotingConfig())
    features = [torch.ones(1, 3, 4)]
    members = vote(features, x, y, seeds, mask, sigma=1.0, config=VotingConfig())
    assert members.indices.shape == (1, 3, 3)
    assert members.valid.all()
    assert members.indices.sort(-1).values.tolist() == [[[0, 1, 2]] * 3]


def test_a_seed_that_agrees_with_nobody_stands_alone() -> None:
    x = torch.tensor([[[0.0, 0, 0], [10, 0, 0], [0, 10, 0], [0, 0, 10]]])
    seeds = Seeds(torch.tensor([[0]]), torch.tensor([[True]]))
    members = vote(
        [torch.ones(1, 4, 4)],
        x,
        3 * x,
        seeds,
        torch.ones(1, 4, dtype=torch.bool),
        sigma=1.0,
        config=VotingConfig(),
    )
    assert members.valid.tolist() == [[[True, False, False, False]]]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_attention_rows_may_vote_too(seed: int) -> None:
    problem = make_problem(30, seed=seed)
    x, y = (torch.from_numpy(p / 0.3)[None].float() for p in problem[:2])
    generator = torch.Generator().manual_seed(seed)
    f = [torch.randn(1, 30, 8, generator=generator) for _ in range(6)]
    mask = torch.ones(1, 30, dtype=torch.bool)
    config = VotingConfig(set_size=6, attention_voters=True)
    seeds = select_seeds(torch.zeros(1, 30), x, mask, config)
    pairs = [(f[2], f[3]), (f[4], f[5])]
    members = vote(f[:2], x, y, seeds, mask, sigma=1.0, config=config, attention=pairs)
    assert members.indices.shape == (1, 30, 6)
    beta = compatibility.spatial_compatibility(x, y, x, y)[0]
    for k, s in enumerate(seeds.indices[0].tolist()):
        elected = members.indices[0, k, 1:][members.valid[0, k, 1:]]
        assert (beta[s, elected] > 0).all()


@pytest.mark.parametrize("wrong", [{"seed_ratio": 0.0}, {"min_seeds": 0}, {"set_size": 2}])
def test_bad_configurations_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="expected"):
        VotingConfig(**wrong)  # type: ignore[arg-type]


def test_candidates_are_the_compatible_ones() -> None:
    beta = torch.tensor([[[0.0, 0.5, 0.0, 0.9], [0.0, 0.0, 0.0, 0.0], [0.2, 0.3, 0.0, 0.1]]])
    seed = torch.tensor([[0, 1, 2]])
    candidates = voting._Candidates.of(beta, seed, at_least=2)
    assert candidates.columns is not None
    assert candidates.columns.tolist() == [[[1, 3, 0], [1, 1, 1], [0, 1, 3]]]
    assert torch.equal(candidates.pick(beta)[0, 0], torch.tensor([0.5, 0.9, 0.0]))
    places = torch.tensor([[[1], [0], [2]]])
    assert candidates.named(places).tolist() == [[[3], [1], [3]]]


def test_suppression_by_tree_is_that_of_the_map(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    source = 3 * torch.rand(2, 200, 3, generator=generator)
    confidence = torch.randn(2, 200, generator=generator)
    confidence[0, :20] = 0.3  # equals do not suppress each other
    confidence[1, 150:] = -torch.inf  # padding
    found = voting._suppressed(confidence, source, 0.7)
    monkeypatch.setattr(voting, "MOST_NEAR", 0)  # too many to list
    assert torch.equal(voting._suppressed(confidence, source, 0.7), found)
    assert 0.05 < float(found[0].float().mean()) < 0.95
