"""`vbreg benchmark` compares methods on the pairs of a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from vbreg.cli.app import (
    DeviceOption,
    EveryOption,
    QuietOption,
    SamplingSeedOption,
    WorkersOption,
    command_line,
    examples,
)
from vbreg.cli.console import print_row, stdout_console

EXAMPLES = examples(
    "vbreg benchmark 3dmatch --root DATA/3dmatch --methods vbreg,sc2pcr,ransac -o out/3dmatch",
    "vbreg benchmark 3dlomatch --root DATA --descriptor npz:fcgf --points 1000 -o out/lo",
    "vbreg benchmark 3dlomatch --root DATA --as-register --methods register -o out/register",
    "vbreg benchmark kitti --root DATA/kitti/dev --methods vbreg -o out/kitti",
    "vbreg benchmark my_scans --voxel-size 0.02 --limit 20 -o out/mine",
    "vbreg benchmark synthetic --limit 20 -o out/synthetic",
)

DatasetArgument = Annotated[
    str,
    typer.Argument(
        metavar="DATASET",
        help="3dmatch, 3dlomatch, kitti, synthetic, or a folder of clouds with poses.txt.",
    ),
]
OutputOption = Annotated[
    Path, typer.Option("-o", "--output", help="Folder for poses, tables and pictures.")
]
RootOption = Annotated[
    Path | None, typer.Option(help="Where the data set lies, in any of its usual layouts.")
]
MethodsOption = Annotated[
    str, typer.Option(help="Names with commas between; `vbreg methods` lists them.")
]
DescriptorOption = Annotated[
    str,
    typer.Option(
        help="learned, fpfh, fcgf or a weights file (computed here), npz:NAME (stored beside the "
        "clouds, say npz:fcgf), or matches:NAME (matches stored in NAME_matches, say "
        "matches:learned)."
    ),
]
PointsOption = Annotated[
    int | None, typer.Option(help="Sample so many keypoints a cloud before matching.")
]
LimitOption = Annotated[int | None, typer.Option(help="The first so many pairs.", min=1)]
ScenesOption = Annotated[str | None, typer.Option(help="Only these, with commas between.")]
VoxelSizeOption = Annotated[
    float | None,
    typer.Option(
        help="The one scale that sets every radius, in the unit of the points. Left out: 0.05, "
        "and 0.30 for kitti."
    ),
]
AsRegisterOption = Annotated[
    bool,
    typer.Option(
        "--as-register",
        help="Match as `vbreg.register` does on 3dmatch, 3dlomatch and kitti, too, in place of "
        "the papers' way: all points, one way.",
    ),
]
ViewpointOption = Annotated[
    Literal["origin", "unknown"] | None,
    typer.Option(
        help="Where the sensor was in the frame of each cloud. Left out: unknown, and origin for "
        "kitti with --as-register."
    ),
]
RotateOption = Annotated[
    bool, typer.Option("--rotate", help="Turn every cloud by chance before anything else.")
]


def benchmark(
    context: typer.Context,
    dataset: DatasetArgument,
    output: OutputOption,
    root: RootOption = None,
    methods: MethodsOption = "vbreg,sc2pcr,ransac",
    descriptor: DescriptorOption = "learned",
    points: PointsOption = None,
    as_register: AsRegisterOption = False,
    limit: LimitOption = None,
    every: EveryOption = 1,
    scenes: ScenesOption = None,
    voxel_size: VoxelSizeOption = None,
    viewpoint: ViewpointOption = None,
    rotate: RotateOption = False,
    seed: SamplingSeedOption = 0,
    workers: WorkersOption = 1,
    device: DeviceOption = "auto",
    quiet: QuietOption = False,
) -> None:
    """Compare methods on the pairs of a data set.

    All have the same matches; it is reported how often each is right. Poses are kept in the output
    folder as they are found: the same command goes on after a stop.
    """
    from vbreg.benchmark.predict import predict
    from vbreg.benchmark.problems import Settings
    from vbreg.benchmark.report import terminal_table, write_report
    from vbreg.benchmark.score import score

    settings = Settings.of(
        dataset,
        descriptor=descriptor,
        points=points,
        as_register=as_register,
        voxel_size=voxel_size,
        viewpoint=viewpoint,
        turned=rotate,
        seed=seed,
    )
    names = names_of(methods)
    pairs = predict(
        settings,
        names,
        output,
        root=root,
        device=device,
        limit=limit,
        every=every,
        scenes=names_of(scenes) if scenes else None,
        workers=workers,
        quiet=quiet,
    )
    rows = score(output, names, pairs)
    page = write_report(output, rows, settings, command_line(context))
    if not quiet:
        console = stdout_console()
        console.print(terminal_table(rows, settings))
        print_row(console, "wrote", str(page.with_suffix(".html")))


def names_of(text: str) -> list[str]:
    """Return the names in a text with commas between them, and blanks if you like."""
    return [name.strip() for name in text.split(",") if name.strip()]
