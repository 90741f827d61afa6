"""`vbreg view` serves its page, opens the browser, and leaves nothing behind."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
import tempfile
import webbrowser
from pathlib import Path

import pytest

from tests.cli.helpers import Run, assert_one_line
from vbreg.viewer import ViewServer


def started(folder: Path, *arguments: str | Path) -> tuple[subprocess.Popen[str], str]:
    """Run `vbreg view` in a process of its own; return it and the address that it prints."""
    process = subprocess.Popen(
        [sys.executable, "-m", "vbreg", "view", "--no-browser", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    address = re.search(r"http://127\.0\.0\.1:(\d+)/#\S+", process.stdout.readline())
    assert address is not None
    return process, address[0]


@pytest.mark.skipif(os.name == "nt", reason="needs signals as Linux and macOS have them")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_cleanly(tmp_path: Path, clouds: tuple[Path, Path], number: int) -> None:
    """Also in the middle of a job, and with a connection open."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    process, address = started(folder, *clouds)
    try:
        host, token = re.findall(r"//(.*)/#(.*)", address)[0]
        connection = http.client.HTTPConnection(host, timeout=20)
        connection.request("GET", "/api/state", headers={"Authorization": f"Bearer {token}"})
        assert connection.getresponse().read()
        assert [path.name[:11] for path in folder.iterdir()] == ["vbreg-view-"]
        process.send_signal(number)
        _, said = process.communicate(timeout=30)
        connection.close()
    finally:
        process.kill()
    assert process.returncode == 0, said
    assert said == ""
    assert not list(folder.iterdir())


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Addresses that a browser is asked to open; the server ends at once."""
    addresses: list[str] = []

    def end(self: ViewServer, poll_interval: float = 0.5) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ViewServer, "serve_forever", end)
    monkeypatch.setattr(webbrowser, "open", lambda url: addresses.append(url) or True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return addresses


def test_the_browser_is_opened(run: Run, opened: list[str], tmp_path: Path) -> None:
    outcome = run("view")
    assert outcome.code == 0
    assert len(opened) == 1
    assert opened[0] in outcome.out
    assert not list(tmp_path.glob("vbreg-view-*"))


def test_the_browser_is_left_alone(run: Run, opened: list[str]) -> None:
    outcome = run("view", "--no-browser")
    assert outcome.code == 0
    assert "http://127.0.0.1:" in outcome.out
    assert opened == []


def test_a_machine_without_a_browser_is_told(
    run: Run, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webbrowser, "open", lambda url: False)
    assert "open the address yourself" in run("view").out


def test_one_cloud_is_a_mistake(run: Run, clouds: tuple[Path, Path]) -> None:
    assert_one_line(run("view", clouds[0]), "SOURCE and TARGET")


def test_a_missing_file_is_told_before_anything_opens(
    run: Run, opened: list[str], clouds: tuple[Path, Path], tmp_path: Path
) -> None:
    assert_one_line(run("view", clouds[0], tmp_path / "missing.ply"), "no such file")
    assert opened == []


def test_a_port_in_use_is_one_line(run: Run, opened: list[str]) -> None:
    import socket

    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        outcome = run("view", "--port", str(held.getsockname()[1]))
    assert_one_line(outcome, "choose another one")
