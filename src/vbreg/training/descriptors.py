"""FPFH of the clouds behind match sets, for a network that sees descriptors.

Shards keep points and matches alone, so descriptors are computed again from the stored points, once
for each cloud. A source of many points was thinned after it had been described; it is described
where all its points are, in the cloud that the same shard keeps as another set's target.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor

from vbreg.datasets.matches import MAX_MATCHES, MatchSet
from vbreg.matching import describe_points
from vbreg.scale import Scale
from vbreg.types import Float32, Int64


@dataclass(frozen=True, eq=False)
class FpfhSet(MatchSet):
    """A set that FPFH alone matched: point n of the source is `source_cloud[source_index[n]]`."""

    source_cloud: Float32 = field(kw_only=True)  # (M, 3)
    source_index: Int64 = field(kw_only=True)  # (N,)


def fpfh_sets(shard: Sequence[MatchSet]) -> list[FpfhSet]:
    """Choose the sets that FPFH alone matched, less the few whose whole source is not kept."""
    sets = list(shard)
    targets = {id(s.target_cloud): s.target_cloud for s in sets}
    chosen = [s for s in sets if s.matched_by_fpfh]
    sources = {id(s.source): s.source for s in chosen}
    found = {key: _whole(source, targets) for key, source in sources.items()}
    return [_with_source(s, *whole) for s in chosen if (whole := found[id(s.source)])]


def _whole(source: Float32, targets: dict[int, Float32]) -> tuple[Float32, Int64] | None:
    """Find the cloud in which `source` was described, and the rows of it that were kept."""
    if id(source) in targets or len(source) < MAX_MATCHES:
        return source, np.arange(len(source))
    for cloud in targets.values():
        distance, rows = cKDTree(cloud).query(source)
        if not np.any(distance):
            return cloud, np.asarray(rows, dtype=np.int64)
    return None


def _with_source(match_set: MatchSet, cloud: Float32, index: Int64) -> FpfhSet:
    values: dict[str, Any] = {f.name: getattr(match_set, f.name) for f in fields(MatchSet)}
    return FpfhSet(**values, source_cloud=cloud, source_index=index)


def clouds_of(sets: Iterable[MatchSet]) -> list[tuple[Float32, Scale]]:
    """List every cloud behind the sets once, with its scale."""
    known = {
        id(cloud): (cloud, Scale.of_threshold(s.inlier_threshold))
        for s in map(_described, sets)
        for cloud in (s.source_cloud, s.target_cloud)
    }
    return list(known.values())


class CloudDescriptors:
    """Holds FPFH of all clouds in one tensor on the device, in half precision: 66 bytes a point."""

    def __init__(self, clouds: Iterable[tuple[Float32, Scale]], device: torch.device) -> None:
        self.first: dict[int, int] = {}  # row of the table at which a cloud begins
        tables, size = [], 0
        for cloud, scale in clouds:
            self.first[id(cloud)], size = size, size + len(cloud)
            points = torch.tensor(cloud, device=device)
            tables.append(
                describe_points(points, np.zeros(3), scale, descriptor="fpfh").descriptors.half()
            )
        self.table = torch.cat(tables)  # (P, 33)

    def ends(self, match_set: MatchSet) -> Tensor:
        """Return (N, 2): rows of the table for source and target of each match, on the CPU."""
        s = _described(match_set)
        source = self.first[id(s.source_cloud)] + s.source_index
        target = self.first[id(s.target_cloud)] + s.target_index
        return torch.from_numpy(np.stack([source, target], axis=-1))

    def of(self, match_set: MatchSet) -> tuple[Tensor, Tensor]:
        """Return (N, 33) of source and of target, row by row with the matches."""
        source, target = self.ends(match_set).to(self.table.device).unbind(-1)
        return self.table[source], self.table[target]


def _described(match_set: MatchSet) -> FpfhSet:
    assert isinstance(match_set, FpfhSet), "descriptors are known for sets that `fpfh_sets` chose"
    return match_set
