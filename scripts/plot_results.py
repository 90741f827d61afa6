"""Draw docs/images/results.png from the CSV files in docs/results: recall against time.

    python scripts/plot_results.py            # needs vbreg[plots]

A marker is a method: recall, with its 95 % interval where it is known, and the median time from
matches to pose (KISS-Matcher: from clouds).
Filled markers ran on the GPU of the speed tables, hollow ones on the CPU.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from results import BENCHMARKS, CPU, GPU, Results, title_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.transforms import Bbox

ROOT = Path(__file__).parents[1]
PANELS = ("3dmatch_fpfh", "3dlomatch_fpfh")
# Colours of Okabe & Ito and of Tol, which colour-blind eyes can tell apart; shapes differ as well.
COLOURS = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9"),
    *("#e69f00", "#000000", "#7f7f7f", "#882255", "#117733", "#999933"),
)
SHAPES = "osD^vPX<>hp*d"  # two more than colours, so that no pair of both comes again soon
INK = "#1c2530"


@dataclass(frozen=True)
class Method:
    name: str
    colour: str
    shape: str
    milliseconds: float
    on_gpu: bool

    @property
    def title(self) -> str:
        return title_of(self.name).replace("`", "")

    @property
    def ours(self) -> bool:
        return self.name.partition(":")[0] == "vbreg"


def timed_methods(found: Results) -> list[Method]:
    """Those with a time: on the GPU, or else on the CPU."""
    methods = []
    for k, name in enumerate(found.methods()):
        times = {hardware: found.milliseconds(name, hardware) for hardware in (GPU, CPU)}
        time = times[GPU] or times[CPU]
        if time is None:
            continue
        colour, shape = COLOURS[k % len(COLOURS)], SHAPES[k % len(SHAPES)]
        methods.append(Method(name, colour, shape, time.value, times[GPU] is not None))
    return sorted(methods, key=lambda method: (not method.ours, -method.milliseconds))  # labels so


def recalls(
    found: Results, benchmark: str, methods: list[Method]
) -> dict[str, tuple[float, float, float]]:
    """Recall in % and the ends of its interval, which are the same where it has none."""
    rows = {}
    for method in methods:
        recall = found.recall(method.name, benchmark)
        if recall is not None:
            low, high = (recall.value if end is None else end for end in recall[1:])
            rows[method.name] = 100 * recall.value, 100 * low, 100 * high
    return rows


def draw_panel(axis: Axes, found: Results, benchmark: str, methods: list[Method]) -> None:
    rows = recalls(found, benchmark, methods)
    shown = [method for method in methods if method.name in rows]
    for method in shown:
        value, low, high = rows[method.name]
        axis.errorbar(
            method.milliseconds,
            value,
            yerr=[[value - low], [high - value]] if low < high else None,
            fmt=method.shape,
            color=method.colour,
            markersize=10 if method.ours else 8,
            markerfacecolor=method.colour if method.on_gpu else "white",
            markeredgewidth=1.6,
            elinewidth=1.4,
            capsize=3,
            zorder=3,
        )
    pairs = next(iter(found.summary(benchmark).values()))["pairs"]
    axis.set_title(f"{BENCHMARKS[benchmark]}, {pairs} pairs", loc="left", color=INK)
    axis.set_xscale("log")
    axis.set_xlabel("milliseconds a pair, from matches to pose")
    axis.xaxis.set_major_formatter("{x:g}")
    axis.grid(color="#dde3ea", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
    times = [method.milliseconds for method in shown]
    axis.set_xlim(min(times) / 2.5, max(times) * 5.0)
    low, high = axis.get_ylim()
    axis.set_ylim(max(0.0, low - 0.06 * (high - low)), min(101.0, high + 0.06 * (high - low)))


def place_labels(axis: Axes, found: Results, benchmark: str, methods: list[Method]) -> None:
    """Each where it covers no marker, no interval and no other label: the first such place."""
    rows = recalls(found, benchmark, methods)
    renderer = axis.figure.canvas.get_renderer()
    taken: list[Bbox] = []
    shown = [method for method in methods if method.name in rows]
    for method in shown:
        value, low, high = rows[method.name]
        ends = [(method.milliseconds, end) for end in (low, high)]
        (x, bottom), (_, top) = axis.transData.transform(ends)
        middle = axis.transData.transform((method.milliseconds, value))[1]
        taken.append(mpl.transforms.Bbox([[x - 5, bottom - 3], [x + 5, top + 3]]))
        taken.append(mpl.transforms.Bbox([[x - 9, middle - 9], [x + 9, middle + 9]]))
    frame = axis.get_window_extent(renderer)
    points_a_pixel = 72 / axis.figure.dpi
    for method in shown:
        value, _, high = rows[method.name]
        point = method.milliseconds, value
        top = axis.transData.transform((point[0], high))[1]
        above = max((top - axis.transData.transform(point)[1]) * points_a_pixel, 5) + 5
        label = axis.annotate(
            method.title,
            point,
            xytext=(0, 0),
            textcoords="offset points",
            fontsize=9.5,
            fontweight="bold" if method.ours else "normal",
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
        taken.append(label.get_window_extent(renderer).padded(5))


PLACES = tuple(
    place
    for far in (9, 14, 20, 28)
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
    options = parser.parse_args()
    found = Results(ROOT / "docs" / "results")
    methods = timed_methods(found)
    mpl.use("Agg")
    plt.rcParams.update({"font.size": 10, "axes.labelcolor": INK, "axes.edgecolor": "#8a94a0"})
    figure, axes = plt.subplots(1, 2, figsize=(11.0, 4.6), layout="constrained")
    for axis, benchmark in zip(axes, PANELS, strict=True):
        draw_panel(axis, found, benchmark, methods)
    axes[0].set_ylabel("registration recall (%), 95 % interval where known")
    names = {True: found.hardware(GPU), False: found.hardware(CPU)}
    for on_gpu in sorted({method.on_gpu for method in methods}, reverse=True):
        face = INK if on_gpu else "white"
        axes[1].plot(
            [], [], "o", color=INK, markerfacecolor=face, markersize=7, label=names[on_gpu]
        )
    axes[1].legend(
        frameon=False, loc="lower right", bbox_to_anchor=(1.0, 0.98), ncols=2, fontsize=9.5
    )
    figure.canvas.draw()
    figure.set_layout_engine("none")  # labels are placed in the final frame
    for axis, benchmark in zip(axes, PANELS, strict=True):
        place_labels(axis, found, benchmark, methods)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.output, dpi=130)
    print(options.output)


if __name__ == "__main__":
    main()
