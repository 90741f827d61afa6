"""The bound against exact arithmetic, probabilities against simulation, fits on known counts."""

from __future__ import annotations

import sys
from decimal import Decimal, localcontext
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tests.conftest import make_problem
from vbreg import VBReg, io
from vbreg.backends.cpu import CPUBackend
from vbreg.benchmark.problems import Labelled
from vbreg.datasets import Pair
from vbreg.errors import VBRegError
from vbreg.experiments import theorem1
from vbreg.experiments.theorem1 import (
    bound,
    poisson_fit,
    probability_ransac,
    probability_voting,
)
from vbreg.methods import Problem
from vbreg.network import VariationalNonLocalNetwork
from vbreg.voting import VotingConfig

ratios = st.floats(1e-4, 0.99)
kappas = st.integers(3, 60)
draws = st.integers(1, 10**7)
seeds = st.integers(1, 2000)


def exact_bound(p: Fraction, kappa: int, J: int, inlier_seeds: int) -> float:
    """The formula as it stands, with digits to spare."""
    with localcontext() as context:
        context.prec = 400
        clean = Decimal((p**kappa).numerator) / Decimal((p**kappa).denominator)
        missed = (1 - clean) ** (Decimal(J) / Decimal(inlier_seeds))
        return float(-(1 - missed).ln() / kappa)


@pytest.mark.parametrize("p", [Fraction(1, 100), Fraction(1, 20), Fraction(3, 10), Fraction(9, 10)])
@pytest.mark.parametrize("kappa", [3, 10, 40])
@pytest.mark.parametrize(("J", "inlier_seeds"), [(1000, 1), (50_000, 300), (1_000_000, 77)])
def test_bound_is_exact(p: Fraction, kappa: int, J: int, inlier_seeds: int) -> None:
    """Where it is below what a double holds in full, it is the smallest such double."""
    expected = max(exact_bound(p, kappa, J, inlier_seeds), sys.float_info.min)
    assert bound(float(p), kappa, J, inlier_seeds) == pytest.approx(expected, rel=1e-11, abs=0)


@pytest.mark.parametrize("p", [1e-12, 0.01, 0.5, 1 - 1e-12, 1.0])
@pytest.mark.parametrize("kappa", [1, 40, 1000])
@pytest.mark.parametrize("J", [1, 10**12])
def test_bound_stays_finite_and_positive(p: float, kappa: int, J: int) -> None:
    for inlier_seeds in (1, 10**6):
        assert 0.0 < bound(p, kappa, J, inlier_seeds) < np.inf


@given(ratios, kappas, draws, seeds)
def test_bound_is_monotone(p: float, kappa: int, J: int, inlier_seeds: int) -> None:
    here = bound(p, kappa, J, inlier_seeds)
    assert bound(p, kappa, 10 * J, inlier_seeds) <= here
    assert bound(p / 2, kappa, J, inlier_seeds) >= here
    assert bound(p, kappa, J, 2 * inlier_seeds) >= here
    assert bound(p, kappa, J, inlier_seeds, sample_size=3) <= here


def test_bound_is_strictly_monotone_where_it_matters() -> None:
    here = bound(0.05, 40, 50_000, 300)
    assert bound(0.05, 40, 60_000, 300) < here < bound(0.05, 40, 50_000, 400)
    assert bound(0.06, 40, 50_000, 300) < here


@given(ratios, kappas, draws, seeds)
def test_probabilities_meet_at_the_bound(p: float, kappa: int, J: int, inlier_seeds: int) -> None:
    ransac = probability_ransac(p, kappa, J)
    at = bound(p, kappa, J, inlier_seeds)
    assert probability_voting(at, kappa, inlier_seeds) == pytest.approx(
        ransac, rel=1e-6, abs=1e-300
    )


