"""Registration recall of `vbreg.register` on pairs with a known pose, failures included.

    python benchmarks/recall.py 3dmatch --root DATA/3dmatch --every 8
    python benchmarks/recall.py 3dlomatch --root DATA/3dmatch
    python benchmarks/recall.py kitti --root DATA/kitti/dev/03

A pair succeeds with RE < 15 deg and TE < 30 cm indoors, RE < 5 deg and TE < 60 cm on KITTI.
RE and TE are means over the successes; the interval is a 95 % Wilson interval of the recall.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.progress import track

from vbreg import VBReg, register
from vbreg.correspondences import label
from vbreg.datasets import pairs
from vbreg.metrics import pose_error
from vbreg.network import VariationalNonLocalNetwork
from vbreg.voting import wilson_lower_bound


@dataclass(frozen=True)
class Protocol:
    preset: str
    rotation: float  # degrees
    translation: float  # metres


INDOOR = Protocol("indoor", 15.0, 0.30)
KITTI = Protocol("outdoor", 5.0, 0.60)


@dataclass(frozen=True)
class Row:
    rotation: float
    translation: float
    success: bool
    inlier_ratio: float
    seconds: float


def open_pairs(benchmark: str, root: Path) -> tuple[pairs.PairSequence, Protocol]:
    if benchmark == "kitti":
        return pairs.kitti_pairs(root), KITTI
    name: pairs.Benchmark = "3DMatch" if benchmark == "3dmatch" else "3DLoMatch"
    return pairs.threedmatch(root, name), INDOOR


def solve(pair: pairs.Pair, model: VBReg, protocol: Protocol) -> Row:
    result = register(pair.source, pair.target, preset=protocol.preset, model=model)
    truth = torch.from_numpy(pair.T_target_source)
    error = pose_error(torch.from_numpy(result.T_target_source), truth)
    matches = result.correspondences
    right = label(
        torch.from_numpy(matches.source),
        torch.from_numpy(matches.target),
        truth,
        result.inlier_threshold,
    )
    return Row(
        float(error.rotation),
        float(error.translation),
        bool(error.success(protocol.rotation, protocol.translation)),
        float(right.double().mean()),
        sum(result.timings.values()),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("benchmark", choices=["3dmatch", "3dlomatch", "kitti"])
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--every", type=int, default=1, help="take every n-th pair")
    parser.add_argument("--weights", default=None, help="a weights file (default: as shipped)")
    parser.add_argument("--untrained", action="store_true", help="random weights, seed 0")
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    sequence, protocol = open_pairs(arguments.benchmark, arguments.root)
    model = VBReg.from_pretrained(arguments.weights or protocol.preset, device=arguments.device)
    if arguments.untrained:
        torch.manual_seed(0)
        model = VBReg(VariationalNonLocalNetwork(model.network.config).to(model.device))
    chosen = range(0, len(sequence), arguments.every)
    rows = [
        solve(sequence[k], model, protocol)
        for k in track(chosen, arguments.benchmark, transient=True)
    ]
    good = [row for row in rows if row.success]
    low, high = recall_interval(len(good), len(rows))
    print(
        f"{arguments.benchmark}: {len(good)} of {len(rows)} pairs, recall "
        f"{100 * len(good) / len(rows):.1f} % ({low:.1f} .. {high:.1f}), "
        f"RE {statistics.fmean(r.rotation for r in good):.2f} deg, "
        f"TE {100 * statistics.fmean(r.translation for r in good):.2f} cm, "
        f"inlier ratio {100 * statistics.fmean(r.inlier_ratio for r in rows):.2f} %, "
        f"median {statistics.median(r.seconds for r in rows):.2f} s a pair on {model.device}"
    )


def recall_interval(successes: int, total: int) -> tuple[float, float]:
    low = wilson_lower_bound(torch.tensor(successes), total, 1.96)
    high = 1 - wilson_lower_bound(torch.tensor(total - successes), total, 1.96)
    return 100 * float(low), 100 * float(high)


if __name__ == "__main__":
    main()
