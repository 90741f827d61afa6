"""How far `success_probability` can be believed, and what `register` makes of harsher input.

    python benchmarks/trust.py --root DATA/3dmatch --dataset 3dlomatch --every 8
    python benchmarks/trust.py --root DATA/3dmatch --dataset 3dmatch,3dlomatch --conditions usual
    python benchmarks/trust.py --root DATA/kitti/dev --dataset kitti --picture trust.png

Every pair goes through `register` as it is, and as each condition changes it. A pose counts as
right by the protocol of the data set. Pairs that cannot be right (two scenes, one cloud mirrored
or made of noise) must not be trusted; what is refused with an error is not trusted, either.
Progress goes to stderr; the tables are markdown.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

from vbreg import register
from vbreg.benchmark.problems import Settings
from vbreg.datasets import Pair, PairSequence, open_pairs
from vbreg.errors import VBRegError
from vbreg.metrics import auroc, calibration_error, pose_error
from vbreg.types import LIKELY, Float64


@dataclass(frozen=True)
class Task:
    """What is given to `register`, and the true pose if there is one."""

    source: Float64
    target: Float64
    T_target_source: Float64 | None
    voxel_size: float | None  # None where it is estimated


class Outcome(NamedTuple):
    """What became of a pair under a condition."""

    condition: str
    pair: str
    possible: bool  # that a pose is right
    right: bool
    probability: float  # 0 where it was refused
    mirrored: float | None  # probability of the source to be mirrored, where that was asked
    refused: bool
    seconds: float


Change = Callable[[Task, np.random.Generator], Task]


def _replace(task: Task, **changes: object) -> Task:
    return Task(**{**task.__dict__, **changes})  # type: ignore[arg-type]


def _voxel_size(task: Task) -> float:
    assert task.voxel_size is not None, "a condition that needs the size comes first"
    return task.voxel_size


def _size(factor: float) -> Change:
    return lambda task, rng: _replace(task, voxel_size=factor * _voxel_size(task))


def _size_estimated(change: Change) -> Change:
    """Leave the voxel size to `register`, of clouds that are changed already."""
    return lambda task, rng: _replace(change(task, rng), voxel_size=None)


def _noise(voxels: float) -> Change:
    def change(task: Task, rng: np.random.Generator) -> Task:
        spread = voxels * _voxel_size(task)
        clouds = [c + spread * rng.normal(size=c.shape) for c in (task.source, task.target)]
        return _replace(task, source=clouds[0], target=clouds[1])

    return change


def _stray_points(share: float) -> Change:
    """Add points evenly in the box of each cloud, until they are so large a share of it."""

    def spoilt(cloud: Float64, rng: np.random.Generator) -> Float64:
        count = int(len(cloud) * share / (1 - share))
        even = rng.uniform(cloud.min(0), cloud.max(0), (count, 3))
        return np.concatenate([cloud, even])

    return lambda task, rng: _replace(
        task, source=spoilt(task.source, rng), target=spoilt(task.target, rng)
    )


def _thinned(share: float) -> Change:
    def change(task: Task, rng: np.random.Generator) -> Task:
        kept = rng.random(len(task.source)) < share
        return _replace(task, source=task.source[kept])

    return change


def _uneven(task: Task, rng: np.random.Generator) -> Task:
    """Keep ever fewer source points along a direction, as a scanner does with distance."""
    along = task.source @ _direction(rng)
    kept = rng.random(len(along)) < np.exp(-3 * (along - along.min()) / np.ptp(along))
    return _replace(task, source=task.source[kept])


def _cropped(task: Task, rng: np.random.Generator) -> Task:
    """Keep the half of the source that lies on one side."""
    along = task.source @ _direction(rng)
    return _replace(task, source=task.source[along > np.median(along)])


def _direction(rng: np.random.Generator) -> Float64:
    v = rng.normal(size=3)
    return np.asarray(v / np.linalg.norm(v))


def _doubled(task: Task, rng: np.random.Generator) -> Task:
    return _replace(task, source=np.repeat(task.source, 5, axis=0))


def _mirrored(task: Task, rng: np.random.Generator) -> Task:
    return _replace(task, source=task.source * [-1.0, 1.0, 1.0], T_target_source=None)


def _noise_alone(task: Task, rng: np.random.Generator) -> Task:
    box = task.source.min(0), task.source.max(0)
    return _replace(task, source=rng.uniform(*box, task.source.shape), T_target_source=None)


def _flat(task: Task, rng: np.random.Generator) -> Task:
    """Keep nothing but a plane of each cloud's size, which fixes no pose."""
    clouds = []
    for cloud in (task.source, task.target):
        low, high = cloud.min(0), cloud.max(0)
        plane = rng.uniform(low, high, cloud.shape)
        plane[:, 2] = 0.1 * _voxel_size(task) * rng.normal(size=len(cloud))
        clouds.append(plane)
    return _replace(task, source=clouds[0], target=clouds[1], T_target_source=None)


