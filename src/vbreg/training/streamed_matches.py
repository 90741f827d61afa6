"""Batches of labelled matches from places that are made meanwhile.

Clouds arrive described; a batch draws pairs of them, matches keypoints of both as `register` does,
by the learned descriptor or by FPFH, and labels each match by the true pose.
Shapes: B pairs, n keypoints of a cloud, N matches of a pair.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vbreg.datasets.matches import MatchSet
from vbreg.geometry import apply, take_rows
from vbreg.matching import match
from vbreg.metrics import right_matches
from vbreg.training.batches import Batch, Sampler
from vbreg.training.config import DataConfig
from vbreg.training.places import HELD_OUT, PlaceMaker
from vbreg.training.ready_places import CloudPair, DescribedScan, ReadyPlace, described, to_tensors
from vbreg.training.stream import Stream

Kind = Literal["learned", "fpfh"]
KEYPOINTS: dict[Kind, tuple[int, ...]] = {"learned": (512, 1024, 2048), "fpfh": (1024, 2048, 4096)}
LEARNED_SHARE = 0.6  # of the batches; the others are matched by FPFH
MAX_SIMILARITIES = 2**30  # of a batch: 4 GB
THRESHOLD = 2.0  # voxels: the inlier threshold
LOW_OVERLAP, LOW_SHARE = 0.3, 0.5  # so many of the pairs overlap by less, if there are any
HELD_OUT_KEYPOINTS, HELD_OUT_PAIRS = 1000, 2  # of a place that is only looked at


class HeldPair(NamedTuple):
    """A pair at hand, and how readily it is drawn."""

    source: DescribedScan
    target: DescribedScan
    T_target_source: Tensor  # (4, 4) float32, in voxels, on the device
    weight: float


class StreamedMatches(Sampler):
    """Holds the places at hand on the device, and draws batches of their matches."""

    def __init__(
        self, config: DataConfig, device: torch.device, arriving: Stream[ReadyPlace[DescribedScan]]
    ) -> None:
        super().__init__(config, device)
        self.arriving = arriving
        self.places: deque[list[HeldPair]] = deque(maxlen=config.places_held)
        self.seen = 0
        while len(self.places) < config.places_first:
            self._take_in(arriving.take())
        self._list()

    def __len__(self) -> int:
        return self.seen

    def renew(self) -> None:
        """Take in what has arrived; the oldest places go where there are too many."""
        while (place := self.arriving.take_if_ready()) is not None:
            self._take_in(place)
            self._list()
            if self.arriving.pool is None:
                return

    def _take_in(self, place: ReadyPlace[DescribedScan]) -> None:
        self.seen += 1
        if place.pairs:
            self.places.append(list(self._held(to_tensors(place, self.device))))

    def _held(self, place: ReadyPlace[DescribedScan]) -> Iterator[HeldPair]:
        low = sum(pair.overlap < LOW_OVERLAP for pair in place.pairs)
        high = len(place.pairs) - low
        for pair in place.pairs:
            few = pair.overlap < LOW_OVERLAP
            share = (LOW_SHARE if few else 1 - LOW_SHARE) if low and high else 1.0
            T = torch.from_numpy(pair.T_target_source).to(self.device, torch.float32)
            source, target = (place.clouds[end] for end in (pair.source, pair.target))
            yield HeldPair(source, target, T, share / (low if few else high))

    def _list(self) -> None:
        """List all pairs at hand, their weights, and how many keypoints both clouds have."""
        self.pairs = [pair for place in self.places for pair in place]
        self.weights = np.array([pair.weight for pair in self.pairs])
        self.counts: dict[Kind, np.ndarray[tuple[int], np.dtype[np.int64]]] = {
            kind: np.array(
                [min(len(getattr(end, kind)) for end in pair[:2]) for pair in self.pairs]
            )
            for kind in KEYPOINTS
        }

    def draw_pairs(self, B: int, N: int, generator: torch.Generator) -> Batch:
        """Draw N matches of each of B pairs, all matched by the same kind of descriptor."""
        seed = int(torch.randint(2**62, (), generator=generator, device=self.device))
        choice = np.random.default_rng(seed)
        kind: Kind = "learned" if choice.random() < LEARNED_SHARE else "fpfh"
        sizes = [n for n in KEYPOINTS[kind] if n >= N and B * n * n <= MAX_SIMILARITIES]
        counts = self.counts[kind]
        n = min(int(choice.choice(sizes or [N])), int(counts.max()))
        weights = self.weights * (counts >= n)
        rows = choice.choice(len(self.pairs), B, p=weights / weights.sum())
        drawn = [self.pairs[row] for row in rows]
        ends = [self._keypoints([pair[k] for pair in drawn], kind, n, choice) for k in (0, 1)]
        T = torch.stack([pair.T_target_source for pair in drawn])
        return self._matched(ends[0], ends[1], T, kind, N, generator)

    def _keypoints(
        self, clouds: Sequence[DescribedScan], kind: Kind, n: int, choice: np.random.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return points (B, n, 3) and descriptors (B, n, D); clouds lie in an order of chance."""
        found = []
        for cloud in clouds:
            table = getattr(cloud, kind)
            first = int(choice.integers(len(table) - n + 1))
            found.append((cloud.points[first : first + n], table[first : first + n]))
        points, descriptors = (torch.stack(parts) for parts in zip(*found, strict=True))
        return points, descriptors

    def _matched(
        self,
        source: tuple[Tensor, Tensor],
        target: tuple[Tensor, Tensor],
        T: Tensor,
        kind: Kind,
        N: int,
        generator: torch.Generator,
    ) -> Batch:
        similarity = source[1] @ target[1].transpose(1, 2)  # (B, n, n)
        there, back = similarity.argmax(2), similarity.argmax(1)
        del similarity
        every = torch.arange(there.shape[1], device=self.device).expand_as(there)
        i, j, new = every, there, torch.ones_like(there, dtype=torch.bool)
        if kind == "learned":  # matched either way, each match once
            i, j = torch.cat([every, back], 1), torch.cat([there, every], 1)
            new = torch.cat([new, there.gather(1, back) != every], 1)
        x, y = (take_rows(end[0], rows) for end, rows in ((source, i), (target, j)))
        right = (apply(T, x) - y).norm(dim=-1) < THRESHOLD
        rows = self.choose(right, new, N, generator)
        ends = [take_rows(end, rows) for end in (x, y)]
        points = torch.stack(ends, dim=2) / THRESHOLD  # (B, N, 2, 3)
        kept = self.uniform(len(points), 1, 1, 1, generator=generator) < 0.5
        moved = self.move(torch.where(kept, points, points.flip(2)), generator)
        return Batch(*moved, right.gather(1, rows))


