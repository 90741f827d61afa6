"""Draw docs/images/results.png from the CSV files in docs/results: recall against time.

    python scripts/plot_results.py            # needs vbreg[plots]
    python scripts/plot_results.py --descriptor "Open3D's FPFH" --output out/results.png

A marker is a method with FPFH matches, or those of `--descriptor`: recall with its 95 % interval,
and the median time from FPFH matches to pose (KISS-Matcher: from clouds). Rows are data sets,
columns the machines of the speed tables. A picture stays as it is where its columns of table 1
were not measured yet.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from results import CPU, DATASETS, DESCRIPTORS, GPU, NotMeasuredError, Results, title_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.transforms import Bbox

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
    """A method on a data set and a machine; recall and the ends of its interval in %."""

    name: str
    colour: str
    shape: str
    milliseconds: float
    recall: float
    low: float
    high: float

    @property
    def title(self) -> str:
        return title_of(self.name).replace("`", "").removesuffix(" (voting alone)")

    @property
    def ours(self) -> bool:
        return self.name.partition(":")[0] in ("vbreg", "register")


def markers(found: Results, dataset: str, descriptor: str, hardware: str) -> list[Marker]:
    """The methods with a time on that machine; those whose labels matter most come first."""
    rows = found.column(dataset, descriptor)
    if not rows:
        raise NotMeasuredError(f"table1 has no rows of {dataset}, {descriptor}")
    shown = []
    for k, name in enumerate(found.methods("table1")):
        time = found.milliseconds(name, hardware)
        if time is not None and name in rows:
            recall = (100 * float(rows[name][f"recall{end}"]) for end in ("", "_low", "_high"))
            colour, shape = COLOURS[k % len(COLOURS)], SHAPES[k % len(SHAPES)]
            shown.append(Marker(name, colour, shape, time, *recall))
    return sorted(shown, key=lambda marker: (not marker.ours, -marker.milliseconds))


def draw_panel(axis: Axes, shown: list[Marker]) -> None:
    for marker in shown:
        axis.errorbar(
            marker.milliseconds,
            marker.recall,
            yerr=[[marker.recall - marker.low], [marker.high - marker.recall]],
            fmt=marker.shape,
            color=marker.colour,
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
        axis.set_xlim(min(times) / 2.5, max(times) * 5.0)


def place_labels(axis: Axes, shown: list[Marker]) -> None:
    """Each where it covers no marker, no interval and no other label: the first such place."""
    renderer = axis.figure.canvas.get_renderer()
    taken: list[Bbox] = []
    for marker in shown:
        ends = [(marker.milliseconds, y) for y in (marker.low, marker.recall, marker.high)]
        (x, bottom), (_, middle), (_, top) = axis.transData.transform(ends)
        taken.append(mpl.transforms.Bbox([[x - 5, bottom - 3], [x + 5, top + 3]]))
        taken.append(mpl.transforms.Bbox([[x - 9, middle - 9], [x + 9, middle + 9]]))
    frame = axis.get_window_extent(renderer)
    points_a_pixel = 72 / axis.figure.dpi
    for marker in shown:
        point = marker.milliseconds, marker.recall
        top = axis.transData.transform((point[0], marker.high))[1]
        above = max((top - axis.transData.transform(point)[1]) * points_a_pixel, 5) + 5
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
            box = label.get_window_extent(renderer)
            inside = frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0
            clashes = sum(bool(box.overlaps(other)) for other in taken) + 10 * (not inside)
            if clashes < fewest:
                best, fewest = (dx, dy, ha, va), clashes
        assert best is not None
        label.set_position(best[:2])
        label.set(ha=best[2], va=best[3])
        if np.hypot(*best[:2]) > FAR:  # a line says whose label it is
            axis.annotate(
                "",
                point,
                xytext=best[:2],
                textcoords="offset points",
                arrowprops={"arrowstyle": "-", "color": marker.colour, "linewidth": 0.8},
                zorder=2,
            )
        taken.append(label.get_window_extent(renderer).padded(2))


FAR = 24  # points; from here on a label has a line to its marker
PLACES = tuple(
    place
    for far in (9, 14, 20, 28, 40, 55, 75)
    for place in (
        (far, 0, "left", "center"),
        (-far, 0, "right", "center"),
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
        axis.set_xlabel("milliseconds a pair, from FPFH matches to pose")
    figure.canvas.draw()
    figure.set_layout_engine("none")  # labels are placed in the final frame
    for axis, drawn in zip(axes.flat, (drawn for shown in panels for drawn in shown), strict=True):
        place_labels(axis, drawn)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.output, dpi=110)
    print(options.output)


if __name__ == "__main__":
    main()
