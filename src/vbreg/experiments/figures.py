"""The paper's figures on the data there is: each a picture and the numbers behind it.

ambiguity    (Fig. 1)     how many pairs of matches are compatible though one of them is wrong
similarity   (Fig. 5 a b) how alike the features of true inliers are
recall       (Fig. 5 c)   recall of several methods against the inlier ratio
training     (Fig. 5 d)   validation and loss while training
alignments   (Appendix)   clouds before and after, chosen by a rule
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vbreg import backends
from vbreg.backends.devices import choose_device
from vbreg.benchmark.plots import COLOURS, INLIER_BINS, MIN_BIN_PAIRS, new_figure, save
from vbreg.benchmark.predict import PREDICTIONS, PROBLEMS, table_path
from vbreg.benchmark.problems import Labelled, Settings, labelled_problems, open_sequence
from vbreg.benchmark.report import write_csv
from vbreg.benchmark.score import Interval, Row, recall_interval, score, title_of
from vbreg.compatibility import row_chunks, spatial_compatibility
from vbreg.errors import VBRegError
from vbreg.experiments.theorem1 import matches_of
from vbreg.io import atomic_path
from vbreg.io.tables import read_table
from vbreg.model import VBReg
from vbreg.render import before_after
from vbreg.training.journal import read_log
from vbreg.types import Float64

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAN = float("nan")
INK = "#1c2530"
BENCHMARKS = {"3dmatch": "3DMatch", "3dlomatch": "3DLoMatch", "kitti": "KITTI"}
DESCRIPTOR_TITLES = {"fpfh": "FPFH", "matches:learned": "stored matches"}
RANKS = ("lowest", "second lowest", "third lowest")  # of the successes that are drawn


@dataclass(frozen=True)
class Sampling:
    """Which pairs a figure looks at, and where it computes."""

    root: Path | None
    device: str = "auto"
    every: int = 1
    limit: int | None = None
    quiet: bool = False

    def problems(self, settings: Settings) -> Iterator[Labelled]:
        """Yield the chosen pairs of a benchmark with their labelled matches."""
        return labelled_problems(
            settings,
            self.root,
            device=choose_device(self.device),
            every=self.every,
            limit=self.limit,
            quiet=self.quiet,
        )


def run(
    root: Path | None,
    output: Path,
    *,
    datasets: Sequence[str] = ("3dmatch", "3dlomatch"),
    descriptors: Sequence[str] = ("fpfh", "matches:learned"),
    weights: Mapping[str, str | Path] | None = None,
    benchmark: Path | None = None,
    training: Mapping[str, Sequence[Path]] | None = None,
    device: str = "auto",
    every: int = 1,
    limit: int | None = None,
    quiet: bool = False,
) -> list[Path]:
    """Draw every figure whose ingredients are given to `output`; return the paths.

    `weights` are networks by the name to print, `benchmark` is the folder of a finished benchmark,
    and `training` has the folders of a run's parts by the name of the run. Without `datasets` the
    figures that compute are left out.
    """
    sampling = Sampling(root, device, every, limit, quiet)
    output.mkdir(parents=True, exist_ok=True)
    settings = [Settings.of(d, descriptor=x) for d in datasets for x in descriptors]
    pictures = [ambiguity(settings, sampling, output)] if settings else []
    if settings and weights:
        first = [s for s in settings if s.descriptor == descriptors[0]]
        pictures.append(similarity(first, weights, sampling, output))
    if benchmark is not None:
        pictures.append(recall(benchmark, output))
        pictures.append(alignments(benchmark, root, output))
    if training:
        pictures.append(training_curves(training, output / "training.png", output / "training.csv"))
    return pictures


def name_of(settings: Settings) -> str:
    """Return how figures call a benchmark, such as "3DLoMatch, FPFH"."""
    dataset = BENCHMARKS.get(settings.dataset, Path(settings.dataset).name)
    return f"{dataset}, {DESCRIPTOR_TITLES.get(settings.descriptor, settings.descriptor)}"


# Fig. 1: wrong matches that the geometry cannot tell from right ones.


class Shares(NamedTuple):
    """The part of pairs of matches with beta > 0, by what the two are; nan without such pairs."""

    inlier_inlier: float
    inlier_outlier: float
    outlier_outlier: float


@dataclass(frozen=True)
class AmbiguityRow:
    """How often matches of a pair are compatible, by kind."""

    benchmark: str
    pair: str
    matches: int
    inlier_ratio: float
    inlier_inlier: float
    inlier_outlier: float
    outlier_outlier: float


def compatible_shares(source: Tensor, target: Tensor, right: Tensor) -> Shares:
    """Return the compatible share of pairs by kind, of source and target (N, 3), right (N,).

    Lengths are in units of epsilon, and a match is no pair with itself. The N x N map is formed
    some rows at a time and summed at once.
    """
    N = len(right)
    kinds = torch.stack([right, ~right], dim=-1).float()  # (N, 2): inlier, outlier
    compatible = torch.zeros(2, 2, dtype=torch.float64)
    for rows in row_chunks(N, N, maps=3):
        positive = spatial_compatibility(source[rows], target[rows], source, target) > 0
        per_row = positive.float() @ kinds  # (k, 2), whole numbers below 2^24
        compatible += (kinds[rows].T.double() @ per_row.double()).cpu()
    number = kinds.double().sum(0).cpu()
    compatible -= torch.diag(number)
    possible = torch.outer(number, number) - torch.diag(number)
    share = torch.where(possible > 0, compatible / possible, NAN)
    return Shares(float(share[0, 0]), float(share[0, 1]), float(share[1, 1]))


def ambiguity(settings: Sequence[Settings], sampling: Sampling, output: Path) -> Path:
    """Draw how many pairs of matches are compatible, over the pairs of clouds of each benchmark."""
    rows = [
        _ambiguity_row(s, problem, sampling) for s in settings for problem in sampling.problems(s)
    ]
    write_csv(output / "ambiguity.csv", [f.name for f in fields(AmbiguityRow)], rows)
    kinds = ("inlier_outlier", "inlier_inlier", "outlier_outlier")
    names = [name_of(s) for s in settings]
    figure, axes = new_figure(width=12.0, height=1.3 + 0.5 * len(names), columns=len(kinds))
    for axis, kind in zip(axes, kinds, strict=True):
        for k, name in enumerate(names):
            _box(axis, k, [getattr(r, kind) for r in rows if r.benchmark == name])
        axis.set_title(kind.replace("_", " - "), fontsize=10)
        axis.set_xlabel("pairs with beta > 0 (%)")
        axis.set_xlim(0, 104)
        axis.set_yticks(range(len(names)), names if kind == kinds[0] else [""] * len(names))
        axis.invert_yaxis()
    return save(figure, output / "ambiguity.png")


def _ambiguity_row(settings: Settings, labelled: Labelled, sampling: Sampling) -> AmbiguityRow:
    matches, unit = labelled.problem.correspondences, labelled.problem.inlier_threshold
    device = choose_device(sampling.device)
    source, target = (
        torch.from_numpy(end / unit).float().to(device) for end in (matches.source, matches.target)
    )
    shares = compatible_shares(source, target, torch.from_numpy(labelled.right).to(device))
    return AmbiguityRow(
        name_of(settings), labelled.pair.name, len(matches), labelled.inlier_ratio, *shares
    )


def _box(axis: Axes, k: int, values: Sequence[float]) -> None:
    """Draw the median in quartiles, a line from the 5th to the 95th percentile; print the mean."""
    percent = 100 * np.array([v for v in values if v == v])
    if not len(percent):
        return
    p5, p25, p50, p75, p95 = np.percentile(percent, [5, 25, 50, 75, 95])
    colour = COLOURS[k % len(COLOURS)]
    axis.plot([p5, p95], [k, k], color=colour, linewidth=1.2)
    axis.barh(k, p75 - p25, left=p25, height=0.5, color=colour, alpha=0.6)
    axis.plot([p50, p50], [k - 0.25, k + 0.25], color=INK, linewidth=1.6)
    left = p95 > 75  # no room to the right
    axis.annotate(
        f"mean {percent.mean():.1f}",
        (p5 if left else p95, k),
        (-5 if left else 5, 0),
        textcoords="offset points",
        ha="right" if left else "left",
        va="center",
        fontsize=8,
    )


# Fig. 5 a, b: how alike the features of inliers are.


@dataclass(frozen=True)
class SimilarityRow:
    """How alike a network's features of a pair's matches are."""

    benchmark: str
    network: str
    pair: str
    inliers: int
    similarity: float  # among the inliers
    to_outliers: float  # without which it says little: features may all be alike


class Similarity(NamedTuple):
    """Mean cosine between different inliers, and between inliers and outliers."""

    among_inliers: float
    to_outliers: float


def feature_similarity(features: Tensor, right: Tensor) -> Similarity:
    """Return the mean cosine of features (N, d) where right (N,); nan without such pairs."""
    unit = F.normalize(features.double(), dim=-1)
    inliers, outliers = int(right.sum()), int((~right).sum())
    ours, others = unit[right].sum(0), unit[~right].sum(0)
    total = float(ours @ ours) - inliers  # without each with itself
    among = min(total / (inliers * (inliers - 1)), 1.0) if inliers > 1 else NAN
    across = float(ours @ others) / (inliers * outliers) if inliers and outliers else NAN
    return Similarity(among, across)


def similarity(
    settings: Sequence[Settings],
    weights: Mapping[str, str | Path],
    sampling: Sampling,
    output: Path,
) -> Path:
    """Draw histograms over pairs of how alike features are, a panel for each benchmark."""
    device = choose_device(sampling.device)
    models = {name: VBReg.from_pretrained(path, device=device) for name, path in weights.items()}
    rows = [
        SimilarityRow(name_of(s), name, p.pair.name, int(p.right.sum()), *last_similarity(model, p))
        for s in settings
        for p in sampling.problems(s)
        for name, model in models.items()
    ]
    write_csv(output / "similarity.csv", [f.name for f in fields(SimilarityRow)], rows)
    figure, axes = new_figure(width=5.6 * len(settings), height=3.6, columns=len(settings))
    known = [r.similarity for r in rows if r.similarity == r.similarity]
    edges = np.linspace(np.floor(20 * min(known, default=0.0)) / 20, 1.0, 31)
    for axis, s in zip(np.atleast_1d(axes), settings, strict=True):
        _histograms(axis, [r for r in rows if r.benchmark == name_of(s)], list(models), edges)
        axis.set_title(name_of(s), fontsize=10)
    np.atleast_1d(axes)[0].set_ylabel("part of the pairs (%)")
    return save(figure, output / "similarity.png")


@torch.inference_mode()
def last_similarity(model: VBReg, labelled: Labelled) -> Similarity:
    """Return how alike the features are that the network's last iteration gives."""
    matches = matches_of(labelled.problem, model)
    output, _ = backends.run(
        lambda backend: model.solver.run_network(matches, backend, whole=True), model.device
    )
    features = output.features[-1][0]
    return feature_similarity(features, torch.from_numpy(labelled.right).to(features.device))