def _volumes(task: Task, rng: np.random.Generator) -> Task:
    """Give two boxes, 16 voxels wide and full of points: every pose lays one upon the other."""
    width = 16 * _voxel_size(task)
    source, target = (rng.uniform(0, width, c.shape) for c in (task.source, task.target))
    return _replace(task, source=source, target=target, T_target_source=None)


def _in_millimetres(task: Task, rng: np.random.Generator) -> Task:
    return _replace(task, source=1000 * task.source, T_target_source=None)


CONDITIONS: dict[str, Change] = {
    "usual": lambda task, rng: task,
    "two scenes": lambda task, rng: task,  # the pairs are other ones
    "mirrored": _mirrored,
    "noise alone": _noise_alone,
    "planes": _flat,
    "volumes": _volumes,
    "source in millimetres": _in_millimetres,
    "voxel size / 2": _size(0.5),
    "voxel size x 2": _size(2.0),
    "voxel size x 4": _size(4.0),
    "voxel size x 20": _size(20.0),
    "noise of 0.25 voxels": _noise(0.25),
    "noise of 0.5 voxels": _noise(0.5),
    "10 % stray points": _stray_points(0.1),
    "30 % stray points": _stray_points(0.3),
    "50 % stray points": _stray_points(0.5),
    "50 % stray points at an estimated size": _size_estimated(_stray_points(0.5)),
    "a tenth of the source": _thinned(0.1),
    "uneven source": _uneven,
    "half of the source": _cropped,
    "every source point five times": _doubled,
}


def tasks(pairs: PairSequence, settings: Settings, condition: str) -> Iterator[tuple[Pair, Task]]:
    """Yield the pairs, each with its task under a condition."""
    for k in range(len(pairs)):
        pair = pairs[k]
        rng = np.random.default_rng(zlib.crc32(f"{pair.name} {condition}".encode()))
        task = Task(pair.source, pair.target, pair.T_target_source, settings.voxel_size)
        if condition == "two scenes":
            others = [j for j, scene in enumerate(pairs.scenes) if scene != pair.scene]
            if not others:
                return
            other = pairs[others[int(rng.integers(len(others)))]]
            task = Task(pair.source, other.target, None, settings.voxel_size)
        yield pair, CONDITIONS[condition](task, rng)


def outcome(
    pair: Pair, task: Task, settings: Settings, condition: str, **options: object
) -> Outcome:
    """Register a task, and compare the pose with the truth."""
    began = time.perf_counter()
    view = "origin" if settings.dataset == "kitti" else "unknown"
    possible = task.T_target_source is not None
    try:
        found = register(
            task.source,
            task.target,
            voxel_size=task.voxel_size,
            viewpoint=view,
            **options,  # type: ignore[arg-type]
        )
    except VBRegError:
        return Outcome(
            condition, pair.name, possible, False, 0.0, None, True, time.perf_counter() - began
        )
    seconds = time.perf_counter() - began
    right = False
    if task.T_target_source is not None:
        ends = torch.from_numpy(found.T_target_source), torch.from_numpy(task.T_target_source)
        right = bool(pose_error(*ends).success(settings.rotation, settings.translation))
    p = found.success_probability
    assert p is not None
    assert np.isfinite(found.T_target_source).all()
    mirrored = found.mirrored_probability
    return Outcome(condition, pair.name, possible, right, p, mirrored, False, seconds)


