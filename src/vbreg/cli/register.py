"""`vbreg register` finds the pose between two clouds in files."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer
from typer.core import TyperCommand

from vbreg.cli.app import (
    LESS_THAN_ASKED,
    CoordinatesOption,
    DeviceOption,
    QuietOption,
    VoxelSizeOption,
    command_line,
    examples,
)
from vbreg.cli.checks import check_inputs, tell_which_size_counts
from vbreg.cli.clock import load_torch
from vbreg.cli.console import collected_warnings
from vbreg.cli.constraints import (
    GravityOption,
    GuessOption,
    MaxRotationOption,
    MaxScaleOption,
    MaxTranslationOption,
    gravity_of,
)
from vbreg.cli.crops import Crop, cropped, parse_crop, without_outliers
from vbreg.cli.outputs import (
    Aligned,
    Making,
    Outputs,
    align_each,
    doubts,
    leave,
    probable,
    write_clouds,
    write_pictures,
    write_poses,
    write_report,
)
from vbreg.errors import VBRegError
from vbreg.progress import progress
from vbreg.types import PointCloud

REMEDY = "look at --report, or try another --voxel-size"  # where a pose is improbable

EXAMPLES = examples(
    "vbreg register source.ply target.ply",
    "vbreg register source.ply target.ply -o aligned.ply --picture before_after.png",
    "vbreg register source.ply target.ply --report report.html --figure figure.svg",
    "vbreg register source.pcd target.pcd --preset outdoor",
    "vbreg register source.ply target.ply --voxel-size 0.03 --json - | jq .T_target_source",
    "vbreg register scan1.ply scan2.ply map.ply -o aligned/ --merge all.ply",
    "vbreg register source.pcd target.pcd --crop 40 --crop target:-5,-5,0,5,5,3",
    "vbreg register source.ply target.ply --gravity z --max-translation 5",
    "vbreg register source.ply target.ply -o aligned.ply --min-probability 0.9 || echo failed",
)


# What lies where torch would be loaded for `--help`; a test compares these with that.
MIN_COUNT = 3  # of matches and keypoints
PresetName = Literal["indoor", "outdoor"]
MatchingName = Literal["one-way", "either-way", "mutual", "ratio", "two-nearest"]
RefineName = Literal["icp", "none"]

SourceArgument = Annotated[
    list[Path], typer.Argument(metavar="SOURCE...", help="The cloud to move, or several.")
]
TargetArgument = Annotated[Path, typer.Argument(metavar="TARGET", help="The cloud that stays.")]
PresetOption = Annotated[
    PresetName | None,
    typer.Option(help="Voxel size for rooms (0.05 m) or streets (0.30 m)."),
]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        help="Write the whole source in the target's frame: a file, or a folder, in which it keeps "
        "its name. Several sources need a folder, which is made where there is none.",
    ),
]
MergeOption = Annotated[
    Path | None, typer.Option(help="Write the target and every moved source as one cloud.")
]
CropOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[source:|target:]R|X0,Y0,Z0,X1,Y1,Z1",
        help="Register only what lies within R of the origin, or within a box, in each cloud's own "
        "frame or in that of the one named.",
    ),
]
OutliersOption = Annotated[
    bool, typer.Option("--remove-outliers", help="Register without points that lie apart.")
]
JsonOption = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE", help="Write the result as JSON; - is stdout."),
]
PictureOption = Annotated[
    Path | None, typer.Option(help="Write a picture of before and after, .png or .jpg.")
]
FigureOption = Annotated[
    Path | None,
    typer.Option(help="Write a figure for papers: before, matches, after; .png or .svg."),
]
ReportOption = Annotated[
    Path | None, typer.Option(help="Write a page to look at the result in any browser, .html.")
]
WeightsOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FILE",
        help="fast, universal (the larger network of the paper) or a file. Left out: fast.",
    ),
]
DescriptorOption = Annotated[
    str,
    typer.Option(
        metavar="NAME|FILE",
        help="learned, fpfh, fcgf, or a descriptor's weights file that `vbreg train` wrote.",
    ),
]
KeypointsOption = Annotated[
    str | None,
    typer.Option(
        metavar="N|all",
        help="Points of each cloud to describe and match. Left out: 1000 or a quarter of the "
        "points, whichever is more, with learned or a descriptor that you trained; all points with "
        "fpfh and fcgf.",
    ),
]
MatchingOption = Annotated[
    MatchingName | None,
    typer.Option(
        help="Match source points to their nearest, points of either cloud, only those that are "
        "nearest both ways, only those clearly nearer than the next, or each to two. Left out: "
        "one-way, or with the learned descriptor either-way."
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
    int, typer.Option(min=MIN_COUNT, help="Thin more matches than this evenly at random.")
]
VerifyOption = Annotated[
    bool,
    typer.Option(
        "--verify/--no-verify",
        help="Choose the pose by the clouds and tell how probable it is, or by the matches alone.",
    ),
]
RefineOption = Annotated[
    RefineName | None,
    typer.Option(help="Make the pose exact on the clouds, or not. Left out: icp if verified."),
]
RetryOption = Annotated[
    bool,
    typer.Option(
        "--retry/--no-retry",
        help="If a pose is in doubt, try again: at 0.7 times the voxel size (half and double if it "
        "was estimated), without stray points, and the mirror image. --no-retry tries once.",
    ),
]
MinProbabilityOption = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        max=1.0,
        help=f"Exit with {LESS_THAN_ASKED} where the pose is less probable; its cloud is not "
        "written. Exit code 0 does not mean that the pose can be used: the scans may still slide "
        "or turn against each other. Check determined and limits_reached in --json.",
    ),
]
LatentSeedOption = Annotated[
    int | None,
    typer.Option("--seed", help="For experiments: sample at random. Not needed normally."),
]


class RegisterCommand(TyperCommand):
    """The command, which says what is missing where one cloud is given alone.

    That one counts as TARGET, so that the parser would miss a SOURCE.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments."""
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            if error.param is not None and error.param.name == "source":
                ctx.fail("Missing argument: expected SOURCE and TARGET, two clouds or more.")
            raise


def register(
    context: typer.Context,
    source: SourceArgument,
    target: TargetArgument,
    voxel_size: VoxelSizeOption = None,
    preset: PresetOption = None,
    output: OutputOption = None,
    json_path: JsonOption = None,
    picture: PictureOption = None,
    figure: FigureOption = None,
    report: ReportOption = None,
    merge: MergeOption = None,
    coordinates: CoordinatesOption = None,
    crop: CropOption = None,
    remove_outliers: OutliersOption = False,
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
    max_scale: MaxScaleOption = None,
    verify: VerifyOption = True,
    refine: RefineOption = None,
    retry: RetryOption = True,
    min_probability: MinProbabilityOption = None,
    seed: LatentSeedOption = None,
    quiet: QuietOption = False,
) -> None:
    """Find the pose of SOURCE in the frame of TARGET.

    Of several sources, each is registered to TARGET, which is read once.
    """
    from vbreg.io import read_pose

    several = len(source) > 1
    outputs = Outputs(output, merge, picture, figure, report, json_path, coordinates, quiet)
    crops = [parse_crop(text) for text in crop or []]
    options = {
        "voxel_size": voxel_size,
        "preset": preset,
        "weights": weights,
        "descriptor": descriptor,
        "device": device,
        "keypoints": count_of(keypoints),
        "matching": matching,
        "viewpoint": viewpoint_of(viewpoint),
        "max_correspondences": max_correspondences,
        "gravity": gravity_of(gravity),
        "guess": None if guess is None else read_pose(guess),
        "max_translation": max_translation,
        "max_rotation": max_rotation,
        "max_scale": max_scale,
        "verify": verify,
        "refine": refine,
        "retry": retry,
        "seed": seed,
    }
    if min_probability is not None and not verify:
        raise VBRegError(
            f"--min-probability {min_probability:g} with --no-verify: nothing tells how probable "
            "the pose is; leave one of them out"
        )
    check_inputs(*source, target)
    outputs.check(source, target)
    tell_which_size_counts(voxel_size, preset)
    with progress(quiet) as stage:
        stage("start torch")
        start = load_torch()
        run = _Run(stage, crops, remove_outliers, options, outputs.need_clouds)
        whole, found = run.align_all(source, target)
        stage("write")
    failed, improbable = len(found) < len(source), False
    if found:
        failed |= not write_poses(outputs, found, target, several=several, start=start)
        kept = probable(outputs, found, min_probability, several)
        failed |= not write_clouds(outputs, kept, whole, several)
        failed |= not write_pictures(outputs, found[0], target, whole)
        made_by = Making(command_line(context), weights, device)
        failed |= not write_report(outputs, found[0], target, whole, made_by)
        improbable = len(kept) < len(found)
    leave(failed=failed, improbable=improbable)


@dataclass(frozen=True)
class _Run:
    """What all sources of a command share."""

    stage: Callable[[str], None]
    crops: Sequence[Crop]
    remove_outliers: bool
    options: Mapping[str, Any]
    need_clouds: bool  # all points of them

    def read(
        self, path: Path, role: Literal["source", "target"]
    ) -> tuple[PointCloud, PointCloud | Path, float]:
        """Return a cloud, the part of it to register, and the seconds to read the file.

        A large file of which nobody needs every point is registered from where it lies.
        """
        from vbreg import io, streaming

        self.stage(f"read {path.name}")
        if not (self.need_clouds or self.crops or self.remove_outliers):
            io.check_readable(path)
            if streaming.is_large(path):
                return PointCloud(np.empty((0, 3))), path, 0.0
        start = time.perf_counter()
        cloud = io.read(path)
        seconds = time.perf_counter() - start
        part = cropped(cloud, role, self.crops)
        return cloud, without_outliers(part) if self.remove_outliers else part, seconds

    def align_all(self, sources: Sequence[Path], target: Path) -> tuple[PointCloud, list[Aligned]]:
        """Return the target and the sources that were registered; of several, one may fail."""
        whole, prepared, seconds = self.read(target, "target")
        return whole, align_each(sources, lambda path: self.align(path, target, prepared, seconds))

    def align(
        self, path: Path, target_path: Path, target: PointCloud | Path, target_seconds: float
    ) -> Aligned:
        """Register one source, and collect the warnings on the way."""
        from vbreg import registration

        with collected_warnings() as said:
            cloud, part, seconds = self.read(path, "source")
            result = registration.register(part, target, on_stage=self.stage, **self.options)
        timings = {"read files": seconds + target_seconds, **result.timings}
        if path.exists() and path.samefile(target_path):
            said.insert(0, "SOURCE and TARGET are the same file: is that meant?")
        return Aligned(path, cloud, result, timings, [*said, *doubts(result, REMEDY)])


def count_of(text: str | None) -> int | Literal["all"] | None:
    """Return the number of keypoints that is meant."""
    if text is None or text == "all":
        return "all" if text else None
    if not text.isdecimal() or int(text) < MIN_COUNT:
        raise VBRegError(f"--keypoints {text}: expected a whole number from {MIN_COUNT} up or all")
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
