"""One file of HTML with its style, script and data within: it opens from disk without a network.

Only the title is text of the page, and that is escaped; whatever else comes from users lies in the
data, which a script shows as text.
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Mapping


def web_page(
    template: str,  # with the comments `head` and `tail`
    title: str,
    style: str,
    script: str,
    data: Mapping[str, tuple[str, str]],  # of each element's id: the type, and text without "<"
    *,
    style_attributes: bool = False,
) -> bytes:
    """Return the page; its policy allows this style and this script alone.

    With `style_attributes`, elements may also have styles of their own.
    """
    attributes = "style-src-attr 'unsafe-inline'; " if style_attributes else ""
    policy = (
        f"default-src 'none'; script-src 'sha256-{_hash(script)}'; "
        f"style-src 'sha256-{_hash(style)}'; {attributes}"
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<title>{html.escape(title)}</title>\n<style>{style}</style>"
    )
    held = [
        f'<script type="application/{kind}" id="{name}">{text}</script>'
        for name, (kind, text) in data.items()
    ]
    tail = "\n".join([*held, f"<script>{script}</script>"])
    return template.replace("<!-- head -->", head).replace("<!-- tail -->", tail).encode()


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
