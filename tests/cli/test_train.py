from __future__ import annotations

from pathlib import Path

from tests.cli.helpers import Run, assert_one_line


def test_a_missing_configuration_is_one_line(run: Run, tmp_path: Path) -> None:
    outcome = run("train", tmp_path / "none.toml", "-o", tmp_path / "out")
    assert_one_line(outcome, "none.toml")
    assert not (tmp_path / "out").exists()
