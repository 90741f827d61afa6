"""The recipe: clouds -> descriptors -> matches -> network -> voting -> estimation -> pose.

The best poses are verified on the clouds, and the chosen one is refined there.

Clouds are moved to a local frame once and stay there, lengths are divided by the inlier threshold,
and the pose comes back in float64 in the user's frames. `register` says what is to be done;
`registrar` does it for any number of pairs, with the `VBReg` of `model`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias, get_args

import torch
from numpy.typing import ArrayLike

from vbreg import pretrained
from vbreg.backends import devices
from vbreg.constraints import Constraints, Gravity
from vbreg.descriptors import DescriptorChoice, MatchingName, descriptor_named
from vbreg.errors import VBRegError
from vbreg.frames import LocalCloud
from vbreg.inputs import (
    MIN_MATCHES,
    Cloud,
    Ignore,
    check_choice,
    check_flag,
    check_seed,
    check_whole_number,
    positive_number,
)
from vbreg.matching import MAX_CORRESPONDENCES, Keypoints, Viewpoint, check_viewpoint
from vbreg.model import RefineName, VBReg, check_verification
from vbreg.pretrained import WeightsName
from vbreg.registrar import Registrar, Request
from vbreg.scale import VOXEL_SIZES, PresetName
from vbreg.streaming import local_cloud
from vbreg.timing import Stopwatch
from vbreg.types import Registration

IgnorePair: TypeAlias = "tuple[Ignore | None, Ignore | None]"  # of source and target


def register(
    source: Cloud,
    target: Cloud,
    *,
    voxel_size: float | None = None,
    preset: PresetName | None = None,
    weights: WeightsName | str | Path | None = None,
    model: VBReg | None = None,
    descriptor: DescriptorChoice = "learned",
    device: str | torch.device = "auto",
    keypoints: Keypoints | None = None,
    matching: MatchingName | None = None,
    viewpoint: Viewpoint | None = None,
    max_correspondences: int = MAX_CORRESPONDENCES,
    gravity: Gravity | None = None,
    guess: ArrayLike | None = None,
    max_translation: float | None = None,
    max_rotation: float | None = None,
    max_scale: float | None = None,
    ignore: Ignore | IgnorePair | None = None,
    verify: bool = True,
    refine: RefineName | None = None,
    retry: bool = True,
    seed: int | None = None,
    on_stage: Callable[[str], None] | None = None,
) -> Registration:
    """Find the pose of `source` in the frame of `target`.

    Clouds are paths, arrays (N, 3), tensors, or objects with `.points`. `voxel_size` is the one
    scale that sets every radius; left out, it is the preset's ('indoor' 0.05 m, 'outdoor' 0.30 m)
    or, without a preset, estimated from the clouds. The result says what was chosen.

    `weights` are 'fast', 'universal' (the larger network of the paper) or a file that `vbreg train`
    wrote. A `model` given instead is used on its device.
    `descriptor` is 'learned', 'fpfh', 'fcgf', a descriptor's weights file that `vbreg train` wrote,
    a checkpoint of FCGF, or a function of points (N, 3), normals (N, 3) and the `Scale` that gives
    (N, D) numbers. `keypoints` of each cloud are described and matched, or 'all'; `matching` is
    'one-way' (each source point to its nearest), 'either-way', 'mutual', 'ratio' (where the
    nearest is clearly nearer than the second) or 'two-nearest'. Left out, 1000
    keypoints, or a quarter of the points, are matched either way with the learned descriptor, and
    all points one way with another.
    `viewpoint` is where the sensor was in the frame of each scan: 'origin', three numbers, or
    'unknown'; left out, 'origin' with the preset 'outdoor' where it lies within both clouds. Above
    `max_correspondences`, or what memory can hold, matches are thinned evenly at random.

    What you know of the pose: `gravity` is up in the frames of the scans (True or 'z', 'x', 'y',
    three numbers, or one direction for each scan), and the pose then turns about it alone. The
    middle of the source is at most `max_translation` from where `guess`, a pose (4, 4), puts it,
    and the pose at most `max_rotation` degrees from it; without a guess both count from no motion.
    With `max_scale` the scale of the source is unknown, up to so many times larger or smaller: it
    is looked for, and `result.scale` is what the source is multiplied by before it is moved.
    `ignore` leaves points out: a function of points (N, 3) that tells which, for both clouds, or a
    pair of functions, masks (N,) or None.

    With `verify`, the best poses that the matches allow are laid upon the clouds, a judge chooses
    among them and tells `success_probability`; without, the matches alone decide, as in the paper.
    With `retry`, a pose that is in doubt is looked for in other ways, too, and the most probable
    one is taken: at a smaller voxel size (if it was estimated, at half and at twice), and without
    points that lie on no surface, where these are many. A pose that is trusted but not beyond doubt
    is compared with what the mirror image of the source gives, since a flipped axis is easily
    overlooked. Without, each pair has one attempt, which bounds the time; with `max_scale`, one
    search over the scales.
    `refine` says whether the chosen pose is then made exact on the clouds ('icp') or not ('none');
    left out, it is where it is verified.

    `seed` samples the latent features instead of taking their mean. `on_stage` is told the name of
    each stage as it begins. The same call gives the same answer.
    """
    _check_options(preset, weights, model, device, keypoints, matching, retry, seed, on_stage)
    _check_numbers(max_correspondences, viewpoint, voxel_size)
    check_verification(verify, refine)
    constraints = Constraints.of(gravity, guess, max_translation, max_rotation)
    _check_max_scale(max_scale, guess, max_translation, verify)
    compute = descriptor_named(descriptor)  # a wrong name is told before any work begins
    clock = Stopwatch(on_stage)
    with clock("prepare"):
        clouds = _local_clouds(source, target, ignore)
    with clock("voxel size"):
        request = Request.of(
            *clouds,
            voxel_size=voxel_size,
            preset=preset,
            viewpoint=viewpoint,
            constraints=constraints,
            max_scale=max_scale,
            clock=clock,
        )
    with clock("weights"):
        model = _choose_model(model, weights, device)
    registrar = Registrar(
        model, compute, keypoints, matching, max_correspondences, verify, refine, seed, retry
    )
    found = registrar([request])[0]
    if isinstance(found, VBRegError):
        raise found
    return found


def _check_options(
    preset: object,
    weights: object,
    model: object,
    device: str | torch.device,
    keypoints: object,
    matching: object,
    retry: object,
    seed: object,
    on_stage: object,
) -> None:
    """Raise where an option of `register` is of a wrong type, before any work begins."""
    if preset is not None:
        check_choice(preset, "preset", tuple(VOXEL_SIZES))
    if weights is not None:
        pretrained.check_weights(weights)
    if model is not None and not isinstance(model, VBReg):
        raise VBRegError(
            f"model is a {type(model).__name__}: expected a VBReg, say "
            "VBReg.from_pretrained('fast'); a name or a file goes to weights"
        )
    if model is not None and weights is not None:
        raise VBRegError(f"weights {str(weights)!r} and a model: give one of them")
    devices.choose_device(device)
    if keypoints is not None and not (isinstance(keypoints, str) and keypoints == "all"):
        try:
            check_whole_number(keypoints, "keypoints", MIN_MATCHES)
        except VBRegError as error:
            raise VBRegError(f"{error}, or 'all'") from None
    if matching is not None:
        check_choice(matching, "matching", get_args(MatchingName))
    check_flag(retry, "retry")
    check_seed(seed)
    if on_stage is not None and not callable(on_stage):
        raise VBRegError(
            f"on_stage is a {type(on_stage).__name__}: expected a function that takes the name of "
            "a stage"
        )


def _check_numbers(
    max_correspondences: object, viewpoint: Viewpoint | None, voxel_size: object
) -> None:
    """Raise where a number of `register` is out of its range, before any work begins."""
    check_whole_number(max_correspondences, "max_correspondences", MIN_MATCHES)
    if viewpoint is not None:
        check_viewpoint(viewpoint)
    if voxel_size is not None:
        positive_number(voxel_size, "voxel_size")


def _check_max_scale(
    max_scale: object, guess: object, max_translation: object, verify: object
) -> None:
    """Raise where an unknown scale is asked for and could not be found."""
    if max_scale is None:
        return
    if positive_number(max_scale, "max_scale") <= 1.0:
        raise VBRegError(
            f"max_scale {max_scale!r}: expected a number above 1, say 2 where the source may be "
            "half or twice as large as it should be"
        )
    if guess is not None or max_translation is not None:
        raise VBRegError(
            "max_scale with a guess or max_translation: where the source is says nothing while its "
            "scale is unknown; leave one of them out (gravity and max_rotation do go with it)"
        )
    if not verify:
        raise VBRegError(
            "max_scale with verify=False: scales are chosen by how probable their poses are; leave "
            "one of them out"
        )


def _local_clouds(
    source: Cloud, target: Cloud, ignore: Ignore | IgnorePair | None
) -> tuple[LocalCloud, LocalCloud]:
    """Move both clouds to their middles, without the points to ignore."""
    pair = ignore if isinstance(ignore, tuple) and len(ignore) == 2 else (ignore, ignore)
    return local_cloud(source, "source", pair[0]), local_cloud(target, "target", pair[1])


def _choose_model(
    model: VBReg | None, weights: str | Path | None, device: str | torch.device
) -> VBReg:
    if model is not None:
        return model
    chosen = devices.choose_device(device)
    name = pretrained.DEFAULT if weights is None else weights
    if str(name) in pretrained.WEIGHTS:
        return _shipped_model(str(name), str(chosen))
    return VBReg.from_pretrained(name, device=chosen)


@lru_cache(maxsize=4)
def _shipped_model(weights: str, device: str) -> VBReg:
    return VBReg.from_pretrained(weights, device=device)