def test_small_probabilities_keep_their_digits() -> None:
    assert probability_ransac(0.01, 40, 1000) == pytest.approx(1e-77, rel=1e-12)
    assert probability_voting(5.0, 40, 100) == pytest.approx(100 * np.exp(-200.0), rel=1e-12)


def test_certain_and_impossible() -> None:
    assert probability_voting(0.0, 40, 5) == 1.0
    assert probability_voting(0.5, 40, 0) == 0.0
    assert probability_ransac(1.0, 40, 1) == 1.0


def test_voting_probability_by_simulation() -> None:
    generator = np.random.default_rng(0)
    for alpha, kappa, inlier_seeds in ((0.1, 40, 20), (0.05, 10, 3), (0.5, 8, 50)):
        counts = generator.poisson(alpha * kappa, (20_000, inlier_seeds))
        share = (counts == 0).any(axis=1).mean()
        assert share == pytest.approx(probability_voting(alpha, kappa, inlier_seeds), abs=0.012)


def test_ransac_probability_by_simulation() -> None:
    inliers = np.arange(10_000) < 2000
    drawn = np.random.default_rng(0).integers(len(inliers), size=(4000, 60, 3))
    share = inliers[drawn].all(axis=2).any(axis=1).mean()
    assert share == pytest.approx(probability_ransac(0.2, 3, 60), abs=0.025)


@pytest.mark.parametrize(
    "call",
    [
        lambda: bound(0.0, 40, 1000, 10),
        lambda: bound(1.1, 40, 1000, 10),
        lambda: bound(0.1, 40, 1000, 0),
        lambda: bound(0.1, 40, 0, 10),
        lambda: probability_voting(-0.1, 40, 10),
        lambda: probability_ransac(0.1, 0, 10),
    ],
)
def test_impossible_terms_are_refused(call: object) -> None:
    with pytest.raises(VBRegError, match="expected"):
        call()  # type: ignore[operator]


@pytest.mark.parametrize("alpha", [0.02, 0.1, 0.4])
def test_fit_recovers_alpha(alpha: float) -> None:
    fit = poisson_fit(np.random.default_rng(3).poisson(40 * alpha, 800), 40)
    assert fit.alpha.low < alpha < fit.alpha.high
    assert fit.alpha.value == pytest.approx(alpha, rel=0.15)
    assert fit.dispersion == pytest.approx(1.0, abs=0.2)
    assert fit.tested
    assert not fit.rejected


def test_true_poisson_is_rejected_as_often_as_it_should() -> None:
    generator = np.random.default_rng(0)
    fits = [poisson_fit(generator.poisson(4.0, 300), 40) for _ in range(300)]
    assert 0.015 < np.mean([fit.rejected for fit in fits]) < 0.10


def test_other_counts_are_rejected() -> None:
    generator = np.random.default_rng(0)
    wide = poisson_fit(generator.negative_binomial(1, 0.2, 500), 40)
    assert wide.rejected
    assert wide.dispersion > 3
    narrow = poisson_fit(generator.binomial(39, 0.95, 500), 40)
    assert narrow.rejected
    assert narrow.dispersion < 0.2


def test_fit_without_evidence() -> None:
    nothing, zeros, one = (poisson_fit(c, 40) for c in ([], [0] * 9, [3]))
    assert np.isnan(nothing.alpha.value)
    assert zeros.alpha == (0.0, 0.0, 0.0)
    assert one.alpha.value == pytest.approx(3 / 40)
    assert not any(fit.tested or fit.rejected for fit in (nothing, zeros, one))


@given(st.floats(0.05, 35.0), st.integers(1, 1500))
def test_pooled_bins_hold_all_and_enough(mean: float, n: int) -> None:
    counts = np.random.default_rng(0).poisson(mean, n)
    observed, expected = theorem1._pooled(counts, mean)
    assert observed.sum() == n
    assert expected.sum() == pytest.approx(n)
    assert len(expected) == 1 or expected.min() >= theorem1.MIN_EXPECTED


