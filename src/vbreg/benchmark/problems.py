"""From a pair of clouds to the problem that every method is given."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from vbreg.datasets import KINDS, Pair, PairSequence, open_pairs
from vbreg.datasets.matches import stored_matches
from vbreg.datasets.sampling import pair_seed, sample_rows
from vbreg.descriptors import DESCRIPTORS, MatchingName, descriptor_named, is_computed
from vbreg.errors import VBRegError
from vbreg.frames import LocalCloud
from vbreg.matching import MAX_CORRESPONDENCES, DescribedCloud, describe, match_clouds
from vbreg.methods import Problem
from vbreg.metrics import right_matches
from vbreg.progress import progress
from vbreg.scale import VOXEL_SIZES, Scale
from vbreg.types import Bool, Int64

STORED = "npz"  # "npz:fcgf" reads the descriptors that other projects keep beside the clouds
MATCHES = "matches"  # "matches:learned" reads the matches in the folder learned_matches
PAPERS = ("3dmatch", "3dlomatch", "kitti")  # data sets that papers have a protocol for
MAX_DESCRIBED_CLOUDS = 512  # kept in memory
CloudKey = tuple[str, int]


@dataclass(frozen=True)
class Settings:
    """What decides the matches, and when a pose counts as right. Lengths in metres."""

    dataset: str
    descriptor: str = "learned"
    points: int | None = None  # keypoints a cloud, sampled anew for each pair
    as_register: bool = True  # keypoints and matching as in `register`; else all points, one way
    viewpoint: Literal["origin", "unknown"] = "unknown"  # of the sensor, in the frame of a cloud
    voxel_size: float = VOXEL_SIZES["indoor"]
    max_matches: int | None = MAX_CORRESPONDENCES  # None for all
    rotation: float = 15.0  # degrees; a success lies below both
    translation: float = 0.30
    seed: int = 0
    turned: bool = False  # every cloud by chance, before anything else

    def __post_init__(self) -> None:
        for name in ("voxel_size", "rotation", "translation"):
            if not getattr(self, name) > 0:
                raise VBRegError(f"{name} {getattr(self, name)}: expected a positive number")
        for name in ("points", "max_matches"):
            value = getattr(self, name)
            if value is not None and value < 3:
                raise VBRegError(f"{name} {value}: expected at least 3, which fix a pose")

    @staticmethod
    def of(dataset: str, *, as_register: bool = False, **changes: Any) -> Settings:
        """Return the protocol of a data set; what is given and not None replaces its values.

        Scans of the papers' data sets are matched as the papers do it: all points, one way. With
        `as_register` they are matched as `register` does if only a preset is given.
        """
        start = Settings(dataset)
        if dataset == "kitti":
            start = replace(
                start, voxel_size=VOXEL_SIZES["outdoor"], rotation=5.0, translation=0.60
            )
            if as_register:  # the preset's; these scans have their sensor at the origin
                start = replace(start, viewpoint="origin")
        if dataset in PAPERS and not as_register:
            start = replace(start, as_register=False)
            if dataset != "kitti":  # the papers use all matches
                start = replace(start, max_matches=None)
        return replace(start, **{k: v for k, v in changes.items() if v is not None})

    @property
    def scale(self) -> Scale:
        """Every length that follows from the voxel size."""
        return Scale(self.voxel_size)

    @property
    def inlier_threshold(self) -> float:
        """How far apart the ends of a right match may lie."""
        return self.scale.inlier_threshold

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain values, for a file."""
        return asdict(self)


