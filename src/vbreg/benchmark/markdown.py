"""Tables of pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal


def markdown_table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    aligned: Literal["left", "right"] = "left",
) -> str:
    """Return a table in Markdown."""
    rule = "---" if aligned == "left" else "---:"
    lines = [header, [rule] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
