"""The recipe: clouds -> descriptors -> correspondences -> network -> voting -> estimation -> pose.

The only room that knows all stages. Clouds are moved to a local frame, and matches are divided by
the inlier threshold, before anything is computed in float32; the pose comes back in float64.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, lru_cache
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from vbreg import kernels, pretrained
from vbreg.clouds import estimate_voxel_size, normals, voxel_downsample
from vbreg.correspondences import match
from vbreg.descriptors import fpfh
from vbreg.errors import VBRegError
from vbreg.frames import (
    Cloud,
    Descriptors,
    LocalCloud,
    MatchProblem,
    Points,
    as_descriptors,
    as_mask,
    as_points,
    usable_rows,
)
from vbreg.memory import available_memory, most_matches
from vbreg.network import VariationalNonLocalNetwork
from vbreg.solver import Recorded, Solution, Solver, on_cpu
from vbreg.timing import Stopwatch
from vbreg.types import Bool, Correspondences, Float64, Registration
from vbreg.voting import VotingConfig, seed_count

# Every length is a multiple of the voxel size.
INLIER_THRESHOLD = 2.0
NORMAL_RADIUS = 2.0
FEATURE_RADIUS = 5.0

MAX_CORRESPONDENCES = 8000
MAX_POINTS = 300_000  # of a cloud after downsampling; a registration needs some thousands
AT_ONCE_ON_CPU = 8192  # matches of a batch; more would take memory and be no faster


def register(
    source: Cloud,
    target: Cloud,
    *,
    voxel_size: float | None = None,
    preset: str | None = None,
    model: VBReg | None = None,
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
    `mutual` keeps only matches that are nearest both ways; above `max_correspondences`, or what
    memory can hold, they are thinned evenly at random. `seed` samples the latent features instead
    of taking their mean. A `model` given is used on its own device; one that sees descriptors is
    given FPFH. `on_stage` is told the name of each stage as it begins. The same call gives the same
    answer.
    """
    if not isinstance(max_correspondences, Integral) or max_correspondences < 3:
        raise VBRegError(
            f"max_correspondences {max_correspondences!r}: expected a whole number from 3 up"
        )
    clock = Stopwatch(on_stage)
    with clock("read"):
        clouds = LocalCloud.of(source, "source"), LocalCloud.of(target, "target")
    with clock("voxel size"):
        chosen = _choose_voxel_size(voxel_size, preset, *clouds)
    with clock("weights"):
        model = model or _shipped_model(preset or "indoor", str(choose_device(device)))
    most = model.most_matches
    matches, found, described = _match_clouds(
        *clouds,
        chosen,
        model.device,
        clock,
        mutual=mutual,
        most=min(max_correspondences, most),
    )
    result = model._estimate(
        matches.source,
        matches.target,
        mask=None,
        descriptors=described if model.network.config.input == "feat" else None,
        inlier_threshold=INLIER_THRESHOLD * chosen,
        seed=seed,
        clock=clock,
        most=most,
    )
    return replace(
        result,
        correspondences=matches,
        matches_found=found,
        voxel_size=chosen,
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
        voxel_size: float = pretrained.PRESETS["indoor"].voxel_size,
        voting: VotingConfig | None = None,
        use_kernels: bool = True,
    ) -> None:
        """Kernels and recordings are for a GPU; plain torch gives the answer that they are measured
        against."""
        self.voxel_size = voxel_size
        self.use_kernels = use_kernels
        self.solver = Solver(network.eval(), voting or VotingConfig())

    @property
    def network(self) -> VariationalNonLocalNetwork:
        return self.solver.network

    @property
    def voting(self) -> VotingConfig:
        return self.solver.voting

    def __getstate__(self) -> dict[str, Any]:
        """Without what a GPU has recorded, which is made anew where it is needed."""
        return {name: part for name, part in vars(self).items() if name != "_recorded"}

    @classmethod
    def from_pretrained(
        cls, name_or_path: str | Path = "indoor", *, device: str | torch.device = "auto"
    ) -> VBReg:
        """'indoor' or 'outdoor', shipped with the package; 'fast', a smaller network for a CPU; or
        the path of a weights file."""
        path = pretrained.weights_path(name_or_path)
        network = pretrained.load_network(path).to(choose_device(device))
        voting = pretrained.load_voting(path)
        if str(name_or_path) not in pretrained.PRESETS:
            return cls(network, voting=voting)
        voxel_size = pretrained.preset(str(name_or_path)).voxel_size
        return cls(network, voxel_size=voxel_size, voting=voting)

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    @property
    def most_matches(self) -> int:
        """That are solved at once in the memory that is free now; more are thinned to these."""
        return most_matches(self.network.config, available_memory(self.device))

    def estimate(
        self,
        source_points: Points,  # (N, 3) or (B, N, 3)
        target_points: Points,  # matched to source_points row by row
        *,
        mask: ArrayLike | Tensor | None = None,  # (N,) or (B, N), True for real rows
        descriptors: Descriptors | None = None,  # (N, D) or (B, N, D) each, with input `feat`
        inlier_threshold: float | None = None,
        seed: int | None = None,
    ) -> Registration:
        """The pose that the matches agree on.

        `inlier_threshold` is how far apart a true match may lie, in the unit of the points; left
        out, it is two voxels of the model's preset (0.10 m indoor, 0.60 m outdoor). Rows with a
        non-finite coordinate are ignored. A batch is solved as its problems would be one by one,
        but for a `seed`: which latent features it samples for a problem depends on the batch.
        `descriptors` of the source and of the target points go row by row with the matches; only
        their direction counts, as in matching. More matches than memory can hold are thinned evenly
        at random: the result then has the rows that are left, and their numbers as indices.
        """
        return self._estimate(
            as_points(source_points, "source_points"),
            as_points(target_points, "target_points"),
            mask=None if mask is None else as_mask(mask),
            descriptors=descriptors,
            inlier_threshold=_positive(
                INLIER_THRESHOLD * self.voxel_size
                if inlier_threshold is None
                else inlier_threshold,
                "inlier_threshold",
            ),
            seed=seed,
            clock=Stopwatch(None),
            most=self.most_matches,
        )

    def _estimate(
        self,
        source: Float64,
        target: Float64,
        *,
        mask: Bool | None,
        descriptors: Descriptors | None,
        inlier_threshold: float,
        seed: int | None,
        clock: Stopwatch,
        most: int,
    ) -> Registration:
        valid = usable_rows(source, target, mask)
        described = as_descriptors(descriptors, valid, self.network.config.descriptor_width)
        found, rows = source.shape[-2], None
        if found > most:
            rows = np.flatnonzero(np.atleast_2d(valid).any(0))  # of any problem
            rows = rows[_evenly(len(rows), most).numpy()]
            source, target, valid = source[..., rows, :], target[..., rows, :], valid[..., rows]
            described = None if described is None else described[..., rows, :]
            valid = usable_rows(source, target, valid)
        problem = MatchProblem.of(source, target, valid, inlier_threshold, described)
        at_once = most if self.device.type == "cuda" else min(most, AT_ONCE_ON_CPU)
        problems = list(problem.parts(max(1, at_once // len(problem))))
        with torch.inference_mode(), torch.cuda.device_of(self.network.sigma):
            parts = self._solve_all(problems, seed, clock)
        solution = parts[0]
        if len(parts) > 1:
            solution = Solution(*(torch.cat(each) for each in zip(*parts, strict=True)))
        one = slice(None) if source.ndim == 3 else 0
        return Registration(
            T_target_source=problem.to_global(solution.T)[one],
            correspondences=Correspondences(source, target, rows, rows),
            inliers=solution.inliers.numpy()[one],
            confidence=solution.confidence.numpy()[one],
            score=solution.score.numpy()[one],
            determined=solution.determined.numpy()[one],
            inlier_threshold=inlier_threshold,
            matches_found=found,
            timings=clock.seconds,
        )

    def _solve_all(
        self, problems: list[MatchProblem], seed: int | None, clock: Stopwatch
    ) -> list[Solution]:
        """With kernels where they run, and without from the first time on that they do not."""
        try:
            with kernels.switched(self.use_kernels):
                return [self._solve(problem, seed, clock) for problem in problems]
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:  # no C compiler, too little shared memory, an odd Triton
            if not (self.use_kernels and kernels.usable(self.device)):
                raise
            warnings.warn(
                f"vbreg's kernels do not run here, so that plain torch is used, which is slower "
                f"(VBReg(..., use_kernels=False) says so from the start): {error}",
                stacklevel=4,
            )
            self.use_kernels = False
            return self._solve_all(problems, seed, clock)

    def _solve(self, problem: MatchProblem, seed: int | None, clock: Stopwatch) -> Solution:
        """On the CPU. Where the features leave no seed with enough company (a handful of matches,
        far from what the network was trained on), the geometry votes alone."""
        if self._can_record(problem, seed):
            with clock("solve"):
                solution = self._recorded(problem.local)
        else:
            solution = self._step_by_step(problem, seed, clock)
        if bool(solution.voted.all()):
            return solution
        other = self._step_by_step(problem, seed, clock, geometry_alone=True)
        chosen = (
            torch.where(solution.voted.view(-1, *[1] * (a.ndim - 1)), a, b)
            for a, b in zip(solution, other, strict=True)
        )
        return Solution(*chosen)

    def _can_record(self, problem: MatchProblem, seed: int | None) -> bool:
        return (
            self.use_kernels
            and seed is None
            and kernels.usable(self.device)
            and Recorded.takes(*problem.local.mask.shape)
        )

    @cached_property
    def _recorded(self) -> Recorded:
        return Recorded(self.solver, self.device)

    def _step_by_step(
        self,
        problem: MatchProblem,
        seed: int | None,
        clock: Stopwatch,
        *,
        geometry_alone: bool = False,
    ) -> Solution:
        generator = None
        if seed is not None:
            generator = torch.Generator(self.device).manual_seed(seed)
        mask = problem.local.mask
        solution = self.solver(
            problem.on(self.device),
            whole=bool(mask.all()),
            most_seeds=int(seed_count(mask.sum(-1), self.voting).max()),
            geometry_alone=geometry_alone,
            generator=generator,
            clock=clock,
        )
        return on_cpu(solution)


def choose_device(device: str | torch.device) -> torch.device:
    """'auto' is the GPU where there is one."""
    if str(device) == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise VBRegError(
            f"device {device!r}: expected 'auto', 'cpu', 'cuda' or 'cuda:N'"
        ) from error
    if chosen.type not in ("cpu", "cuda"):
        raise VBRegError(
            f"device {str(device)!r}: vbreg runs on 'cpu' and 'cuda'; use one of these"
        )
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise VBRegError(
            f"device {str(device)!r}: this torch sees {torch.cuda.device_count()} GPUs; "
            "use 'cpu' or 'auto'"
        )
    return chosen


def device_name(device: torch.device) -> str:
    """The GPU's name, or 'cpu'."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def _choose_voxel_size(
    voxel_size: float | None, preset: str | None, source: LocalCloud, target: LocalCloud
) -> float:
    if voxel_size is not None:
        return _positive(voxel_size, "voxel_size")
    if preset is not None:
        return pretrained.preset(preset).voxel_size
    return estimate_voxel_size(source.points, target.points)


@lru_cache(maxsize=4)
def _shipped_model(preset: str, device: str) -> VBReg:
    return VBReg.from_pretrained(preset, device=device)


def _match_clouds(
    source: LocalCloud,
    target: LocalCloud,
    voxel_size: float,
    device: torch.device,
    clock: Stopwatch,
    *,
    mutual: bool,
    most: int,
) -> tuple[Correspondences, int, tuple[Tensor, Tensor]]:
    """FPFH matches in the users' frames, how many there were before thinning, and the FPFH of
    their two ends, (N, 33) each."""
    points, features, kept = [], [], []
    for cloud in (source, target):
        with clock("downsample"):
            points.append(_downsample(cloud, voxel_size, device))
        with clock("normals"):
            direction = normals(points[-1], NORMAL_RADIUS * voxel_size)
        with clock("descriptors"):
            described = fpfh(points[-1], direction, FEATURE_RADIUS * voxel_size)
            kept.append(described.any(-1).nonzero().squeeze(-1))  # a lone point has no descriptor
            features.append(described[kept[-1]])
    with clock("match"):
        i, j = match(features[0], features[1], mutual=mutual)
        found = len(i)
        if found < 3:
            raise VBRegError(
                f"{found} matches between clouds of {len(points[0])} and {len(points[1])} points "
                f"at voxel size {voxel_size:g}: at least 3 are needed; use a smaller voxel size if "
                "these are few points, a larger one if most of them stand alone"
                + (", or matches that need not be mutual" if mutual else "")
            )
        if found > most:
            chosen = _evenly(found, most).to(device)
            i, j = i[chosen], j[chosen]
        ends = features[0][i], features[1][j]
        i, j = kept[0][i], kept[1][j]
        matched = Correspondences(
            points[0][i].double().cpu().numpy() + source.origin,
            points[1][j].double().cpu().numpy() + target.origin,
            i.cpu().numpy(),
            j.cpu().numpy(),
        )
    return matched, found, ends


def _evenly(n: int, most: int) -> Tensor:
    """`most` of n rows, ascending, the same in every call."""
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
    return order[:most].sort().values


def _downsample(cloud: LocalCloud, voxel_size: float, device: torch.device) -> Tensor:
    points = voxel_downsample(cloud.points.to(device), voxel_size)
    if len(points) > MAX_POINTS:
        better = estimate_voxel_size(cloud.points, cloud.points)
        raise VBRegError(
            f"a cloud has {len(points)} points at voxel size {voxel_size:g}: at most {MAX_POINTS} "
            f"are matched; use a larger voxel size (about {better:g} would suit this cloud)"
        )
    return points


def _positive(value: float, name: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise VBRegError(f"{name} {value!r}: expected a positive number in the unit of the points")
    return number
