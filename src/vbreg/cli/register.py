"""`vbreg register` finds the pose between two clouds in files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Literal

import typer

from vbreg.cli.app import DeviceOption, QuietOption, VoxelSizeOption, examples
from vbreg.cli.checks import check_inputs, check_outputs
from vbreg.cli.console import complain, progress, stdout_console
from vbreg.cli.constraints import (
    GravityOption,
    GuessOption,
    MaxRotationOption,
    MaxTranslationOption,
    gravity_of,
    guess_of,
)
from vbreg.cli.results import as_json, print_result, write_json
from vbreg.errors import VBRegError
from vbreg.types import Registration

# Below either, a pose is easily an accident. A rule of thumb from indoor pairs, not a probability.
MIN_INLIERS = 30
MIN_INLIER_SHARE = 0.02  # of the correspondences

EXAMPLES = examples(
    "vbreg register source.ply target.ply",
    "vbreg register source.ply target.ply -o aligned.ply --picture before_after.png",
    "vbreg register source.pcd target.pcd --preset outdoor",
    "vbreg register source.ply target.ply --voxel-size 0.03 --json - | jq .T_target_source",
    "vbreg register source.ply target.ply --gravity z --max-translation 5",
)


# Names that lie where torch would be loaded for `--help`; a test compares these with them.
PresetName = Literal["indoor", "outdoor"]
MatchingName = Literal["one-way", "either-way", "mutual"]

SourceArgument = Annotated[Path, typer.Argument(metavar="SOURCE", help="The cloud to move.")]
TargetArgument = Annotated[Path, typer.Argument(metavar="TARGET", help="The cloud that stays.")]
PresetOption = Annotated[
    PresetName | None,
    typer.Option(help="Voxel size for rooms (0.05 m) or streets (0.30 m)."),
]
OutputOption = Annotated[
    Path | None,
    typer.Option("-o", "--output", help="Write the whole source in the target's frame."),
]
JsonOption = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE", help="Write the result as JSON; - is stdout."),
]
PictureOption = Annotated[
    Path | None, typer.Option(help="Write a picture of before and after, .png or .jpg.")
]
WeightsOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FILE",
        help="universal, fast (a smaller network) or a file. Left out: fast on a CPU, universal on "
        "a GPU.",
    ),
]
DescriptorOption = Annotated[
    str,
    typer.Option(
        metavar="NAME|FILE",
        help="learned, fpfh, or a descriptor's weights file that `vbreg train` wrote.",
    ),
]
KeypointsOption = Annotated[
    str | None,
    typer.Option(
        metavar="N|all",
        help="Points of each cloud to describe and match. Left out: all, or with a trained "
        "descriptor 1000 or a quarter of the points.",
    ),
]
MatchingOption = Annotated[
    MatchingName | None,
    typer.Option(
        help="Match source points to their nearest, points of either cloud, or only those that are "
        "nearest both ways. Left out: one-way, or with a trained descriptor either-way."
    ),
]
ViewpointOption = Annotated[
    str | None,
    typer.Option(
        metavar="origin|unknown|X,Y,Z",
        help="Where the sensor was in the frame of each scan. Left out: the origin with --preset "
        "outdoor where it lies within both scans, else unknown.",
    ),
]
MaxCorrespondencesOption = Annotated[
    int, typer.Option(help="Thin more matches than this evenly at random.")
]
LatentSeedOption = Annotated[
    int | None,
    typer.Option("--seed", help="Sample the latent features instead of taking their mean."),
]


def register(
    source: SourceArgument,
    target: TargetArgument,
    voxel_size: VoxelSizeOption = None,
    preset: PresetOption = None,
    output: OutputOption = None,
    json_path: JsonOption = None,
    picture: PictureOption = None,
    device: DeviceOption = "auto",
    weights: WeightsOption = None,
    descriptor: DescriptorOption = "learned",
    keypoints: KeypointsOption = None,
    matching: MatchingOption = None,
    viewpoint: ViewpointOption = None,
    max_correspondences: MaxCorrespondencesOption = 8000,
    gravity: GravityOption = None,
    guess: GuessOption = None,
    max_translation: MaxTranslationOption = None,
    max_rotation: MaxRotationOption = None,
    seed: LatentSeedOption = None,
    quiet: QuietOption = False,
) -> None:
    """Find the pose of SOURCE in the frame of TARGET."""
    check_inputs(source, target)
    check_outputs(cloud=output, picture=picture, json_path=json_path, inputs=(source, target))
    up, T_guess = gravity_of(gravity), guess_of(guess)
    with progress(quiet) as stage:
        stage("start torch")
        from vbreg import io, registration, render

        stage("read files")
        start = time.perf_counter()
        clouds = io.read(source), io.read(target)
        seconds = time.perf_counter() - start
        result = registration.register(
            *clouds,
            voxel_size=voxel_size,
            preset=preset,
            weights=weights,
            descriptor=descriptor,
            device=device,
            keypoints=_count(keypoints),
            matching=matching,
            viewpoint=viewpoint_of(viewpoint),
            max_correspondences=max_correspondences,
            gravity=up,
            guess=T_guess,
            max_translation=max_translation,
            max_rotation=max_rotation,
            seed=seed,
            on_stage=stage,
        )
        stage("write")
        if output is not None:
            io.write(output, result.apply_to(clouds[0]))
        if picture is not None:
            points = clouds[0].points, clouds[1].points
            title = f"{source.name} to {target.name}"
            render.before_after(*points, result.T_target_source, picture, title)
    timings = {"read files": seconds, **result.timings}
    if json_path is not None:
        write_json(json_path, as_json(result, timings, source, target))
    if not quiet and json_path != "-":
        written = [path for path in (output, json_path, picture) if path is not None]
        print_result(stdout_console(), result, timings, written)
    _warn_if_doubtful(result)


def _count(text: str | None) -> int | Literal["all"] | None:
    """Return the number of keypoints that is meant."""
    if text is None or text == "all":
        return "all" if text else None
    if not text.isdecimal():
        raise VBRegError(f"--keypoints {text}: expected a whole number or all")
    return int(text)


def viewpoint_of(text: str | None) -> Literal["origin", "unknown"] | tuple[float, ...] | None:
    """Return the place of the sensor that is meant."""
    if text is None:
        return None
    if text in ("origin", "unknown"):
        return "origin" if text == "origin" else "unknown"
    try:
        x, y, z = map(float, text.split(","))
    except ValueError:
        raise VBRegError(
            f"--viewpoint {text}: expected origin, unknown or three numbers such as 0,0,1.7"
        ) from None
    return x, y, z


def _warn_if_doubtful(result: Registration) -> None:
    """Warn on stderr where the matches say little for the pose."""
    inliers, matches = result.inlier_count, len(result.correspondences)
    if result.free_directions:
        free = ", ".join(map(str, result.free_directions))
        complain("warning", f"what the scans share does not fix the pose: SOURCE {free}")
    elif not result.determined:
        complain(
            "warning",
            "the matches do not fix all six degrees of freedom; do not rely on this pose",
        )
    elif inliers < max(MIN_INLIERS, MIN_INLIER_SHARE * matches):
        complain(
            "warning",
            f"only {inliers} of {matches} matches agree with this pose, and clouds that do not "
            "overlap can reach that by chance; look at --picture, or try another --voxel-size",
        )
