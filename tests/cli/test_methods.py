from __future__ import annotations

from tests.cli.helpers import Run
from vbreg.methods import METHODS


def test_methods_are_listed_with_what_they_need(run: Run) -> None:
    out = run("methods").out
    names = [line.split()[0] for line in out.splitlines() if not line.startswith(" ")]
    assert names == list(METHODS)
    assert "Needs matches" in out