def _histograms(
    axis: Axes, rows: Sequence[SimilarityRow], names: Sequence[str], edges: Float64
) -> None:
    for k, name in enumerate(names):
        own = [r for r in rows if r.network == name and r.similarity == r.similarity]
        if not own:
            continue
        values = [r.similarity for r in own]
        share = 100 * np.histogram(values, edges)[0] / len(values)
        across = np.nanmean([r.to_outliers for r in own])
        text = f"{name}: mean {np.mean(values):.3f} (to outliers {across:.3f})"
        axis.stairs(share, edges, fill=True, color=COLOURS[k], alpha=0.25)
        axis.stairs(share, edges, color=COLOURS[k], linewidth=1.6, label=text)
    axis.set_xlim(edges[0], edges[-1])
    axis.set_xlabel("mean cosine between the features of inliers")
    axis.set_ylim(top=1.2 * axis.get_ylim()[1])  # room for the legend
    axis.legend(frameon=False, fontsize=8, loc="upper left")


# Fig. 5 c: recall against the inlier ratio.


@dataclass(frozen=True)
class RecallBin:
    """A method's recall over the pairs of some range of inlier ratios."""

    method: str
    inlier_ratio_from: float
    inlier_ratio_to: float
    pairs: int
    recall: Interval  # 95 % Wilson


