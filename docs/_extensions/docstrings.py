"""Docstrings are plain text, and shapes stand in comments: both become what Sphinx reads.

- Indented lines of a docstring are code; `*` and `|` outside of backticks are letters.
- The comment beside a field of a class, or above it, is its documentation:

      points: Float64  # (N, 3)
"""

from __future__ import annotations

import ast
import importlib
import inspect
import io
import re
import textwrap
import tokenize
from functools import lru_cache

from sphinx.application import Sphinx


def as_markup(lines: list[str]) -> list[str]:
    """Return reStructuredText of the lines of a plain docstring."""
    found: list[str] = []
    in_code = False
    for line in lines:
        indented = line.startswith("    ")
        if indented and not in_code and not (found and found[-1].strip()):
            found += ["::", ""]
            in_code = True
        elif line.strip() and not indented and in_code:
            in_code = False
        found.append(line if in_code or not line.strip() else escaped(line))
    return found


def escaped(line: str) -> str:
    """Return a line in which only backticks mark anything."""
    parts = line.split("`")  # code stands at the odd places
    return "`".join(
        part if k % 2 else re.sub(r"([*|]|_\b)", r"\\\1", part) for k, part in enumerate(parts)
    )


@lru_cache
def comments_of(owner: type) -> dict[str, str]:
    """Return the comment of each annotated field of a class that has one."""
    try:
        source = textwrap.dedent(inspect.getsource(owner))
    except (OSError, TypeError):  # a class of C, or one that was made at run time
        return {}
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    at_line = {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}
    lines = source.splitlines()
    (tree,) = ast.parse(source).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for node in tree.body:
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
            continue
        above: list[str] = []
        line = node.lineno - 1
        while lines[line - 1].lstrip().startswith("#"):
            above.insert(0, at_line[line])
            line -= 1
        beside = [
            at_line[n] for n in range(node.lineno, (node.end_lineno or 0) + 1) if n in at_line
        ]
        if above or beside:
            found[node.target.id] = " ".join([*above, *beside])
    return found


def comment_of(name: str) -> str:
    """Return the comment of a field by its full name, or nothing."""
    path, _, field = name.rpartition(".")
    module, _, owner = path.rpartition(".")
    try:
        holder = getattr(importlib.import_module(module), owner)
    except (ImportError, AttributeError, ValueError):
        return ""
    bases = holder.__mro__ if isinstance(holder, type) else ()
    return next((found for base in bases if (found := comments_of(base).get(field, ""))), "")


def on_docstring(
    app: Sphinx, what: str, name: str, value: object, options: object, lines: list[str]
) -> None:
    """Put markup in place of plain text, and the comment of a field where nothing is said of it."""
    said = " ".join(lines).strip()
    if what in ("attribute", "property") and (not said or said.startswith("Alias for field")):
        lines[:] = [comment_of(name), ""]
    lines[:] = as_markup(lines)


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect to Sphinx."""
    app.connect("autodoc-process-docstring", on_docstring)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
