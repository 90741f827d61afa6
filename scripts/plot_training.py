"""Validation curves of training runs: recall, F1 of the inlier labels and label loss.

    python scripts/plot_training.py --output curves.png VBNonlocal=runs/a,runs/b SCNonlocal=runs/c

Folders joined by a comma are parts of one training, each begun with the weights of the last.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from vbreg.training.journal import read_log

PANELS = (
    ("validation", "recall", "validation: poses found", 100.0),
    ("validation", "inlier_f1", "validation: F1 of inlier labels", 100.0),
    ("train", "label_prior", "training: label loss without labels", 1.0),
)
SMOOTH = 10  # records of a training curve that are averaged


def joined(parts: list[Path], kind: str) -> list[dict[str, float]]:
    """The records of all parts, each counting its pairs on from the end of the last."""
    records: list[dict[str, float]] = []
    seen = 0.0
    for part in parts:
        records += [{**record, "pairs": record["pairs"] + seen} for record in read_log(part, kind)]
        seen += max(record["pairs"] for record in read_log(part, "train"))
    return records


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", metavar="NAME=FOLDER[,FOLDER]")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    figure, axes = plt.subplots(1, len(PANELS), figsize=(13, 3.6), layout="constrained")
    for name, _, parts in (run.partition("=") for run in arguments.runs):
        for axis, (kind, value, title, scale) in zip(axes, PANELS, strict=True):
            records = joined([Path(part) for part in parts.split(",")], kind)
            pairs = [record["pairs"] / 1000 for record in records]
            values = [scale * record[value] for record in records]
            if kind == "train":
                groups = range(0, len(values) - SMOOTH + 1, SMOOTH)
                pairs = [pairs[start + SMOOTH - 1] for start in groups]
                values = [sum(values[start : start + SMOOTH]) / SMOOTH for start in groups]
            axis.plot(
                pairs, values, label=name, linewidth=1.8, marker="o" if kind == "validation" else ""
            )
            axis.set_title(title + (" (%)" if scale > 1 else ""), fontsize=10)
            axis.set_xlabel("training pairs (thousands)")
            axis.grid(alpha=0.25)
            if scale > 1:
                axis.set_ylim(0, 100)
    axes[-1].set_yscale("log")
    axes[0].legend(frameon=False)
    figure.savefig(arguments.output, dpi=130)
    print(arguments.output)


if __name__ == "__main__":
    main()
