"""`vbreg demo` aligns a pair of scans that comes with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vbreg.cli.app import DeviceOption, examples
from vbreg.cli.checks import check_outputs
from vbreg.cli.clock import load_torch
from vbreg.cli.console import complain, print_row, stdout_console
from vbreg.cli.results import print_result, print_start
from vbreg.progress import progress
from vbreg.summary import pose_difference

# A pose further than either from the true one means that the demo failed. Benchmarks of indoor
# scans count a pair as found within the same bounds.
MAX_DEGREES = 15.0
MAX_METRES = 0.30

EXAMPLES = examples(
    "vbreg demo",
    "vbreg demo --picture /tmp/demo.png --device cpu",
    "vbreg demo --files .    # writes source.ply and target.ply, to try other commands on",
)


def demo(
    picture: Annotated[
        Path, typer.Option(help="Where the picture of before and after goes.")
    ] = Path("vbreg_demo.png"),
    files: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Write the two scans there as well, as source.ply and target.ply, to try other "
            "commands on.",
        ),
    ] = None,
    device: DeviceOption = "auto",
) -> None:
    """Align the pair of scans that comes with vbreg."""
    from vbreg import demo as pair

    check_outputs(picture=picture)
    copied = [] if files is None else pair.copy_to(files)
    with progress() as stage:
        stage("start torch")
        start = load_torch()
        from vbreg import registration, render

        source, target, T_truth = pair.load()
        result = registration.register(
            source, target, preset="indoor", device=device, on_stage=stage
        )
        stage("draw")
        points = source.points, target.points
        render.before_after(*points, result.T_target_source, picture, pair.TITLE)
    degrees, metres = pose_difference(result.T_target_source, T_truth)
    console = stdout_console()
    print_result(console, result, result.timings)
    print_start(console, start)
    for path in [picture, *copied]:
        print_row(console, "wrote", str(path))
    print_row(console, "true pose", f"off by {degrees:.2f} deg and {100 * metres:.1f} cm")
    if degrees > MAX_DEGREES or metres > MAX_METRES:
        complain("warning", "the demo pair was not aligned; please report this")
        raise typer.Exit(1)