def open_streamed_matches(
    config: DataConfig, device: torch.device, seed: int, stack: ExitStack
) -> tuple[StreamedMatches, list[MatchSet]]:
    """Return matches of places that are made meanwhile, and match sets that are only looked at."""
    places = config.places
    assert places is not None
    with Stream(PlaceMaker(places, described, HELD_OUT), places.workers) as arriving:
        held_out = [s for _ in range(places.held_out) for s in held_out_sets(arriving.take())]
    maker = PlaceMaker(places, described, seed)
    arriving = stack.enter_context(Stream(maker, places.workers))
    return StreamedMatches(config, device, arriving), held_out


def held_out_sets(place: ReadyPlace[DescribedScan]) -> list[MatchSet]:
    """Return match sets of some pairs of a place, by the learned descriptor and by FPFH."""
    place = to_tensors(place, torch.device("cpu"))
    pairs = place.pairs[:: max(1, len(place.pairs) // HELD_OUT_PAIRS)][:HELD_OUT_PAIRS]
    return [_held_out_set(place, pair, kind) for pair in pairs for kind in KEYPOINTS]


def _held_out_set(place: ReadyPlace[DescribedScan], pair: CloudPair, kind: Kind) -> MatchSet:
    ends = [place.clouds[k] for k in (pair.source, pair.target)]
    tables = [getattr(end, kind)[:HELD_OUT_KEYPOINTS] for end in ends]
    i, j = match(*tables, matching="either-way" if kind == "learned" else "one-way")
    source, target = ends[0].points[i].double(), ends[1].points.double()
    T = torch.from_numpy(pair.T_target_source)
    return MatchSet(
        f"{place.kind} {kind}",
        source.float().numpy(),
        target.float().numpy(),
        j.numpy(),
        right_matches(source, target[j], T, THRESHOLD).numpy(),
        pair.T_target_source,
        pair.overlap,
        THRESHOLD,
    )
