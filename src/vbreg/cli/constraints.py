"""The options of `vbreg register` for what is known of the pose, and what their words mean."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from vbreg.cli.checks import number_between
from vbreg.errors import VBRegError

GravityOption = Annotated[
    str | None,
    typer.Option(
        metavar="x|y|z|X,Y,Z",
        help="Up direction of the scans; the pose then rotates only about it. A wrong direction "
        "gives a wrong pose. Six numbers are one direction each, SOURCE before TARGET.",
    ),
]
GuessOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Roughly the pose of SOURCE: what --json wrote, or 4 x 4 or 3 x 4 numbers as text or "
        ".npy. Goes with --max-translation, --max-rotation or both.",
    ),
]
MaxTranslationOption = Annotated[
    float | None,
    typer.Option(
        metavar="LENGTH",
        help="Largest shift of the middle of SOURCE, which is not the last column of the matrix. "
        "With --guess: from where the guess puts it.",
        callback=number_between("--max-translation", "a positive number in the unit of the points"),
    ),
]
MaxRotationOption = Annotated[
    float | None,
    typer.Option(
        metavar="DEGREES",
        help="Largest rotation of SOURCE in degrees: away from the guess, or without one from "
        "where it is.",
        callback=number_between("--max-rotation", "degrees, above 0 and at most 180", most=180.0),
    ),
]
MaxScaleOption = Annotated[
    float | None,
    typer.Option(
        metavar="FACTOR",
        help="SOURCE may be so many times larger or smaller than TARGET: its scale is looked for, "
        "which takes many times as long.",
        callback=number_between(
            "--max-scale",
            "a number above 1, say 2 where SOURCE may be half or twice as large as it should be",
            above=1.0,
        ),
    ),
]


def gravity_of(
    text: str | None,
) -> Literal["x", "y", "z"] | tuple[float, ...] | list[tuple[float, ...]] | None:
    """Return the directions that are meant."""
    if text is None:
        return None
    for axis in ("x", "y", "z"):
        if text == axis:
            return axis
    try:
        numbers = tuple(map(float, text.split(",")))
    except ValueError:
        numbers = ()
    if len(numbers) not in (3, 6):
        raise VBRegError(
            f"--gravity {text}: expected x, y, z, three numbers such as 0,-1,0, or six, those of "
            "SOURCE before those of TARGET"
        )
    return numbers if len(numbers) == 3 else [numbers[:3], numbers[3:]]
