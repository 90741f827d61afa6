"""The script that is checked in is the one that its source gives, with its licence."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from vbreg.viewer.report import STATIC

SOURCE = Path(__file__).parents[2] / "viewer"
COPIED = ("page.html", "viewer.css")
MADE = ("viewer.js", "LICENSE-three.txt")


def test_page_and_style_are_those_of_the_source() -> None:
    for name in COPIED:
        assert (STATIC / name).read_bytes() == (SOURCE / "src" / name).read_bytes(), "make viewer"


def test_the_licence_of_what_is_bundled_is_kept() -> None:
    packages = json.loads((SOURCE / "package-lock.json").read_text())["packages"]
    version = packages["node_modules/three"]["version"]
    said = (STATIC / "LICENSE-three.txt").read_text()
    assert f"three.js {version} " in said
    assert "The MIT License" in said
    assert "three.js authors" in said
    head = (STATIC / "viewer.js").read_text()[:300]
    assert f"three.js {version}, MIT" in head
    assert "LICENSE-three.txt" in head


def test_every_package_is_pinned_by_what_it_holds() -> None:
    packages = json.loads((SOURCE / "package-lock.json").read_text())["packages"]
    for name, row in packages.items():
        if name:
            assert row["integrity"].startswith("sha512-"), name
            address = row.get("resolved", "https://registry.npmjs.org/")
            assert address.startswith("https://registry.npmjs.org/"), name


def test_the_source_gives_the_same_bytes(tmp_path: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("needs npm, which bundles the viewer")
    shutil.copytree(SOURCE, tmp_path / "viewer", ignore=shutil.ignore_patterns("node_modules"))
    options = {"cwd": tmp_path / "viewer", "capture_output": True, "text": True, "timeout": 100}
    fetched = subprocess.run(
        [npm, "ci", "--prefer-offline", "--ignore-scripts", "--no-audit", "--no-fund"], **options
    )
    if fetched.returncode:
        pytest.skip(f"npm could not fetch three and esbuild: {fetched.stderr[-200:]}")
    made = subprocess.run([npm, "run", "build", "--", str(tmp_path / "out")], **options)
    assert made.returncode == 0, made.stderr
    for name in (*COPIED, *MADE):
        assert (tmp_path / "out" / name).read_bytes() == (STATIC / name).read_bytes(), "make viewer"