def test_goodness_of_fit_is_scipys() -> None:
    counts = np.random.default_rng(1).poisson(5.0, 400)
    observed, expected = theorem1._pooled(counts, counts.mean())
    theirs = stats.chisquare(observed, expected, ddof=1).pvalue
    assert poisson_fit(counts, 40).p_value == pytest.approx(theirs)


def labelled(n: int = 300, inlier_ratio: float = 0.3, seed: int = 0) -> Labelled:
    made = make_problem(n, inlier_ratio, seed=seed)
    pair = Pair(f"room/{seed}-1", made.source, made.target, made.T, scene="room")
    return Labelled(pair, Problem.of_points(made.source, made.target, 0.1), made.inliers)


def test_tally_counts_what_is_missing_from_the_sets_of_inlier_seeds() -> None:
    problem = labelled(n=6)
    right = np.array([True, True, True, True, False, False])
    members = np.array([[0, 1, 2], [1, 2, 4], [4, 0, 1], [3, 0, 1]])
    valid = np.array([[1, 1, 1], [1, 1, 1], [1, 1, 1], [1, 1, 0]], dtype=bool)
    m = theorem1.tally(Labelled(problem.pair, problem.problem, right), members, valid)
    assert m.counts.tolist() == [0, 1, 1]  # the third set has an outlier for its seed
    assert (m.seeds, m.inlier_seeds, m.clean, m.inliers, m.kappa) == (4, 3, 1, 4, 3)
    assert m.alpha == pytest.approx(2 / 3 / 3)
    held = [{0, 1, 2}, {1, 2, 4}, {3, 0}]
    pairs = [(a, b) for a in range(3) for b in range(3) if a != b]
    assert m.shared == pytest.approx(np.mean([len(held[a] & held[b]) / 3 for a, b in pairs]))


def test_sets_are_those_that_poses_are_made_of(
    small_network: VariationalNonLocalNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = VBReg(small_network, voting=VotingConfig(min_seeds=50, set_size=12))
    problem = labelled().problem
    voted = []
    original = CPUBackend.vote
    monkeypatch.setattr(
        CPUBackend, "vote", lambda *a, **k: voted.append(original(*a, **k)) or voted[-1]
    )
    matches = problem.correspondences
    model.estimate(matches.source, matches.target, inlier_threshold=problem.inlier_threshold)
    ours = theorem1.hypothetical_inliers(problem, model)
    assert (ours.indices == voted[0].indices).all()
    assert (ours.valid == voted[0].valid).all()


def test_measure_on_problems(small_network: VariationalNonLocalNetwork) -> None:
    model = VBReg(small_network, voting=VotingConfig(min_seeds=60, set_size=10))
    problems = [labelled(inlier_ratio=p, seed=k) for k, p in enumerate((0.6, 0.2, 0.0))]
    most, some, none = theorem1.measure(problems, model)
    assert most.inlier_seeds > some.inlier_seeds > 0
    assert most.alpha < some.alpha
    assert not none.measured


def write_rooms(folder: Path, clouds: int = 3) -> None:
    """Parts of one bumpy floor, each in a frame of its own."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    waves, phases = generator.normal(size=(2, 9)) * 4, generator.uniform(0, 6, 9)
    poses = np.tile(np.eye(4), (clouds, 1, 1))
    for k in range(clouds):
        flat = generator.uniform(0, 2, (5000, 2)) + np.array([0.3 * k, 0])
        world = np.c_[flat, np.sin(flat @ waves + phases).sum(axis=1) / 12]
        poses[k, :3, :3] = stats.special_ortho_group.rvs(3, random_state=k)
        poses[k, :3, 3] = generator.uniform(-1, 1, 3)
        io.write(folder / f"cloud_{k}.ply", (world - poses[k, :3, 3]) @ poses[k, :3, :3])
    np.savetxt(folder / "poses.txt", poses.reshape(clouds, 16))
