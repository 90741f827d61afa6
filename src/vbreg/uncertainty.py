"""How well the clouds fix a pose: its covariance, and the motions that they leave free.

A small motion xi = (omega, v), turn before shift, stands to the left of the pose: the true one is
exp(xi^) T_target_source. It is expressed in the target's frame and turns about that frame's origin,
in radians and the unit of the points.

A plane says where it is along its normal and nothing else, so a point that both clouds share speaks
for its plane alone. Points of one patch see the same surroundings and err together: a patch counts
once, however densely it is sampled. Along what no patch fixes, the pose may be off by the size of
the overlap. Shapes: M points, each observed along D directions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor

from vbreg.backends.devices import to_cpu
from vbreg.backends.neighbors import Searchable
from vbreg.geometry import apply
from vbreg.motions import adjoint as adjoint  # it goes with a covariance
from vbreg.motions import cross_matrix, small_motion
from vbreg.scale import Scale
from vbreg.types import Float64, FreeDirection, Registration, Uncertainty

MIN_NORMAL_COSINE = 0.8  # of the two normals where clouds share a surface: 37 degrees
MAX_POINTS = 1000  # that are looked at; more say nothing new, since patches count
NOISE_SCALE = 1.6  # error of a patch by its residual, fitted by `benchmarks/covariance.py`
MIN_NOISE = 0.1  # of a patch, in voxels
MIN_POINTS = 7  # six unknowns, and one that could disagree
MIN_INFORMATION = 0.002  # of a direction, per patch; a plane that faces it has 1
MIN_INFORMATION_OF_NOISE = 0.05  # the same by the squared sine between the normals of both clouds
MIN_SIGNIFICANCE = 1.0  # of the information, in its own standard deviations
MIN_TURN = 0.25  # share of turn in a free motion, below which it is a shift


class Evidence(NamedTuple):
    """Points, and the directions along which both clouds say where they are; all on the CPU."""

    points: Tensor  # (M, 3) float64, in the target's frame
    directions: Tensor  # (M, D, 3) unit
    directions_again: Tensor  # (M, D, 3) as the other cloud has them, with noise of its own
    residuals: Tensor  # (M, D) what is left of the distance, along each direction
    extent: float  # root mean square distance of the target's points from their middle


def shared_planes(
    source: tuple[Tensor, Tensor],  # points (N, 3) and unit normals (N, 3)
    target: tuple[Tensor, Tensor],
    T_target_source: Tensor,  # (4, 4)
    radius: float,
) -> Evidence:
    """Find the source points that land on the target within `radius`, normal upon normal.

    A GPU looks for them, and is waited for once; the rest is work of few points for the CPU.
    """
    every = max(1, -(-len(source[0]) // MAX_POINTS))
    points, normals = (part[::every].double() for part in source)
    fixed, fixed_normals = (part.double() for part in target)
    T = T_target_source.to(points)
    here, turned = apply(T, points), normals @ T[:3, :3].T
    everywhere = torch.ones(1, len(fixed), dtype=torch.bool, device=fixed.device)
    index, _, valid = (
        part[0, :, 0] for part in Searchable(fixed[None], everywhere).nearest(here[None], radius, 1)
    )
    here, turned, there, normal, valid, extent = to_cpu(
        (here, turned, fixed[index], fixed_normals[index], valid, _extent(fixed))
    )
    cosine = (turned * normal).sum(-1)
    left = ((here - there) * normal).sum(-1, keepdim=True)
    again = turned * cosine.sign().unsqueeze(-1)  # which side is up may be unknown
    kept = valid & (cosine.abs() > MIN_NORMAL_COSINE)
    return Evidence(here[kept], normal[kept, None], again[kept, None], left[kept], float(extent))


def matched_points(source: Tensor, target: Tensor, T_target_source: Tensor) -> Evidence:
    """Let matches (N, 3) on the CPU that agree with the pose speak for all three directions."""
    every = max(1, -(-len(source) // MAX_POINTS))
    source, fixed = source[::every].double(), target[::every].double()
    axes = torch.eye(3, dtype=fixed.dtype).expand(len(fixed), 3, 3)
    left = apply(T_target_source.to(fixed), source) - fixed
    return Evidence(fixed, axes, axes, left, float(_extent(fixed)))


def uncertainty(evidence: Evidence, scale: Scale, origin: Float64) -> Uncertainty:
    """Return the covariance and the free directions of a pose from what both clouds share.

    The evidence lies in a local frame whose origin (3,) this is in the user's; the answer is in the
    user's.
    """
    points, weights = evidence.points, patch_shares(evidence.points, scale.feature_radius)
    patches = weights.sum()
    if float(patches) == 0.0:
        centre, radius = points.new_zeros(3), max(evidence.extent, scale.voxel_size)
    else:
        centre = (weights[:, None] * points).sum(0) / patches
        spread = (weights * (points - centre).square().sum(-1)).sum() / patches
        radius = max(float(spread.sqrt()), scale.voxel_size)
    # Turns are told by how far they move a point of the overlap, so that all six are lengths.
    arm = (points - centre)[:, None] / radius
    rows, again = (
        torch.cat([torch.linalg.cross(arm.expand_as(d), d), d], dim=-1)  # (M, D, 6)
        for d in (evidence.directions, evidence.directions_again)
    )
    # The noise of normals, squared, would be information about everything; that of one cloud times
    # that of the other is zero in the mean.
    H = torch.einsum("m,mdi,mdj->ij", weights, rows, again)
    information, motions = torch.linalg.eigh((H + H.T) / 2)
    each = ((rows @ motions) * (again @ motions)).sum(1)  # (M, 6) of each point
    cosine = (evidence.directions * evidence.directions_again).sum(-1).mean(-1)
    sine2 = (weights * (1 - cosine.square())).sum()
    least = torch.maximum(MIN_INFORMATION * patches, MIN_INFORMATION_OF_NOISE * sine2)
    deviation = (weights[:, None] * each).square().sum(0).sqrt()
    free = (information <= least) | (information < MIN_SIGNIFICANCE * deviation)
    free |= len(points) < MIN_POINTS
    square = (weights * evidence.residuals.square().mean(-1)).sum() / patches.clamp_min(1e-12)
    noise2 = NOISE_SCALE**2 * (square + (MIN_NOISE * scale.voxel_size) ** 2)
    variance = 1 / (torch.where(free, 0.0, information) / noise2 + 1 / radius**2)
    local = ((motions * variance) @ motions.T).numpy()
    middle = centre.numpy() + origin
    unscaled = np.diag([1 / radius] * 3 + [1.0] * 3)
    covariance = moved_to(unscaled @ local @ unscaled, -middle)
    names = _named(motions[:, free].numpy(), middle, radius)
    return Uncertainty((covariance + covariance.T) / 2, names)


@torch.inference_mode()
def uncertainty_of_inliers(result: Registration) -> Uncertainty:
    """Tell how far a pose may be off from the matches that agree with it alone."""
    ends = result.correspondences.source, result.correspondences.target
    finite = np.isfinite(ends).all((0, 2))
    origins = [end[finite].mean(0) for end in ends]
    source, target = (
        torch.from_numpy(end[result.inliers] - origin)
        for end, origin in zip(ends, origins, strict=True)
    )
    T = result.T_target_source.copy()
    T[:3, 3] += T[:3, :3] @ origins[0] - origins[1]
    points = matched_points(source, target, torch.from_numpy(T))
    return uncertainty(points, Scale.of_threshold(result.inlier_threshold), origins[1])


def moved_to(covariance: Float64, point: Float64) -> Float64:
    """Return the covariance (6, 6) of motions that turn about `point` instead of the origin.

    It says how far the pose moves what lies at that point (3,).
    """
    shift = np.eye(6)
    shift[3:, :3] = -cross_matrix(point)
    return np.asarray(shift @ covariance @ shift.T)


def normalised_error(T_truth: Float64, T_estimate: Float64, covariance: Float64) -> float:
    """Return the squared error of a pose in standard deviations (NEES): 6 in the mean if right."""
    xi = small_motion(T_truth, T_estimate)
    return float(xi @ np.linalg.solve(covariance, xi))


def patch_shares(points: Tensor, radius: float) -> Tensor:
    """Return one over the number of points (M,) within the radius: each patch sums to one."""
    if len(points) == 0:
        return points.new_zeros(0)
    pairs = cKDTree(points.numpy()).query_pairs(radius, output_type="ndarray")
    others = np.bincount(pairs.ravel(), minlength=len(points))
    return torch.from_numpy(1.0 / (1.0 + others))


def _extent(points: Tensor) -> Tensor:
    """Return the root mean square distance () of points (N, 3) from their middle."""
    if len(points) == 0:
        return points.new_zeros(())
    return (points - points.mean(0)).square().sum(-1).mean().sqrt()


def _named(motions: Float64, centre: Float64, radius: float) -> tuple[FreeDirection, ...]:
    """Say which turns and shifts span free motions (6, k) about a centre, turns in lengths."""
    if motions.shape[1] == 0:
        return ()
    # Pure shifts first: combinations of the motions in which no turn is left.
    _, turn, mix = np.linalg.svd(motions[:3], full_matrices=True)
    turn = np.concatenate([turn, np.zeros(len(mix) - len(turn))])
    found = []
    for k in np.argsort(turn, kind="stable"):
        w, v = np.split(motions @ mix[k], 2)
        w = w / radius
        if turn[k] < MIN_TURN:
            found.append(FreeDirection("slides", _unit(v)))
        else:
            axis = centre + np.cross(w, v) / (w @ w)
            found.append(FreeDirection("turns", _unit(w), _triple(axis)))
    return tuple(found)


def _unit(v: Float64) -> tuple[float, float, float]:
    """Return the direction of v, its largest coordinate positive: a line has no sense."""
    return _triple(v / (np.linalg.norm(v) * np.sign(v[np.abs(v).argmax()])))


def _triple(v: Float64) -> tuple[float, float, float]:
    """Return Python's own numbers."""
    x, y, z = map(float, v)
    return x, y, z
