"""`vbreg transform` applies a pose to a cloud in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from vbreg.cli.app import CoordinatesOption, QuietOption, examples
from vbreg.cli.checks import check_inputs, check_outputs
from vbreg.cli.console import collected_warnings, complain, print_row, stdout_console
from vbreg.errors import VBRegError

EXAMPLES = examples(
    "vbreg transform source.ply result.json -o aligned.ply",
    "vbreg transform target.las result.json --inverse -o target_in_source.las",
    "vbreg transform scan3.ply poses.json --scan scan3.ply -o scan3_in_scene.ply",
    "vbreg transform scan.pcd -o scan.ply   (without a pose: convert)",
)

CloudArgument = Annotated[Path, typer.Argument(metavar="CLOUD", help="The cloud to move.")]
PoseArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="[POSE]",
        help="JSON of `vbreg register`, poses of `vbreg reconstruct`, or 4 x 4 or 3 x 4 numbers as "
        "text or .npy. Left out: the cloud stays where it is.",
    ),
]
ScanOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|N",
        help="Which pose of several in the file: by the name of its scan, or its number from 0.",
    ),
]


def transform(
    cloud: CloudArgument,
    output: Annotated[Path, typer.Option("-o", "--output", help="Where the moved cloud goes.")],
    pose: PoseArgument = None,
    inverse: Annotated[
        bool, typer.Option("--inverse", help="Apply the inverse: TARGET into SOURCE's frame.")
    ] = False,
    scan: ScanOption = None,
    coordinates: CoordinatesOption = None,
    quiet: QuietOption = False,
) -> None:
    """Apply a pose to a cloud, or convert it to another format."""
    from vbreg import io

    if scan is not None and pose is None:
        raise VBRegError(f"--scan {scan} without POSE: give the file that holds its pose")
    check_inputs(cloud)
    check_outputs(clouds=[output], inputs=[cloud, *([pose] if pose else [])])
    with collected_warnings() as said:
        T = np.eye(4) if pose is None else io.read_pose(pose, scan)
        T = np.asarray(np.linalg.inv(T), dtype=np.float64) if inverse else T
        read = io.read(cloud)
        moved = read if pose is None else read.transformed(T)
        io.write(output, moved, coordinates=coordinates)
    if not quiet:
        print_row(stdout_console(), "wrote", f"{output}, {len(moved)} points")
    if read.crs and not moved.crs:
        said.append(
            "the coordinate reference system is left out: the cloud is in another frame now"
        )
    for warning in said:
        complain("warning", warning)
