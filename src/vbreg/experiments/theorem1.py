"""Theorem 1 on real pairs: does voting find an all-inlier set more surely than RANSAC would?

The theorem takes the number of outliers in the hypothetical set of an inlier seed as Poisson with
mean alpha kappa, and the sets of different seeds as independent. Voting then has an all-inlier set
with a higher probability than J random samples of kappa matches where alpha < U. Here alpha is
measured, and so is how far real sets are from both assumptions. Beside the theorem's samples of
kappa stand the samples of 3 that RANSAC draws in practice: a far stronger opponent.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy import stats

from vbreg import backends
from vbreg.backends.devices import choose_device
from vbreg.backends.plain import Backend
from vbreg.benchmark.markdown import markdown_table
from vbreg.benchmark.plots import COLOURS, INLIER_BINS, new_figure, save
from vbreg.benchmark.problems import Labelled, Settings, labelled_problems
from vbreg.benchmark.report import write_csv
from vbreg.benchmark.score import Interval
from vbreg.errors import VBRegError
from vbreg.frames import Matches
from vbreg.io import atomic_path
from vbreg.methods import Problem
from vbreg.model import VBReg
from vbreg.types import Bool, Float64, Int64
from vbreg.voting import HypotheticalInliers

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RESAMPLES = 2000  # of the bootstrap over seeds
SAMPLE_COUNTS = (1000, 10_000, 50_000, 1_000_000)  # J
MINIMAL = 3  # matches that fix a pose: what a sample of RANSAC holds in practice
LEVEL = 0.05  # below, a Poisson fit counts as rejected
MIN_EXPECTED = 5.0  # in a bin of the chi-square test
NEGLIGIBLE = -36.0  # log(1 - x) = -x in double precision for log x below this
NAN = float("nan")
INK = "#1c2530"
RATIOS, ALPHAS = (0.002, 1.0), (1e-3, 12.0)  # that are drawn


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


# What is written.


def run(
    settings: Settings,
    root: Path | None,
    output: Path,
    *,
    weights: str | Path = "universal",
    device: str = "auto",
    every: int = 1,
    limit: int | None = None,
    seed: int = 0,
    quiet: bool = False,
) -> Path:
    """Write theorem1.csv, .md and .png to `output`, and return the path of the page.

    `seed` draws the bootstrap samples; nothing else is random.
    """
    chosen = choose_device(device)
    model = VBReg.from_pretrained(weights, device=chosen)
    problems = labelled_problems(
        settings, root, device=chosen, every=every, limit=limit, quiet=quiet
    )
    found = list(measure(problems, model, seed=seed))
    output.mkdir(parents=True, exist_ok=True)
    rows = [csv_row(m) for m in found]
    write_csv(output / "theorem1.csv", list(rows[0]), [SimpleNamespace(**row) for row in rows])
    draw(found, output / "theorem1.png")
    page = output / "theorem1.md"
    with atomic_path(page) as path:
        path.write_text(markdown(found, settings), encoding="utf-8")
    return page


def csv_row(m: Measurement) -> dict[str, Any]:
    """Return a row of named columns; without an inlier seed those of the theorem are empty."""
    row: dict[str, Any] = {
        "pair": m.pair,
        "scene": m.scene,
        "matches": m.matches,
        "inliers": m.inliers,
        "inlier_ratio": m.inlier_ratio,
        "kappa": m.kappa,
        "seeds": m.seeds,
        "inlier_seeds": m.inlier_seeds,
        "alpha": m.fit.alpha.value,
        "alpha_low": m.fit.alpha.low,
        "alpha_high": m.fit.alpha.high,
        "dispersion": m.fit.dispersion,
        "poisson_p_value": m.fit.p_value,
        "shared_members": m.shared,
        "clean_sets": m.clean,
        "clean_share": m.clean_share,
        "clean_share_poisson": m.clean_share_poisson,
        "clean_set_found": m.clean > 0,
        "probability_voting": m.voting if m.measured else NAN,
    }
    for name, size in (("kappa", m.kappa), (str(MINIMAL), MINIMAL)):
        for J in SAMPLE_COUNTS:
            row[f"bound_{name}_{J}"] = m.bound(J, size) if m.measured else NAN
            row[f"below_{name}_{J}"] = m.below(J, size) if m.measured else ""
            row[f"ransac_{name}_{J}"] = m.ransac(J, size) if m.inlier_ratio > 0 else 0.0
    return row


def markdown(found: Sequence[Measurement], settings: Settings) -> str:
    """Return the findings as a page of Markdown."""
    groups = _groups(found)
    kappa = _kappa(found)
    parts = [
        f"# Theorem 1 on {settings.dataset}, {settings.descriptor} matches, {len(found)} pairs",
        findings(found),
        "## Outliers in the sets of inlier seeds",
        markdown_table(*_assumptions(groups, kappa), "right"),
        "Means over the pairs with an inlier seed, medians for dispersion (variance over mean, 1 "
        f"for Poisson). Not rejected: chi-square test at {100 * LEVEL:g} %, of the pairs with "
        "enough sets for it, which are taken as independent. Shared: part of their members that "
        "the sets of two inlier seeds have in common. Clean: inliers only.",
        f"## Against samples of {kappa}, as in the theorem",
        markdown_table(*_comparison(groups, None), "right"),
        f"## Against samples of {MINIMAL}, as RANSAC is used",
        markdown_table(*_comparison(groups, MINIMAL), "right"),
        "U is the median over pairs, below the part of them where alpha < U, RANSAC the mean "
        "probability of a clean sample. The formula is the theorem's, with the matches in a sample "
        "as the exponent of the inlier ratio.",
        "![U against inlier ratio, and outliers in a set](theorem1.png)",
    ]
    return "\n\n".join(parts) + "\n"


def _groups(found: Sequence[Measurement]) -> list[tuple[str, list[Measurement]]]:
    """Group the pairs by inlier ratio, without empty bins; the last group is all pairs."""
    place = np.digitize([m.inlier_ratio for m in found], INLIER_BINS[1:-1])
    groups = []
    for b in sorted(set(place.tolist())):
        name = f"{100 * INLIER_BINS[b]:g} - {100 * INLIER_BINS[b + 1]:g}"
        groups.append((name, [m for m, p in zip(found, place, strict=True) if p == b]))
    return [*groups, ("all", list(found))]


def _assumptions(
    groups: Sequence[tuple[str, list[Measurement]]], kappa: int
) -> tuple[list[str], list[list[str]]]:
    header = ["inliers %", "pairs", "with an inlier seed", f"with {kappa} inliers"]
    header += ["inlier seeds", "alpha", "dispersion"]
    header += ["Poisson not rejected %", "shared %", "clean sets %", "by Poisson %"]
    header += ["a clean set found %", "by the theorem %"]
    rows = []
    for name, group in groups:
        known = [m for m in group if m.measured]
        row = [name, f"{len(group)}", f"{len(known)}", f"{sum(m.possible for m in known)}"]
        row += [
            _text(_mean(m.inlier_seeds for m in known)),
            _text(_mean(m.alpha for m in known), 3),
        ]
        row += [_text(_median(m.fit.dispersion for m in known), 1)]
        row += [_percent(not m.fit.rejected for m in known if m.fit.tested)]
        row += [_percent(m.shared for m in known), _percent(m.clean_share for m in known)]
        row += [_percent(m.clean_share_poisson for m in known)]
        row += [_percent(m.clean > 0 for m in known), _percent(m.voting for m in known)]
        rows.append(row)
    return header, rows


def _comparison(
    groups: Sequence[tuple[str, list[Measurement]]], size: int | None
) -> tuple[list[str], list[list[str]]]:
    """Return a table of U and how often alpha lies below it, for samples of `size` (or kappa)."""
    header = ["inliers %"]
    for J in SAMPLE_COUNTS:
        header += [f"J = {J:,}: U", "below %", "RANSAC %"]
    rows = []
    for name, group in groups:
        known = [m for m in group if m.measured]
        row = [name]
        for J in SAMPLE_COUNTS:
            row.append(_text(_median(m.bound(J, size or m.kappa) for m in known), 3))
            row.append(_percent(m.below(J, size or m.kappa) for m in known))
            row.append(_percent(m.ransac(J, size or m.kappa) for m in known))
        rows.append(row)
    return header, rows


def findings(found: Sequence[Measurement]) -> str:
    """Say in words what the numbers show; the words follow the numbers."""
    known = [m for m in found if m.measured]
    if not known:
        return f"None of the {len(found)} pairs has an inlier among its seeds: nothing to measure."
    return " ".join([_holds(found, known), _fails(known), _opponent(known)])


def _holds(found: Sequence[Measurement], known: Sequence[Measurement]) -> str:
    kappa, J = _kappa(known), SAMPLE_COUNTS[-1]
    below, clean = sum(m.below(J, m.kappa) for m in known), sum(m.clean > 0 for m in known)
    without = len(found) - len(known)
    return (
        f"alpha < U holds on {below} of {len(known)} pairs against {J:,} samples of {kappa}, and "
        f"voting has a clean set, {kappa} inliers, on {clean} of them"
        + (f" (pairs without an inlier among their seeds: {without})." if without else ".")
    )


def _fails(known: Sequence[Measurement]) -> str:
    tested = [m for m in known if m.fit.tested]
    rejected = sum(m.fit.rejected for m in tested)
    spread = _median(m.fit.dispersion for m in known)
    short = sum(not m.possible for m in known)
    verdict = "not Poisson" if 2 * rejected > len(tested) else "near Poisson"
    return (
        f"Outliers in a set are {verdict if tested else 'too few to be tested'}: the fit is "
        f"rejected on {rejected} of {len(tested)} pairs that can be tested, with a median "
        f"dispersion of {_text(spread, 1)} instead of 1; nor are sets independent, of which two "
        f"share {_percent(m.shared for m in known)} % of their members. "
        f"{_percent(m.clean_share for m in known)} % of the sets are clean where Poisson has "
        f"{_percent(m.clean_share_poisson for m in known)} %, and a clean set is there on "
        f"{_percent(m.clean > 0 for m in known)} % of the pairs where the theorem's formula has "
        f"{_percent(m.voting for m in known)} %"
        + (f" (pairs with fewer than {_kappa(known)} inliers at all: {short})." if short else ".")
    )


def _opponent(known: Sequence[Measurement]) -> str:
    kappa, J = _kappa(known), SAMPLE_COUNTS[2]
    large, small = (_percent(m.ransac(J, size) for m in known) for size in (kappa, MINIMAL))
    below = sum(m.below(J, MINIMAL) for m in known)
    return (
        f"{J:,} samples of {kappa}, the opponent of the theorem, hold a clean one on {large} % of "
        f"the pairs, samples of {MINIMAL}, as RANSAC draws them, on {small} %; against these "
        f"alpha < U holds on {below} of {len(known)} pairs (a clean sample of {MINIMAL} fixes a "
        f"pose less well than a set of {kappa}, which need not be clean to do so)."
    )


def _kappa(found: Sequence[Measurement]) -> int:
    """Return the kappa of all pairs but those with fewer matches than a set has places."""
    return max(m.kappa for m in found)


def _mean(values: Iterable[float]) -> float:
    finite = [v for v in values if not math.isnan(v)]
    return float(np.mean(finite)) if finite else NAN


def _median(values: Iterable[float]) -> float:
    finite = [v for v in values if not math.isnan(v)]
    return float(np.median(finite)) if finite else NAN


def _percent(values: Iterable[float]) -> str:
    return _text(100 * _mean(float(v) for v in values), 1)


def _text(value: float, digits: int = 0) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


# Its picture.


def draw(found: Sequence[Measurement], path: Path) -> Path:
    """Draw U and the measured alphas (left), and outliers in a set against Poisson's (right)."""
    figure, (left, right) = new_figure(width=12.0, height=4.6, columns=2)
    known = [m for m in found if m.measured]
    if known:
        _draw_bounds(left, known)
        _draw_counts(right, known)
    return save(figure, path)


