"""Links between the pages of the site and files of the repository that lie outside docs/.

Pages are written for a code host, where `../CONTRIBUTING.md` is a file. Here such a link leads to
the page of the site that shows the file. What has no page stays as it is and becomes a download.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parents[1]
ROOT = DOCS.parent
# Pages of the site that show a file of the repository, in place of what stands in the page.
SHOWN = {
    "project/readme": "README.md",
    "project/contributing": "CONTRIBUTING.md",
    "project/changelog": "CHANGELOG.md",
    "project/security": "SECURITY.md",
    "project/model_card": "src/vbreg/weights/MODEL_CARD.md",
}
PAGES = {ROOT / file: DOCS / f"{page}.md" for page, file in SHOWN.items()}
PAGES[ROOT / "examples"] = DOCS / "examples.md"
PAGES |= {file: DOCS / "examples.md" for file in (ROOT / "examples").glob("*.py")}
PAGES[DOCS / "results" / "training"] = DOCS / "training.md"
LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
FENCE = re.compile(r"^(```.*?^```)", re.MULTILINE | re.DOTALL)  # code is left alone


def led_to_pages(text: str, written_at: Path, shown_at: Path) -> str:
    """Return Markdown whose relative links, written for one folder, work in another."""

    def lead(link: re.Match[str]) -> str:
        opening, target, closing = link.groups()
        if re.match(r"[a-z]+:", target):  # an address
            return link[0]
        file = (written_at / target).resolve()
        file = PAGES.get(file, file)
        return opening + os.path.relpath(file, shown_at).replace(os.sep, "/") + closing

    parts = FENCE.split(text)  # code stands at the odd places
    return "".join(part if k % 2 else LINK.sub(lead, part) for k, part in enumerate(parts))


def on_source_read(app: Sphinx, page: str, source: list[str]) -> None:
    """Show the file of the repository that a page stands for, and lead links to pages."""
    shown_at = (DOCS / page).parent
    if page in SHOWN:
        file = ROOT / SHOWN[page]
        source[0] = led_to_pages(file.read_text(encoding="utf-8"), file.parent, shown_at)
    else:
        source[0] = led_to_pages(source[0], shown_at, shown_at)


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect to Sphinx."""
    app.connect("source-read", on_source_read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
