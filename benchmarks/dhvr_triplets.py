"""How many triplets DHVR's votes need where few matches are right; needs no data.

    python benchmarks/dhvr_triplets.py

Matches are made up in a room of 3 m, with a threshold of 10 cm and noise of 1 cm. A pose counts as
found where it is off by less than 1.5 degrees and 4 cm. Rows are shares of right matches, columns
numbers of triplets; a cell has the poses found. Times are of one thread.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from made_up import THRESHOLD, made_up_matches, made_up_pose

from vbreg.methods import Problem, dhvr, open_method
from vbreg.metrics import pose_error

FOUND = 1.5, 0.04  # degrees and metres that a pose may be off


def found(n: int, right: float, seed: int) -> bool:
    """Tell whether the votes find the pose of a made-up problem."""
    problem = Problem.of_points(*made_up_matches(n, seed, right), THRESHOLD, seed=seed)
    T = open_method("dhvr", "cpu")(problem).T_target_source
    error = pose_error(torch.from_numpy(T), torch.from_numpy(made_up_pose(seed)))
    return bool(error.success(*FOUND))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--matches", type=int, default=4000)
    parser.add_argument("--problems", type=int, default=40, help="of each share")
    parser.add_argument("--right", type=float, nargs="+", default=[0.01, 0.015, 0.02, 0.03, 0.05])
    parser.add_argument(
        "--triplets", type=int, nargs="+", default=[dhvr.TRIPLETS, 2_000_000, 5_000_000]
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"found of {options.problems} problems with {options.matches} matches each\n")
    print("| right | " + " | ".join(f"{count:,} triplets" for count in options.triplets) + " |")
    print("|---" * (1 + len(options.triplets)) + "|")
    seconds: dict[int, list[float]] = {count: [] for count in options.triplets}
    for right in options.right:
        cells = []
        for count in options.triplets:
            dhvr.TRIPLETS = count
            total = 0
            for seed in range(options.problems):
                start = time.perf_counter()
                total += found(options.matches, right, seed)
                seconds[count].append(time.perf_counter() - start)
            cells.append(str(total))
        print(f"| {100 * right:g} % | " + " | ".join(cells) + " |", flush=True)
    medians = (f"{np.median(each):.2f}" for each in seconds.values())
    print("| median seconds | " + " | ".join(medians) + " |")


if __name__ == "__main__":
    main()