def table(outcomes: list[Outcome]) -> str:
    """Return a row for each condition."""
    lines = [
        "| condition | pairs | right | trusted | right of the trusted | wrong of the trusted | "
        "calibration error | AUROC | refused | median s |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for condition in dict.fromkeys(o.condition for o in outcomes):
        rows = [o for o in outcomes if o.condition == condition]
        p, right = _columns(rows)
        trusted = p >= LIKELY
        cells = [
            condition,
            str(len(rows)),
            f"{100 * right.double().mean():.1f} %",
            f"{100 * trusted.double().mean():.1f} %",
            str(int((trusted & right).sum())),
            str(int((trusted & ~right).sum())),
            f"{calibration_error(p, right):.3f}",
            f"{auroc(p, right):.3f}" if right.any() and not right.all() else "-",
            str(sum(o.refused for o in rows)),
            f"{np.median([o.seconds for o in rows]):.2f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def summary(outcomes: list[Outcome]) -> str:
    """Say how well pairs that users have, and those that no pose fits, are told apart."""
    usual = [o for o in outcomes if o.condition == "usual"]
    p, right = _columns(usual)
    lines = [
        f"calibration error {calibration_error(p, right):.3f}, AUROC {auroc(p, right):.3f} "
        f"over {len(p)} pairs"
    ]
    strangers = _columns([o for o in outcomes if o.condition == "two scenes"])[0]
    wrong = torch.cat([p[~right], strangers])
    if len(wrong):
        least = float(wrong.sort(descending=True).values[int(0.01 * len(wrong))])
        accepted = 100 * float((p[right] > least).double().mean())
        lines.append(
            f"at most 1 % of {len(wrong)} wrong poses accepted (probability above {least:.3f}): "
            f"{accepted:.1f} % of the right ones are"
        )
    return "\n".join(lines)


def _columns(outcomes: list[Outcome]) -> tuple[torch.Tensor, torch.Tensor]:
    p = torch.tensor([o.probability for o in outcomes], dtype=torch.float64)
    return p, torch.tensor([o.right for o in outcomes], dtype=torch.bool)


def draw(outcomes: list[Outcome], path: Path, title: str) -> None:
    """Draw a reliability diagram, and the share of wrong poses among those that are accepted."""
    import matplotlib.pyplot as plt

    p, right = (part.numpy() for part in _columns([o for o in outcomes if o.condition == "usual"]))
    figure, (left, middle) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
    figure.suptitle(title)
    edges = np.linspace(0, 1, 11)
    left.plot([0, 1], [0, 1], "k--", linewidth=1)
    for low, high in pairwise(edges):
        within = (p >= low) & ((p < high) | (high == 1.0))
        if within.any():
            share, n = right[within].mean(), int(within.sum())
            spread = 1.96 * np.sqrt(max(share * (1 - share), 0.25 / n) / n)
            left.errorbar(p[within].mean(), share, yerr=spread, fmt="o", color="C0", capsize=2)
            left.annotate(str(n), (p[within].mean(), share), (5, -12), textcoords="offset points")
    left.set(
        xlabel="success_probability", ylabel="share that is right", xlim=(0, 1), ylim=(0, 1.05)
    )
    order = np.argsort(-p, kind="stable")
    coverage = np.arange(1, len(p) + 1) / len(p)
    middle.plot(100 * coverage, 100 * np.cumsum(~right[order]) / np.arange(1, len(p) + 1))
    middle.set(xlabel="accepted, % of all pairs", ylabel="wrong of the accepted, %")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dataset", default="3dlomatch", help="one or more, separated by commas")
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--conditions", default=",".join(CONDITIONS), help="separated by commas")
    parser.add_argument("--descriptor", default="learned")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--no-retry", action="store_true", help="one look at each pair")
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--rows", type=Path, help="write every outcome to this CSV file")
    arguments = parser.parse_args()
    outcomes: list[Outcome] = []
    rows = arguments.rows.open("w", encoding="utf-8", newline="") if arguments.rows else None
    if rows:
        csv.writer(rows).writerow(Outcome._fields)
    options = {
        "descriptor": arguments.descriptor,
        "device": arguments.device,
        "retry": not arguments.no_retry,
    }
    wanted = arguments.conditions.split(",")
    if unknown := [each for each in wanted if each not in CONDITIONS]:
        sys.exit(f"unknown conditions {unknown}: choose from {', '.join(CONDITIONS)}")
    for dataset in arguments.dataset.split(","):
        settings = Settings.of(dataset)
        pairs = open_pairs(dataset, arguments.root).select(every=arguments.every)
        for condition in wanted:
            todo = tasks(pairs, settings, condition)
            title = f"{dataset}: {condition}"
            for pair, task in track(todo, title, len(pairs), console=Console(stderr=True)):
                outcomes.append(outcome(pair, task, settings, condition, **options))
                if rows:
                    csv.writer(rows).writerow(outcomes[-1])
                    rows.flush()
    print(f"{arguments.dataset}, {arguments.descriptor}, every {arguments.every}\n")
    print(table(outcomes) + "\n\n" + summary(outcomes))
    if arguments.picture:
        draw(outcomes, arguments.picture, f"{arguments.dataset}, {arguments.descriptor}")


if __name__ == "__main__":
    main()
