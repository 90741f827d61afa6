"""Calibrate a judge by final poses: pairs of held-out places go through `VBReg.solve`.

    python scripts/calibrate_judge.py configs/judge.toml runs/judge/weights.safetensors -o FILE

The training calibrates a judge by the candidates as they are judged. What users get is refined on
the clouds afterwards, which mends some of them. Here slope and offset of the judge's logits are
fitted to what comes out at the end: pairs that overlap by a tenth or more, of the places that the
training only looks at, matched by the learned descriptor and by FPFH.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

from vbreg import Scale, VBReg, VBRegError
from vbreg.matching import DescribedCloud, ThinnedSurface, match_clouds
from vbreg.metrics import auroc, calibration_error, pose_error
from vbreg.training.judge_batches import RIGHT, RIGHT_IN_STREETS, Kind
from vbreg.training.judge_loop import JudgeRun, fit_logits, read_judge_config
from vbreg.training.places import HELD_OUT, PlaceMaker
from vbreg.training.ready_places import CloudPair, DescribedScan, ReadyPlace, to_tensors
from vbreg.training.stream import Stream
from vbreg.types import Float64
from vbreg.verification import load_judge
from vbreg.verification.judge import save_judge
from vbreg.weights_file import read_weights

SCALE = Scale(1.0)  # scans of places are in voxels
KEYPOINTS: dict[Kind, int] = {"learned": 1000, "fpfh": 4096}
LOW_PAIRS, HIGH_PAIRS = 7, 6  # of a place, of overlap below 0.3 and above
MIN_OVERLAP, LOW_OVERLAP = 0.1, 0.3


def described(scan: DescribedScan, kind: Kind) -> DescribedCloud:
    """Return a scan as the front end gives it to a solver."""
    table = getattr(scan, kind)[: KEYPOINTS[kind]]
    n = len(table)
    return DescribedCloud(
        scan.points[:n],
        scan.normals[:n],
        table,
        np.zeros(3),
        "either-way" if kind == "learned" else "one-way",
        ThinnedSurface(scan.points, scan.normals),
    )


def some_pairs(place: ReadyPlace[DescribedScan], rng: np.random.Generator) -> list[CloudPair]:
    """Return pairs as users have them, of low and of high overlap."""
    if place.unit != 1.0:
        return []
    pairs = [p for p in place.pairs if p.overlap >= MIN_OVERLAP]
    pairs = [p for p in pairs if place.genuine[p.source] and place.genuine[p.target]]
    low = [p for p in pairs if p.overlap < LOW_OVERLAP]
    high = [p for p in pairs if p.overlap >= LOW_OVERLAP]
    return [
        among[k]
        for among, most in ((low, LOW_PAIRS), (high, HIGH_PAIRS))
        for k in rng.permutation(len(among))[:most]
    ]


def is_right(T: Float64, truth: Float64, kind: str) -> bool:
    """Tell whether a pose is right, by what its place asks for."""
    angle, shift = RIGHT_IN_STREETS if kind.startswith("street") else RIGHT
    error = pose_error(torch.from_numpy(T), torch.from_numpy(truth))
    return bool(error.success(np.degrees(angle), shift))


def outcomes(model: VBReg, places: list[ReadyPlace[DescribedScan]]) -> Iterator[tuple[float, bool]]:
    """Yield the probability of each final pose, and whether it is right."""
    rng = np.random.default_rng(0)
    for place in track(places, "places", console=Console(stderr=True)):
        pairs = some_pairs(place, rng)
        for kind in KEYPOINTS:
            for pair in pairs:
                ends = [described(place.clouds[k], kind) for k in (pair.source, pair.target)]
                try:
                    found = model.solve(match_clouds(*ends, SCALE))
                except VBRegError:
                    continue
                p = found.success_probability
                if not p or found.free_directions:  # nothing to judge, or more than the judge said
                    continue
                yield p, is_right(found.T_target_source, pair.T_target_source, place.kind)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("config", type=Path, help="of the training, which names the places")
    parser.add_argument("weights", type=Path, help="of a judge that `vbreg train` wrote")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    config = read_judge_config(options.config)
    judge = load_judge(options.weights)
    maker = PlaceMaker(config.places, JudgeRun.make_ready, HELD_OUT)
    with Stream(maker, config.places.workers) as arriving:
        count = range(config.places.held_out)
        cpu = torch.device("cpu")
        places = [to_tensors(arriving.take(), cpu) for _ in track(count, "made")]
    model = VBReg.from_pretrained(config.weights, device="cpu", judge=judge)
    found = list(outcomes(model, places))
    p = torch.tensor([probability for probability, _ in found]).double().clamp(1e-7, 1 - 1e-7)
    right = torch.tensor([each for _, each in found])
    slope, offset = judge.network.calibration.double()
    logit = (torch.logit(p) - offset) / slope
    fitted = fit_logits(logit, right)
    judge.network.calibration.copy_(torch.stack(fitted))
    q = judge.network.calibrated(logit.float())
    print(f"{len(p)} pairs, {100 * right.double().mean():.1f} % right, AUROC {auroc(p, right):.3f}")
    print(
        f"calibration error {calibration_error(p, right):.3f} -> {calibration_error(q, right):.3f}"
    )
    header, _ = read_weights(options.weights)
    about = {**header.get("about", {}), "calibrated_by": f"{len(p)} final poses"}
    save_judge(options.output, judge.network, about)
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
