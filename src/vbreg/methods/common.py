"""What the methods share: the way in, the way out, and the small steps that several of them take.

A method is written as a function of a `Task`, where lengths are in units of the inlier threshold
and both clouds are centred; `LocalMethod` makes it one of the user's points.
Shapes: n usable matches, K hypotheses; a leading 1 where batched functions are reused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vbreg.compatibility import distances, row_chunks, spatial_compatibility
from vbreg.estimation import Estimate, inlier_score, refine, squared_residuals
from vbreg.frames import MatchProblem, usable_rows
from vbreg.geometry import procrustes
from vbreg.methods.interface import Problem
from vbreg.timing import Stopwatch
from vbreg.types import Bool, Float64, Registration

HELD_BYTES = 2**29  # an n x n map is kept whole up to here (n = 11,500), else computed anew
POWER_ITERATIONS = 10


@dataclass(frozen=True, eq=False)
class Task:
    """A problem made ready: its finite matches, centred, in units of the inlier threshold."""

    problem: Problem
    usable: Bool  # (N,) which matches of the problem these are
    matches: MatchProblem  # a batch of one
    device: torch.device
    generator: torch.Generator  # on the CPU, so that every device draws the same

    @staticmethod
    def of(problem: Problem, device: torch.device) -> Task:
        source, target = (
            np.asarray(points, dtype=np.float64)
            for points in (problem.correspondences.source, problem.correspondences.target)
        )
        usable = usable_rows(source, target, None)
        rows = np.ones(int(usable.sum()), dtype=bool)
        matches = MatchProblem.of(source[usable], target[usable], rows, problem.inlier_threshold)
        generator = torch.Generator().manual_seed(problem.seed)
        return Task(problem, usable, matches, device, generator)

    @cached_property
    def source(self) -> Tensor:  # (1, n, 3) float32, on the device
        return self.matches.local.source.to(self.device, torch.float32)

    @cached_property
    def target(self) -> Tensor:
        return self.matches.local.target.to(self.device, torch.float32)

    @cached_property
    def mask(self) -> Tensor:  # (1, n), all True
        return self.matches.local.mask.to(self.device)

    def exact(self) -> tuple[Tensor, Tensor, Tensor]:
        """Source, target (1, n, 3) float64 and mask, on the CPU."""
        source, target, mask, _ = self.matches.local
        return source, target, mask

    def __len__(self) -> int:
        return int(self.usable.sum())

    def refined(self, estimate: Estimate) -> Estimate:
        """Re-weighted least squares on all inliers, in float64, until the pose settles."""
        return refine(_exactly(estimate), *self.exact())

    def least_squares(self, estimate: Estimate) -> Estimate:
        """Once, unweighted, on all inliers of the estimate, in float64."""
        T, determined = _exactly(estimate)
        source, target, _ = self.exact()
        near = squared_residuals(T, source, target) < 1.0
        T_near, sound = procrustes(source, target, near.to(source.dtype))
        return Estimate(torch.where(sound[:, None, None], T_near, T), determined & sound)


class Answer(NamedTuple):
    estimate: Estimate  # a batch of one, in the frame and unit of the task
    confidence: Tensor | None = None  # (n,) in 0..1, where the method has one of its own


@dataclass(frozen=True)
class LocalMethod:
    """A Method made of what it does in a local frame."""

    solve: Callable[[Task], Answer]
    device: torch.device

    def __call__(self, problem: Problem) -> Registration:
        clock = Stopwatch(None)
        with clock("estimate"), torch.inference_mode():
            task = Task.of(problem, self.device)
            answer = self.solve(task)
        return finish(task, answer, clock.seconds)


@torch.inference_mode()
def finish(task: Task, answer: Answer, timings: dict[str, float]) -> Registration:
    """The answer in the frame of the user's points, with the evidence that all methods report.

    A pose is determined where the method says so and its inliers fix all six degrees of freedom.
    """
    T, determined = _exactly(answer.estimate)
    source, target, real = task.exact()
    inliers = squared_residuals(T, source, target) < 1.0  # (1, n)
    _, sound = procrustes(source, target, inliers.to(source.dtype))
    confidence = inliers[0].float() if answer.confidence is None else answer.confidence
    all_inliers = np.zeros(len(task.usable), dtype=bool)
    all_inliers[task.usable] = inliers[0].numpy()
    all_confidence = np.zeros(len(task.usable), dtype=np.float32)
    all_confidence[task.usable] = confidence.float().cpu().numpy()
    return Registration(
        T_target_source=task.matches.to_global(T)[0],
        correspondences=task.problem.correspondences,
        inliers=all_inliers,
        confidence=all_confidence,
        score=inlier_score(T.unsqueeze(1), source, target, real)[0, 0].numpy(),
        determined=(determined & sound)[0].numpy(),
        inlier_threshold=task.problem.inlier_threshold,
        matches_found=len(task.problem.correspondences),
        timings=timings,
    )


def undetermined() -> Estimate:
    """For matches that fix no pose: the centres are brought together, unturned."""
    return Estimate(torch.eye(4, dtype=torch.float64).unsqueeze(0), torch.zeros(1).bool())


def pose(R: Float64, t: Float64, *, found: bool = True) -> Estimate:
    """An estimate from what another library gives, R (3, 3) and t (3,)."""
    T = np.eye(4)
    T[:3, :3], T[:3, 3] = R, np.asarray(t).reshape(3)
    if not (found and np.isfinite(T).all()):
        return undetermined()
    return Estimate(torch.from_numpy(T).unsqueeze(0), torch.ones(1).bool())


def leading_eigenvector(source: Tensor, target: Tensor, diagonal: float) -> Tensor:
    """(n,), largest entry 1: of the matrix beta of n matches (n, 3), by power iteration from ones.

    `diagonal` stands for how far a match supports itself.
    """
    n = len(source)

    def beta(rows: slice) -> Tensor:
        block = spatial_compatibility(source[rows], target[rows], source, target)
        block.diagonal(rows.start).fill_(diagonal)
        return block

    chunks = list(row_chunks(n, n, maps=3))
    held = [beta(rows) for rows in chunks] if 4 * n * n <= HELD_BYTES else None
    w = source.new_ones(n)
    for _ in range(POWER_ITERATIONS):
        w = torch.cat([block @ w for block in held or map(beta, chunks)])
        w = w / w.max().clamp_min(torch.finfo(w.dtype).tiny)
    return w


def consensus(
    T: Tensor, source: Tensor, target: Tensor, gain: Callable[[Tensor], Tensor]
) -> Tensor:
    """(1, K): mean over the matches (1, n, 3) of the gain of their squared residual under T."""
    K, n = T.shape[1], source.shape[1]
    scores = source.new_empty(1, K)
    for rows in row_chunks(K, n, maps=8):
        d2 = squared_residuals(T[:, rows], source.unsqueeze(1), target.unsqueeze(1))  # (1, k, n)
        scores[:, rows] = gain(d2).mean(-1)
    return scores


def is_inlier(d2: Tensor) -> Tensor:
    """The gain of which the mean is the share of inliers."""
    return (d2 < 1.0).to(d2.dtype)


def compatible(source: Tensor, target: Tensor, within: float) -> Bool:
    """(n, n): pairs of matches (n, 3) whose distance differs by at most `within`; no diagonal."""
    n = len(source)
    pairs = np.empty((n, n), dtype=bool)
    for rows in row_chunks(n, n, maps=3):
        gap = distances(source[rows], source) - distances(target[rows], target)
        pairs[rows] = (gap.abs_() <= within).cpu().numpy()
    np.fill_diagonal(pairs, False)
    return pairs


def _exactly(estimate: Estimate) -> Estimate:
    return Estimate(estimate.T.double().cpu(), estimate.determined.cpu())
