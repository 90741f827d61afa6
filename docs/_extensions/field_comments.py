"""Comments beside the fields of a class become their documentation.

    points: Float64  # (N, 3)

Sphinx reads `#:` alone. Our shapes and units stand in plain comments at the end of a field's line,
or in the lines above it.
"""

from __future__ import annotations

import ast
import inspect
import io
import textwrap
import tokenize
from functools import lru_cache

from sphinx.application import Sphinx


@lru_cache
def comments_of(owner: type) -> dict[str, str]:
    """Return the comment of each annotated field of a class that has one."""
    try:
        source = textwrap.dedent(inspect.getsource(owner))
    except (OSError, TypeError):
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
        above, line = [], node.lineno - 1
        while lines[line - 1].lstrip().startswith("#"):
            above.insert(0, at_line[line])
            line -= 1
        beside = [
            at_line[n] for n in range(node.lineno, (node.end_lineno or 0) + 1) if n in at_line
        ]
        if above or beside:
            found[node.target.id] = " ".join([*above, *beside])
    return found


def on_docstring(
    app: Sphinx, what: str, name: str, value: object, options: object, lines: list[str]
) -> None:
    """Put the comment of a field in place of nothing, or of what a NamedTuple says of itself."""
    said = " ".join(lines).strip()
    if what not in ("attribute", "property") or (said and not said.startswith("Alias for field")):
        return
    lines.clear()
    path, _, field = name.rpartition(".")
    module, _, owner = path.rpartition(".")
    try:
        holder = getattr(__import__(module, fromlist=[owner]), owner)
    except (ImportError, AttributeError, ValueError):
        return
    for base in holder.__mro__ if isinstance(holder, type) else ():
        comment = comments_of(base).get(field) if base is not object else None
        if comment:
            lines.extend([comment.replace("*", r"\*").replace("|", r"\|"), ""])
            return


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect to Sphinx."""
    app.connect("autodoc-process-docstring", on_docstring)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
