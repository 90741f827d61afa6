"""How large the errors of poses are by the covariances that come with them.

    python benchmarks/covariance.py --simulated 3 --folders DATA/rgbd_train/*
    python benchmarks/covariance.py --dataset 3dmatch --root DATA/3dmatch --every 8
    python benchmarks/covariance.py --dataset kitti --root DATA/kitti/dev --picture nees.png
    python benchmarks/covariance.py --folders DATA/rgbd_train/* --samples 6

Poses are verified and refined on the clouds, as those of `register`. The normalised squared error
(NEES) of right ones is 6 in the mean where covariances are right. The constants of
`vbreg.uncertainty` were chosen by the first command; the others only report. With `--samples`, each
pair is solved again with so many samples of the latent features, and a second table tells how
likely the errors are by the covariance alone and by its sum with that of the sampled poses, both
scaled as suits them best.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from scipy.stats import chi2

from vbreg import Scale, VBReg
from vbreg.benchmark.problems import Settings
from vbreg.datasets import open_pairs
from vbreg.errors import VBRegError
from vbreg.matching import Viewpoint, describe, match_clouds
from vbreg.metrics import overlap, pose_error
from vbreg.simulator.places import MESH, PLACE_KINDS, make_place
from vbreg.types import Float64
from vbreg.uncertainty import moved_to, normalised_error, small_motion

FIRST_SEED = 9001  # of simulated places, apart from those of the training
PAIRS_PER_PLACE = 6
MIN_OVERLAP = 0.15
MAX_PAIRS_PER_FOLDER = 25
SHARES = (0.0, 0.3, 1.0, 3.0)  # of the sampled covariance, beside the told one
WITHIN_95 = float(chi2.ppf(0.95, 6))


class Scans(NamedTuple):
    """Two clouds, the true pose between them, and when a pose counts as right."""

    clouds: tuple[Float64, Float64]
    T_target_source: Float64
    viewpoints: tuple[Viewpoint, Viewpoint]
    voxel_size: float
    bounds: tuple[float, float]  # degrees, length


class Outcome(NamedTuple):
    """What became of a pair."""

    right: bool
    determined: bool
    nees: float
    error: Float64  # (6,) about the middle of the target, as the covariances below
    covariance: Float64  # (6, 6)
    sampled: Float64 | None  # (6, 6) mean square of what sampled poses differ by


def simulated(kind: str, seeds: int) -> Iterator[Scans]:
    """Neighbouring scans of places before those far apart."""
    for seed in range(FIRST_SEED, FIRST_SEED + seeds):
        place, found = make_place(kind, seed), 0
        bounds = (5.0, 2 * 0.30) if kind.startswith("street") else (15.0, 6 * place.voxel_size)
        numbers = sorted(combinations(range(len(place.scans)), 2), key=lambda ij: ij[1] - ij[0])
        for a, b in ((place.scans[i], place.scans[j]) for i, j in numbers):
            T = np.linalg.inv(b.T_world_scan) @ a.T_world_scan
            ends = torch.from_numpy(a.points), torch.from_numpy(b.points)
            if overlap(*ends, torch.from_numpy(T), place.voxel_size) < MIN_OVERLAP:
                continue
            found += 1
            if found > PAIRS_PER_PLACE:
                break
            views: list[Viewpoint] = [
                "unknown" if scan.viewpoint is None else scan.viewpoint for scan in (a, b)
            ]
            clouds = a.points.astype(np.float64), b.points.astype(np.float64)
            yield Scans(clouds, T, (views[0], views[1]), place.voxel_size, bounds)


def recorded(name: str | Path, root: Path | None, every: int | None) -> Iterator[Scans]:
    """Pairs of a data set, or some of all pairs of a folder."""
    settings = Settings.of(str(name))
    pairs = open_pairs(name, root)
    view: Viewpoint = "origin" if settings.dataset == "kitti" else "unknown"
    step = every or max(1, len(pairs) // MAX_PAIRS_PER_FOLDER)
    for pair in track(pairs[::step], str(name), console=Console(stderr=True)):
        yield Scans(
            (pair.source, pair.target),
            pair.T_target_source,
            (view, view),
            settings.voxel_size,
            (settings.rotation, settings.translation),
        )


def outcome(model: VBReg, scans: Scans, samples: int) -> Outcome | None:
    """The default way of `register`; None where there is nothing to match."""
    scale = Scale(scans.voxel_size)
    try:
        ends = [
            describe(cloud, scale, viewpoint=view)
            for cloud, view in zip(scans.clouds, scans.viewpoints, strict=True)
        ]
        matched = match_clouds(*ends, scale)
        result = model.solve(matched)
    except VBRegError:
        return None
    found, truth = result.T_target_source, scans.T_target_source
    error = pose_error(torch.from_numpy(found), torch.from_numpy(truth))
    assert result.covariance is not None
    nees = normalised_error(truth, found, result.covariance)
    middle = scans.clouds[1].mean(0)
    centred = np.eye(4)
    centred[:3, 3] = -middle  # so that a turn does not count as a shift of the far origin
    xi = small_motion(centred @ truth, centred @ found)
    others = [model.solve(matched, seed=k).T_target_source for k in range(samples)]
    moves = np.array([small_motion(centred @ T, centred @ found) for T in others])
    near = [m for m in moves if np.degrees(np.linalg.norm(m[:3])) < scans.bounds[0]]
    sampled = sum((np.outer(m, m) for m in near), np.zeros((6, 6))) / max(1, len(near))
    return Outcome(
        bool(error.success(*scans.bounds)),
        result.determined,
        nees,
        xi,
        moved_to(result.covariance, middle),
        sampled if samples else None,
    )


def likelihood(outcomes: list[Outcome], share: float) -> tuple[float, float]:
    """Return the mean log-likelihood of errors, and the factor that makes it the highest.

    Covariances are the told ones with that share of the sampled ones added.
    """
    right = [each for each in outcomes if each.right and each.sampled is not None]
    if not right:
        return float("nan"), float("nan")
    C = np.stack([each.covariance + share * each.sampled for each in right])
    xi = np.stack([each.error for each in right])
    nees = np.einsum("ni,nij,nj->n", xi, np.linalg.inv(C), xi)
    factor = nees.mean() / 6
    log_det = np.linalg.slogdet(factor * C)[1]
    return float(-0.5 * (log_det + nees / factor + 6 * np.log(2 * np.pi)).mean()), float(factor)


def line(name: str, outcomes: list[Outcome]) -> str:
    nees = np.array([each.nees for each in outcomes if each.right])
    free = sum(not each.determined for each in outcomes if each.right)
    wrong = [each for each in outcomes if not each.right]
    doubted = sum(not each.determined for each in wrong)
    cells = [
        name,
        f"{len(nees)} of {len(outcomes)}",
        f"{nees.mean():.1f}",
        f"{np.median(nees):.1f}",
        f"{100 * np.mean(nees < WITHIN_95):.0f} %",
        f"{free} of {len(nees)}",
        f"{doubted} of {len(wrong)}",
    ]
    return "| " + " | ".join(cells) + " |"


def draw(found: dict[str, list[Outcome]], path: Path) -> None:
    """Draw the share of right poses below each NEES, and what it should be."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    x = np.geomspace(0.1, 100, 200)
    axes.plot(x, chi2.cdf(x, 6), "k--", label="chi-square, 6 degrees of freedom")
    for name, outcomes in found.items():
        nees = np.sort([each.nees for each in outcomes if each.right])
        axes.step(nees, (np.arange(len(nees)) + 1) / len(nees), where="post", label=name)
    axes.set(xscale="log", xlim=(0.1, 100), ylim=(0, 1))
    axes.set(xlabel="normalised error squared", ylabel="share of right poses below")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--simulated", type=int, default=0, help="places of each kind")
    parser.add_argument("--folders", type=Path, nargs="*", default=[], help="with poses.txt each")
    parser.add_argument("--dataset", nargs="*", default=[], help="3dmatch, 3dlomatch or kitti")
    parser.add_argument("--root", type=Path, nargs="*", default=[], help="one for each data set")
    parser.add_argument("--every", type=int, default=8, help="every n-th pair of a data set")
    parser.add_argument("--samples", type=int, default=0, help="of the latent features")
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    model = VBReg.from_pretrained("fast", device="cpu")
    runs: list[tuple[str, Iterator[Scans]]] = []
    for kind in [kind for kind in PLACE_KINDS if kind != MESH and options.simulated]:
        runs.append((f"simulated: {kind}", simulated(kind, options.simulated)))
    for folder in options.folders:
        runs.append((folder.name, recorded(folder, None, None)))
    for name, root in zip(options.dataset, options.root, strict=True):
        runs.append((name, recorded(name, root, options.every)))
    print("| scans | right | mean NEES | median (5.3) | within 95 % | free, right | free, wrong |")
    print("| --- " * 7 + "|")
    found: dict[str, list[Outcome]] = {}
    for name, scans in runs:
        each = (outcome(model, pair, options.samples) for pair in scans)
        found[name] = [one for one in each if one is not None]
        print(line(name, found[name]), flush=True)
    if options.samples:
        print("\n| scans | share of the sampled | mean log-likelihood | best factor |")
        print("| --- " * 4 + "|")
        for name, outcomes in found.items():
            for share in SHARES:
                level, factor = likelihood(outcomes, share)
                print(f"| {name} | {share:g} | {level:.2f} | {factor:.2f} |")
    if options.picture:
        draw(found, options.picture)


if __name__ == "__main__":
    main()
