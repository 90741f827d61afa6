"""Validation curves of training runs: recall, F1 of the inlier labels and label loss.

    python scripts/plot_training.py --output curves.png VBNonlocal=runs/a,runs/b SCNonlocal=runs/c

Folders joined by a comma are parts of one training, each begun with the weights of the last.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from vbreg.experiments.figures import training_curves


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", metavar="NAME=FOLDER[,FOLDER]")
    parser.add_argument("--output", type=Path, required=True, help="the picture")
    parser.add_argument("--numbers", type=Path, help="what is drawn, as CSV")
    arguments = parser.parse_args()
    runs = (run.partition("=") for run in arguments.runs)
    parts = {name: [Path(part) for part in folders.split(",")] for name, _, folders in runs}
    print(training_curves(parts, arguments.output, arguments.numbers))


if __name__ == "__main__":
    main()
