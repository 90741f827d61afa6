"""The laws of the search, with every backend that computes it."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import Form, make_problem
from vbreg import compatibility
from vbreg.backends.devices import is_gpu
from vbreg.geometry import random_rotation
from vbreg.voting import (
    Electorate,
    HypotheticalInliers,
    Seeds,
    VotingConfig,
    seed_count,
    select_seeds,
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


def seeds_of(
    form: Form,
    confidence: torch.Tensor,
    source: torch.Tensor,
    mask: torch.Tensor,
    config: VotingConfig,
) -> Seeds:
    suppressed = form.backend.suppressed(confidence, source, mask, config.nms_radius)
    return select_seeds(confidence, suppressed, mask, config)


@pytest.mark.parametrize("shift", [0.0, -100.0])
def test_local_maxima_come_first_whatever_the_sign(form: Form, shift: float) -> None:
    """Two clusters; every confidence is negative with the shift."""
    source = torch.tensor([[0.0, 0, 0], [0.1, 0, 0], [0.2, 0, 0], [5, 0, 0], [5.1, 0, 0]])
    source = form.put(source)[None]
    confidence = form.put(torch.tensor([[-1.0, 3.0, 2.0, -5.0, -6.0]]) + shift)
    mask = form.put(torch.ones(1, 5, dtype=torch.bool))
    config = VotingConfig(min_seeds=1, seed_ratio=0.4)
    assert seeds_of(form, confidence, source, mask, config).indices.tolist() == [[1, 3]]
    config = VotingConfig(min_seeds=5)
    assert seeds_of(form, confidence, source, mask, config).indices.tolist() == [[1, 3, 2, 0, 4]]


def test_padding_is_never_a_seed(form: Form) -> None:
    confidence = form.put(torch.tensor([[-5.0, -6.0, 100.0], [1.0, 2.0, 3.0]]))
    mask = form.put(torch.tensor([[True, True, False], [True, True, True]]))
    seeds = seeds_of(form, confidence, form.put(torch.zeros(2, 3, 3)), mask, VotingConfig())
    assert seeds.valid.tolist() == [[True, True, False], [True, True, True]]
    assert seeds.indices[0, :2].tolist() == [0, 1]


def test_the_number_of_seeds_may_be_known_beforehand(form: Form) -> None:
    """More than there are, as a recording of a padded problem has them: the rest is not valid."""
    source = form.put(10 * torch.rand(1, 20, 3, generator=torch.Generator().manual_seed(0)))
    confidence = form.put(torch.randn(1, 20, generator=torch.Generator().manual_seed(1)))
    mask = form.put(torch.arange(20) < 15)[None]
    suppressed = form.backend.suppressed(confidence, source, mask, 1.0)
    asked = select_seeds(confidence, suppressed, mask, VotingConfig())
    known = select_seeds(confidence, suppressed, mask, VotingConfig(), most=18)
    assert known.indices.shape == (1, 18)
    assert torch.equal(known.indices[:, :15], asked.indices)
    assert known.valid.tolist() == [[True] * 15 + [False] * 3]


def test_suppression_does_not_see_motion_or_order(form: Form) -> None:
    generator = torch.Generator().manual_seed(0)
    source = form.put(4 * torch.rand(2, 60, 3, generator=generator))
    confidence = form.put(torch.randn(2, 60, generator=generator))
    mask = form.put(torch.arange(60) < torch.tensor([[60], [50]]))
    found = form.backend.suppressed(confidence, source, mask, 1.0)
    assert 0.05 < float(found.float().mean()) < 0.95
    R = form.put(random_rotation(generator=generator))
    moved = form.backend.suppressed(confidence, source @ R.T + 2, mask, 1.0)
    assert torch.equal(moved, found)
    order = torch.randperm(60, generator=generator).to(form.device)
    shuffled = form.backend.suppressed(confidence[:, order], source[:, order], mask[:, order], 1.0)
    assert torch.equal(shuffled, found[:, order])


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


def sets_of(found: HypotheticalInliers) -> list[set[int]]:
    rows, real = found.indices.flatten(0, 1), found.valid.flatten(0, 1)
    return [set(row[there].tolist()) for row, there in zip(rows, real, strict=True)]


def assert_alike(form: Form, found: list[set[int]], expected: list[set[int]]) -> None:
    """The same sets; nearly so on a GPU, where factors of products are rounded."""
    share = 0.7 if is_gpu(form.device) else 1.0
    for mine, theirs in zip(found, expected, strict=True):
        assert len(mine & theirs) >= share * len(mine | theirs)


@pytest.mark.parametrize("seed", range(5))
def test_vote_agrees_with_its_naive_twin(
    form: Form, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compatibility, "MAX_MAP_BYTES", 4 * 60 * 6 * 5)  # five seeds at a time
    problem = make_problem(60, seed=seed)
    x, y = (torch.from_numpy(p / 0.3) for p in problem[:2])
    generator = torch.Generator().manual_seed(seed)
    features = [torch.randn(60, 8, generator=generator, dtype=torch.float64) for _ in range(6)]
    config = VotingConfig(set_size=9, min_seeds=12)
    mask = torch.arange(60) < 55
    confidence = torch.randn(1, 60, generator=generator)
    source, target, real = (form.put(part)[None] for part in (x, y, mask))
    seeds = seeds_of(form, form.put(confidence), source, real, config)
    electorate = Electorate([form.put(f)[None] for f in features], 1.2)
    members = form.backend.vote(electorate, source, target, seeds, real, config)
    rows = seeds.indices[0].tolist()
    expected = [naive_vote(features, x, y, s, mask, 1.2, config) for s in rows]
    assert_alike(form, sets_of(members), expected)


def test_votes_do_not_see_motion_order_or_padding(form: Form) -> None:
    problem = make_problem(60, seed=1)
    x, y = (form.put(torch.from_numpy(p / 0.3))[None] for p in problem[:2])
    generator = torch.Generator().manual_seed(1)
    features = [form.put(torch.randn(1, 60, 16, generator=generator)) for _ in range(3)]
    mask = form.put(torch.ones(1, 60, dtype=torch.bool))
    seeds = Seeds(form.put(torch.arange(0, 60, 6))[None], form.put(torch.ones(1, 10).bool()))
    config = VotingConfig(set_size=9)
    sets = sets_of(form.backend.vote(Electorate(features, 1.2), x, y, seeds, mask, config))
    R = form.put(random_rotation(generator=generator))
    moved = form.backend.vote(Electorate(features, 1.2), x @ R.T, y @ R.T, seeds, mask, config)
    assert_alike(form, sets_of(moved), sets)
    order = torch.randperm(60, generator=generator).to(form.device)
    there = order.argsort()
    shuffled = form.backend.vote(
        Electorate([f[:, order] for f in features], 1.2),
        x[:, order],
        y[:, order],
        seeds._replace(indices=there[seeds.indices]),
        mask,
        config,
    )
    assert_alike(form, sets_of(shuffled._replace(indices=order[shuffled.indices])), sets)
    longer = [torch.nn.functional.pad(p, (0, 0, 0, 9), value=1.0) for p in (x, y, *features)]
    mask = torch.nn.functional.pad(mask, (0, 9))
    padded = form.backend.vote(Electorate(longer[2:], 1.2), *longer[:2], seeds, mask, config)
    assert_alike(form, sets_of(padded), sets)
    assert max(map(len, sets)) > 5


def test_seeds_that_are_not_valid_have_no_members(form: Form) -> None:
    x = form.put(torch.rand(1, 12, 3, generator=torch.Generator().manual_seed(0)))
    seeds = Seeds(form.put(torch.tensor([[0, 1]])), form.put(torch.tensor([[True, False]])))
    mask = form.put(torch.ones(1, 12, dtype=torch.bool))
    electorate = Electorate([torch.ones_like(x)], 1.0)
    members = form.backend.vote(electorate, x, x, seeds, mask, VotingConfig(set_size=5))
    assert members.valid.tolist() == [[[True] * 5, [False] * 5]]


def test_sets_shrink_with_small_n(form: Form) -> None:
    problem = make_problem(3, inlier_ratio=1.0)
    x, y = (form.put(torch.from_numpy(p / 0.1))[None] for p in problem[:2])
    mask = form.put(torch.ones(1, 3, dtype=torch.bool))
    seeds = seeds_of(form, form.put(torch.zeros(1, 3)), x, mask, VotingConfig())
    electorate = Electorate([form.put(torch.ones(1, 3, 4))], 1.0)
    members = form.backend.vote(electorate, x, y, seeds, mask, VotingConfig())
    assert members.indices.shape == (1, 3, 3)
    assert members.valid.all()
    assert members.indices.sort(-1).values.tolist() == [[[0, 1, 2]] * 3]


def test_a_seed_that_agrees_with_nobody_stands_alone(form: Form) -> None:
    x = form.put(torch.tensor([[[0.0, 0, 0], [10, 0, 0], [0, 10, 0], [0, 0, 10]]]))
    seeds = Seeds(form.put(torch.tensor([[0]])), form.put(torch.tensor([[True]])))
    members = form.backend.vote(
        Electorate([form.put(torch.ones(1, 4, 4))], 1.0),
        x,
        3 * x,
        seeds,
        form.put(torch.ones(1, 4, dtype=torch.bool)),
        VotingConfig(),
    )
    assert members.valid.tolist() == [[[True, False, False, False]]]


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_attention_rows_may_vote_too(form: Form, seed: int) -> None:
    problem = make_problem(30, seed=seed)
    x, y = (form.put(torch.from_numpy(p / 0.3))[None] for p in problem[:2])
    generator = torch.Generator().manual_seed(seed)
    f = [form.put(torch.randn(1, 30, 8, generator=generator)) for _ in range(6)]
    mask = form.put(torch.ones(1, 30, dtype=torch.bool))
    config = VotingConfig(set_size=6, attention_voters=True)
    seeds = seeds_of(form, form.put(torch.zeros(1, 30)), x, mask, config)
    electorate = Electorate(f[:2], 1.0, [(f[2], f[3]), (f[4], f[5])])
    members = form.backend.vote(electorate, x, y, seeds, mask, config)
    assert members.indices.shape == (1, 30, 6)
    beta = compatibility.spatial_compatibility(x, y, x, y)[0]
    for k, s in enumerate(seeds.indices[0].tolist()):
        elected = members.indices[0, k, 1:][members.valid[0, k, 1:]]
        assert (beta[s, elected] > 0).all()


@pytest.mark.parametrize("wrong", [{"seed_ratio": 0.0}, {"min_seeds": 0}, {"set_size": 2}])
def test_bad_configurations_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="expected"):
        VotingConfig(**wrong)  # type: ignore[arg-type]
