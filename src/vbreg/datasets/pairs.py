"""Every data set gives pairs of clouds with a known pose, read when they are asked for."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, overload

import numpy as np
import torch

from vbreg.errors import VBRegError
from vbreg.geometry import random_rotation
from vbreg.types import Float32, Float64


@dataclass(frozen=True, eq=False)
class Pair:
    """This holds two clouds of one scene and the true pose between them.

    With `descriptors`, row n of each describes point n of `source` and of `target`: the clouds then
    are the described points and not the whole scans.
    """

    name: str  # unique in its data set, the same in every layout: <scene>/<i>-<j>
    source: Float64  # (N, 3)
    target: Float64  # (M, 3)
    T_target_source: Float64  # (4, 4)
    overlap: float | None = None  # share of a view that both see, as the data set has it
    scene: str = ""  # empty where the data set has none
    ids: tuple[int, int] | None = None  # of the source and the target in their scene
    descriptors: tuple[Float32, Float32] | None = None  # (N, D), (M, D)
    scores: tuple[Float32, Float32] | None = None  # (N,), (M,): keypoints worth sampling (Predator)
    # (6, 6) of gt.info. It goes with gt.log, which maps the target into the source: the protocol's
    # error is that of T_target_source @ inverse_pose(estimate).
    information: Float64 | None = None

    @property
    def consecutive(self) -> bool:
        """Tell whether the scans are neighbours, which the protocol with `information` skips."""
        return self.ids is not None and abs(self.ids[1] - self.ids[0]) <= 1


class PairEntry(NamedTuple):
    """This is what is known of a pair before its clouds are read."""

    name: str
    scene: str
    load: Callable[[], Pair]


def turned(pair: Pair) -> Pair:
    """Return the pair with each cloud turned about its origin by chance, the same in every call."""
    ends = zip((pair.source, pair.target), pair.ids or (0, 1), strict=True)
    clouds, turns = [], []
    for cloud, number in ends:
        name = f"{pair.scene}/{number}" if pair.ids else f"{pair.name}/{number}"
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        turn = np.eye(4)
        turn[:3, :3] = random_rotation(generator=generator, dtype=torch.float64).numpy()
        clouds.append(cloud @ turn[:3, :3].T)
        turns.append(turn)
    T = turns[1] @ pair.T_target_source @ turns[0].T
    return replace(pair, source=clouds[0], target=clouds[1], T_target_source=T, information=None)


def _turned_entry(entry: PairEntry) -> Pair:
    return turned(entry.load())


class PairSequence(Sequence[Pair]):
    """This gives names now and clouds later: `names[k]` is free, `self[k]` reads two files."""

    def __init__(self, entries: Iterable[PairEntry]) -> None:
        self._entries = tuple(entries)
        self.names: tuple[str, ...] = tuple(entry.name for entry in self._entries)
        self.scenes: tuple[str, ...] = tuple(entry.scene for entry in self._entries)  # of each pair

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, index: int) -> Pair: ...
    @overload
    def __getitem__(self, index: slice) -> PairSequence: ...
    def __getitem__(self, index: int | slice) -> Pair | PairSequence:
        if isinstance(index, slice):
            return PairSequence(self._entries[index])
        return self._entries[index].load()

    def turned(self) -> PairSequence:
        """Return the same pairs with every cloud turned by chance."""
        return PairSequence(
            entry._replace(load=partial(_turned_entry, entry)) for entry in self._entries
        )

    def select(
        self,
        *,
        limit: int | None = None,
        every: int = 1,
        scenes: Collection[str] | None = None,
    ) -> PairSequence:
        """Keep the pairs of `scenes`, of these every n-th, of these the first `limit`.

        No cloud is read.
        """
        if every < 1 or (limit is not None and limit < 0):
            raise VBRegError(f"every is {every}, limit {limit}: expected 1 or more, and 0 or more")
        known = dict.fromkeys(self.scenes)  # in their order
        if unknown := sorted(set(scenes or ()) - set(known)):
            raise VBRegError(f"no pairs of the scenes {unknown}; choose from {list(known)}")
        entries = [entry for entry in self._entries if scenes is None or entry.scene in scenes]
        return PairSequence(entries[::every][:limit])
