"""Matches in, pose out, as tensors on one device: network, votes, hypotheses, refinement.

Nothing here waits for the device, so that a GPU can record the whole once and play it back. Shapes:
B problems, N correspondences.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from threading import Lock
from typing import NamedTuple

import torch
from torch import Tensor

from vbreg import kernels
from vbreg.estimation import (
    Estimate,
    best_hypothesis,
    crowd_weights,
    hypotheses,
    inlier_score,
    refine,
    spectral_weights,
    squared_residuals,
)
from vbreg.network import NetworkOutput, VariationalNonLocalNetwork
from vbreg.voting import HypotheticalInliers, Seeds, VotingConfig, seed_count, select_seeds, vote

Clock = Callable[[str], AbstractContextManager[None]]


class Matches(NamedTuple):
    """Lengths are in units of the inlier threshold, about the middle of each cloud."""

    source: Tensor  # (B, N, 3) float64
    target: Tensor  # (B, N, 3) float64
    mask: Tensor  # (B, N) True for real rows
    descriptors: Tensor | None = None  # (B, N, 2 D)

    def map(self, change: Callable[[Tensor], Tensor]) -> Matches:
        described = None if self.descriptors is None else change(self.descriptors)
        return Matches(change(self.source), change(self.target), change(self.mask), described)


class Solution(NamedTuple):
    T: Tensor  # (B, 4, 4) float64
    determined: Tensor  # (B,)
    inliers: Tensor  # (B, N)
    score: Tensor  # (B,) float64
    confidence: Tensor  # (B, N) float32
    voted: Tensor  # (B,) False where the votes gave no hypothesis


@dataclass(frozen=True, eq=False)
class Solver:
    """Sections 3.2 to 3.4 of the paper."""

    network: VariationalNonLocalNetwork
    voting: VotingConfig

    def __call__(
        self,
        matches: Matches,
        *,
        whole: bool = False,  # every row is real
        most_seeds: int | None = None,  # where known, so that the device need not be asked
        geometry_alone: bool = False,  # votes without features
        generator: torch.Generator | None = None,  # samples latent features
        clock: Clock = lambda stage: nullcontext(),
    ) -> Solution:
        source, target = self.lowered(matches)
        mask, sigma = matches.mask, self.network.sigma
        with clock("network"):
            output = self.run_network(matches, whole=whole, generator=generator)
        with clock("vote"):
            if geometry_alone:
                alike = torch.ones_like(output.features[-1])
                output = output._replace(features=(alike,), attention=())
            seeds, members = self.search(output, matches, most_seeds)
        with clock("estimate"):
            weights = spectral_weights(output.features[-1], source, target, members, sigma)
            T, sound = hypotheses(source, target, members, weights)
            score = inlier_score(T, source, target, crowd_weights(source, target, mask))
            found = best_hypothesis(T, sound & seeds.valid, score)
        with clock("refine"):
            exact = matches.source, matches.target
            estimate = refine(Estimate(found.T.double(), found.determined), *exact, mask)
            return Solution(
                estimate.T,
                estimate.determined,
                (squared_residuals(estimate.T, *exact) < 1.0) & mask,
                inlier_score(estimate.T.unsqueeze(1), *exact, mask).squeeze(1),
                output.logits.float().sigmoid() * mask,
                found.determined,
            )

    def lowered(self, matches: Matches) -> tuple[Tensor, Tensor]:
        """Both ends in the precision of the network."""
        dtype = next(self.network.parameters()).dtype
        return matches.source.to(dtype), matches.target.to(dtype)

    def run_network(
        self, matches: Matches, *, whole: bool, generator: torch.Generator | None = None
    ) -> NetworkOutput:
        with kernels.tensor_cores(matches.mask.device):
            output: NetworkOutput = self.network(
                *self.lowered(matches),
                mask=None if whole else matches.mask,
                descriptors=matches.descriptors,
                generator=generator,
                keep_attention=self.voting.attention_voters,
            )
        return output

    def search(
        self, output: NetworkOutput, matches: Matches, most_seeds: int | None = None
    ) -> tuple[Seeds, HypotheticalInliers]:
        """Seeds, and the matches that are voted to go with each."""
        source, target = self.lowered(matches)
        seeds = select_seeds(output.logits, source, matches.mask, self.voting, most_seeds)
        members = vote(
            output.features,
            source,
            target,
            seeds,
            matches.mask,
            sigma=self.network.sigma,
            config=self.voting,
            attention=output.attention,
        )
        return seeds, members


def on_cpu(solution: Solution) -> Solution:
    moved = Solution(*(part.to("cpu", non_blocking=True) for part in solution))
    if solution.T.is_cuda:
        torch.cuda.current_stream(solution.T.device).synchronize()
    return moved


LONGEST = 8192  # correspondences of a recording; beyond, a GPU is busy without one
WIDEST = 2**17  # of all problems of a recording together
MOST_RECORDINGS = 32


def bucket(n: int) -> int:
    """The number of rows that n are padded to, at most an eighth more from 1024 on."""
    step = 128 if n <= 1024 else 256 if n <= 4096 else 512
    return -(-n // step) * step


class Recording(NamedTuple):
    graph: torch.cuda.CUDAGraph
    inputs: Matches
    output: Solution
    weights: object  # that the graph reads and that nobody else may hold by then


class Recorded:
    """A solver whose work is recorded once for every bucket and then replayed by the GPU alone.

    Recordings share their memory, since they never run together.
    """

    def __init__(self, solver: Solver, device: torch.device) -> None:
        self.solver, self.device = solver, device
        self.recordings: dict[tuple[int, ...], Recording] = {}
        self.pool = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream(device)
        self.lock = Lock()

    @staticmethod
    def takes(problems: int, n: int) -> bool:
        return n <= LONGEST and problems * n <= WIDEST

    def __call__(self, matches: Matches) -> Solution:
        """Of matches on any device, on the CPU; one thread at a time."""
        B, N = matches.mask.shape
        key = B, bucket(N), *self.solver.network.state()
        with self.lock:
            if key not in self.recordings:
                if len(self.recordings) >= MOST_RECORDINGS:
                    self.recordings.pop(next(iter(self.recordings)))
                self.recordings[key] = self._record(matches, *key[:2])
            graph, inputs, output, _ = self.recordings[key]
            self._fill(inputs, matches)
            graph.replay()
            found = on_cpu(output)
        return found._replace(inliers=found.inliers[:, :N], confidence=found.confidence[:, :N])

    def _fill(self, held: Matches, given: Matches) -> None:
        N = given.mask.shape[1]
        for a, b in zip(held, given, strict=True):
            if a is not None and b is not None:
                a[:, :N].copy_(b, non_blocking=True)
        held.mask[:, N:] = False

    def _record(self, matches: Matches, B: int, N: int) -> Recording:
        inputs = matches.map(
            lambda part: torch.zeros(B, N, *part.shape[2:], dtype=part.dtype, device=self.device)
        )
        self._fill(inputs, matches)
        most = int(seed_count(torch.tensor(N), self.solver.voting))
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            for _ in range(2):  # kernels are compiled, libraries set themselves up
                self.solver(inputs, most_seeds=most)
        torch.cuda.current_stream(self.device).wait_stream(self.stream)
        graph = torch.cuda.CUDAGraph()
        mode = "thread_local"  # other threads may go on with their own work
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode=mode):
            output = self.solver(inputs, most_seeds=most)
        return Recording(graph, inputs, output, self.solver.network._frozen)
