"""Whether two runs of `vbreg benchmark` on the same pairs gave the same poses.

    vbreg benchmark 3dmatch --root DATA/3dmatch --methods vbreg -o out/quick
    VBREG_BACKEND=plain vbreg benchmark 3dmatch --root DATA/3dmatch --methods vbreg -o out/plain
    python benchmarks/compare_runs.py out/quick out/plain

One line for each method of both: pairs, poses that are the same within 0.1 degree and 1 mm, how
many each run got right, and where the poses differ, on how many pairs both are right, one or none.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np
import torch

from vbreg.benchmark.predict import PREDICTIONS
from vbreg.io.tables import read_table
from vbreg.metrics import pose_error

SAME = 0.1, 1e-3  # degrees, metres


def poses(path: Path) -> tuple[str, dict[str, torch.Tensor]]:
    """The method, and by pair what it found."""
    header, rows = read_table(path)
    found = {row["pair"]: row["T_target_source"] for row in rows if not row.get("error")}
    return header["method"], {
        pair: torch.tensor(T, dtype=torch.float64).reshape(4, 4) for pair, T in found.items()
    }


def right(output: Path, method: str) -> dict[str, bool]:
    with (output / "poses.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["method"] == method]
    return {row["pair"]: row["success"] == "1" for row in rows}


def compare(first: Path, second: Path, file: Path) -> str:
    (method, a), (_, b) = poses(file), poses(second / PREDICTIONS / file.name)
    verdicts = [right(run, method) for run in (first, second)]
    pairs = sorted(set(a) & set(b) & set(verdicts[0]) & set(verdicts[1]))
    same = [bool(pose_error(a[p], b[p]).success(*SAME)) for p in pairs]
    counts = [np.array([verdict[p] for p in pairs]) for verdict in verdicts]
    differ = ~np.array(same)
    by_both = [int((differ & (counts[0].astype(int) + counts[1] == k)).sum()) for k in (2, 1, 0)]
    return (
        f"{method}: {len(pairs)} pairs, {sum(same)} poses the same; right {counts[0].sum()} and "
        f"{counts[1].sum()}; of those that differ both are right on {by_both[0]}, one on "
        f"{by_both[1]}, none on {by_both[2]}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs=2, help="output folders of vbreg benchmark")
    first, second = parser.parse_args().runs
    for file in sorted((first / PREDICTIONS).glob("*.jsonl")):
        if (second / PREDICTIONS / file.name).exists():
            print(compare(first, second, file))


if __name__ == "__main__":
    main()
