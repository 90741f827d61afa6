from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.helpers import Run, assert_one_line
from tests.training.test_ready_places import write_scene
from vbreg.training import descriptor_loss, own_scans


def test_a_missing_configuration_is_one_line(run: Run, tmp_path: Path) -> None:
    outcome = run("train", tmp_path / "none.toml", "-o", tmp_path / "out")
    assert_one_line(outcome, "none.toml")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_command_trains_and_compares(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two steps; a run goes on with the same plan alone."""
    monkeypatch.setattr(own_scans, "WORKERS", 0)
    monkeypatch.setattr(own_scans, "LOOKED_AT", 1)
    monkeypatch.setattr(descriptor_loss, "DRAWN", 128)
    folder = write_scene(tmp_path / "in")
    command = ("train", "--scans", folder, "-o", tmp_path / "run", "--voxel-size", "0.05")
    outcome = run(*command, "--until", "2", "--device", "cpu")
    assert outcome.code == 0
    for words in ("2 scans", "shipped", "trained", "not trained on", "weights.safetensors"):
        assert words in outcome.out
    assert ("\nbetter " in outcome.out) != ("\nnot better " in outcome.out)
    again = run(*command, "--until", "2", "--device", "cpu", "--minutes", "3")
    assert again.code == 2
    assert "minutes: 10.0 then, 3.0 now" in again.err


def test_mistakes_in_the_call_are_one_line(run: Run, tmp_path: Path) -> None:
    out = ("-o", tmp_path / "out")
    assert_one_line(run("train", *out), "neither of CONFIG and --scans")
    assert_one_line(run("train", "a.toml", "--scans", tmp_path, *out), "both of CONFIG and --scans")
    assert_one_line(run("train", "a.toml", "--voxel-size", "1", *out), "without --scans")
    assert_one_line(run("train", "--scans", tmp_path, "--minutes", "0", *out), "--minutes 0")
    assert_one_line(run("train", "--scans", tmp_path / "none", *out), "no such folder")
    assert not (tmp_path / "out").exists()