def recall_bins(rows: Sequence[Row]) -> list[RecallBin]:
    """Return the recall of each method in every bin that has enough pairs for it."""
    bins = []
    for method in dict.fromkeys(row.method for row in rows):
        own = [row for row in rows if row.method == method]
        place = np.digitize([row.inlier_ratio for row in own], INLIER_BINS[1:-1])
        for b, (low, high) in enumerate(pairwise(INLIER_BINS)):
            hits = [row.success for row, p in zip(own, place, strict=True) if p == b]
            if len(hits) >= MIN_BIN_PAIRS:
                bins.append(
                    RecallBin(method, low, high, len(hits), recall_interval(np.array(hits)))
                )
    return bins


def recall(benchmark: Path, output: Path) -> Path:
    """Draw the recall of a finished benchmark's methods against the inlier ratio of the pairs."""
    bins = recall_bins(score(benchmark, solved_methods(benchmark)))
    if not bins:
        raise VBRegError(
            f"{benchmark}: no bin of inlier ratios has {MIN_BIN_PAIRS} pairs; run more pairs"
        )
    write_csv(output / "recall.csv", [f.name for f in fields(RecallBin)], bins)
    figure, axis = new_figure(width=8.0, height=4.2)
    edges = sorted({(b.inlier_ratio_from, b.inlier_ratio_to, b.pairs) for b in bins})
    methods = list(dict.fromkeys(b.method for b in bins))
    for k, method in enumerate(methods):
        own = [b.recall for b in bins if b.method == method]
        values, low, high = 100 * np.array(own).T
        x = np.arange(len(edges)) + 0.05 * (k - (len(methods) - 1) / 2)  # bars side by side
        axis.errorbar(
            x,
            values,
            yerr=[values - low, high - values],
            marker="o",
            markersize=4,
            capsize=2,
            elinewidth=0.8,
            color=COLOURS[k % len(COLOURS)],
            label=title_of(method),
        )
    ticks = [f"{100 * low:g}-{100 * high:g}\n({pairs})" for low, high, pairs in edges]
    axis.set_xticks(range(len(edges)), ticks, fontsize=8)
    axis.set_ylim(-3, 103)
    axis.set_xlabel("inliers among the matches (%), pairs in brackets")
    axis.set_ylabel("recall (%), 95 % Wilson interval")
    axis.legend(frameon=False, fontsize=8)
    return save(figure, output / "recall.png")


