"""This file holds what the verbs share: the typer app, options of several verbs, examples."""

from __future__ import annotations

import shlex
from typing import Annotated, Literal

import typer

from vbreg import __version__
from vbreg.cli.checks import number_between


def examples(*lines: str) -> str:
    """Lay out example commands for the end of a help page, one a line."""
    # \b keeps click from filling the lines into a paragraph.
    return "\n".join(["\b", "EXAMPLES", *(f"  {line}" for line in lines)])


app = typer.Typer(
    name="vbreg",
    help="Align two 3D point clouds when most of the matches between them are wrong.",
    epilog=examples(
        "vbreg demo",
        "vbreg register source.ply target.ply -o aligned.ply",
        "vbreg info scan.ply",
        "vbreg register --help",
    ),
    add_completion=False,
    rich_markup_mode=None,  # plain help: quick, narrow, and its examples keep their lines
    pretty_exceptions_enable=False,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

LESS_THAN_ASKED = 3  # the exit code of a run that ended well, and gave less than it was asked for

VoxelSizeOption = Annotated[
    float | None,
    typer.Option(
        help="The one scale that sets every radius, in the unit of the points, say 0.05. "
        "Left out: the preset's, or estimated from the clouds.",
        callback=number_between("--voxel-size", "a positive number in the unit of the points"),
    ),
]
DeviceOption = Annotated[
    str, typer.Option(help="auto (the GPU if there is one), cpu, cuda or cuda:N.")
]
CoordinatesOption = Annotated[
    Literal["float32", "float64", "shifted"] | None,
    typer.Option(
        help="How a .pcd, .ply or .bin holds large coordinates such as UTM: shifted is float32 "
        "with a shift beside the file. Left out: .pcd and .bin float32, .ply what is needed.",
    ),
]
QuietOption = Annotated[
    bool, typer.Option("-q", "--quiet", help="Print nothing but warnings and errors.")
]
# Of `benchmark` and `experiment`, which both run methods on many pairs:
EveryOption = Annotated[int, typer.Option(help="Every n-th pair.", min=1)]
SamplingSeedOption = Annotated[
    int, typer.Option("--seed", help="For sampling points and for random methods.")
]
WorkersOption = Annotated[
    int,
    typer.Option(
        help="Processes that share the pairs: sooner done, but without times, since they slow "
        "each other down.",
        min=1,
    ),
]


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Print the version if asked for it, and the help page where no verb is given."""
    if version:
        print(f"vbreg {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


def command_line(context: typer.Context) -> str:
    """Return the command as it was typed, for a report to say how it was made."""
    return "vbreg " + shlex.join(context.obj)
