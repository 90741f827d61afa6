"""Calibrate a judge by posed scans: its probability becomes how often final poses are right there.

    python scripts/calibrate_judge.py my_scans other_scans -o mine.safetensors --voxel-size 0.02

The training calibrates a judge by places that are mostly simulated, where wrong poses look better
and right ones worse than in real scans. Here slope and offset of its logit are fitted to pairs of
real scans with known poses, a folder with poses.txt each, matched by the learned descriptor and by
FPFH. Scans to report on must not be among them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track

from vbreg import Scale, VBReg, VBRegError
from vbreg.datasets import Pair
from vbreg.datasets.folder import posed_pairs
from vbreg.matching import DescribedCloud, describe, match_clouds
from vbreg.metrics import auroc, calibration_error, pose_error
from vbreg.training.judge_loop import fit_logits
from vbreg.verification import load_judge
from vbreg.verification.judge import SHIPPED, save_judge
from vbreg.weights_file import WEIGHTS_FOLDER, read_weights

DESCRIPTORS = ("learned", "fpfh")
BY_OVERLAP = ((0.1, 0.3, 2 / 3), (0.3, 1.0, 1 / 3))  # from, to, share of the pairs
MIN_OF_EACH = 20  # right and wrong poses
MAX_ANGLE, MAX_VOXELS = 15.0, 6.0  # degrees and voxels, below which a pose is right


def some_pairs(folder: Path, voxel_size: float, count: int) -> list[Pair]:
    """Return about so many pairs of a folder, more of little overlap than of much."""
    chosen = []
    for low, high, share in BY_OVERLAP:
        pairs = posed_pairs(folder, low, high, radius=voxel_size)
        step = max(1, round(len(pairs) / (share * count)))
        chosen += list(pairs[::step])
    return chosen


def outcomes(
    model: VBReg, folder: Path, voxel_size: float, count: int
) -> Iterator[tuple[float, bool]]:
    """Yield the probability of each final pose, and whether it is right."""
    pairs, scale = some_pairs(folder, voxel_size, count), Scale(voxel_size)
    for name in DESCRIPTORS:
        described: dict[int, DescribedCloud] = {}
        for pair in track(pairs, f"{folder.name}, {name}", console=Console(stderr=True)):
            assert pair.ids is not None
            for k, cloud in zip(pair.ids, (pair.source, pair.target), strict=True):
                if k not in described:
                    described[k] = describe(cloud, scale, descriptor=name)
            try:
                found = model.solve(match_clouds(*(described[k] for k in pair.ids), scale))
            except VBRegError:
                continue
            p = found.success_probability
            if not p or found.free_directions:  # nothing to judge, or more than the judge said
                continue
            ends = torch.from_numpy(found.T_target_source), torch.from_numpy(pair.T_target_source)
            yield p, bool(pose_error(*ends).success(MAX_ANGLE, MAX_VOXELS * voxel_size))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", type=Path, nargs="+", help="with clouds and poses.txt each")
    parser.add_argument("--weights", type=Path, default=WEIGHTS_FOLDER / SHIPPED)
    parser.add_argument("--voxel-size", type=float, default=0.05)
    parser.add_argument("--pairs", type=int, default=60, help="of each folder")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    judge = load_judge(options.weights)
    model = VBReg.from_pretrained("fast", device="cpu", judge=judge)
    found = [
        each
        for folder in options.folders
        for each in outcomes(model, folder, options.voxel_size, options.pairs)
    ]
    p = torch.tensor([probability for probability, _ in found]).double().clamp(1e-7, 1 - 1e-7)
    right = torch.tensor([each for _, each in found])
    if min(int(right.sum()), int((~right).sum())) < MIN_OF_EACH:
        sys.exit(
            f"{int(right.sum())} of {len(right)} poses are right: at least {MIN_OF_EACH} right and "
            f"{MIN_OF_EACH} wrong ones are needed to calibrate by; give more or harder scans"
        )
    slope, offset = judge.network.calibration.double()
    logit = (torch.logit(p) - offset) / slope
    fitted = fit_logits(logit, right)
    print(f"slope {slope:.3f} -> {fitted[0]:.3f}, offset {offset:.3f} -> {fitted[1]:.3f}")
    judge.network.calibration.copy_(torch.stack(fitted))
    q = judge.network.calibrated(logit.float())
    print(f"{len(p)} poses, {100 * right.double().mean():.1f} % right, AUROC {auroc(p, right):.3f}")
    before, after = (calibration_error(each, right) for each in (p, q))
    print(f"calibration error {before:.3f} -> {after:.3f}")
    header, _ = read_weights(options.weights)
    about = {**header.get("about", {}), "calibrated_by": f"{len(p)} final poses of real scans"}
    save_judge(options.output, judge.network, about)
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
