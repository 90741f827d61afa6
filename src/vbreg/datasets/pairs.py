"""Every data set gives pairs of clouds with a known pose, read when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, overload

from vbreg.errors import VBRegError
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