def _draw_bounds(axis: Axes, known: Sequence[Measurement]) -> None:
    """Draw U as curves for the median number of inlier seeds, and each pair's alpha as a dot."""
    kappa, seeds = _kappa(known), round(_median(m.inlier_seeds for m in known))
    ratios = np.geomspace(RATIOS[0], 0.98, 300)
    for size, style in ((kappa, "-"), (MINIMAL, "--")):
        for k, J in enumerate(SAMPLE_COUNTS):
            curve = [bound(p, kappa, J, seeds, size) for p in ratios]
            name = f"J = {J:,}" if size == kappa else None
            axis.plot(100 * ratios, curve, style, color=COLOURS[k], linewidth=1.5, label=name)
        at = 100 * ratios[0], bound(ratios[0], kappa, SAMPLE_COUNTS[-1], seeds, size)
        axis.annotate(f"U, samples of {size}", at, (4, -28), textcoords="offset points")
    for clean, face in ((True, INK), (False, "white")):
        chosen = [m for m in known if (m.clean > 0) == clean]
        text = f"alpha, {'a' if clean else 'no'} clean set found ({len(chosen)})"
        x, y = [100 * m.inlier_ratio for m in chosen], [max(m.alpha, ALPHAS[0]) for m in chosen]
        axis.scatter(x, y, s=22, color=face, edgecolor=INK, zorder=3, label=text)
    axis.set(xscale="log", yscale="log", xlim=[100 * r for r in RATIOS], ylim=ALPHAS)
    axis.set_xticks([0.3, 1, 3, 10, 30, 100], ["0.3", "1", "3", "10", "30", "100"], minor=False)
    axis.set_xlabel("inliers among the matches (%)")
    axis.set_ylabel("alpha (dots), U (lines)")
    axis.set_title(f"{len(known)} pairs; U at {seeds} inlier seeds", fontsize=10)
    axis.legend(fontsize=8, loc="lower left", framealpha=0.9)