def solved_methods(benchmark: Path) -> list[str]:
    """List the methods of a benchmark's folder, VBReg first."""
    tables = sorted((benchmark / PREDICTIONS).glob("*.jsonl"))
    if not tables:
        raise VBRegError(f"{benchmark} holds no predictions; run `vbreg benchmark` into it first")
    names = [str(read_table(table)[0]["method"]) for table in tables]
    return sorted(names, key=lambda name: (not name.startswith("vbreg"), name))


# Fig. 5 d: training curves.


@dataclass(frozen=True)
class CurvePoint:
    """One point of a curve of training."""

    run: str
    curve: str
    pairs: float  # seen so far
    value: float


class Curve(NamedTuple):
    """What of a training's log is drawn, and how."""

    kind: str  # of the log's records
    field: str
    title: str
    scale: float
    smooth: int  # records that are averaged


CURVES = (
    Curve("validation", "recall", "validation: poses found (%)", 100.0, 1),
    Curve("validation", "inlier_f1", "validation: F1 of inlier labels (%)", 100.0, 1),
    Curve("train", "label_prior", "training: label loss without labels", 1.0, 5),
)


def joined_records(parts: Sequence[Path], kind: str) -> list[dict[str, Any]]:
    """Read the records of all parts, each counting its pairs on from the end of the last."""
    records: list[dict[str, Any]] = []
    seen = 0.0
    for part in parts:
        records += [{**record, "pairs": record["pairs"] + seen} for record in read_log(part, kind)]
        seen += max((record["pairs"] for record in read_log(part, "train")), default=0.0)
    return records


def curve_points(run: str, parts: Sequence[Path], curve: Curve) -> list[CurvePoint]:
    """Return a point for every `smooth` records: their mean, at the last of them."""
    records = joined_records(parts, curve.kind)
    groups = (records[k : k + curve.smooth] for k in range(0, len(records), curve.smooth))
    return [
        CurvePoint(
            run, curve.field, group[-1]["pairs"], float(np.mean([r[curve.field] for r in group]))
        )
        for group in groups
        if len(group) == curve.smooth
    ]


