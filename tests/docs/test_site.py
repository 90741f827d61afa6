"""The site is built without a warning and without the network, and shows what it should."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT

DOCS = ROOT / "docs"


@pytest.fixture(scope="module", autouse=True)
def _sphinx() -> None:
    for name in ("sphinx", "furo", "myst_parser"):
        pytest.importorskip(name, reason="vbreg[docs] is not installed")


def build(source: Path, output: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Read every page, resolve every reference, and write nothing; a warning is an error."""
    command = [sys.executable, "-m", "sphinx", "--builder", "dummy", "--nitpicky", "--quiet"]
    command += ["--fail-on-warning", "--keep-going", *options, str(source), str(output)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    done = build(DOCS, tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_broken_link_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    page = "# A\n\n[nowhere](no_such_page.md)\n"
    (tmp_path / "docs" / "index.md").write_text(page, encoding="utf-8")
    done = build(tmp_path / "docs", tmp_path / "out", "-C", "-D", "extensions=myst_parser")
    assert done.returncode != 0
    assert "no_such_page" in done.stderr


def test_nothing_is_fetched() -> None:
    text = (DOCS / "conf.py").read_text(encoding="utf-8")
    assert "intersphinx" not in text
    for path in DOCS.rglob("*.md"):
        assert not re.search(r"!\[[^]]*\]\(https?:", path.read_text(encoding="utf-8")), path


def test_links_work_on_a_code_host_as_well() -> None:
    """Every relative link of a page leads to a file of the repository."""
    pages = [p for p in DOCS.rglob("*.md") if p.relative_to(DOCS).parts[0] != "results"]
    for page in [*pages, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        for link in re.findall(r"\]\(([^)\s#]+)", page.read_text(encoding="utf-8")):
            if not re.match(r"[a-z]+:", link):
                assert (page.parent / link).exists(), f"{page}: {link}"


def test_links_are_led_to_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS / "_extensions"))
    from repository_links import led_to_pages

    text = "[a](../CONTRIBUTING.md#real-data) [b](speed.md) [c](https://x.org/a)\n"
    assert led_to_pages(text, DOCS, DOCS) == (
        "[a](project/contributing.md#real-data) [b](speed.md) [c](https://x.org/a)\n"
    )
    shown = led_to_pages("![x](docs/images/demo.png)", ROOT, DOCS / "project")
    assert shown == "![x](../images/demo.png)"
    code = "```sh\n[a](../CONTRIBUTING.md)\n```\n"
    assert led_to_pages(code, DOCS, DOCS) == code


def test_comments_of_fields_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS / "_extensions"))
    from docstrings import as_markup, comment_of

    assert comment_of("vbreg.types.PointCloud.points") == "(N, 3)"
    assert comment_of("vbreg.types.Votes.seeds").startswith("(K,) rows of")
    assert "about its origin" in comment_of("vbreg.types.Uncertainty.covariance")  # above the field
    assert comment_of("vbreg.types.PointCloud.no_such_field") == ""
    assert as_markup(["A *b* `*c*` |d|.", "", "    code(*x)", "", "e"]) == [
        r"A \*b\* `*c*` \|d\|.", "", "::", "", "    code(*x)", "", "e",
    ]  # fmt: skip
