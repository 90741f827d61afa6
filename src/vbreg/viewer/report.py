"""The report: one file of HTML with the viewer, its script and the scene within.

It opens from disk without a network. Whatever comes from users (names, the command) lies in the
scene, which is base64; only the title is text of the page, and that is escaped.
"""

from __future__ import annotations

import base64
from os import PathLike
from pathlib import Path

from vbreg.errors import VBRegError
from vbreg.io import atomic_path
from vbreg.viewer.scene import ShownPair
from vbreg.web_page import web_page

STATIC = Path(__file__).parent / "static"
MAX_REPORTED_POINTS = 1_500_000  # of both clouds: 18 MB of base64 with colours
MAX_REPORT_BYTES = 30_000_000  # that browsers and mail programs still take


def static_text(name: str) -> str:
    """Return a file of the page: page.html, viewer.css or viewer.js."""
    path = STATIC / name
    if not path.is_file():
        raise VBRegError(f"no {name} in {STATIC}: the installation is incomplete; reinstall vbreg")
    return path.read_text(encoding="utf-8")


def report_html(scene: ShownPair) -> bytes:
    """Return the report of a scene, its clouds thinned to `MAX_REPORTED_POINTS`."""
    return web_page(
        static_text("page.html"),
        f"{scene.names[0]} to {scene.names[1]} - vbreg",
        static_text("viewer.css"),
        static_text("viewer.js"),
        {"scene": ("base64", base64.b64encode(scene.packed(MAX_REPORTED_POINTS)).decode())},
    )


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