def _draw_counts(axis: Axes, known: Sequence[Measurement]) -> None:
    """Draw outliers in a set against one Poisson for all, as pooling asks for, and one a pair."""
    kappa = _kappa(known)
    counts = np.concatenate([m.counts for m in known])
    value = np.arange(kappa + 1)
    seen = np.bincount(counts, minlength=kappa + 1) / len(counts)
    weight = np.array([m.inlier_seeds for m in known]) / len(counts)
    own = np.array([stats.poisson.pmf(value, m.alpha * m.kappa) for m in known])
    together = stats.poisson.pmf(value, counts.mean())
    axis.bar(value, seen, color="#b9c9d6", width=0.9, label="sets of inlier seeds")
    axis.plot(value, weight @ own, ".-", color=COLOURS[0], label="Poisson, fitted to each pair")
    axis.plot(value, together, ".-", color=COLOURS[3], label="Poisson, fitted to all")
    axis.set(yscale="log", xlim=(-0.8, kappa + 0.8), ylim=(0.5 / len(counts), 1.0))
    axis.set_xlabel(f"outliers in a set of {kappa}")
    axis.set_ylabel("part of the sets")
    axis.set_title(f"{len(counts):,} sets of {len(known)} pairs", fontsize=10)
    axis.legend(frameon=False, fontsize=8)
