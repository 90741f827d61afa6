"""`vbreg formats` lists the file formats."""

from __future__ import annotations

from vbreg.cli.app import examples
from vbreg.cli.console import print_row, stdout_console

EXAMPLES = examples("vbreg formats")
LABEL_WIDTH = 21  # columns for an ending and "read, write"


def formats() -> None:
    """List the file formats, by ending."""
    from vbreg.io import FORMATS

    console = stdout_console()
    for row in FORMATS:
        verbs = "read, write" if row.reads and row.writes else "read" if row.reads else "write"
        extra = f"; needs pip install 'vbreg[{row.extra}]'" if row.extra else ""
        print_row(console, f"{row.ending:<8}{verbs}", row.note + extra, LABEL_WIDTH)
