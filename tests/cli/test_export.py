"""`vbreg export` hands its options on, and asks for an ending that says what the file is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.helpers import Run, assert_one_line
from vbreg import export


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Exports that were asked for; nothing is exported."""
    seen: list[tuple[Any, ...]] = []

    def stand_in(weights: str, path: Path, *, every_iteration: bool) -> Path:
        seen.append((weights, path, every_iteration))
        path.write_bytes(b"0" * 2_500_000)
        return path

    monkeypatch.setattr(export, "export_onnx", stand_in)
    return seen


def test_the_options_are_handed_on(run: Run, calls: list[Any], tmp_path: Path) -> None:
    file = tmp_path / "a.onnx"
    outcome = run("export", "onnx", "-o", file, "--weights", "universal", "--every-iteration")
    assert outcome.code == 0
    assert outcome.out.split() == ["wrote", f"{file},", "2.5", "MB"]
    assert calls == [("universal", file, True)]


def test_the_default_is_fast_and_quiet_is_quiet(run: Run, calls: list[Any], tmp_path: Path) -> None:
    outcome = run("export", "onnx", "-o", tmp_path / "a.onnx", "-q")
    assert (outcome.code, outcome.out) == (0, "")
    assert calls == [("fast", tmp_path / "a.onnx", False)]


def test_a_wrong_place_is_told_before_any_work(run: Run, calls: list[Any], tmp_path: Path) -> None:
    assert_one_line(run("export", "onnx", "-o", tmp_path / "a.pt"), "unknown ending '.pt'", ".onnx")
    assert_one_line(run("export", "onnx", "-o", tmp_path / "no" / "a.onnx"), "does not exist")
    assert not calls


def test_an_unknown_form_is_an_error(run: Run, calls: list[Any], tmp_path: Path) -> None:
    assert run("export", "torchscript", "-o", tmp_path / "a.onnx").code == 2
    assert not calls
