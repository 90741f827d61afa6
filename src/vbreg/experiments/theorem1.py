"""Theorem 1 on real pairs: does voting find an all-inlier set more surely than RANSAC would?

The theorem takes the number of outliers in the hypothetical set of an inlier seed as Poisson with
mean alpha kappa, and the sets of different seeds as independent. Voting then has an all-inlier set
with a higher probability than J random samples of kappa matches where alpha < U. Here alpha is
measured, and so is how far real sets are from both assumptions. `theorem1_page` writes it down.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy import stats

from vbreg import backends
from vbreg.backends.plain import Backend
from vbreg.benchmark.problems import Labelled
from vbreg.benchmark.score import Interval
from vbreg.errors import VBRegError
from vbreg.frames import Matches
from vbreg.methods import Problem
from vbreg.model import VBReg
from vbreg.types import Bool, Float64, Int64
from vbreg.voting import HypotheticalInliers

RESAMPLES = 2000  # of the bootstrap over seeds
LEVEL = 0.05  # below, a Poisson fit counts as rejected
MIN_EXPECTED = 5.0  # in a bin of the chi-square test
NEGLIGIBLE = -36.0  # log(1 - x) = -x in double precision for log x below this
NAN = float("nan")


# The theorem.


def bound(
    inlier_ratio: float, kappa: int, J: float, inlier_seeds: int, sample_size: int | None = None
) -> float:
    """Return U = -log[1 - (1 - p_in^kappa)^(J / |C~in|)] / kappa of Theorem 1, finite, above 0.

    It is computed in logarithms, since p_in^kappa is 1e-52 at 5 % inliers. `sample_size` is what a
    sample of RANSAC holds: kappa in the theorem, which is the default.
    """
    _check_positive(kappa=kappa, J=J, inlier_seeds=inlier_seeds)
    log_clean = _log_clean_sample(inlier_ratio, sample_size or kappa)
    log_missed = math.log(J / inlier_seeds) + _log_hazard(
        log_clean
    )  # of -log of (...)^(J / |C~in|)
    return max(-_log_one_minus_exp(log_missed) / kappa, sys.float_info.min)


def probability_voting(alpha: float, kappa: int, inlier_seeds: int) -> float:
    """Return the probability that some set of an inlier seed holds inliers only.

    It is 1 - (1 - e^(-alpha kappa))^|C~in|.
    """
    _check_positive(kappa=kappa)
    if alpha < 0 or inlier_seeds < 0:
        raise VBRegError(f"alpha {alpha}, inlier_seeds {inlier_seeds}: expected 0 or more")
    return _at_least_once(-alpha * kappa, inlier_seeds)


def probability_ransac(inlier_ratio: float, kappa: int, J: float) -> float:
    """Return the probability that some of J random samples of kappa holds inliers only.

    It is 1 - (1 - p_in^kappa)^J. An upper bound, as in the proof: drawn without replacement, later
    inliers are rarer.
    """
    _check_positive(kappa=kappa, J=J)
    return _at_least_once(_log_clean_sample(inlier_ratio, kappa), J)


def _log_clean_sample(inlier_ratio: float, size: int) -> float:
    if not 0.0 < inlier_ratio <= 1.0:
        raise VBRegError(f"inlier_ratio {inlier_ratio}: expected above 0 and at most 1")
    _check_positive(sample_size=size)
    return size * math.log(inlier_ratio)


def _at_least_once(log_chance: float, trials: float) -> float:
    """Return 1 - (1 - chance)^trials."""
    if trials == 0:
        return 0.0
    return -math.expm1(-_exp(math.log(trials) + _log_hazard(log_chance)))


def _log_hazard(log_chance: float) -> float:
    """Return log(-log(1 - chance)), inf for a chance of 1."""
    if log_chance < NEGLIGIBLE:
        return log_chance
    chance = math.exp(log_chance)
    return math.log(-math.log1p(-chance)) if chance < 1.0 else math.inf


def _log_one_minus_exp(log_rate: float) -> float:
    """Return log(1 - e^-rate), accurate for rates from 1e-300 to 700."""
    if log_rate < NEGLIGIBLE:
        return log_rate
    rate = _exp(log_rate)
    return math.log(-math.expm1(-rate)) if rate < 0.7 else math.log1p(-math.exp(-rate))


def _exp(x: float) -> float:
    return math.exp(x) if x < 700.0 else math.inf


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise VBRegError(f"{name} {value}: expected a positive number")


class PoissonFit(NamedTuple):
    """How well counts of outliers follow Pois(alpha kappa)."""

    alpha: Interval  # with its 95 % bootstrap interval over seeds
    dispersion: float  # variance over mean: 1 for Poisson; nan where it cannot be told
    p_value: float  # chi-square goodness of fit; nan where there are too few counts to test

    @property
    def tested(self) -> bool:
        """Tell whether there were enough sets for the test."""
        return not math.isnan(self.p_value)

    @property
    def rejected(self) -> bool:
        """Tell whether the counts are too unlike a Poisson distribution."""
        return self.p_value < LEVEL


def poisson_fit(counts: ArrayLike, kappa: int, *, seed: int = 0) -> PoissonFit:
    """Fit a Poisson distribution by maximum likelihood, and tell whether to believe it.

    Interval and p-value take the counts as independent, as the theorem does. Sets of neighbouring
    seeds share members, so that the one is too narrow and the other too low.
    """
    values = np.asarray(counts, dtype=np.float64).reshape(-1)
    if not len(values):
        return PoissonFit(Interval(NAN, NAN, NAN), NAN, NAN)
    mean = float(values.mean())
    low, high = np.percentile(_bootstrap_means(values, seed), [2.5, 97.5])
    spread = float(values.var(ddof=1)) if len(values) > 1 else NAN
    return PoissonFit(
        Interval(mean / kappa, float(low) / kappa, float(high) / kappa),
        spread / mean if mean > 0 else NAN,
        _goodness_of_fit(values.astype(np.int64), mean),
    )


def _bootstrap_means(values: Float64, seed: int) -> Float64:
    """Return means (RESAMPLES,) of resamples, drawn by value, of which there are few."""
    value, number = np.unique(values, return_counts=True)
    n = len(values)
    drawn = np.random.default_rng(seed).multinomial(n, number / n, RESAMPLES)
    return np.asarray(drawn @ value / n, dtype=np.float64)


def _goodness_of_fit(counts: Int64, mean: float) -> float:
    """Return the p-value of the chi-square test against Pois(mean), one parameter being fitted."""
    if mean == 0:
        return NAN
    observed, expected = _pooled(counts, mean)
    freedom = len(expected) - 2
    if freedom < 1:
        return NAN
    statistic = ((observed - expected) ** 2 / expected).sum()
    return float(stats.chi2.sf(statistic, freedom))


def _pooled(counts: Int64, mean: float) -> tuple[Float64, Float64]:
    """Count what is observed and expected in runs of values, each expected five times or more.

    The last run is open to the right. What is left over at the end joins the run before it.
    """
    most = int(max(counts.max(), stats.poisson.ppf(1 - 1e-9, mean)))
    observed = np.bincount(counts, minlength=most + 1).astype(np.float64)
    expected = len(counts) * stats.poisson.pmf(np.arange(most + 1), mean)
    expected[-1] += len(counts) * stats.poisson.sf(most, mean)
    starts, held = [0], 0.0
    for value in range(most):
        held += expected[value]
        if held >= MIN_EXPECTED and expected[value + 1 :].sum() >= MIN_EXPECTED:
            starts.append(value + 1)
            held = 0.0
    return np.add.reduceat(observed, starts), np.add.reduceat(expected, starts)


# Its terms on real pairs.


def matches_of(problem: Problem, model: VBReg) -> Matches:
    """Return the matches as the model sees them: local, in inlier thresholds, on its device."""
    matches = problem.matches.map(lambda part: part.to(model.device))
    return matches if model.network.config.descriptor_width else replace(matches, descriptors=None)


@torch.inference_mode()
def hypothetical_inliers(problem: Problem, model: VBReg) -> HypotheticalInliers:
    """Return the sets that `VBReg` would fit its hypotheses to, of one problem."""
    matches = matches_of(problem, model)

    def work(backend: Backend) -> HypotheticalInliers:
        output = model.solver.run_network(matches, backend, whole=True)
        return model.solver.search(output, matches, backend)[1]

    return backends.run(work, model.device)[0]


@dataclass(frozen=True, eq=False)
class Measurement:
    """The terms of the theorem on one pair, and what the theorem speaks of itself: clean sets."""

    pair: str
    scene: str
    matches: int
    inliers: int
    kappa: int
    seeds: int
    counts: Int64  # (|C~in|,) of each inlier seed: kappa less the inliers in its set
    shared: float  # part of their members that the sets of two inlier seeds have in common
    fit: PoissonFit

    @property
    def inlier_ratio(self) -> float:  # p_in
        """The share of the matches that are right, p_in."""
        return self.inliers / self.matches

    @property
    def inlier_seeds(self) -> int:
        """The number of seeds that are right."""
        return len(self.counts)

    @property
    def measured(self) -> bool:
        """Whether the theorem says anything: without an inlier seed there is no alpha."""
        return self.inlier_seeds > 0

    @property
    def possible(self) -> bool:
        """Whether there are kappa inliers at all: else no set can be clean, whatever alpha."""
        return self.inliers >= self.kappa

    @property
    def alpha(self) -> float:
        """The outliers of an inlier seed's set, as a share of its size."""
        return self.fit.alpha.value

    @property
    def clean(self) -> int:
        """How many sets hold inliers only."""
        return int((self.counts == 0).sum())

    @property
    def clean_share(self) -> float:
        """The share of the inlier seeds' sets that hold inliers only."""
        return self.clean / self.inlier_seeds if self.measured else NAN

    @property
    def clean_share_poisson(self) -> float:
        """The same share, by a Poisson distribution of the same mean."""
        return math.exp(-self.alpha * self.kappa)

    @property
    def voting(self) -> float:
        """The probability of a clean set by the theorem; what was found is `clean > 0`."""
        return probability_voting(self.alpha, self.kappa, self.inlier_seeds)

    def ransac(self, J: float, sample_size: int) -> float:
        """Return the probability that RANSAC draws inliers only within J samples."""
        return probability_ransac(self.inlier_ratio, sample_size, J)

    def bound(self, J: float, sample_size: int) -> float:
        """Return the alpha below which voting is likelier than that."""
        return bound(self.inlier_ratio, self.kappa, J, self.inlier_seeds, sample_size)

    def below(self, J: float, sample_size: int) -> bool:
        """Tell whether alpha lies below the bound."""
        return self.alpha < self.bound(J, sample_size)


