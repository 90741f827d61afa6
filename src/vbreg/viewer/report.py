"""The report: one file of HTML with the viewer, its script and the scene within.

It opens from disk without a network. Whatever comes from users (names, the command) lies in the
scene, which is base64; only the title is text of the page, and that is escaped.
"""

from __future__ import annotations

import base64
import hashlib
import html
from os import PathLike
from pathlib import Path

from vbreg.errors import VBRegError
from vbreg.io import atomic_path
from vbreg.viewer.scene import ShownPair

STATIC = Path(__file__).parent / "static"
MAX_REPORTED_POINTS = 1_500_000  # of both clouds: 18 MB of base64 with colours
MAX_REPORT_BYTES = 30_000_000  # that browsers and mail programs still take


def static_text(name: str) -> str:
    """Return a file of the page: page.html, viewer.css or viewer.js."""
    path = STATIC / name
    if not path.is_file():
        raise VBRegError(f"no {name} in {STATIC}: the installation is incomplete; reinstall vbreg")
    return path.read_text(encoding="utf-8")


def report_html(scene: ShownPair, max_points: int = MAX_REPORTED_POINTS) -> bytes:
    """Return the report of a scene."""
    script, style = static_text("viewer.js"), static_text("viewer.css")
    data = base64.b64encode(scene.packed(max_points)).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{_hash(script)}'; "
        f"style-src 'sha256-{_hash(style)}'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    title = html.escape(f"{scene.names[0]} to {scene.names[1]} - vbreg")
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<title>{title}</title>\n<style>{style}</style>"
    )
    tail = (
        f'<script type="application/base64" id="scene">{data}</script>\n<script>{script}</script>'
    )
    page = static_text("page.html").replace("<!-- head -->", head).replace("<!-- tail -->", tail)
    return page.encode()


def write_report(path: str | PathLike[str], scene: ShownPair) -> None:
    """Write the report of a scene, all or nothing."""
    content = report_html(scene)
    if len(content) > MAX_REPORT_BYTES:
        raise VBRegError(
            f"the report would have {len(content) / 1e6:.0f} MB: expected at most "
            f"{MAX_REPORT_BYTES / 1e6:.0f}; set fewer --max-correspondences"
        )
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