def open_sequence(settings: Settings, root: Path | None) -> PairSequence:
    """Open the pairs of the data set, with the stored descriptors where these are asked for."""
    kind, _, stored = settings.descriptor.partition(":")
    if not is_computed(settings.descriptor) and not (kind in (STORED, MATCHES) and stored):
        raise VBRegError(
            f"descriptor {settings.descriptor!r}: expected {', '.join(DESCRIPTORS)} (computed "
            f"here), '{STORED}:NAME' (stored beside the clouds, say {STORED}:fcgf or "
            f"{STORED}:predator) or '{MATCHES}:NAME' (matches stored in NAME_matches)"
        )
    if settings.turned and kind == MATCHES:
        raise VBRegError(f"descriptor '{settings.descriptor}': stored matches cannot be turned")
    if kind == MATCHES and settings.dataset not in ("3dmatch", "3dlomatch"):
        raise VBRegError(f"descriptor '{settings.descriptor}' goes with 3dmatch and 3dlomatch only")
    options: dict[str, Any] = {"descriptor": stored} if kind == STORED else {}
    if settings.dataset not in KINDS:  # a folder, whose clouds may be in any unit
        options["radius"] = settings.voxel_size
    pairs = open_pairs(settings.dataset, root, **options)
    return pairs.turned() if settings.turned else pairs


def descriptor_identity(settings: Settings) -> dict[str, Any]:
    """Return what tells a descriptor from another of the same name: the checksum of its weights."""
    if settings.descriptor.partition(":")[0] in (STORED, MATCHES):
        return {}
    fingerprint = descriptor_named(settings.descriptor).fingerprint
    return {} if fingerprint is None else {"descriptor_weights": fingerprint}


class DescribedClouds:
    """Describes clouds in one way. A cloud belongs to many pairs and is described once."""

    def __init__(self, settings: Settings, device: torch.device) -> None:
        self.settings = settings
        self.device = device
        self.described: OrderedDict[CloudKey, DescribedCloud] = OrderedDict()

    def serves(self, settings: Settings) -> bool:
        """Tell whether benchmarks with these settings and the same root can share the clouds."""
        return _describing(settings) == _describing(self.settings)

    def of(self, pair: Pair) -> tuple[DescribedCloud, DescribedCloud]:
        """Return both clouds of a pair."""
        return self._cloud(pair, 0), self._cloud(pair, 1)

    def _cloud(self, pair: Pair, end: Literal[0, 1]) -> DescribedCloud:
        key = (pair.scene, pair.ids[end]) if pair.ids else (pair.name, end)
        if self.settings.dataset == "kitti":
            key = (f"{pair.name} {end}", 0)  # frames are stored anew for each pair
        if key not in self.described:
            points = pair.target if end else pair.source
            self.described[key] = describe(
                LocalCloud.of(points, key[0]),
                self.settings.scale,
                descriptor=descriptor_named(self.settings.descriptor),
                keypoints="all" if _all_keypoints(self.settings) else None,
                viewpoint=self.settings.viewpoint,
                device=self.device,
            )
            if len(self.described) > MAX_DESCRIBED_CLOUDS:
                self.described.popitem(last=False)
        self.described.move_to_end(key)
        return self.described[key]


def _all_keypoints(settings: Settings) -> bool:
    return settings.points is not None or not settings.as_register


def _describing(settings: Settings) -> tuple[object, ...]:
    """Return what decides how a cloud is described; both lists of 3DMatch have the same clouds."""
    dataset = "3dmatch" if settings.dataset == "3dlomatch" else settings.dataset
    return (
        dataset,
        settings.descriptor,
        settings.voxel_size,
        settings.viewpoint,
        settings.turned,
        _all_keypoints(settings),
    )


def problem_source(
    settings: Settings,
    root: Path | None,
    device: torch.device,
    clouds: DescribedClouds | None = None,
) -> Callable[[Pair], Problem]:
    """Return what makes the problem of a pair.

    `clouds` of another benchmark on the same root are used where they serve this one, too.
    """
    kind, _, stored = settings.descriptor.partition(":")
    if kind == MATCHES:
        assert root is not None, "open_sequence asks for it"
        return lambda pair: _given_problem(pair, settings, root, stored)
    if kind == STORED:
        return lambda pair: problem_of(stored_clouds(pair, device), pair, settings)
    if clouds is None or not clouds.serves(settings):
        clouds = DescribedClouds(settings, device)
    chosen = clouds
    return lambda pair: problem_of(chosen.of(pair), pair, settings)


