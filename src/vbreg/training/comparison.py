"""Two descriptors on pairs that were not trained on: which finds more right matches and poses?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import torch

from vbreg.datasets.folder import posed_pairs
from vbreg.datasets.pairs import Pair
from vbreg.datasets.poses import inverse_pose
from vbreg.descriptors import DescriptorChoice
from vbreg.errors import VBRegError
from vbreg.matching import describe, match_clouds
from vbreg.metrics import overlap, pose_error, right_matches
from vbreg.model import VBReg
from vbreg.progress import progress
from vbreg.scale import Scale
from vbreg.training.places import FRAGMENTS, HELD_OUT, PlaceMaker, PlacesConfig
from vbreg.training.ready_places import MIN_OVERLAP, prepared

MAX_PAIRS = 24  # that are registered
MAX_ROTATION = 15.0  # degrees that a pose which counts as found may be off
MAX_TRANSLATION = 6.0  # voxels: 30 cm in a room
DRAWS = 2000  # of the bootstrap over pairs


@dataclass(frozen=True)
class DescriptorScore:
    """What a descriptor does on some pairs."""

    right: tuple[float, ...]  # share of right matches, of each pair
    found: tuple[bool, ...]  # whether its pose is right


@dataclass(frozen=True)
class Comparison:
    """What two descriptors do on the same pairs."""

    before: DescriptorScore
    after: DescriptorScore

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % bootstrap interval of how much larger the share of right matches became."""
        gain = np.subtract(self.after.right, self.before.right)
        rows = np.random.default_rng(0).integers(len(gain), size=(DRAWS, len(gain)))
        low, high = np.quantile(gain[rows].mean(axis=1), (0.025, 0.975))
        return float(low), float(high)

    @property
    def better(self) -> bool:
        """Whether more matches are right beyond chance, and no fewer poses."""
        return self.interval[0] > 0 and sum(self.after.found) >= sum(self.before.found)


def held_out_pairs(places: PlacesConfig, *, quiet: bool = True) -> list[tuple[Pair, Scale]]:
    """Return at most MAX_PAIRS pairs of places that are only looked at, each with its scale.

    Meshes are scanned for them first; progress goes to stderr unless `quiet`.
    """
    found = list(_scanned(places) if FRAGMENTS in places.kinds else _simulated(places, quiet))
    if not found:
        raise VBRegError(f"no pairs that overlap in {places.fragments or places.meshes}: add scans")
    rows = np.linspace(0, len(found) - 1, min(MAX_PAIRS, len(found))).astype(int)
    return [found[row] for row in rows]


def _scanned(places: PlacesConfig) -> Iterator[tuple[Pair, Scale]]:
    scale = Scale.of_preset("indoor") if places.voxel_size is None else Scale(places.voxel_size)
    assert places.fragments is not None
    for poses in sorted(places.fragments.glob("*/poses.txt")):
        for pair in posed_pairs(poses.parent, MIN_OVERLAP, radius=1.5 * scale.voxel_size):
            yield pair, scale


def _simulated(places: PlacesConfig, quiet: bool) -> Iterator[tuple[Pair, Scale]]:
    maker = PlaceMaker(places, prepared, HELD_OUT)
    with progress(quiet) as tell:
        for k in tell.track(range(places.held_out), "scanning meshes"):
            kind, _, scans, scale = maker.scans(k)
            for i, j in combinations(range(len(scans)), 2):
                T = inverse_pose(scans[j].T_world_scan) @ scans[i].T_world_scan
                x, y = scans[i].points, scans[j].points
                some, all_of_them = torch.from_numpy(x[:: 1 + len(x) // 1000]), torch.from_numpy(y)
                shared = overlap(some, all_of_them, torch.from_numpy(T), 1.5 * scale.voxel_size)
                if shared >= MIN_OVERLAP:
                    yield Pair(f"{kind}-{k}/{i}-{j}", x, y, T, shared, f"{kind}-{k}", (i, j)), scale


def compare_descriptors(
    pairs: Sequence[tuple[Pair, Scale]],
    before: DescriptorChoice,
    after: DescriptorChoice | Path,
    *,
    device: torch.device | str = "cpu",
    quiet: bool = True,
) -> Comparison:
    """Register pairs with two descriptors and the same network behind them.

    Progress goes to stderr unless `quiet`.
    """
    model = VBReg.from_pretrained(device=device)
    with progress(quiet) as tell:
        scores = [
            score_descriptor(tell.track(pairs, title), each, model)
            for title, each in (("shipped", before), ("trained", after))
        ]
    return Comparison(scores[0], scores[1])


def score_descriptor(
    pairs: Iterable[tuple[Pair, Scale]], descriptor: DescriptorChoice, model: VBReg
) -> DescriptorScore:
    """Return what a descriptor does on pairs, as `register` uses it."""
    right, found = [], []
    for pair, scale in pairs:
        ends = [
            describe(cloud, scale, descriptor=descriptor, device=model.device)
            for cloud in (pair.source, pair.target)
        ]
        matched = match_clouds(ends[0], ends[1], scale)
        T = torch.from_numpy(pair.T_target_source)
        matches = matched.correspondences
        source, target = (torch.from_numpy(x) for x in (matches.source, matches.target))
        right.append(
            float(right_matches(source, target, T, scale.inlier_threshold).double().mean())
        )
        pose = torch.from_numpy(model.solve(matched).T_target_source)
        error = pose_error(pose, T)
        limit = MAX_TRANSLATION * scale.voxel_size
        found.append(bool(error.success(MAX_ROTATION, limit)))
    return DescriptorScore(tuple(right), tuple(found))
