"""The recipe: clouds -> descriptors -> correspondences -> network -> voting -> estimation -> pose.

The only room that knows all stages. Clouds are moved to a local frame, and matches are divided by
the inlier threshold, before anything is computed in float32; the pose comes back in float64.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from vbreg import io, pretrained
from vbreg.clouds import estimate_voxel_size, normals, voxel_downsample
from vbreg.correspondences import match
from vbreg.descriptors import fpfh
from vbreg.errors import VBRegError
from vbreg.estimation import (
    Estimate,
    best_hypothesis,
    hypotheses,
    inlier_score,
    refine,
    spectral_weights,
    squared_residuals,
)
from vbreg.network import NetworkOutput, VariationalNonLocalNetwork
from vbreg.types import Bool, Correspondences, Float64, PointCloud, Registration
from vbreg.voting import VotingConfig, select_seeds, vote

Points: TypeAlias = "ArrayLike | Tensor"
Cloud: TypeAlias = "str | Path | PointCloud | Points | Any"  # or anything with `.points`

# Every length is a multiple of the voxel size.
INLIER_THRESHOLD = 2.0
NORMAL_RADIUS = 2.0
FEATURE_RADIUS = 5.0

MAX_CORRESPONDENCES = 8000
OUTDOOR_FROM = 0.15  # metres of voxel size from which the outdoor weights are taken


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
    `mutual` keeps only matches that are nearest both ways; above `max_correspondences` they are
    thinned evenly at random. `seed` samples the latent features instead of taking their mean.
    `on_stage` is told the name of each stage as it begins. The same call gives the same answer.
    """
    if max_correspondences < 3:
        raise VBRegError(f"max_correspondences {max_correspondences}: expected at least 3")
    clock = Stopwatch(on_stage)
    with clock("read"):
        clouds = LocalCloud.of(source, "source"), LocalCloud.of(target, "target")
    with clock("voxel size"):
        chosen = _choose_voxel_size(voxel_size, preset, *clouds)
    with clock("weights"):
        model = model or _shipped_model(preset, chosen, str(device))
    matches, found = _match_clouds(
        *clouds, chosen, model.device, clock, mutual=mutual, most=max_correspondences
    )
    result = model._estimate(
        matches.source,
        matches.target,
        mask=None,
        inlier_threshold=INLIER_THRESHOLD * chosen,
        seed=seed,
        clock=clock,
    )
    return replace(
        result,
        correspondences=matches,
        matches_found=found,
        voxel_size=chosen,
        voxel_size_estimated=voxel_size is None and preset is None,
        points=(clouds[0].read, clouds[1].read),
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
    ) -> None:
        self.network = network.eval()
        self.voxel_size = voxel_size
        self.voting = voting or VotingConfig()

    @classmethod
    def from_pretrained(
        cls, name_or_path: str | Path = "indoor", *, device: str | torch.device = "auto"
    ) -> VBReg:
        """'indoor' or 'outdoor', shipped with the package, or the path of a weights file."""
        device = choose_device(device)
        if str(name_or_path) in pretrained.PRESETS:
            chosen = pretrained.preset(str(name_or_path))
            network = pretrained.load_network(pretrained.FOLDER / chosen.weights)
            return cls(network.to(device), voxel_size=chosen.voxel_size)
        return cls(pretrained.load_network(name_or_path).to(device))

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    def estimate(
        self,
        source_points: Points,  # (N, 3) or (B, N, 3)
        target_points: Points,  # matched to source_points row by row
        *,
        mask: ArrayLike | Tensor | None = None,  # (N,) or (B, N), True for real rows
        inlier_threshold: float | None = None,
        seed: int | None = None,
    ) -> Registration:
        """The pose that the matches agree on.

        `inlier_threshold` is how far apart a true match may lie, in the unit of the points; left
        out, it is two voxels of the model's preset (0.10 m indoor, 0.60 m outdoor). Rows with a
        non-finite coordinate are ignored. A batch is solved as its problems would be one by one.
        """
        return self._estimate(
            _array(source_points, "source_points"),
            _array(target_points, "target_points"),
            mask=None if mask is None else np.asarray(mask, dtype=bool),
            inlier_threshold=_positive(
                INLIER_THRESHOLD * self.voxel_size
                if inlier_threshold is None
                else inlier_threshold,
                "inlier_threshold",
            ),
            seed=seed,
            clock=Stopwatch(None),
        )

    def _estimate(
        self,
        source: Float64,
        target: Float64,
        *,
        mask: Bool | None,
        inlier_threshold: float,
        seed: int | None,
        clock: Stopwatch,
    ) -> Registration:
        valid = _valid_rows(source, target, mask)
        batched = source.ndim == 3
        problem = _Problem.of(source, target, valid, inlier_threshold, self._tensor_options())
        with clock("network"), torch.inference_mode():
            output = self._run_network(problem, seed)
        estimate = self._search(output, problem, clock)
        with clock("refine"), torch.inference_mode():
            estimate = refine(estimate, *problem.exact())
            d2 = squared_residuals(estimate.T, *problem.exact()[:2])
            inliers = (d2 < 1.0) & problem.mask.cpu()
            score = inlier_score(estimate.T.unsqueeze(1), *problem.exact()).squeeze(1)
            confidence = output.logits.float().sigmoid() * problem.mask
        squeeze = slice(None) if batched else 0
        return Registration(
            T_target_source=problem.to_global(estimate.T)[squeeze],
            correspondences=Correspondences(source, target),
            inliers=inliers.numpy()[squeeze],
            confidence=confidence.cpu().numpy()[squeeze],
            score=score.numpy()[squeeze],
            determined=estimate.determined.numpy()[squeeze],
            inlier_threshold=inlier_threshold,
            matches_found=source.shape[-2],
            timings=clock.seconds,
        )

    def _tensor_options(self) -> dict[str, Any]:
        parameter = next(self.network.parameters())
        return {"device": parameter.device, "dtype": parameter.dtype}

    def _run_network(self, problem: _Problem, seed: int | None) -> NetworkOutput:
        generator = None
        if seed is not None:
            generator = torch.Generator(self.device).manual_seed(seed)
        output: NetworkOutput = self.network(
            problem.source,
            problem.target,
            mask=None if problem.mask.all() else problem.mask,
            generator=generator,
            keep_attention=self.voting.attention_voters,
        )
        return output

    def _search(self, output: NetworkOutput, problem: _Problem, clock: Stopwatch) -> Estimate:
        """Sections 3.3 and 3.4 of the paper, up to the refinement."""
        source, target, mask = problem.source, problem.target, problem.mask
        sigma = self.network.sigma
        with clock("vote"), torch.inference_mode():
            seeds = select_seeds(output.logits, source, mask, self.voting)
            members = vote(
                output.features,
                source,
                target,
                seeds,
                mask,
                sigma=sigma,
                config=self.voting,
                attention=output.attention,
            )
        with clock("estimate"), torch.inference_mode():
            weights = spectral_weights(output.features[-1], source, target, members, sigma)
            T, sound = hypotheses(source, target, members, weights)
            score = inlier_score(T, source, target, mask)
            return best_hypothesis(T, sound & seeds.valid, score)


