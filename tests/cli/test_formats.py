from __future__ import annotations

from tests.cli.helpers import Run
from vbreg import io


def test_formats_lists_the_table(run: Run) -> None:
    lines = run("formats").out.splitlines()
    assert [line.split()[0] for line in lines] == [row.ending for row in io.FORMATS]
