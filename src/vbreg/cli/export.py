"""`vbreg export` writes the network in a form that other runtimes load."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from vbreg.cli.app import QuietOption, examples
from vbreg.cli.checks import check_outputs
from vbreg.cli.console import print_row, stdout_console
from vbreg.progress import progress

EXAMPLES = examples(
    "vbreg export onnx -o fast.onnx",
    "vbreg export onnx -o universal.onnx --weights universal",
    "vbreg export onnx -o mine.onnx --weights runs/mine/weights.safetensors --every-iteration",
)


def export(
    form: Annotated[Literal["onnx"], typer.Argument(metavar="FORM", help="onnx.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Where the file goes.")],
    weights: Annotated[
        str, typer.Option(help="fast, universal, or a weights file that `vbreg train` wrote.")
    ] = "fast",
    every_iteration: Annotated[
        bool,
        typer.Option(
            "--every-iteration",
            help="Give the features of every iteration, which the search votes with, in place of "
            "the last ones.",
        ),
    ] = False,
    quiet: QuietOption = False,
) -> None:
    """Write the network as an ONNX file.

    It tells right matches from wrong ones. The export needs `pip install 'vbreg[onnx]'` and takes
    about half a minute. Inputs are source and target (N, 3), each about its mean and in inlier
    thresholds, for any N; outputs are logits (N,) and features.
    """
    check_outputs(network=output)
    with progress(quiet) as stage:
        stage("start torch")
        from vbreg import export as exporting

        stage("export")
        written = exporting.export_onnx(weights, output, every_iteration=every_iteration)
    if not quiet:
        size = written.stat().st_size / 1e6
        print_row(stdout_console(), "wrote", f"{written}, {size:.1f} MB")