@dataclass(frozen=True, eq=False)
class _Problem:
    """Matches in a local frame and in units of the inlier threshold: exact on the CPU, and in the
    network's precision on its device."""

    source64: Tensor  # (B, N, 3) float64, CPU
    target64: Tensor
    source: Tensor  # (B, N, 3)
    target: Tensor
    mask: Tensor  # (B, N)
    origins: tuple[Float64, Float64]  # (B, 3) each
    unit: float

    @staticmethod
    def of(
        source: Float64, target: Float64, valid: Bool, unit: float, options: dict[str, Any]
    ) -> _Problem:
        valid = valid if valid.ndim == 2 else valid[None]
        local, origins = [], []
        for points in (source, target):
            points = np.where(valid[..., None], points if points.ndim == 3 else points[None], 0.0)
            origin = points.sum(1) / valid.sum(1)[:, None]
            origins.append(origin)
            shifted = (points - origin[:, None]) * valid[..., None]
            local.append(torch.from_numpy(shifted / unit))
        mask = torch.from_numpy(valid).to(options["device"])
        return _Problem(
            local[0],
            local[1],
            local[0].to(**options),
            local[1].to(**options),
            mask,
            (origins[0], origins[1]),
            unit,
        )

    def exact(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.source64, self.target64, self.mask.cpu()

    def to_global(self, T_local: Tensor) -> Float64:
        """(B, 4, 4) in the unit and the frames of the user's points."""
        T = T_local.double().cpu().numpy().copy()
        source_origin, target_origin = self.origins
        moved = np.einsum("bij,bj->bi", T[:, :3, :3], source_origin)
        T[:, :3, 3] = T[:, :3, 3] * self.unit + target_origin - moved
        return T


@dataclass(frozen=True, eq=False)
class LocalCloud:
    """A cloud's finite points about an origin of its own, so that float32 holds them."""

    points: Tensor  # (N, 3) float32, CPU
    origin: Float64  # (3,)
    read: int
    dropped: int

    @staticmethod
    def of(cloud: Cloud, role: str) -> LocalCloud:
        points = load_points(cloud, role)
        finite = np.isfinite(points).all(axis=1)
        kept = points[finite]
        if len(kept) < 3:
            raise VBRegError(
                f"{role} has {len(kept)} finite points of {len(points)}: at least 3 are needed, "
                "and a real scan has thousands; check that the file is the one you meant"
            )
        origin = kept.mean(axis=0)
        local = torch.from_numpy((kept - origin).astype(np.float32))
        return LocalCloud(local, origin, len(points), len(points) - len(kept))


def load_points(cloud: Cloud, role: str) -> Float64:
    """(N, 3) float64 from a path, an array, a tensor, a PointCloud or an object with `.points`."""
    if isinstance(cloud, str | Path):
        return io.read(cloud).points
    points = _array(cloud.points if hasattr(cloud, "points") else cloud, role)
    if points.ndim != 2:
        raise VBRegError(f"{role} has shape {points.shape}: expected (N, 3)")
    return points


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
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise VBRegError(f"device {device!r}: this torch sees no GPU; use 'cpu' or 'auto'")
    return chosen


class Stopwatch:
    """Seconds per stage, the GPU's queue drained at both ends."""

    def __init__(self, on_stage: Callable[[str], None] | None) -> None:
        self.seconds: dict[str, float] = {}
        self.on_stage = on_stage or (lambda stage: None)

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        self.on_stage(stage)
        start = self._now()
        yield
        self.seconds[stage] = self.seconds.get(stage, 0.0) + self._now() - start

    @staticmethod
    def _now() -> float:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        return time.perf_counter()


def _choose_voxel_size(
    voxel_size: float | None, preset: str | None, source: LocalCloud, target: LocalCloud
) -> float:
    if voxel_size is not None:
        return _positive(voxel_size, "voxel_size")
    if preset is not None:
        return pretrained.preset(preset).voxel_size
    return estimate_voxel_size(source.points, target.points)


@lru_cache(maxsize=4)
def _cached_model(name: str, device: str) -> VBReg:
    return VBReg.from_pretrained(name, device=device)


def _shipped_model(preset: str | None, voxel_size: float, device: str) -> VBReg:
    return _cached_model(preset or ("outdoor" if voxel_size >= OUTDOOR_FROM else "indoor"), device)


def _match_clouds(
    source: LocalCloud,
    target: LocalCloud,
    voxel_size: float,
    device: torch.device,
    clock: Stopwatch,
    *,
    mutual: bool,
    most: int,
) -> tuple[Correspondences, int]:
    """FPFH matches in the users' frames, and how many there were before thinning."""
    points, features = [], []
    for cloud in (source, target):
        with clock("downsample"):
            points.append(voxel_downsample(cloud.points.to(device), voxel_size))
        with clock("normals"):
            direction = normals(points[-1], NORMAL_RADIUS * voxel_size)
        with clock("descriptors"):
            features.append(fpfh(points[-1], direction, FEATURE_RADIUS * voxel_size))
    with clock("match"):
        source_index, target_index = match(features[0], features[1], mutual=mutual)
        found = len(source_index)
        if found < 3:
            raise VBRegError(
                f"only {found} matches between clouds of {len(points[0])} and {len(points[1])} "
                f"points at voxel size {voxel_size:g}: at least 3 are needed; use a smaller voxel "
                "size" + (", or matches that need not be mutual" if mutual else "")
            )
        if found > most:
            order = torch.randperm(found, generator=torch.Generator().manual_seed(0))
            kept = order[:most].sort().values.to(device)
            source_index, target_index = source_index[kept], target_index[kept]
        ends = [
            points[0][source_index].double().cpu().numpy() + source.origin,
            points[1][target_index].double().cpu().numpy() + target.origin,
        ]
    indices = source_index.cpu().numpy(), target_index.cpu().numpy()
    return Correspondences(ends[0], ends[1], *indices), found


def _array(points: Points, name: str) -> Float64:
    """(..., N, 3) float64; the caller's array is never written to."""
    if isinstance(points, Tensor):
        points = points.detach().cpu().numpy()
    try:
        array = np.asarray(points, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise VBRegError(
            f"{name} is a {type(points).__name__}: expected points (N, 3) as an array, a tensor, "
            "a path, or an object with .points"
        ) from error
    if array.ndim not in (2, 3) or array.shape[-1] != 3:
        raise VBRegError(f"{name} has shape {array.shape}: expected (N, 3), or (B, N, 3) matches")
    return array


def _valid_rows(source: Float64, target: Float64, mask: Bool | None) -> Bool:
    """Rows that are real and finite in both clouds, with the shapes checked."""
    if source.shape != target.shape:
        raise VBRegError(
            f"source_points {source.shape} and target_points {target.shape} differ in shape: row n "
            "of one is matched to row n of the other"
        )
    if mask is not None and mask.shape != source.shape[:-1]:
        raise VBRegError(f"mask has shape {mask.shape}: expected {source.shape[:-1]}")
    finite = np.isfinite(source) & np.isfinite(target)
    valid: Bool = np.all(finite, axis=-1) & (True if mask is None else mask)
    fewest = int(valid.sum(-1).min()) if valid.size else 0
    if fewest < 3:
        raise VBRegError(f"{fewest} usable correspondences: at least 3 are needed to fix a pose")
    return valid


def _positive(value: float, name: str) -> float:
    if not (np.isfinite(value) and value > 0):
        raise VBRegError(f"{name} {value}: expected a positive number in the unit of the points")
    return float(value)
