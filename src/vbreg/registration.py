"""The recipe: clouds -> descriptors -> matches -> network -> voting -> estimation -> pose.

The only room that knows all stages. Clouds are moved to a local frame once and stay there, lengths
are divided by the inlier threshold, and the pose comes back in float64 in the user's frames.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vbreg import backends, pretrained
from vbreg.backends import BackendName, devices
from vbreg.backends.plain import Backend
from vbreg.clouds import estimate_voxel_size
from vbreg.descriptors import Descriptor, DescriptorName
from vbreg.errors import VBRegError
from vbreg.frames import LocalCloud, Matches
from vbreg.inputs import (
    MIN_MATCHES,
    Cloud,
    Descriptors,
    Points,
    as_descriptors,
    as_matches,
    positive_number,
)
from vbreg.matching import MAX_CORRESPONDENCES, MatchedClouds, describe, evenly, match_clouds
from vbreg.network import VariationalNonLocalNetwork
from vbreg.pretrained import WeightsName
from vbreg.recording import RecordedSolver
from vbreg.scale import PresetName, Scale
from vbreg.solver import Solution, Solver, max_matches
from vbreg.timing import Stopwatch
from vbreg.types import Bool, Correspondences, Float32, Registration
from vbreg.voting import VotingConfig, seed_count


def register(
    source: Cloud,
    target: Cloud,
    *,
    voxel_size: float | None = None,
    preset: PresetName | None = None,
    weights: WeightsName | str | Path | None = None,
    model: VBReg | None = None,
    descriptor: DescriptorName | Descriptor = "fpfh",
    device: str | torch.device = "auto",
    mutual: bool = False,
    max_correspondences: int = MAX_CORRESPONDENCES,
    seed: int | None = None,
    on_stage: Callable[[str], None] | None = None,
) -> Registration:
    """Find the pose of `source` in the frame of `target`.

    Clouds are paths, arrays (N, 3), tensors, or objects with `.points`. `voxel_size` is the one
    scale that sets every radius; left out, it is the preset's ('indoor' 0.05 m, 'outdoor' 0.30 m)
    or, without a preset, estimated from the clouds. The result says what was chosen.

    `weights` are 'universal', 'fast' (a smaller network) or a file that `vbreg train` wrote; left
    out, 'fast' on a CPU and 'universal' on a GPU. A `model` given instead is used on its device.
    `descriptor` is 'fpfh' or a function of points (N, 3), normals (N, 3) and the `Scale` that gives
    (N, D) numbers. `mutual` keeps only matches that are nearest both ways; above
    `max_correspondences`, or what memory can hold, they are thinned evenly at random. `seed`
    samples the latent features instead of taking their mean. `on_stage` is told the name of each
    stage as it begins. The same call gives the same answer.
    """
    if not isinstance(max_correspondences, Integral) or max_correspondences < MIN_MATCHES:
        raise VBRegError(
            f"max_correspondences {max_correspondences!r}: expected a whole number from "
            f"{MIN_MATCHES} up"
        )
    clock = Stopwatch(on_stage)
    with clock("prepare"):
        clouds = LocalCloud.of(source, "source"), LocalCloud.of(target, "target")
    with clock("voxel size"):
        scale = _choose_scale(voxel_size, preset, *clouds)
    with clock("weights"):
        model = _choose_model(model, weights, device)
    described = [
        describe(cloud, scale, descriptor=descriptor, device=model.device, clock=clock)
        for cloud in clouds
    ]
    with clock("match"):
        matched = match_clouds(*described, scale, mutual=mutual, max_matches=max_correspondences)
    return model.solve(
        matched,
        seed=seed,
        clock=clock,
        voxel_size_estimated=voxel_size is None and preset is None,
        points_read=(clouds[0].count, clouds[1].count),
        points_dropped=(clouds[0].dropped, clouds[1].dropped),
    )


class VBReg:
    """The network and the search behind it: matches in, pose out."""

    def __init__(
        self,
        network: VariationalNonLocalNetwork,
        *,
        voting: VotingConfig | None = None,
        backend: BackendName = "auto",
    ) -> None:
        """Take a network on its device; the backend 'plain' is torch without quicker forms."""
        self.solver = Solver(network.eval(), voting or VotingConfig())
        self.backend: BackendName = backend
        self._recorded: dict[str, RecordedSolver] = {}  # by backend

    @classmethod
    def from_pretrained(
        cls,
        weights: WeightsName | str | Path = "universal",
        *,
        device: str | torch.device = "auto",
        backend: BackendName = "auto",
    ) -> VBReg:
        """Load 'universal', 'fast' (a smaller network), or the weights file at a path."""
        path = pretrained.weights_path(weights)
        network = pretrained.load_network(path).to(devices.choose_device(device))
        return cls(network, voting=pretrained.load_voting(path), backend=backend)

    @property
    def network(self) -> VariationalNonLocalNetwork:
        """The network that tells right matches from wrong ones."""
        return self.solver.network

    @property
    def voting(self) -> VotingConfig:
        """The settings of the search."""
        return self.solver.voting

    @property
    def device(self) -> torch.device:
        """The device that the network's weights are on."""
        return self.network.sigma.device

    def __repr__(self) -> str:
        config, count = self.network.config, sum(p.numel() for p in self.network.parameters())
        return (
            f"VBReg(L={config.iterations}, d={config.width}, {count / 1e6:.2f} M parameters, "
            f"{self.device})"
        )

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what a GPU has recorded, which is made anew where it is needed."""
        return {**vars(self), "_recorded": {}}

    def estimate(
        self,
        source_points: Points,  # (N, 3)
        target_points: Points,  # (N, 3), matched to source_points row by row
        *,
        inlier_threshold: float,
        descriptors: Descriptors | None = None,  # (N, D) each, with input `feat`
        seed: int | None = None,
    ) -> Registration:
        """Find the pose that the matches agree on.

        `inlier_threshold` is how far apart a right match may lie, in the unit of the points. Rows
        with a non-finite coordinate are never inliers. `descriptors` of the source and of the
        target points go row by row with the matches, for a network that was trained with them; only
        their direction counts. More matches than memory can hold are thinned evenly at random: the
        result then has the rows that are left, and their numbers as indices.
        """
        given = None if descriptors is None else [descriptors]
        return self.estimate_batch(
            [source_points],
            [target_points],
            inlier_threshold=inlier_threshold,
            descriptors=given,
            seed=seed,
        )[0]

    def estimate_batch(
        self,
        sources: Sequence[Points],  # (N_b, 3) each
        targets: Sequence[Points],
        *,
        inlier_threshold: float,
        descriptors: Sequence[Descriptors] | None = None,
        seed: int | None = None,
    ) -> list[Registration]:
        """Solve several problems at once, of any sizes; the results are those of `estimate`.

        With a `seed`, which latent features are sampled for a problem depends on the batch.
        """
        if len(sources) != len(targets) or not len(sources):
            raise VBRegError(
                f"{len(sources)} sources and {len(targets)} targets: expected one of each for "
                "every problem, and at least one"
            )
        if descriptors is not None and len(descriptors) != len(sources):
            raise VBRegError(f"{len(descriptors)} descriptors for {len(sources)} problems")
        unit = positive_number(inlier_threshold, "inlier_threshold")
        most = self._max_matches()
        given = [
            self._given(
                sources[b], targets[b], unit, None if descriptors is None else descriptors[b], most
            )
            for b in range(len(sources))
        ]
        clock = Stopwatch()
        solution, backend = self._run(
            Matches.batch([problem.matches for problem in given]), seed, clock, most
        )
        results = []
        for b, problem in enumerate(given):
            inliers, confidence = problem.spread(solution.inliers[b], solution.confidence[b])
            results.append(
                Registration(
                    T_target_source=problem.matches.to_user(solution.T[b : b + 1])[0],
                    correspondences=problem.correspondences,
                    inliers=inliers,
                    confidence=confidence,
                    score=float(solution.score[b]),
                    inlier_rmse=float(solution.rmse[b]) * unit,
                    determined=bool(solution.determined[b]),
                    inlier_threshold=unit,
                    matches_found=problem.found,
                    backend=backend,
                    memory_limited=len(problem.correspondences) < problem.found,
                    timings=clock.seconds,
                )
            )
        return results

    def solve(
        self,
        matched: MatchedClouds,
        *,
        seed: int | None = None,
        clock: Stopwatch | None = None,
        voxel_size_estimated: bool = False,
        points_read: tuple[int, int] | None = None,
        points_dropped: tuple[int, int] = (0, 0),
    ) -> Registration:
        """Find the pose of clouds that are matched already, as `register` does."""
        clock = clock or Stopwatch()
        most = self._max_matches()
        limited = len(matched.source_index) > most
        if limited:
            _warn_of_memory(len(matched.source_index), most)
            matched = matched.thinned(most)
        width = self.network.config.descriptor_width
        matches = matched.matches(with_descriptors=width > 0)
        if matches.descriptors is not None and matches.descriptors.shape[-1] != 2 * width:
            raise VBRegError(
                f"the descriptor has {matches.descriptors.shape[-1] // 2} columns: this network "
                f"takes {width}"
            )
        solution, backend = self._run(matches, seed, clock, most)
        return Registration(
            T_target_source=matches.to_user(solution.T)[0],
            correspondences=matched.correspondences(),
            inliers=solution.inliers[0].numpy(),
            confidence=solution.confidence[0].numpy(),
            score=float(solution.score[0]),
            inlier_rmse=float(solution.rmse[0]) * matches.unit,
            determined=bool(solution.determined[0]),
            inlier_threshold=matches.unit,
            matches_found=matched.matches_found,
            backend=backend,
            memory_limited=limited,
            voxel_size=matched.scale.voxel_size,
            voxel_size_estimated=voxel_size_estimated,
            points_read=points_read,
            points_dropped=points_dropped,
            timings=clock.seconds,
        )

    def _max_matches(self) -> int:
        return max_matches(self.network.config, devices.free_memory(self.device))

    def _given(
        self,
        source_points: Points,
        target_points: Points,
        unit: float,
        descriptors: Descriptors | None,
        most: int,
    ) -> _GivenMatches:
        """Check one problem of a user's, and thin what memory cannot hold."""
        source, target, valid = as_matches(source_points, target_points)
        width = self.network.config.descriptor_width
        described = as_descriptors(descriptors, valid, width)
        found, index = len(source), None
        if found > most:
            _warn_of_memory(found, most)
            index = np.flatnonzero(valid)
            index = index[evenly(len(index), most).numpy()]
            source, target, valid = source[index], target[index], valid[index]
            described = None if described is None else described[index]
        return _GivenMatches(
            Matches.of_points(
                source[valid],
                target[valid],
                unit,
                None if described is None else described[valid],
            ),
            Correspondences(source, target, index, index),
            valid,
            found,
        )

    def _run(
        self, matches: Matches, seed: int | None, clock: Stopwatch, most: int
    ) -> tuple[Solution, str]:
        """Solve some problems at a time -> the solution of all, on the CPU, and the backend."""

        def work(backend: Backend) -> Solution:
            step = max(1, min(most, backend.max_rows) // len(matches))
            with torch.inference_mode(), devices.current(self.network.sigma):
                parts = [
                    self._solve_part(_problems(matches, start, step), backend, seed, clock)
                    for start in range(0, matches.problems, step)
                ]
            if len(parts) == 1:
                return parts[0]
            return Solution(*(torch.cat(each) for each in zip(*parts, strict=True)))

        return backends.run(work, self.device, self.backend)

    def _solve_part(
        self, matches: Matches, backend: Backend, seed: int | None, clock: Stopwatch
    ) -> Solution:
        """Solve on the device -> on the CPU.

        Where the features leave no seed with enough company (a handful of matches, far from what
        the network was trained on), the geometry votes alone.
        """
        if backend.records and seed is None and RecordedSolver.takes(matches):
            with clock("solve"):
                solution = self._recorded_on(backend)(matches)
        else:
            solution = self._step_by_step(matches, backend, seed, clock)
        if bool(solution.voted.all()):
            return solution
        other = self._step_by_step(matches, backend, seed, clock, geometry_alone=True)
        chosen = (
            torch.where(solution.voted.view(-1, *[1] * (a.ndim - 1)), a, b)
            for a, b in zip(solution, other, strict=True)
        )
        return Solution(*chosen)

    def _recorded_on(self, backend: Backend) -> RecordedSolver:
        if backend.name not in self._recorded:
            self._recorded[backend.name] = RecordedSolver(self.solver, backend, self.device)
        return self._recorded[backend.name]

    def _step_by_step(
        self,
        matches: Matches,
        backend: Backend,
        seed: int | None,
        clock: Stopwatch,
        *,
        geometry_alone: bool = False,
    ) -> Solution:
        generator = None
        if seed is not None:
            generator = torch.Generator(self.device).manual_seed(seed)
        solution = self.solver(
            matches.map(lambda part: part.to(self.device)),
            backend,
            whole=bool(matches.mask.all()),
            most_seeds=int(seed_count(matches.mask.sum(-1), self.voting).max()),
            geometry_alone=geometry_alone,
            generator=generator,
            clock=clock,
        )
        return Solution(*devices.to_cpu(solution))


@dataclass(frozen=True, eq=False)
class _GivenMatches:
    """One problem of a user's: what is solved of it, and what the result shows."""

    matches: Matches  # of the valid rows
    correspondences: Correspondences  # all rows that memory can hold
    valid: Bool  # (N,)
    found: int

    def spread(self, inliers: torch.Tensor, confidence: torch.Tensor) -> tuple[Bool, Float32]:
        """Put what was found for the valid rows back to their places among all (N,)."""
        n = len(self.matches)
        all_inliers = np.zeros(len(self.valid), dtype=bool)
        all_inliers[self.valid] = inliers[:n].numpy()
        all_confidence = np.zeros(len(self.valid), dtype=np.float32)
        all_confidence[self.valid] = confidence[:n].numpy()
        return all_inliers, all_confidence


def _problems(matches: Matches, start: int, step: int) -> Matches:
    return matches.map(lambda part: part[start : start + step])


def _choose_scale(
    voxel_size: float | None, preset: str | None, source: LocalCloud, target: LocalCloud
) -> Scale:
    if voxel_size is not None:
        return Scale(voxel_size)
    if preset is not None:
        return Scale.of_preset(preset)
    return Scale(estimate_voxel_size(source.points, target.points))


def _choose_model(
    model: VBReg | None, weights: str | Path | None, device: str | torch.device
) -> VBReg:
    if model is not None and weights is not None:
        raise VBRegError(f"weights {str(weights)!r} and a model: give one of them")
    if model is not None:
        return model
    chosen = devices.choose_device(device)
    name = weights or devices.default_weights(chosen)
    if str(name) in pretrained.WEIGHTS:
        return _shipped_model(str(name), str(chosen))
    return VBReg.from_pretrained(name, device=chosen)


@lru_cache(maxsize=4)
def _shipped_model(weights: str, device: str) -> VBReg:
    return VBReg.from_pretrained(weights, device=device)


def _warn_of_memory(found: int, most: int) -> None:
    warnings.warn(
        f"{found} matches are more than the free memory holds, so that {most} of them are used; "
        "with other memory free, or on another machine, the answer may differ: set "
        "max_correspondences to have the same everywhere",
        stacklevel=4,
    )
