"""The options of `vbreg register` for what is known of the pose, and what their words mean."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import typer

from vbreg.errors import FileFormatError, VBRegError
from vbreg.types import Float64

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
        help="About the pose: four rows of four numbers, or what --json wrote. Goes with "
        "--max-translation, --max-rotation or both.",
    ),
]
MaxTranslationOption = Annotated[
    float | None,
    typer.Option(
        metavar="LENGTH",
        help="Largest shift of the middle of SOURCE, which is not the last column of the matrix. "
        "With --guess: from where the guess puts it.",
    ),
]
MaxRotationOption = Annotated[
    float | None,
    typer.Option(metavar="DEGREES", help="How far SOURCE may be turned from the guess, or at all."),
]
MaxScaleOption = Annotated[
    float | None,
    typer.Option(
        metavar="FACTOR",
        help="SOURCE may be so many times larger or smaller than TARGET: its scale is looked for, "
        "which takes many times as long.",
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


def guess_of(path: Path | None) -> Float64 | None:
    """Read a pose from text or JSON."""
    if path is None:
        return None
    if not path.is_file():
        raise FileFormatError(f"--guess {path}: no such file; check the spelling")
    try:
        text = path.read_text(encoding="utf-8")
        if text.lstrip().startswith("{"):
            return np.array(json.loads(text)["T_target_source"], dtype=np.float64)
        return np.array([line.split() for line in text.splitlines() if line.strip()], dtype=float)
    except (ValueError, KeyError, TypeError) as error:
        raise FileFormatError(
            f"--guess {path}: expected four rows of four numbers, or JSON with T_target_source "
            f"({type(error).__name__}: {error})"
        ) from error
