"""Progress on the terminal: what is drawn, and where nothing is."""

from __future__ import annotations

import pytest

from vbreg.progress import progress


@pytest.fixture
def _terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let stderr pass for a terminal of 120 columns without colours."""
    for name in ("TTY_COMPATIBLE", "TTY_INTERACTIVE", "NO_COLOR"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")


@pytest.mark.usefixtures("_terminal")
def test_stages_are_drawn_with_lines_above_them(capsys: pytest.CaptureFixture[str]) -> None:
    with progress() as tell:
        assert tell.drawn
        tell("start [torch]")
        tell.say("said before")
        first = capsys.readouterr().err
        for letter in tell.track("abcd", "describe"):
            if letter == "c":
                tell("pairs", 3, 10, "2 ok")
                tell.say("pip install vbreg[train]")
    assert "start [torch]" in first
    assert "said before" in first
    out, rest = capsys.readouterr()
    assert not out
    assert rest.count("pip install vbreg[train]\n") == 1
    bars = rest.partition("pip install vbreg[train]\n")[2]
    assert "describe" in bars
    assert "2/4" in bars
    assert "3/10" in bars
    assert "2 ok" in bars
    assert "start" not in bars  # its row is hidden while others go on


@pytest.mark.parametrize("quiet", [False, True])
def test_without_a_terminal_lines_alone_are_written(
    quiet: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    with progress(quiet) as tell:
        assert not tell.drawn
        tell("start")
        assert list(tell.track("ab", "describe")) == ["a", "b"]
        tell.say("going on")
    out, err = capsys.readouterr()
    assert not out
    assert err == ("" if quiet else "going on\n")
