"""This file writes to the terminal: rows of text, warnings and errors.

The text is ASCII only: it survives every terminal and every pipe.
"""

from __future__ import annotations

import os
import sys
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal

from rich.console import Console
from rich.text import Text

LABEL_WIDTH = 13  # columns before the value of a row
MIN_VALUE_WIDTH = 24  # columns; a narrower terminal wraps the lines itself
PIPE_WIDTH = 10_000  # columns: nothing is wrapped for a program that reads line by line


class StdoutConsole(Console):
    """A console on stdout. Where nobody reads on, as behind `head`, the command still goes on."""

    def on_broken_pipe(self) -> None:
        """Send the rest nowhere: clouds are still to be written."""
        forget_stdout()


def stdout_console() -> Console:
    """Return a console on stdout that leaves numbers and paths in the text uncoloured."""
    return StdoutConsole(highlight=False)


def print_row(console: Console, label: str, value: str, label_width: int = LABEL_WIDTH) -> None:
    """Print a label and its value, wrapped beside the label on a terminal and whole in a pipe."""
    room = max(MIN_VALUE_WIDTH, console.width - label_width)
    width = room if console.is_terminal else PIPE_WIDTH
    lines = textwrap.wrap(value, width, break_long_words=False, break_on_hyphens=False)
    text = Text(f"{label:<{label_width}}", style="bold")
    text.append(f"\n{'':<{label_width}}".join(lines), style="not bold")
    console.print(text, soft_wrap=True)


def complain(kind: Literal["warning", "error"], message: str) -> None:
    """Print a warning or an error as one line on stderr."""
    line = Text(f"vbreg: {kind}: ", style="bold red" if kind == "error" else "bold yellow")
    line.append(" ".join(message.split()), style="not bold default")
    Console(stderr=True, highlight=False).print(line, soft_wrap=True)


@contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """Yield a list that takes up the warnings of the block; they are not printed.

    Warnings for programmers, of libraries that become old, go their usual way.
    """
    said: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        usual = warnings.showwarning

        def take(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
            if issubclass(category, UserWarning):
                said.append(str(message))
            else:
                usual(message, category, *rest, **more)

        warnings.showwarning = take
        yield said


def allow_any_text() -> None:
    """Let names print in a terminal that has no letters for them, with escapes in their place."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, ValueError, OSError):  # not every stream can be changed
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def forget_stdout() -> None:
    """Send what stdout still holds nowhere, since it cannot be written: Python would try again."""
    with suppress(AttributeError, ValueError, OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
