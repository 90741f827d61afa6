"""Registration recall on pairs with a known pose: the same matches for every network, all pairs.

    python benchmarks/recall.py 3dmatch 3dlomatch --root DATA/3dmatch
    python benchmarks/recall.py 3dmatch 3dlomatch --root DATA/3dmatch --matches learned
    python benchmarks/recall.py kitti --root DATA/kitti/dev
    python benchmarks/recall.py 3dlomatch --root DATA/3dmatch --weights indoor untrained FILE

Matches are 1-NN of FPFH (at most 8000 of them outdoors), or those of a learned descriptor that lie
beside the 3DMatch fragments. A pair succeeds with RE < 15 deg and TE < 30 cm indoors, RE < 5 deg
and TE < 60 cm on KITTI. RE and TE are means over the successes; brackets hold the 95 % Wilson
interval of the recall. Precision, recall and F1 say which matches the network calls inliers
(confidence > 1/2); similarity is the mean cosine between the features of true inliers, then between
those of an inlier and an outlier.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

from vbreg import VBReg
from vbreg.correspondences import label, match
from vbreg.datasets import PairSequence, matches, open_pairs
from vbreg.experiments.figures import Similarity, feature_similarity
from vbreg.metrics import classification, pose_error
from vbreg.network import NetworkConfig, VariationalNonLocalNetwork
from vbreg.registration import choose_device
from vbreg.types import Float64
from vbreg.voting import wilson_lower_bound


@dataclass(frozen=True)
class Protocol:
    voxel_size: float
    rotation: float  # degrees
    translation: float  # metres
    most: int  # matches


INDOOR = Protocol(0.05, 15.0, 0.30, 20000)
KITTI = Protocol(0.30, 5.0, 0.60, 8000)


@dataclass(frozen=True)
class Matches:
    name: str
    source: Float64  # (N, 3)
    target: Float64
    T_target_source: Float64


@dataclass(frozen=True)
class Row:
    rotation: float
    translation: float
    success: bool
    inlier_ratio: float
    precision: float
    recall: float
    f1: float
    similarity: float
    likeness: float
    seconds: float


def fpfh_matches(
    pairs: PairSequence, protocol: Protocol, device: torch.device
) -> Iterator[Matches]:
    """Every cloud is described once, though it belongs to many pairs."""
    clouds: dict[bytes, Float64] = {}

    @lru_cache(maxsize=512)
    def described(key: bytes) -> tuple[torch.Tensor, torch.Tensor]:
        features = matches.describe(clouds.pop(key), protocol.voxel_size, device)
        return torch.from_numpy(features.points), torch.from_numpy(features.descriptors).to(device)

    for pair in pairs:
        ends = []
        for cloud in (pair.source, pair.target):
            key = cloud[:: max(1, len(cloud) // 50)].tobytes()
            clouds[key] = cloud
            ends.append(described(key))
        (x, f), (y, g) = ends
        i, j = (index.cpu() for index in match(f, g))
        if len(i) > protocol.most:
            kept = np.random.default_rng(0).choice(len(i), protocol.most, replace=False)
            i, j = i[np.sort(kept)], j[np.sort(kept)]
        source, target = x[i].double().numpy(), y[j].double().numpy()
        yield Matches(pair.name, source, target, pair.T_target_source)


def learned_matches(root: Path, benchmark: str, pairs: PairSequence) -> Iterator[Matches]:
    for pair in pairs:
        found = matches.learned_matches(root, benchmark, pair)
        source, target = (end.astype(np.float64) for end in (found.source, found.target))
        yield Matches(pair.name, source, target, pair.T_target_source)


def solve(
    group: Sequence[Matches], model: VBReg, protocol: Protocol, similarity: bool
) -> Iterator[Row]:
    """A batch of problems, padded to the largest; the answers are those of one by one."""
    threshold = 2 * protocol.voxel_size
    shape = len(group), max(len(m.source) for m in group)
    ends = np.zeros((2, *shape, 3))
    mask = np.zeros(shape, dtype=bool)
    for b, problem in enumerate(group):
        n = len(problem.source)
        ends[0, b, :n], ends[1, b, :n], mask[b, :n] = problem.source, problem.target, True
    start = time.perf_counter()
    result = model.estimate(ends[0], ends[1], mask=mask, inlier_threshold=threshold)
    seconds = (time.perf_counter() - start) / len(group)
    for b, problem in enumerate(group):
        truth = torch.from_numpy(problem.T_target_source)
        error = pose_error(torch.from_numpy(result.T_target_source[b]), truth)
        source, target = torch.from_numpy(problem.source), torch.from_numpy(problem.target)
        right = label(source, target, truth, threshold)
        confident = torch.from_numpy(result.confidence[b][mask[b]] > 0.5)
        alike = Similarity(float("nan"), float("nan"))
        if similarity:
            alike = similarities(model, source / threshold, target / threshold, right)
        yield Row(
            float(error.rotation),
            float(error.translation),
            bool(error.success(protocol.rotation, protocol.translation)),
            float(right.double().mean()),
            *(float(score) for score in classification(confident, right)),
            *alike,
            seconds,
        )


@torch.inference_mode()
def similarities(
    model: VBReg, source: torch.Tensor, target: torch.Tensor, right: torch.Tensor
) -> Similarity:
    ends = (end.float().unsqueeze(0).to(model.device) for end in (source, target))
    return feature_similarity(model.network(*ends).features[-1][0], right.to(model.device))


def open_model(name: str, protocol: Protocol, device: torch.device) -> VBReg:
    if name != "untrained":
        return VBReg.from_pretrained(name, device=device)
    torch.manual_seed(0)
    return VBReg(VariationalNonLocalNetwork(NetworkConfig()).to(device))


def report(benchmark: str, name: str, rows: Sequence[Row]) -> str:
    good = [row for row in rows if row.success]
    low, high = recall_interval(len(good), len(rows))

    def mean(field: str, among: Sequence[Row] = rows) -> float:
        values = [value for row in among if (value := getattr(row, field)) == getattr(row, field)]
        return statistics.fmean(values) if values else float("nan")

    return (
        f"{benchmark:<16}{name:<22}{len(good):>5}/{len(rows):<5}"
        f"{100 * len(good) / len(rows):6.1f} % ({low:.1f} .. {high:.1f})  "
        f"RE {mean('rotation', good):.2f} deg  TE {100 * mean('translation', good):.2f} cm  "
        f"inliers {100 * mean('inlier_ratio'):.2f} %  precision {100 * mean('precision'):.1f}  "
        f"recall {100 * mean('recall'):.1f}  F1 {100 * mean('f1'):.1f}  "
        f"similarity {mean('similarity'):.3f} / {mean('likeness'):.3f}  "
        f"median {1e3 * statistics.median(row.seconds for row in rows):.0f} ms"
    )


def recall_interval(successes: int, total: int) -> tuple[float, float]:
    low = wilson_lower_bound(torch.tensor(successes), total, 1.96)
    high = 1 - wilson_lower_bound(torch.tensor(total - successes), total, 1.96)
    return 100 * float(low), 100 * float(high)


def sources(
    arguments: argparse.Namespace, device: torch.device
) -> Iterator[tuple[str, Protocol, Iterator[Matches], int]]:
    """Benchmark by benchmark: its name, protocol, matches and how many there are."""
    for benchmark in arguments.benchmarks:
        pairs = open_pairs(benchmark, arguments.root)
        if benchmark == "kitti":
            for scene in dict.fromkeys(pairs.scenes):
                chosen = pairs.select(every=arguments.every, scenes=[scene])
                yield f"kitti {scene}", KITTI, fpfh_matches(chosen, KITTI, device), len(chosen)
            continue
        chosen = pairs.select(every=arguments.every)
        name = "3DMatch" if benchmark == "3dmatch" else "3DLoMatch"
        found = (
            learned_matches(arguments.root, name, chosen)
            if arguments.matches == "learned"
            else fpfh_matches(chosen, INDOOR, device)
        )
        yield benchmark, INDOOR, found, len(chosen)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("benchmarks", nargs="+", choices=["3dmatch", "3dlomatch", "kitti"])
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--matches", choices=["fpfh", "learned"], default="fpfh")
    parser.add_argument("--every", type=int, default=1, help="take every n-th pair")
    parser.add_argument(
        "--weights", nargs="+", default=["indoor"], help="presets, files, or 'untrained'"
    )
    parser.add_argument("--batch", type=int, default=1, help="pairs solved together")
    parser.add_argument("--similarity", action="store_true", help="of inlier features, too")
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    device = choose_device(arguments.device)
    console = Console(stderr=True)
    for benchmark, protocol, found, count in sources(arguments, device):
        models = {name: open_model(name, protocol, device) for name in arguments.weights}
        rows: dict[str, list[Row]] = {name: [] for name in models}
        waiting: list[Matches] = []
        for problem in track(found, benchmark, count, console=console, transient=True):
            waiting.append(problem)
            if len(waiting) == arguments.batch:
                for name, model in models.items():
                    rows[name] += solve(waiting, model, protocol, arguments.similarity)
                waiting = []
        for name, model in models.items():
            rows[name] += solve(waiting, model, protocol, arguments.similarity) if waiting else []
        for name, solved in rows.items():
            print(report(benchmark, Path(name).stem, solved), flush=True)


if __name__ == "__main__":
    main()
