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

from vbreg import backends
from vbreg.backends.plain import Backend
from vbreg.compatibility import distances, row_chunks
from vbreg.estimation import (
    POWER_ITERATIONS,
    Estimate,
    inlier_score,
    refine,
    squared_residuals,
)
from vbreg.frames import Matches
from vbreg.geometry import procrustes
from vbreg.methods.interface import Problem
from vbreg.timing import Stopwatch
from vbreg.types import BackendUsed, Bool, Float64, Registration
from vbreg.voting import HypotheticalInliers

MAX_HELD_BYTES = 2**29  # an n x n map is kept whole up to here (n = 11,500), else computed anew
EXTERNAL: BackendUsed = "external"  # the backend of methods that other libraries compute


@dataclass(frozen=True, eq=False)
class Task:
    """A problem made ready for a device: matches, centred, in units of the inlier threshold."""

    problem: Problem
    device: torch.device
    backend: Backend
    generator: torch.Generator  # on the CPU, so that every device draws the same

    @staticmethod
    def of(problem: Problem, device: torch.device, backend: Backend) -> Task:
        """Make a problem ready for a device and its backend."""
        return Task(problem, device, backend, torch.Generator().manual_seed(problem.seed))

    @property
    def matches(self) -> Matches:
        """The matches as they were given."""
        return self.problem.matches

    @cached_property
    def source(self) -> Tensor:
        """The source ends (1, n, 3) float32, on the device."""
        return self.matches.source.to(self.device, torch.float32)

    @cached_property
    def target(self) -> Tensor:
        """The target ends (1, n, 3) float32, on the device."""
        return self.matches.target.to(self.device, torch.float32)

    @cached_property
    def mask(self) -> Tensor:
        """Ones (1, n): every match is real."""
        return self.matches.mask.to(self.device)

    def exact(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return source, target (1, n, 3) float64 and mask, on the CPU."""
        return self.matches.source.cpu(), self.matches.target.cpu(), self.matches.mask.cpu()

    def __len__(self) -> int:
        return len(self.matches)

    def scores(self, T: Tensor, gain: Callable[[Tensor], Tensor]) -> Tensor:
        """Return (1, K): the mean over the matches of the gain of their squared residuals."""
        return self.backend.inlier_score(T, self.source, self.target, self.mask, gain)

    def fitted(self, sets: Tensor) -> tuple[Tensor, Tensor]:
        """Fit a pose to each set (K, m) of matches, all alike -> T (1, K, 4, 4), sound (1, K)."""
        whole = torch.ones_like(sets, dtype=torch.bool).unsqueeze(0)
        members = HypotheticalInliers(sets.unsqueeze(0), whole)
        weights = whole.to(self.source.dtype)
        return self.backend.hypotheses(self.source, self.target, members, weights)

    def refined(self, estimate: Estimate) -> Estimate:
        """Fit to all inliers, re-weighted, in float64, until the pose settles."""
        return refine(_exactly(estimate), *self.exact())

    def least_squares(self, estimate: Estimate) -> Estimate:
        """Fit once, unweighted, to all inliers of the estimate, in float64."""
        T, determined = _exactly(estimate)
        source, target, _ = self.exact()
        near = squared_residuals(T, source, target) < 1.0
        T_near, sound = procrustes(source, target, near.to(source.dtype))
        return Estimate(torch.where(sound[:, None, None], T_near, T), determined & sound)


class Answer(NamedTuple):
    """What a method finds."""

    estimate: Estimate  # a batch of one, in the frame and unit of the task
    confidence: Tensor | None = None  # (n,) in 0..1, where the method has one of its own


@dataclass(frozen=True)
class LocalMethod:
    """A method made of what it does in a local frame."""

    solve: Callable[[Task], Answer]
    device: torch.device
    external: bool = False  # another library computes it

    def __call__(self, problem: Problem) -> Registration:
        clock = Stopwatch()
        with clock("estimate"), torch.inference_mode():
            if self.external:  # what fails there is no fault of a backend
                (task, answer), backend = (
                    self._solved(problem, backends.choose(self.device)),
                    EXTERNAL,
                )
            else:
                (task, answer), backend = backends.run(
                    lambda backend: self._solved(problem, backend), self.device
                )
        return finish(task, answer, clock.seconds, backend)

    def _solved(self, problem: Problem, backend: Backend) -> tuple[Task, Answer]:
        task = Task.of(problem, self.device, backend)
        return task, self.solve(task)


@torch.inference_mode()
def finish(
    task: Task, answer: Answer, timings: dict[str, float], backend: BackendUsed
) -> Registration:
    """Return the answer in the user's frames, with the evidence that all methods report.

    A pose is determined where the method says so and its inliers fix all six degrees of freedom.
    """
    problem = task.problem
    T, determined = _exactly(answer.estimate)
    source, target, real = task.exact()
    d2 = squared_residuals(T, source, target)  # (1, n)
    inliers = d2 < 1.0
    _, sound = procrustes(source, target, inliers.to(source.dtype))
    confidence = inliers[0].float() if answer.confidence is None else answer.confidence
    all_inliers = np.zeros(len(problem.valid), dtype=bool)
    all_inliers[problem.valid] = inliers[0].numpy()
    all_confidence = np.zeros(len(problem.valid), dtype=np.float32)
    all_confidence[problem.valid] = confidence.float().cpu().numpy()
    matched = problem.matched
    rmse = float(d2[inliers].mean().sqrt()) if bool(inliers.any()) else 0.0
    return Registration(
        T_target_source=task.matches.to_user(T)[0],
        correspondences=problem.correspondences,
        inliers=all_inliers,
        confidence=all_confidence,
        score=float(inlier_score(T.unsqueeze(1), source, target, real)),
        inlier_rmse=rmse * problem.inlier_threshold,
        fixed=bool(determined & sound),
        inlier_threshold=problem.inlier_threshold,
        matches_found=len(problem.valid) if matched is None else matched.matches_found,
        backend=backend,
        voxel_size=None if matched is None else matched.scale.voxel_size,
        timings=timings,
    )


def undetermined() -> Estimate:
    """Return a pose for matches that fix none: it brings the origins together, unturned."""
    return Estimate(torch.eye(4, dtype=torch.float64).unsqueeze(0), torch.zeros(1).bool())


def pose(R: Float64, t: Float64, *, found: bool = True) -> Estimate:
    """Return an estimate from what another library gives, R (3, 3) and t (3,)."""
    T = np.eye(4)
    T[:3, :3], T[:3, 3] = R, np.asarray(t).reshape(3)
    if not (found and np.isfinite(T).all()):
        return undetermined()
    return Estimate(torch.from_numpy(T).unsqueeze(0), torch.ones(1).bool())


def pose_between_scans(task: Task, R: Float64, t: Float64, *, found: bool = True) -> Estimate:
    """Return an estimate from R (3, 3) and t (3,) between the scans as they were given."""
    source, target = (origin[0] for origin in task.matches.origins)
    return pose(R, (t + R @ source - target) / task.matches.unit, found=found)


def leading_eigenvector(task: Task, diagonal: float) -> Tensor:
    """Return (n,) of the matrix beta of the matches, largest entry 1, by power iteration.

    `diagonal` stands for how far a match supports itself.
    """
    source, target, n = task.source[0], task.target[0], len(task)

    def beta(rows: slice) -> Tensor:
        block = task.backend.compatibility(source[rows], target[rows], source, target)
        block.diagonal(rows.start).fill_(diagonal)
        return block

    chunks = list(row_chunks(n, n, maps=3))
    held = [beta(rows) for rows in chunks] if 4 * n * n <= MAX_HELD_BYTES else None
    w = source.new_ones(n)
    for _ in range(POWER_ITERATIONS):
        w = torch.cat([block @ w for block in held or map(beta, chunks)])
        w = w / w.max().clamp_min(torch.finfo(w.dtype).tiny)
    return w


def is_inlier(d2: Tensor) -> Tensor:
    """Return the gain whose mean is the share of inliers."""
    return (d2 < 1.0).to(d2.dtype)


def compatible(source: Tensor, target: Tensor, within: float) -> Bool:
    """Tell (n, n) which pairs of matches (n, 3) differ in distance by at most `within`."""
    n = len(source)
    pairs = np.empty((n, n), dtype=bool)
    for rows in row_chunks(n, n, maps=3):
        gap = distances(source[rows], source) - distances(target[rows], target)
        pairs[rows] = (gap.abs_() <= within).cpu().numpy()
    np.fill_diagonal(pairs, False)
    return pairs


def _exactly(estimate: Estimate) -> Estimate:
    return Estimate(estimate.T.double().cpu(), estimate.determined.cpu())