def training_curves(
    runs: Mapping[str, Sequence[Path]], picture: Path, numbers: Path | None = None
) -> Path:
    """Draw validation and loss against the pairs seen; write the numbers as CSV where asked for.

    Several folders of one run are its parts, each begun with the weights of the last.
    """
    figure, axes = new_figure(width=13.0, height=3.6, columns=len(CURVES))
    points: list[CurvePoint] = []
    for k, (run, parts) in enumerate(runs.items()):
        for axis, curve in zip(axes, CURVES, strict=True):
            found = curve_points(run, parts, curve)
            points += found
            x, y = [p.pairs / 1000 for p in found], [curve.scale * p.value for p in found]
            marker = "o" if curve.kind == "validation" else ""
            axis.plot(x, y, label=run, linewidth=1.8, marker=marker, color=COLOURS[k])
    for axis, curve in zip(axes, CURVES, strict=True):
        axis.set_title(curve.title, fontsize=10)
        axis.set_xlabel("training pairs (thousands)")
        axis.set_xlim(left=0)
        axis.set_ylim(bottom=0, top=100 if curve.scale == 100 else None)  # no zoom into noise
    axes[-1].legend(frameon=False)
    if numbers is not None:
        write_csv(numbers, [f.name for f in fields(CurvePoint)], points)
    return save(figure, picture)


# Clouds before and after.


@dataclass(frozen=True)
class Shown:
    """A pair that is drawn, and why."""

    rule: str
    pair: str
    success: bool
    overlap: float
    inlier_ratio: float
    rotation_error: float
    translation_error: float

    @property
    def title(self) -> str:
        """Return the caption of the picture."""
        share = self.overlap if "overlap" in self.rule else self.inlier_ratio
        return (
            f"{self.rule} ({100 * share:.0f} %): {self.pair}, {self.rotation_error:.1f} deg, "
            f"{100 * self.translation_error:.0f} cm"
        )


def chosen_pairs(rows: Sequence[Row]) -> list[Shown]:
    """Choose the successes with the lowest overlap, and the failure with the highest.

    They show what a method can do at its best, and what it should have done. Where the overlap is
    not known the inlier ratio decides.
    """
    known = all(row.overlap == row.overlap for row in rows)
    field, text = ("overlap", "overlap") if known else ("inlier_ratio", "inlier ratio")
    ordered = sorted(rows, key=lambda row: (getattr(row, field), row.pair))
    good = [row for row in ordered if row.success]
    bad = [row for row in ordered if not row.success]
    shown = [_shown(f"Success, {rank} {text}", row) for rank, row in zip(RANKS, good, strict=False)]
    return shown + [_shown(f"FAILURE, highest {text}", row) for row in bad[-1:]]


def _shown(rule: str, row: Row) -> Shown:
    errors = row.rotation_error, row.translation_error
    return Shown(rule, row.pair, row.success, row.overlap, row.inlier_ratio, *errors)


def alignments(benchmark: Path, root: Path | None, output: Path) -> Path:
    """Draw pairs of a finished benchmark before and after alignment, one below the other.

    The poses are those of its first method.
    """
    method = solved_methods(benchmark)[0]
    shown = chosen_pairs(score(benchmark, [method]))
    poses = {r["pair"]: r["T_target_source"] for r in read_table(table_path(benchmark, method))[1]}
    pairs = open_sequence(Settings(**read_table(benchmark / PROBLEMS)[0]["settings"]), root)
    where = {name: k for k, name in enumerate(pairs.names)}
    panels = []
    for item in shown:
        pair, T = pairs[where[item.pair]], np.reshape(poses[item.pair], (4, 4))
        panels.append(_panel(pair.source, pair.target, T, item.title))
    write_csv(output / "alignments.csv", [f.name for f in fields(Shown)], shown)
    return _stacked(panels, output / "alignments.png")


def _panel(source: Float64, target: Float64, T: Float64, title: str) -> Any:
    from PIL import Image

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "panel.png"
        before_after(source, target, T, file, title)
        with Image.open(file) as image:
            return np.asarray(image.convert("RGB"))


def _stacked(panels: Sequence[Any], picture: Path) -> Path:
    from PIL import Image

    with atomic_path(picture) as temporary:
        Image.fromarray(np.concatenate(panels)).save(temporary)
    return picture
