"""Made-up tables 1 and 2, as `vbreg experiment` writes them."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import fields
from itertools import product
from pathlib import Path

from vbreg.experiments.tables import DESCRIBED, INDOOR, OUTDOOR, POINTS, REFERENCE, Cell

METHODS = (REFERENCE, "vbreg", "verified", "sc2pcr", "mac", "ransac")
PAIRS = 100
SLOW = {  # sees few pairs, which are easy
    "pairs": 25,
    "rmse_pairs": 20,
    **{f"recall{end}": value for end, value in (("", 0.9), ("_low", 0.8), ("_high", 1.0))},
    **{f"lead{end}": value for end, value in (("", -0.1), ("_low", -0.2), ("_high", 0.0))},
}
NUMBERS = {
    **{f"recall{end}": value for end, value in (("", 0.5), ("_low", 0.4), ("_high", 0.6))},
    **{f"lead{end}": value for end, value in (("", 0.0), ("_low", -0.1), ("_high", 0.1))},
    "rotation_error": 2.0,
    "translation_error": 0.06,
    "rmse_pairs": PAIRS,
    "rmse_recall": 0.45,
    **{f"inlier_{name}": 0.1 for name in ("ratio", "precision", "recall", "f1")},
}


def write(
    results: Path,
    table: str,
    name: str = "made_up",
    methods: Sequence[str] = METHODS,
    device: str = "NVIDIA H200",
    recall: float = 0.5,
    descriptors: Sequence[str] = tuple(DESCRIBED),
) -> None:
    """Write every column of a table and the record of its run, as those of one machine."""
    datasets = (*INDOOR, *OUTDOOR) if table == "table1" else ("3DLoMatch",)
    points = ("",) if table == "table1" else tuple(map(str, POINTS))
    rows = [
        {
            **NUMBERS,
            "column": ", ".join(filter(None, (dataset, descriptor, count))),
            "dataset": dataset,
            "descriptor": descriptor,
            "points": count,
            "method": method,
            "pairs": PAIRS,
            "recall": recall,
            "over": REFERENCE,
            "device": device,
            **(SLOW if method == "mac" else {}),
        }
        for dataset, descriptor, count, method in product(datasets, descriptors, points, methods)
    ]
    folder = results / table / name
    folder.mkdir(parents=True)
    with (folder / f"{table}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, columns(), restval="")
        writer.writeheader()
        writer.writerows(rows)
    about = {"command": f"vbreg experiment {table}", "device": device, "commit": "0123456"}
    (folder / "run.json").write_text(json.dumps({table: about}))


def columns() -> list[str]:
    """The columns of the file: those of a cell, an interval in three."""
    names = []
    for field in fields(Cell):
        ends = ("", "_low", "_high") if field.type == "Interval" else ("",)
        names += [f"{field.name}{end}" for end in ends]
    return names
