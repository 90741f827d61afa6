"""What it buys to know something of the pose: recall with each constraint of `register`.

    python benchmarks/constraints.py --root DATA/3dmatch --every 8

Every row has the same pairs and matches. What is known is made from the true pose, with errors of a
size that one meets: up is off by a degree or so in each scan, and a guess by up to half of what its
limits allow.
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from scipy.spatial.transform import Rotation

from vbreg import VBReg
from vbreg.benchmark.problems import Settings, open_sequence, problem_source
from vbreg.constraints import Constraints
from vbreg.datasets import Pair
from vbreg.errors import VBRegError
from vbreg.metrics import pose_error, right_matches
from vbreg.types import Float64

UP = np.array([0.0, -1.0, 0.0])  # in the frame of a source: its camera has y down
UP_ERROR = 1.0  # degrees, standard deviation about each axis
Known = Callable[[Pair, np.random.Generator], dict[str, Any]]


def gravity(pair: Pair, rng: np.random.Generator) -> dict[str, Any]:
    ups = UP, pair.T_target_source[:3, :3] @ UP
    errors = Rotation.from_rotvec(np.radians(rng.normal(0, UP_ERROR, (2, 3))))
    return {"gravity": [turn.apply(up) for turn, up in zip(errors, ups, strict=True)]}


def guess(length: float | None, angle: float | None) -> Known:
    """A pose off by at most half of each limit, counted at the middle of the source."""

    def known(pair: Pair, rng: np.random.Generator) -> dict[str, Any]:
        axis, way = (v / np.linalg.norm(v) for v in rng.normal(size=(2, 3)))
        turned = np.radians((angle or 60.0) / 2 * rng.uniform()) * axis
        R = Rotation.from_rotvec(turned).as_matrix()
        T, middle = pair.T_target_source.copy(), pair.source.mean(0)
        there = T[:3, :3] @ middle + T[:3, 3] + (length or 2.0) / 2 * rng.uniform() * way
        T[:3, :3] = R @ T[:3, :3]
        T[:3, 3] = there - T[:3, :3] @ middle
        return {"guess": T, "max_translation": length, "max_rotation": angle}

    return known


def both(first: Known, second: Known) -> Known:
    return lambda pair, rng: first(pair, rng) | second(pair, rng)


ROWS: dict[str, Known] = {
    "nothing": lambda pair, rng: {},
    "gravity": gravity,
    "rotation within 45 deg": guess(None, 45.0),
    "translation within 1 m": guess(1.0, None),
    "guess within 1 m and 45 deg": guess(1.0, 45.0),
    "guess within 0.5 m and 20 deg": guess(0.5, 20.0),
    "gravity, and guess within 1 m and 45 deg": both(gravity, guess(1.0, 45.0)),
}


def pose_and_matches(
    model: VBReg, pair: Pair, matched: Any, known: dict[str, Any], threshold: float
) -> tuple[Float64 | None, int, float]:
    """Return the pose, the matches that were left and the share of right ones among them."""
    try:
        result = model.solve(matched, constraints=Constraints.of(**known), verify=False)
    except VBRegError:  # no match is left
        return None, 0, 0.0
    given = result.correspondences
    ends = torch.from_numpy(given.source), torch.from_numpy(given.target)
    right = right_matches(*ends, torch.from_numpy(pair.T_target_source), threshold)
    return result.T_target_source, len(right), float(right.float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--dataset", default="3dlomatch")
    parser.add_argument("--descriptor", default="learned")
    parser.add_argument("--weights", default="fast", help="the estimator's")
    parser.add_argument("--every", type=int, default=1, help="every n-th pair")
    options = parser.parse_args()
    settings = Settings.of(options.dataset, descriptor=options.descriptor, as_register=True)
    model = VBReg.from_pretrained(options.weights, device="cpu")
    source = problem_source(settings, options.root, torch.device("cpu"))
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in ROWS}
    pairs = open_sequence(settings, options.root).select(every=options.every)
    for pair in track(pairs, options.dataset, len(pairs), console=Console(stderr=True)):
        matched = source(pair).matched
        for name, known in ROWS.items():
            rng = np.random.default_rng(zlib.crc32(f"{pair.name} {name}".encode()))
            T, count, share = pose_and_matches(
                model, pair, matched, known(pair, rng), settings.inlier_threshold
            )
            right, errors = False, (np.nan, np.nan)
            if T is not None:
                error = pose_error(torch.from_numpy(T), torch.from_numpy(pair.T_target_source))
                right = bool(error.success(settings.rotation, settings.translation))
                errors = float(error.rotation), float(error.translation)
            found[name].append((right, count, share, *errors))
    print("| known | recall | matches | right matches | median RE | median TE |")
    print("| --- " * 6 + "|")
    for name, rows in found.items():
        table = np.array(rows, dtype=np.float64)
        good = table[table[:, 0] > 0]
        recall, count, share = table[:, :3].mean(0)
        print(
            f"| {name} | {100 * recall:.1f} % | {count:.0f} | {100 * share:.1f} % | "
            f"{np.median(good[:, 3]):.2f} deg | {100 * np.median(good[:, 4]):.1f} cm |"
        )


if __name__ == "__main__":
    main()
