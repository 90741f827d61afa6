"""What Theorem 1 is on real pairs: as a table of numbers, in words and as a picture.

Beside the theorem's samples of kappa stand the samples of 3 that RANSAC draws in practice: a far
stronger opponent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from vbreg.backends.devices import choose_device
from vbreg.benchmark.markdown import markdown_table
from vbreg.benchmark.plots import COLOURS, INLIER_BINS, new_figure, save
from vbreg.benchmark.problems import Settings, labelled_problems
from vbreg.benchmark.report import write_csv
from vbreg.experiments.theorem1 import LEVEL, Measurement, bound, measure
from vbreg.io import atomic_path
from vbreg.model import VBReg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SAMPLE_COUNTS = (1000, 10_000, 50_000, 1_000_000)  # J
MINIMAL = 3  # matches that fix a pose: what a sample of RANSAC holds in practice
NAN = float("nan")
INK = "#1c2530"
RATIOS, ALPHAS = (0.002, 1.0), (1e-3, 12.0)  # that are drawn


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


# The picture.


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
