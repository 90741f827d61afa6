"""What `register` does when one attempt at a pose does not settle it: it tries again.

Without the points that lie on no surface, where there are many; at a smaller voxel size if the pose
is not trusted, and at a larger one, too, if the size was estimated; with the mirror image of the
source where a flipped axis might be the reason for doubt; and at many scales of the source where
its scale is unknown. Whoever calls hands in what makes an attempt.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TypeGuard

import numpy as np
import torch

from vbreg.errors import VBRegError
from vbreg.geometry import procrustes
from vbreg.types import (
    FREE_ODDS,
    LIKELY,
    MANY_LONE_POINTS,
    Float64,
    Registration,
    odds_times,
)

SMALLER_SIZE = 2**-0.5  # times a voxel size that was given: twice as many points on a surface
TWICE, HALF = 2.0, 0.5  # times a voxel size that was estimated, which may be further off
BEYOND_DOUBT = 0.97  # probability from which on nobody looks any further
MIRRORED_ODDS = 0.3  # of a scan to be mirrored, before anything is seen: few are
SCALE_STEP = 1.2  # from one scale that is tried to the next: a pose is found within a tenth of its
FOLLOWED_SCALES = 3  # the most probable ones, which are made exact
SCALE_ROUNDS = 3  # at most, to make one exact
SCALE_SETTLED = 0.003  # change of a scale that ends its rounds, as a share
MATCH_ROUNDS = 20  # of fitting a motion with scale to the matches that agree
MIN_SCALED_MATCHES = 10  # that agree, for a scale to be told from


def other_sizes(*, estimated: bool, constrained: bool) -> tuple[float, ...]:
    """Return what times the voxel size is tried where a pose is not trusted, the first one first.

    A larger one calls a coarser pose right, and so a wrong constraint, too: it is for sizes that
    were estimated, where nothing is known of the pose.
    """
    if not estimated:
        return (SMALLER_SIZE,)
    return (HALF,) if constrained else (TWICE, HALF)


def worth_another_size(found: Registration | VBRegError) -> bool:
    """Tell whether a pose is so little trusted that other voxel sizes are tried.

    Where a cloud fills a volume, its voxels may be so large that surfaces cannot be seen.
    """
    if isinstance(found, VBRegError) or found.success_probability is None:
        return False
    return found.success_probability < LIKELY or found.fills_volume


def spoilt_by_lone_points(found: Registration | VBRegError) -> TypeGuard[Registration]:
    """Tell whether a doubtful pose may become better without points that lie on no surface."""
    if isinstance(found, VBRegError) or found.lone_shares is None:
        return False
    p = found.success_probability
    return p is not None and p < BEYOND_DOUBT and max(found.lone_shares) > MANY_LONE_POINTS


def more_probable(
    found: Registration | VBRegError, other: Registration | VBRegError
) -> Registration | VBRegError:
    """Return the more probable of two results; an error, of too few points say, is none.

    A pose with which hardly any match agrees does not win, however probable.
    """
    if isinstance(found, VBRegError) or isinstance(other, VBRegError) or other.hardly_matched:
        return found
    return other if _probability(other) > _probability(found) else found


def may_be_mirrored(found: Registration | VBRegError) -> bool:
    """Tell whether a pose is trusted, but not beyond doubt: a mirror image may fit as well."""
    if isinstance(found, VBRegError) or found.voxel_size is None:
        return False
    p = found.success_probability
    return p is not None and LIKELY <= p < BEYOND_DOUBT


def unless_mirrored(
    found: Registration | VBRegError, image: Registration | VBRegError
) -> Registration | VBRegError:
    """Return a pose as less probable where the mirror image of the source fits as well.

    Walls and floors look the same in a mirror. Whether a scan is mirrored is told by how well its
    mirror image fits in its place, which is worth its time where the pose might be wrong at all.
    """
    if isinstance(found, VBRegError) or isinstance(image, VBRegError):  # too few matches
        return found
    p, q = found.success_probability, image.success_probability or 0.0
    assert p is not None
    if found.free_directions and not image.free_directions:  # what lowered p lowers q alike
        q = odds_times(q, FREE_ODDS)
    odds, other = p / (1 - p), MIRRORED_ODDS * q / max(1 - q, 1e-9)
    none = 1 / (1 + odds + other)  # the share of neither
    return replace(
        found,
        success_probability=odds * none,
        mirrored_probability=other * none,
        alternatives=tuple(
            replace(each, probability=each.probability * odds * none / p)
            for each in found.alternatives
        ),
    )


def at_unknown_scale(
    max_scale: float,
    at: Callable[[float], Registration | VBRegError],
    tell: Callable[[str], None] = lambda where: None,
) -> Registration | VBRegError:
    """Find the scale of the source, at most so many times larger or smaller, and its pose.

    `at` registers the source multiplied by a factor. A pose is found where the factor is nearly
    right; the matches that agree with it then tell the factor better, until it settles. An error is
    returned where every factor meets one: too few points, say, or too many. `tell` is
    told which of the factors is tried.
    """
    found: list[Registration] = []
    errors: list[VBRegError] = []
    factors = scales_within(max_scale).tolist()
    for k, factor in enumerate(factors):
        tell(f"scale {k + 1} of {len(factors)}")
        result = at(factor)
        if isinstance(result, VBRegError):
            errors.append(result)
            continue
        found.append(result)
        if _probability(result) >= BEYOND_DOUBT:
            break
    if not found:
        return errors[0]
    first = sorted(found, key=_probability, reverse=True)[:FOLLOWED_SCALES]
    settled = []
    tell("exact scale")
    for each in first:
        settled.append(_made_exact(each, max_scale, at))
        if _probability(settled[-1]) >= BEYOND_DOUBT:
            break
    return max(settled, key=_probability)


def scales_within(max_scale: float) -> Float64:
    """Return the factors to try (n,), evenly apart, those nearest to 1 first."""
    steps = math.ceil(math.log(max_scale) / math.log(SCALE_STEP))
    exponents = np.linspace(-1, 1, 2 * max(steps, 1) + 1)
    return max_scale ** exponents[np.argsort(np.abs(exponents), kind="stable")]


def scale_of_matches(found: Registration) -> float:
    """Return by how much the source is still too small, by the matches that agree with its pose."""
    source, target = (
        torch.from_numpy(end) / found.inlier_threshold
        for end in (found.correspondences.source, found.correspondences.target)
    )
    inliers, scale = torch.from_numpy(found.inliers), 1.0
    for _ in range(MATCH_ROUNDS):
        if int(inliers.sum()) < MIN_SCALED_MATCHES:
            return 1.0
        # The rotation is the same at every scale; a shift takes one middle to the other.
        R = procrustes(source, target, inliers.to(source.dtype))[0][:3, :3]
        x = (source - source[inliers].mean(0)) @ R.T
        y = target - target[inliers].mean(0)
        scale = float((x * y)[inliers].sum() / x[inliers].square().sum())
        before, inliers = inliers, (scale * x - y).square().sum(-1) < 1
        if torch.equal(before, inliers):
            break
    return scale


def _made_exact(
    found: Registration, max_scale: float, at: Callable[[float], Registration | VBRegError]
) -> Registration:
    """Return the pose at the scale that its matches tell, if trusted there or no less probable."""
    for _ in range(SCALE_ROUNDS):
        change = scale_of_matches(found)
        factor = found.scale * change
        if abs(change - 1) < SCALE_SETTLED or not 1 / max_scale <= factor <= max_scale:
            break
        other = at(factor)
        if isinstance(other, VBRegError):
            break
        if _probability(other) < min(_probability(found), LIKELY):
            break
        found = other
    return found


def _probability(found: Registration) -> float:
    return found.success_probability or 0.0
