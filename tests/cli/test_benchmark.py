from __future__ import annotations

from pathlib import Path

from tests.cli.helpers import Run


def test_a_benchmark_needs_a_data_set_that_exists(run: Run, tmp_path: Path) -> None:
    outcome = run("benchmark", "3dmatsch", "-o", tmp_path / "out")
    assert outcome.code == 2
    assert "choose from 3dmatch, 3dlomatch" in outcome.err
    outcome = run("benchmark", "3dmatch", "--root", tmp_path / "none", "-o", tmp_path / "out")
    assert outcome.code == 2
    assert str(tmp_path / "none") in outcome.err
    assert not (tmp_path / "out").exists()
