"""The code blocks of the documents, and what the documents say about those that are not run.

A block is run unless a comment stands in the line above it:

    <!-- not run: REASON -->            nothing of it is executed
    <!-- options checked: REASON -->    its commands are parsed, not run
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
GUIDES = [ROOT / "docs" / "start.md", *sorted((ROOT / "docs" / "guides").glob("*.md"))]
OTHERS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"] + [
    path for path in sorted((ROOT / "docs").glob("*.md")) if path not in GUIDES
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MARK = re.compile(r"<!-- (not run|options checked): (.+) -->")


class Block(NamedTuple):
    page: Path
    line: int  # of its first line of code
    language: str
    text: str
    mark: str  # "not run", "options checked", or nothing
    reason: str

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT).as_posix()}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """Return the blocks of a page in their order, each with the mark above it."""
    text = page.read_text(encoding="utf-8")
    found = []
    for fence in FENCE.finditer(text):
        above = text[: fence.start()].rstrip("\n").rpartition("\n")[2]
        mark = MARK.fullmatch(above.strip())
        line = text.count("\n", 0, fence.start()) + 2
        found.append(Block(page, line, fence[1], fence[2], *(mark.groups() if mark else ("", ""))))
    return found


def commands_of(block: Block) -> list[list[str]]:
    """Return the commands of a shell block as words, without comments."""
    lines = block.text.replace("\\\n", " ").splitlines()
    split = (shlex.split(line, comments=True) for line in lines)
    return [words for words in split if words]


def run_python_of(page: Path, names: dict[str, Any]) -> dict[str, Any]:
    """Run the Python blocks of a page in their order, all with one set of names; return these."""
    for block in blocks_of(page):
        if block.language == "python" and not block.mark:
            lines = "\n" * (block.line - 1)  # so that an error names the line of the page
            exec(compile(lines + block.text, str(page), "exec"), names)
    return names
