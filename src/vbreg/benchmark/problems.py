"""From a pair of clouds to the problem that every method is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

from vbreg.correspondences import label, match
from vbreg.datasets import Pair, PairSequence, open_pairs, subsample_pair
from vbreg.datasets.matches import Features, describe, learned_matches
from vbreg.datasets.sampling import pair_seed, sample_rows
from vbreg.errors import VBRegError
from vbreg.methods import Problem
from vbreg.registration import INLIER_THRESHOLD
from vbreg.types import Bool, Correspondences, Float32, Float64

OURS, GIVEN = "fpfh", "learned"  # computed here; read from `learned_matches` beside the fragments
STORED = "npz"  # "npz:fcgf" reads the descriptors that other projects keep beside the clouds
DESCRIBED_CLOUDS = 512  # kept in memory: a cloud belongs to many pairs


@dataclass(frozen=True)
class Settings:
    """What decides the matches, and when a pose counts as right. Lengths in metres."""

    dataset: str
    descriptor: str = OURS
    points: int | None = None  # keypoints a cloud; None for all
    voxel_size: float = 0.05
    max_matches: int | None = None
    rotation: float = 15.0  # degrees; a success lies below both
    translation: float = 0.30
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("voxel_size", "rotation", "translation"):
            if not getattr(self, name) > 0:
                raise VBRegError(f"{name} {getattr(self, name)}: expected a positive number")
        for name in ("points", "max_matches"):
            value = getattr(self, name)
            if value is not None and value < 3:
                raise VBRegError(f"{name} {value}: expected at least 3, which fix a pose")

    @staticmethod
    def of(dataset: str, **changes: Any) -> Settings:
        """The protocol of a data set; what is given and not None replaces its values."""
        start = Settings(dataset)
        if dataset == "kitti":
            start = replace(
                start, voxel_size=0.30, max_matches=8000, rotation=5.0, translation=0.60
            )
        return replace(start, **{k: v for k, v in changes.items() if v is not None})

    @property
    def inlier_threshold(self) -> float:
        return INLIER_THRESHOLD * self.voxel_size

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def open_sequence(settings: Settings, root: Path | None) -> PairSequence:
    """The pairs of the data set, with the stored descriptors where these are asked for."""
    kind, _, stored = settings.descriptor.partition(":")
    if settings.descriptor not in (OURS, GIVEN) and not (kind == STORED and stored):
        raise VBRegError(
            f"descriptor {settings.descriptor!r}: expected '{OURS}' (computed here), "
            f"'{STORED}:NAME' (stored beside the clouds, say {STORED}:fcgf or {STORED}:predator) "
            f"or '{GIVEN}' (matches stored in learned_matches)"
        )
    if settings.descriptor == GIVEN and settings.dataset not in ("3dmatch", "3dlomatch"):
        raise VBRegError(f"descriptor '{GIVEN}' goes with 3dmatch and 3dlomatch only")
    options = {"descriptor": stored} if stored else {}
    return open_pairs(settings.dataset, root, **options)


def problem_source(
    settings: Settings, root: Path | None, device: torch.device
) -> Callable[[Pair], Problem]:
    """What makes the problem of a pair; descriptors of a cloud are computed once."""
    if settings.descriptor == GIVEN:
        assert root is not None, "open_sequence asks for it"
        return lambda pair: _given_problem(pair, settings, root)
    clouds: dict[tuple[str, int], Float64] = {}

    @lru_cache(maxsize=DESCRIBED_CLOUDS)
    def described(key: tuple[str, int]) -> Features:
        return describe(clouds.pop(key), settings.voxel_size, device)

    def both(pair: Pair) -> Pair:
        ends = []
        for k, cloud in enumerate((pair.source, pair.target)):
            key = (pair.scene, pair.ids[k]) if pair.ids else (pair.name, k)
            if settings.dataset == "kitti":
                key = (f"{pair.name} {k}", 0)  # frames are stored anew for each pair
            clouds[key] = cloud
            ends.append(described(key))
        points = [end.points.astype(np.float64) for end in ends]
        return replace(
            pair,
            source=points[0],
            target=points[1],
            descriptors=(ends[0].descriptors, ends[1].descriptors),
            scores=None,
        )

    def problem(pair: Pair) -> Problem:
        found = problem_of(pair if pair.descriptors else both(pair), settings, device)
        return replace(found, scans=(pair.source, pair.target))

    return problem


def problem_of(pair: Pair, settings: Settings, device: torch.device) -> Problem:
    """1-NN matches of a described pair, of sampled keypoints where the settings say so."""
    if settings.points is not None:
        pair = subsample_pair(pair, settings.points, settings.seed)
    assert pair.descriptors is not None
    features = [torch.from_numpy(np.asarray(d, np.float32)).to(device) for d in pair.descriptors]
    i, j = (index.cpu().numpy() for index in match(features[0], features[1]))
    rows = _thinned(len(i), pair.name, settings)
    return _problem(pair, i[rows], j[rows], settings, pair.descriptors)


def _given_problem(pair: Pair, settings: Settings, root: Path) -> Problem:
    """Stored matches; fewer points take the first end of so many matches."""
    benchmark = "3DMatch" if settings.dataset == "3dmatch" else "3DLoMatch"
    found = learned_matches(root, benchmark, pair)
    described = replace(
        pair,
        source=found.source.astype(np.float64),
        target=found.target_cloud.astype(np.float64),
    )
    count = settings.points or len(found)
    rows = sample_rows(len(found), count, pair_seed(settings.seed, pair.name))
    problem = _problem(described, rows, found.target_index[rows], settings, None)
    return replace(problem, scans=(pair.source, pair.target))


def _thinned(count: int, name: str, settings: Settings) -> np.ndarray[Any, Any]:
    most = settings.max_matches or count
    return sample_rows(count, max(most, 1), pair_seed(settings.seed, f"matches of {name}"))


def _problem(
    pair: Pair,
    i: np.ndarray[Any, Any],
    j: np.ndarray[Any, Any],
    settings: Settings,
    descriptors: tuple[Float32, Float32] | None,
) -> Problem:
    return Problem(
        Correspondences(pair.source[i], pair.target[j], i, j),
        settings.inlier_threshold,
        clouds=(pair.source, pair.target),
        descriptors=descriptors,
        seed=pair_seed(settings.seed, pair.name) % 2**31,
    )


@dataclass(frozen=True, eq=False)
class Labelled:
    """A problem and which of its matches are right."""

    pair: Pair
    problem: Problem
    right: Bool  # (N,)

    @staticmethod
    def of(pair: Pair, problem: Problem) -> Labelled:
        matches = problem.correspondences
        ends = torch.from_numpy(matches.source), torch.from_numpy(matches.target)
        truth = torch.from_numpy(pair.T_target_source)
        return Labelled(pair, problem, label(*ends, truth, problem.inlier_threshold).numpy())

    @property
    def inlier_ratio(self) -> float:
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
    """The chosen pairs with their matches, as a benchmark has them; progress goes to stderr."""
    pairs = open_sequence(settings, root).select(every=every, limit=limit)
    if not len(pairs):
        raise VBRegError(f"no pairs of {settings.dataset} are left; check every and limit")
    source = problem_source(settings, root, device)
    title = f"{settings.dataset} {settings.descriptor}"
    for pair in track(pairs, title, len(pairs), console=Console(stderr=True), disable=quiet):
        yield Labelled.of(pair, source(pair))
