"""Pictures of a benchmark, by matplotlib (vbreg[plots])."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vbreg.benchmark.score import Row, Summary, title_of
from vbreg.errors import MissingExtraError
from vbreg.io import atomic_path

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0b6e99", "#e07a1f", "#3c8d40", "#b23a48", "#6d5acd", "#8a6d3b", "#4a5568", "#c2569b")
LINES = ("-", "--", ":", "-.")
MIN_BIN_PAIRS = 5  # pairs in a bin that is drawn
INLIER_BINS = (0.0, 0.01, 0.02, 0.04, 0.06, 0.10, 0.15, 0.25, 1.0)
OVERLAP_BINS = (0.0, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)


def available() -> bool:
    """Tell whether pictures can be drawn here."""
    return find_spec("matplotlib") is not None


def draw(output: Path, rows: Sequence[Row], summaries: Sequence[Summary]) -> list[Path]:
    """Draw recall, errors, recall by inlier ratio and overlap, recall by time; return the files."""
    figures = {
        "recall": recall_bars(summaries),
        "errors": error_curves(rows),
        "inlier_ratio": recall_by(rows, "inlier_ratio", INLIER_BINS, "inliers among the matches"),
    }
    if any(s.timed for s in summaries):  # pairs that several processes shared have no times
        figures["time"] = recall_against_time(summaries)
    if all(np.isfinite(row.overlap) for row in rows):
        figures["overlap"] = recall_by(rows, "overlap", OVERLAP_BINS, "overlap")
    return [save(figure, output / f"{name}.png") for name, figure in figures.items()]


def recall_bars(summaries: Sequence[Summary]) -> Figure:
    """Draw the recall of each method over all pairs, with its interval."""
    whole = [s for s in summaries if s.scene == "all"]
    figure, axis = new_figure(width=8.0, height=0.9 + 0.38 * len(whole))
    for k, s in enumerate(whole):
        values = [100 * v for v in s.recall]
        spread = [[values[0] - values[1]], [values[2] - values[0]]]
        axis.barh(k, values[0], xerr=spread, color=_colour(k), height=0.66, capsize=2)
        axis.text(values[2] + 1.0, k, f"{values[0]:.1f}", va="center", fontsize=9)
    axis.set_yticks(range(len(whole)), [title_of(s.method) for s in whole])
    axis.invert_yaxis()
    axis.set_xlim(0, 108)
    axis.set_xlabel("registration recall (%) with its 95 % interval")
    return figure


def error_curves(rows: Sequence[Row]) -> Figure:
    """Draw the share of pairs below an error, for every bound one may care for."""
    figure, axes = new_figure(width=10.0, height=3.6, columns=2)
    fields = (("rotation_error", "rotation error (deg)", 1.0, 15.0),
              ("translation_error", "translation error (cm)", 100.0, 60.0))  # fmt: skip
    for axis, (field, text, scale, most) in zip(axes, fields, strict=True):
        for k, (name, group) in enumerate(by_method(rows)):
            errors = np.sort([scale * getattr(row, field) for row in group])
            share = 100 * np.arange(len(errors) + 1) / len(errors)
            axis.step(
                [0.0, *errors],
                share,
                where="post",
                color=_colour(k),
                linestyle=_line(k),
                label=name,
                linewidth=1.6,
            )
        axis.set_xlim(0, most)
        axis.set_ylim(0, 101)
        axis.set_xlabel(text)
    axes[0].set_ylabel("pairs below (%)")
    axes[-1].legend(frameon=False, fontsize=8, loc="lower right")
    return figure


def recall_by(rows: Sequence[Row], field: str, bins: Sequence[float], text: str) -> Figure:
    """Draw the recall of the pairs in each bin of a quantity that the method cannot choose."""
    figure, axis = new_figure(width=7.0, height=3.8)
    used: list[str] = []
    for k, (name, group) in enumerate(by_method(rows)):
        values = np.array([getattr(row, field) for row in group])
        hits = np.array([row.success for row in group])
        place = np.digitize(values, bins[1:-1])
        full = [b for b in range(len(bins) - 1) if (place == b).sum() >= MIN_BIN_PAIRS]
        used = [f"{100 * bins[b]:g}-{100 * bins[b + 1]:g}\n({(place == b).sum()})" for b in full]
        recall = [100 * hits[place == b].mean() for b in full]
        axis.plot(
            range(len(full)), recall, marker="o", color=_colour(k), linestyle=_line(k), label=name
        )
    axis.set_xticks(range(len(used)), used, fontsize=8)
    axis.set_ylim(-3, 103)
    axis.set_xlabel(f"{text} (%), pairs in brackets")
    axis.set_ylabel("recall (%)")
    axis.legend(frameon=False, fontsize=8, handlelength=3.5)
    return figure


def recall_against_time(summaries: Sequence[Summary]) -> Figure:
    """Draw recall against time; where some methods ran on a GPU, those of the CPU are rings."""
    figure, axis = new_figure(width=6.5, height=3.8)
    whole = [s for s in summaries if s.scene == "all"]
    devices = list(dict.fromkeys(s.device for s in whole))
    slower = np.argsort(np.argsort([s.seconds_median for s in whole]))
    for k, s in enumerate(whole):
        point = 1e3 * s.seconds_median, 100 * s.recall.value
        ring = len(devices) > 1 and s.device == "cpu"
        fill = "white" if ring else _colour(k)
        axis.plot(*point, "o", color=_colour(k), markerfacecolor=fill, markersize=8)
        axis.annotate(
            title_of(s.method),
            point,
            (0, -16 if slower[k] % 2 else 8),  # in turn below and above
            textcoords="offset points",
            ha="center",
            fontsize=9,
        )
    axis.set_xscale("log")
    axis.margins(x=0.25, y=0.15)
    others = " and ".join(d for d in devices if d != "cpu")
    note = f"; rings: CPU, discs: {others}" if len(devices) > 1 else ""
    axis.set_xlabel(f"median time a pair (ms){note}")
    axis.set_ylabel("recall (%)")
    return figure


def by_method(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Group rows by the title of their method, in the order in which methods come."""
    methods = dict.fromkeys(row.method for row in rows)
    return [(title_of(m), [row for row in rows if row.method == m]) for m in methods]


def new_figure(width: float, height: float, columns: int = 1) -> tuple[Figure, Any]:
    """Return a figure without pyplot's global state, and its axes, which have no box."""
    if not available():
        raise MissingExtraError("matplotlib", "plots", "drawing")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, columns)
    for axis in np.atleast_1d(axes):
        axis.grid(alpha=0.25)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def save(figure: Figure, path: Path) -> Path:
    """Write a figure, the same bytes for the same figure, and return its path."""
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=130, metadata={"Software": None})
    return path


def inlined(path: Path) -> str:
    """Return a picture as the address by which a page of HTML holds it."""
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()


def _colour(k: int) -> str:
    return COLOURS[k % len(COLOURS)]


def _line(k: int) -> str:
    """Return the style of the k-th line: solid, and another each time that colours come again."""
    return LINES[k // len(COLOURS) % len(LINES)]
