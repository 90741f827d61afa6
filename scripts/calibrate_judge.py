"""Calibrate a judge by posed scans: its probability becomes how often final poses are right there.

    python scripts/calibrate_judge.py my_scans other_scans -o mine.safetensors --voxel-size 0.02

The training calibrates a judge by places that are mostly simulated, where wrong poses look better
and right ones worse than in real scans. Here slope and offset of its logit are fitted to pairs of
real scans with known poses, a folder with poses.txt each, matched by the learned descriptor and by
FPFH. Scans that overlap by much are too easy to calibrate by, so that both scans of a pair are cut
along a plane until they share as little as is drawn by chance. Scans to report on must not be among
them.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from scipy.spatial import cKDTree

from vbreg import Scale, VBReg, VBRegError
from vbreg.datasets import Pair
from vbreg.datasets.folder import posed_pairs
from vbreg.matching import describe, match_clouds
from vbreg.metrics import auroc, calibration_error, pose_error
from vbreg.training.judge_loop import fit_logits
from vbreg.types import Float64
from vbreg.verification import load_judge
from vbreg.verification.judge import SHIPPED, save_judge
from vbreg.weights_file import WEIGHTS_FOLDER, read_weights

DESCRIPTORS = ("learned", "fpfh")
MIN_OVERLAP = 0.3  # of the pairs that are cut
OVERLAPS = (0.05, 0.3)  # of what is left of them, drawn evenly between
MIN_POINTS = 2000  # of a scan that is cut
MIN_OF_EACH = 20  # right and wrong poses
MAX_ANGLE, MAX_VOXELS = 15.0, 6.0  # degrees and voxels, below which a pose is right
HALVINGS = 12  # of the width of what two cut scans share


class Outcome(NamedTuple):
    """What became of a pair."""

    pair: str
    descriptor: str
    overlap: float
    probability: float
    right: bool


def cut(
    pair: Pair, wanted: float, radius: float, generator: np.random.Generator
) -> tuple[Float64, Float64] | None:
    """Cut both scans along one plane, so that about the wanted share of what is left overlaps.

    The source keeps what lies on one side, the target what lies on the other, and both a slab
    between. None where too little would be left.
    """
    T = pair.T_target_source
    moved = pair.source @ T[:3, :3].T + T[:3, 3]
    shared = np.isfinite(cKDTree(pair.target).query(moved, distance_upper_bound=radius)[0])
    direction = generator.normal(size=3)
    direction /= np.linalg.norm(direction)
    s, t = moved @ direction, pair.target @ direction
    middle = np.quantile(s[shared], generator.uniform(0.3, 0.7))
    low, high = 0.0, 2 * max(np.ptp(s), np.ptp(t))
    for _ in range(HALVINGS):
        width = (low + high) / 2
        left, right = s < middle + width / 2, t > middle - width / 2
        both = np.count_nonzero(shared & left & (s > middle - width / 2))
        share = both / max(1, min(np.count_nonzero(left), np.count_nonzero(right)))
        low, high = (low, width) if share > wanted else (width, high)
    if min(np.count_nonzero(left), np.count_nonzero(right)) < MIN_POINTS:
        return None
    return pair.source[left], pair.target[right]


def outcomes(model: VBReg, folder: Path, voxel_size: float, count: int) -> Iterator[Outcome]:
    """Yield the probability of each final pose, and whether it is right."""
    scale, generator = Scale(voxel_size), np.random.default_rng(0)
    pairs = posed_pairs(folder, MIN_OVERLAP, radius=voxel_size)
    rows = generator.permutation(len(pairs))[:count]
    for row in track(rows, folder.name, console=Console(stderr=True)):
        pair, wanted = pairs[int(row)], float(generator.uniform(*OVERLAPS))
        clouds = cut(pair, wanted, voxel_size, generator)
        if clouds is None:
            continue
        for name in DESCRIPTORS:
            try:
                ends = [describe(cloud, scale, descriptor=name) for cloud in clouds]
                found = model.solve(match_clouds(ends[0], ends[1], scale))
            except VBRegError:
                continue
            p = found.success_probability
            if not p or found.free_directions:  # nothing to judge, or more than the judge said
                continue
            poses = torch.from_numpy(found.T_target_source), torch.from_numpy(pair.T_target_source)
            right = bool(pose_error(*poses).success(MAX_ANGLE, MAX_VOXELS * voxel_size))
            yield Outcome(pair.name, name, wanted, p, right)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", type=Path, nargs="+", help="with clouds and poses.txt each")
    parser.add_argument("--weights", type=Path, default=WEIGHTS_FOLDER / SHIPPED)
    parser.add_argument("--voxel-size", type=float, default=0.05)
    parser.add_argument("--pairs", type=int, default=100, help="of each folder, at most")
    parser.add_argument(
        "--share",
        type=float,
        default=1.0,
        help="of the way from the calibration that the judge has to the one fitted here",
    )
    parser.add_argument("--rows", type=Path, help="write every outcome to this CSV file")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    judge = load_judge(options.weights)
    model = VBReg.from_pretrained("fast", device="cpu", judge=judge)
    found = [
        each
        for folder in options.folders
        for each in outcomes(model, folder, options.voxel_size, options.pairs)
    ]
    if options.rows:
        with options.rows.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([Outcome._fields, *found])
    p = torch.tensor([each.probability for each in found]).double().clamp(1e-7, 1 - 1e-7)
    right = torch.tensor([each.right for each in found])
    if min(int(right.sum()), int((~right).sum())) < MIN_OF_EACH:
        sys.exit(
            f"{int(right.sum())} of {len(right)} poses are right: at least {MIN_OF_EACH} right and "
            f"{MIN_OF_EACH} wrong ones are needed to calibrate by; give more or harder scans"
        )
    slope, offset = judge.network.calibration.double()
    logit = (torch.logit(p) - offset) / slope
    before = torch.stack([slope, offset])
    fitted = torch.lerp(before, torch.stack(fit_logits(logit, right)), options.share)
    print(f"slope {slope:.3f} -> {fitted[0]:.3f}, offset {offset:.3f} -> {fitted[1]:.3f}")
    judge.network.calibration.copy_(fitted)
    q = judge.network.calibrated(logit.float())
    print(f"{len(p)} poses, {100 * right.double().mean():.1f} % right, AUROC {auroc(p, right):.3f}")
    errors = [calibration_error(each, right) for each in (p, q)]
    print(f"calibration error {errors[0]:.3f} -> {errors[1]:.3f}")
    header, _ = read_weights(options.weights)
    about = {
        **header.get("about", {}),
        "calibrated_by": f"{len(p)} final poses of real scans that were cut, {options.share:g} of "
        "the way from the training's own calibration",
    }
    save_judge(options.output, judge.network, about)
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
