"""How many points to describe, how to match them, and whether matches should weigh differently.

    python benchmarks/matching.py --root DATA/3dmatch --every 8 -o out/matching.csv
    python benchmarks/matching.py --root DATA/kitti/dev --dataset kitti --keypoints-only

Every row has the same pairs, descriptor and estimator. The last rows let the matches of all points
weigh by their descriptors where the best hypothesis is chosen; the search before is the same.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from vbreg import VBReg, backends
from vbreg.backends.neighbors import radius_knn
from vbreg.benchmark.problems import Settings, open_sequence
from vbreg.datasets import Pair
from vbreg.descriptors import MatchingName, descriptor_named
from vbreg.estimation import Estimate, best_hypothesis
from vbreg.matching import DescribedCloud, MatchedClouds, describe, evenly, match
from vbreg.metrics import pose_error, right_matches
from vbreg.scale import Scale

Indices = tuple[Tensor, Tensor]
Salience = Callable[[DescribedCloud], Tensor]
COUNTS = 2000, 1000
OTHERS = 512  # points of the own cloud, to tell how common a descriptor is


class Line(NamedTuple):
    """A row of the table; shares in per cent, means over the pairs."""

    matching: str
    matches: float
    right: float  # matches
    inlier_ratio: float
    recall: float
    milliseconds: float  # of the estimator


def bend(cloud: DescribedCloud, scale: Scale) -> Tensor:
    """How much the normals round each point differ (N,): 0 on a plane."""
    assert cloud.normals is not None
    index, _, valid = radius_knn(cloud.points, None, scale.feature_radius, 64)
    weight = valid.float() / valid.sum(1, keepdim=True)
    return 1 - (cloud.normals[index] * weight.unsqueeze(-1)).sum(1).norm(dim=-1)


def rarity(cloud: DescribedCloud, scale: Scale) -> Tensor:
    """How unlike others of its own cloud a descriptor is (N,)."""
    d = cloud.descriptors
    return -(d @ d[evenly(len(d), OTHERS)].T).mean(1)


def upper_half(cloud: DescribedCloud, by: Tensor, count: int) -> Tensor:
    """Draw rows evenly among the half of the points that has more of something."""
    half = by.topk(max(count, len(by) // 2) if count < len(by) else len(by)).indices.sort().values
    return half[evenly(len(half), count)]


def keypoint_count(cloud: DescribedCloud, count: int) -> int:
    """Return how many keypoints `register` takes: `count`, or a quarter of the points if more."""
    return min(len(cloud), max(count, len(cloud) // 4))


def thinned(
    a: DescribedCloud, b: DescribedCloud, count: int, by: Salience | None = None
) -> Indices:
    rows = [
        evenly(len(end), keypoint_count(end, count))
        if by is None
        else upper_half(end, by(end), keypoint_count(end, count))
        for end in (a, b)
    ]
    i, j = match(a.descriptors[rows[0]], b.descriptors[rows[1]], matching="either-way")
    return rows[0][i], rows[1][j]


def ways(
    a: DescribedCloud, b: DescribedCloud, scale: Scale, all_points: bool
) -> Iterator[tuple[str, Indices]]:
    if all_points:
        for name in get_args(MatchingName):
            yield f"all, {name}", match(a.descriptors, b.descriptors, matching=name)
    for count in COUNTS:
        yield f"{count}, either-way", thinned(a, b, count)
    for name, by in (("off planes", bend), ("uncommon", rarity)):
        chosen = thinned(a, b, COUNTS[-1], partial(by, scale=scale))
        yield f"{COUNTS[-1]} {name}, either-way", chosen


def weighings(temperature: float) -> dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]]:
    """Weights (K,) of matches i, j from all similarities (N, M)."""

    def probability(s: Tensor, i: Tensor, j: Tensor) -> Tensor:
        logits = s / temperature
        ways = (logits[i, j] - logits.logsumexp(d)[k] for d, k in ((1, i), (0, j)))
        return sum(ways).exp()  # type: ignore[union-attr]

    return {
        "similarity to the fourth": lambda s, i, j: s[i, j].clamp_min(0) ** 4,
        "probability both ways": probability,
        "its fourth root": lambda s, i, j: probability(s, i, j) ** 0.25,
        "mutual count thrice": lambda s, i, j: 1 + 2 * (s.argmax(0)[j] == i).float(),
    }


class Estimator:
    """The shipped search, with a say in how matches weigh at its end."""

    def __init__(self, weights: str) -> None:
        self.model = VBReg.from_pretrained(weights, device="cpu")
        self.backend = backends.choose(torch.device("cpu"))

    @torch.inference_mode()
    def __call__(self, matched: MatchedClouds, weights: Tensor | None = None) -> np.ndarray:
        if weights is None:
            return self.model.solve(matched, verify=False).T_target_source
        solver, backend, matches = self.model.solver, self.backend, matched.matches()
        source, target = solver.lowered(matches)
        output = solver.run_network(matches, backend, whole=True)
        seeds, members = solver.search(output, matches, backend)
        sigma = solver.network.sigma
        votes = backend.spectral_weights(output.features[-1], source, target, members, sigma)
        T, sound = backend.hypotheses(source, target, members, votes)
        crowd = backend.crowd_weights(source, target, matches.mask)
        score = backend.inlier_score(T, source, target, crowd * weights)
        found = best_hypothesis(T, sound & seeds.valid, score)
        start = Estimate(found.T.double(), found.determined)
        refined = backend.refine(start, matches.source, matches.target, matches.mask)
        return matches.to_user(refined.T)[0]


def judged(
    estimator: Estimator,
    matched: MatchedClouds,
    weights: Tensor | None,
    pair: Pair,
    settings: Settings,
) -> tuple[float, ...]:
    """Return matches, right ones, their share, whether the pose is right, and the seconds."""
    given, truth = matched.correspondences, torch.from_numpy(pair.T_target_source)
    ends = torch.from_numpy(given.source), torch.from_numpy(given.target)
    right = right_matches(*ends, truth, settings.inlier_threshold)
    began = time.perf_counter()
    pose = torch.from_numpy(estimator(matched, weights))
    seconds = time.perf_counter() - began
    good = pose_error(pose, truth).success(settings.rotation, settings.translation)
    return len(right), int(right.sum()), float(right.float().mean()), bool(good), seconds


def lines(options: argparse.Namespace) -> list[Line]:
    descriptor = descriptor_named(options.descriptor)
    settings = Settings.of(
        options.dataset,
        descriptor=options.descriptor,
        voxel_size=options.voxel_size,
        viewpoint=options.viewpoint,
    )
    scale, device = settings.scale, torch.device("cpu")
    estimator = Estimator(options.weights)
    clouds: dict[tuple[str, int], np.ndarray] = {}

    @lru_cache(maxsize=256)
    def described(key: tuple[str, int]) -> DescribedCloud:
        return describe(
            clouds[key],
            scale,
            descriptor=descriptor,
            keypoints="all",
            viewpoint=settings.viewpoint,
            device=device,
        )

    found: dict[str, list[tuple[float, ...]]] = {}
    temperature = 0.07
    if descriptor.network is not None:
        temperature = float(descriptor.network.temperature.detach().exp())
    pairs = open_sequence(settings, options.root).select(every=options.every)
    for pair in track(pairs, options.dataset, len(pairs), console=Console(stderr=True)):
        ends = []
        for k, cloud in enumerate((pair.source, pair.target)):
            key = (pair.name, k)
            if pair.ids is not None and options.dataset != "kitti":
                key = pair.scene, pair.ids[k]
            clouds[key] = cloud
            ends.append(described(key))
        tried: list[tuple[str, Indices, Tensor | None]] = [
            (name, rows, None) for name, rows in ways(*ends, scale, options.all_points)
        ]
        if options.weights_too:
            rows = match(ends[0].descriptors, ends[1].descriptors)
            similarity = ends[0].descriptors @ ends[1].descriptors.T
            for name, weigh in weighings(temperature).items():
                weights = weigh(similarity, *rows)
                tried.append((f"all, one-way, weight: {name}", rows, weights))
        for name, rows, weights in tried:
            matched = MatchedClouds(ends[0], ends[1], *rows, len(rows[0]), scale)
            found.setdefault(name, []).append(judged(estimator, matched, weights, pair, settings))
    means = {name: np.mean(rows, axis=0) for name, rows in found.items()}
    return [
        Line(
            name,
            round(m[0]),
            round(m[1]),
            round(100 * m[2], 2),
            round(100 * m[3], 1),
            round(1000 * m[4]),
        )
        for name, m in means.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--dataset", default="3dlomatch")
    parser.add_argument("--descriptor", default="learned")
    parser.add_argument("--weights", default="fast", help="the estimator's")
    parser.add_argument("--voxel-size", type=float)
    parser.add_argument("--viewpoint", choices=("origin", "unknown"))
    parser.add_argument("--every", type=int, default=1, help="every n-th pair")
    parser.add_argument("--keypoints-only", dest="all_points", action="store_false")
    parser.add_argument("--no-weights", dest="weights_too", action="store_false")
    parser.add_argument("-o", "--output", type=Path, help="a CSV file")
    options = parser.parse_args()
    rows = lines(options)
    print("| " + " | ".join(Line._fields) + " |\n" + "| --- " * len(Line._fields) + "|")
    for line in rows:
        print("| " + " | ".join(map(str, line)) + " |")
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        with options.output.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(Line._fields)
            writer.writerows(rows)


if __name__ == "__main__":
    main()
