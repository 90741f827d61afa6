"""Draw docs/images/results.png from the CSV files in docs/results: recall against time.

    python scripts/plot_results.py            # needs vbreg[plots]
    python scripts/plot_results.py --descriptor "Open3D's FPFH" --output out/results.png

A marker is a method with FPFH matches, or those of `--descriptor`: recall with its 95 % interval,
and the median time from FPFH matches to pose (KISS-Matcher: from clouds). A hollow one is an
estimate of a method that saw fewer pairs (`Results.recall`). Rows are data sets, columns the
machines of the speed tables. A picture stays as it is where its columns of table 1 were not
measured yet.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.lines import Line2D
from results import (
    CPU,
    DATASETS,
    DESCRIPTORS,
    GPU,
    REFERENCE,
    NotMeasuredError,
    Recall,
    Results,
    title_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

Box = tuple[float, float, float, float]  # left, bottom, right, top in pixels

ROOT = Path(__file__).parents[1]
PANELS = DATASETS[:2]
FPFH = DESCRIPTORS[0]  # what was timed, and what is drawn if nothing else is said
# Colours of Okabe & Ito and of Tol, which colour-blind eyes can tell apart; shapes differ as well.
COLOURS = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9"),
    *("#e69f00", "#000000", "#7f7f7f", "#882255", "#117733", "#999933"),
)
SHAPES = "osD^vPX<>hp*d"  # two more than colours, so that no pair of both comes again soon
INK = "#1c2530"


@dataclass(frozen=True)
class Marker:
    """A method on a data set and a machine; its recall is in %."""

    name: str
    colour: str
    shape: str
    milliseconds: float
    recall: Recall

    @property
    def title(self) -> str:
        return plain_title(self.name).removesuffix(" (voting alone)")

    @property
    def ours(self) -> bool:
        return self.name.partition(":")[0] in ("vbreg", "verified", "register")


def plain_title(method: str) -> str:
    return title_of(method).replace("`", "")


def markers(found: Results, dataset: str, descriptor: str, hardware: str) -> list[Marker]:
    """The methods with a time on that machine; those whose labels matter most come first."""
    if not found.column(dataset, descriptor):
        raise NotMeasuredError(f"table1 has no rows of {dataset}, {descriptor}")
    shown = []
    for k, name in enumerate(found.methods("table1")):
        time, recall = found.milliseconds(name, hardware), found.recall(dataset, descriptor, name)
        if time is not None and recall is not None:
            colour, shape = COLOURS[k % len(COLOURS)], SHAPES[k % len(SHAPES)]
            percents = Recall(*(100 * share for share in recall[:3]), recall.estimated)
            shown.append(Marker(name, colour, shape, time, percents))
    return sorted(shown, key=lambda marker: (not marker.ours, -marker.milliseconds))


def draw_panel(axis: Axes, shown: list[Marker]) -> None:
    for marker in shown:
        value, low, high, estimated = marker.recall
        axis.errorbar(
            marker.milliseconds,
            value,
            yerr=[[value - low], [high - value]],
            fmt=marker.shape,
            color=marker.colour,
            markerfacecolor="white" if estimated else marker.colour,
            markersize=10 if marker.ours else 8,
            markeredgewidth=1.6,
            elinewidth=1.4,
            capsize=3,
            zorder=3,
        )
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter("{x:g}")
    axis.grid(color="#dde3ea", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    if times := [marker.milliseconds for marker in shown]:
        axis.set_xlim(min(times) / 5.0, max(times) * 5.0)


def place_labels(axis: Axes, shown: list[Marker]) -> None:
    """Put each label at the first place where it covers no marker, no interval and no other label.

    Nothing of another method lies between a label and its marker either, where this can be.
    """
    renderer = axis.figure.canvas.get_renderer()
    taken: dict[str, list[Box]] = {}
    for marker in shown:
        ends = [(marker.milliseconds, y) for y in marker.recall[:3]]
        (x, middle), (_, bottom), (_, top) = axis.transData.transform(ends)
        taken[marker.name] = [
            (x - 5, bottom - 3, x + 5, top + 3),
            (x - 9, middle - 9, x + 9, middle + 9),
        ]
    frame = axis.get_window_extent(renderer).extents
    points_a_pixel = 72 / axis.figure.dpi
    for marker in shown:
        point = marker.milliseconds, marker.recall.value
        here, top = axis.transData.transform([point, (point[0], marker.recall.high)])
        above = max((top[1] - here[1]) * points_a_pixel, 5) + 5
        others = [box for name, boxes in taken.items() if name != marker.name for box in boxes]
        label = axis.annotate(
            marker.title,
            point,
            xytext=(0, 0),
            textcoords="offset points",
            fontsize=9,
            fontweight="bold" if marker.ours else "normal",
            color=INK,
            zorder=4,
        )
        best, fewest = None, np.inf
        for dx, dy, ha, va in (*PLACES[:2], (0, above, "center", "bottom"), *PLACES[2:]):
            label.set_position((dx, dy))
            label.set(ha=ha, va=va)
            box = label.get_window_extent(renderer).padded(1).extents
            line = np.linspace(here, here + np.array([dx, dy]) / points_a_pixel, LINE)
            outside = (box[:2] < frame[:2]).any() or (box[2:] > frame[2:]).any()
            clashes = 5 * met([box], taken[marker.name] + others) + 50 * outside
            clashes += met(np.c_[line, line], others)
            if clashes < fewest:
                best, fewest, found = (dx, dy, ha, va), clashes, (box, line)
        assert best is not None
        label.set_position(best[:2])
        label.set(ha=best[2], va=best[3])
        taken[marker.name].append(found[0])
        if np.hypot(*best[:2]) > FAR:  # a line says whose label it is
            axis.annotate(
                "",
                point,
                xytext=best[:2],
                textcoords="offset points",
                arrowprops={"arrowstyle": "-", "color": marker.colour, "linewidth": 0.8},
                zorder=2,
            )
            taken[marker.name] += [(x - 1, y - 1, x + 1, y + 1) for x, y in found[1]]


def met(some: Sequence[Box] | NDArray[np.float64], others: list[Box]) -> int:
    """How many of the others overlap with one of some boxes."""
    (a, b), (c, d) = (np.split(np.array(boxes), 2, axis=1) for boxes in (some, others))
    apart = (b[:, None] < c).any(-1) | (d < a[:, None]).any(-1)
    return int((~apart).any(0).sum())


def explain_hollow(figure: Figure) -> None:
    """A legend below the panels: what tells an estimate from a measured recall."""
    estimate = (
        f"saw fewer pairs: recall of {plain_title(REFERENCE)} on all pairs "
        "plus the difference on the same pairs"
    )
    entries = [
        Line2D([], [], marker="o", linestyle="", color=INK, markerfacecolor=face, label=label)
        for label, face in (("saw all pairs", INK), (estimate, "white"))
    ]
    figure.legend(handles=entries, loc="outside lower center", ncols=2, frameon=False)


LINE = 16  # points of a line from a marker to its label
FAR = 24  # points; from here on a label has a line to its marker
PLACES = tuple(
    place
    for far in (9, 14, 20, 28, 40, 55, 75)
    for place in (
        (far, 0, "left", "center"),
        (-far, 0, "right", "center"),
        (far, far / 2 - 2, "left", "center"),
        (far, 2 - far / 2, "left", "center"),
        (-far, far / 2 - 2, "right", "center"),
        (-far, 2 - far / 2, "right", "center"),
        (far - 2, far - 4, "left", "bottom"),
        (far - 2, 4 - far, "left", "top"),
        (2 - far, far - 4, "right", "bottom"),
        (2 - far, 4 - far, "right", "top"),
        (0, far + 4, "center", "bottom"),
        (0, -far - 4, "center", "top"),
    )
)  # from near to far


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "images" / "results.png")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository")
    parser.add_argument("--descriptor", choices=DESCRIPTORS, default=FPFH)
    options = parser.parse_args()
    found = Results(options.root / "docs" / "results")
    try:
        panels = [
            [markers(found, dataset, options.descriptor, hardware) for hardware in (GPU, CPU)]
            for dataset in PANELS
        ]
    except NotMeasuredError as error:
        print(f"{options.output} stays: {error}")
        return
    mpl.use("Agg")
    plt.rcParams.update({"font.size": 10, "axes.labelcolor": INK, "axes.edgecolor": "#8a94a0"})
    figure, axes = plt.subplots(2, 2, figsize=(12.0, 9.4), layout="constrained", sharey="row")
    of = "" if options.descriptor == FPFH else f", {options.descriptor}"
    for row, (dataset, shown) in enumerate(zip(PANELS, panels, strict=True)):
        for axis, hardware, drawn in zip(axes[row], (GPU, CPU), shown, strict=True):
            draw_panel(axis, drawn)
            axis.set_title(f"{dataset}{of}, {found.hardware(hardware)}", loc="left", color=INK)
        low, high = axes[row, 0].get_ylim()
        axes[row, 0].set_ylim(low - 0.06 * (high - low), high + 0.04 * (high - low))
        axes[row, 0].set_ylabel("registration recall (%) and its 95 % interval")
    for axis in axes[-1]:
        axis.set_xlabel(
            "milliseconds a pair, from FPFH matches to pose\n(KISS-Matcher: from clouds)"
        )
    if any(marker.recall.estimated for row in panels for shown in row for marker in shown):
        explain_hollow(figure)
    figure.canvas.draw()
    figure.set_layout_engine("none")  # labels are placed in the final frame
    for axis, drawn in zip(axes.flat, (drawn for shown in panels for drawn in shown), strict=True):
        place_labels(axis, drawn)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.output, dpi=110)
    print(options.output)


if __name__ == "__main__":
    main()