def stored_clouds(pair: Pair, device: torch.device) -> tuple[DescribedCloud, DescribedCloud]:
    """Return the clouds of a pair whose points were described elsewhere, in local frames."""
    assert pair.descriptors is not None
    clouds = []
    for points, features in zip((pair.source, pair.target), pair.descriptors, strict=True):
        local = LocalCloud.of(points, pair.name)
        rows = torch.from_numpy(np.asarray(features, np.float32)[np.isfinite(points).all(1)])
        cloud = DescribedCloud(local.points.to(device), None, rows.to(device), local.origin)
        clouds.append(cloud)
    return clouds[0], clouds[1]


def problem_of(
    clouds: tuple[DescribedCloud, DescribedCloud],
    pair: Pair,
    settings: Settings,
) -> Problem:
    """Match two described clouds, of sampled keypoints where the settings say so."""
    if settings.points is not None:
        rows = keypoint_rows((len(clouds[0]), len(clouds[1])), pair, settings)
        clouds = (
            clouds[0].take(torch.from_numpy(rows[0])),
            clouds[1].take(torch.from_numpy(rows[1])),
        )
    usual = settings.as_register and settings.points is None
    matching: MatchingName | None = None if usual else "one-way"
    matched = match_clouds(
        *clouds, settings.scale, matching=matching, max_matches=settings.max_matches
    )
    return Problem.of_clouds(
        matched, scans=(pair.source, pair.target), seed=_method_seed(pair, settings)
    )


def keypoint_rows(sizes: tuple[int, int], pair: Pair, settings: Settings) -> tuple[Int64, Int64]:
    """Choose at most `settings.points` rows of each cloud, by their scores where it has them."""
    assert settings.points is not None
    generator = np.random.default_rng(pair_seed(settings.seed, pair.name))
    weights = pair.scores or (None, None)
    first, second = (
        sample_rows(n, settings.points, generator, w) for n, w in zip(sizes, weights, strict=True)
    )
    return first, second


def _given_problem(pair: Pair, settings: Settings, root: Path, name: str) -> Problem:
    """Make a problem of stored matches; fewer points take the first end of so many matches."""
    benchmark = "3DMatch" if settings.dataset == "3dmatch" else "3DLoMatch"
    found = stored_matches(root, name, benchmark, pair)
    count = settings.points or len(found)
    rows = sample_rows(len(found), count, pair_seed(settings.seed, pair.name))
    return Problem.of_points(
        found.source[rows],
        found.target[rows],
        settings.inlier_threshold,
        scans=(pair.source, pair.target),
        seed=_method_seed(pair, settings),
    )


def _method_seed(pair: Pair, settings: Settings) -> int:
    return pair_seed(settings.seed, pair.name) % 2**31


@dataclass(frozen=True, eq=False)
class Labelled:
    """A problem and which of its matches are right."""

    pair: Pair
    problem: Problem
    right: Bool  # (N,)

    @staticmethod
    def of(pair: Pair, problem: Problem) -> Labelled:
        """Label the matches of a problem by the true pose of its pair."""
        matches = problem.correspondences
        ends = torch.from_numpy(matches.source), torch.from_numpy(matches.target)
        truth = torch.from_numpy(pair.T_target_source)
        right = right_matches(*ends, truth, problem.inlier_threshold)
        return Labelled(pair, problem, right.numpy())

    @property
    def inlier_ratio(self) -> float:
        """The share of the matches that are right."""
        return float(self.right.mean())


def labelled_problems(
    settings: Settings,
    root: Path | None,
    *,
    device: torch.device,
    every: int = 1,
    limit: int | None = None,
    quiet: bool = False,
) -> Iterator[Labelled]:
    """Yield the chosen pairs with their matches, as a benchmark has them; progress on stderr."""
    pairs = open_sequence(settings, root).select(every=every, limit=limit)
    if not len(pairs):
        raise VBRegError(f"no pairs of {settings.dataset} are left; check every and limit")
    source = problem_source(settings, root, device)
    title = f"{settings.dataset} {settings.descriptor}"
    with progress(quiet) as tell:
        for pair in tell.track(pairs, title):
            yield Labelled.of(pair, source(pair))