def measure(problems: Iterable[Labelled], model: VBReg, *, seed: int = 0) -> Iterator[Measurement]:
    """Yield the terms of the theorem on each problem, by the model's own network and voting."""
    for problem in problems:
        sets = hypothetical_inliers(problem.problem, model)
        yield tally(problem, sets.indices[0].cpu().numpy(), sets.valid[0].cpu().numpy(), seed)


def tally(problem: Labelled, members: Int64, valid: Bool, seed: int = 0) -> Measurement:
    """Count outliers in the sets (K, kappa) whose first member, the seed, is an inlier.

    An empty place counts as an outlier, so that a count of zero says what the theorem asks for:
    kappa inliers.
    """
    own = problem.right[members[:, 0]] & valid[:, 0]
    members, valid = members[own], valid[own]
    kappa = members.shape[1]
    counts = kappa - (problem.right[members] & valid).sum(axis=1)
    return Measurement(
        pair=problem.pair.name,
        scene=problem.pair.scene,
        matches=len(problem.right),
        inliers=int(problem.right.sum()),
        kappa=kappa,
        seeds=len(own),
        counts=counts.astype(np.int64),
        shared=_shared(members[valid], len(members), kappa),
        fit=poisson_fit(counts, kappa, seed=seed),
    )


def _shared(members: Int64, sets: int, kappa: int) -> float:
    """Return the mean of |A and B| / kappa over pairs of different sets A and B."""
    if sets < 2:
        return NAN
    held = np.bincount(members).astype(np.float64)
    return float((held * (held - 1)).sum() / (sets * (sets - 1) * kappa))
