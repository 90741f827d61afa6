"""The report is one file without a network, safe against names, and small enough to send."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from tests.viewer.helpers import planted_pair, planted_result, unpacked
from vbreg.errors import VBRegError
from vbreg.types import PointCloud
from vbreg.viewer import report, write_report
from vbreg.viewer.report import MAX_REPORT_BYTES, report_html


class Parts(HTMLParser):
    """What a browser would load: addresses in attributes, and the text of scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.held: dict[str, list[str]] = {"script": [], "style": [], "title": []}
        self.policy = ""
        self._inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.addresses += [v or "" for k, v in attrs if k in ("src", "href", "action", "data")]
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"] or ""
        self._inside = tag

    def handle_data(self, data: str) -> None:
        if self._inside in self.held:
            self.held[self._inside].append(data)

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""


def parts_of(html: bytes) -> Parts:
    parts = Parts()
    parts.feed(html.decode())
    return parts


def test_it_loads_nothing_and_may_load_nothing() -> None:
    parts = parts_of(report_html(planted_pair()))
    assert parts.addresses == ["data:,"]  # the icon
    assert parts.policy.startswith("default-src 'none'")
    assert "connect-src" not in parts.policy
    script, style = parts.held["script"][-1], parts.held["style"][0]
    for kind, text in (("script", script), ("style", style)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in parts.policy  # else a browser would not run it


def test_it_holds_the_pair_and_the_command() -> None:
    pair = planted_pair(command="vbreg register 'my scan.ply' b.ply --report r.html")
    parts = parts_of(report_html(pair))
    header, arrays = unpacked(base64.b64decode(parts.held["script"][0]))
    assert header["command"] == pair.command
    assert header["result"]["verdict"] == "aligned, 97 %"
    assert len(arrays["source"]) == len(pair.source or [])


def test_names_cannot_become_markup() -> None:
    evil = "</title></script><script>alert(1)</script><img src=x onerror=alert(1)>"
    pair = replace(planted_pair(command=evil), names=(evil, evil))
    parts = parts_of(report_html(pair))
    assert parts.addresses == ["data:,"]
    assert len(parts.held["script"]) == 2
    assert evil in "".join(parts.held["title"])


def test_a_large_pair_stays_below_the_limit(tmp_path: Path) -> None:
    """Two million coloured points, and as many matches as are ever used."""
    rng = np.random.default_rng(0)
    n = 1_000_000
    colours = {name: np.zeros(n, np.uint8) for name in ("red", "green", "blue")}
    source, target = (PointCloud(rng.random((n, 3)) * 3, colours) for _ in range(2))
    result = planted_result(source, n=20_000)
    pair = replace(planted_pair(), source=source, target=target, result=result)
    write_report(tmp_path / "large.html", pair)
    assert 15_000_000 < (tmp_path / "large.html").stat().st_size < MAX_REPORT_BYTES


def test_a_report_that_is_too_large_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "MAX_REPORT_BYTES", 1000)
    with pytest.raises(VBRegError, match="at most"):
        write_report(tmp_path / "r.html", planted_pair())
    assert not list(tmp_path.iterdir())


def test_a_missing_bundle_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "STATIC", tmp_path)
    with pytest.raises(VBRegError, match="reinstall"):
        report_html(planted_pair())


def test_the_bundle_asks_nobody() -> None:
    """No address of another server is in the page, but for names of XML and of licences."""
    for name in ("page.html", "viewer.css", "viewer.js"):
        found = set(
            re.findall(r"(?:https?:)?//[a-z0-9-]+\.[a-z.]+[^\s\"'`)]*", report.static_text(name))
        )
        allowed = ("http://www.w3.org/", "https://www.w3.org/")
        others = {a for a in found if not a.startswith(allowed)}
        assert not {a for a in others if "github.com" not in a and "threejs.org" not in a}, others
