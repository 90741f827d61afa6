from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from tests.cli.helpers import Run
from vbreg.cli import experiment
from vbreg.experiments import recipes


def test_the_choices_are_the_recipes() -> None:
    assert get_args(experiment.ExperimentName) == recipes.NAMES


def test_an_experiment_says_where_it_looked(run: Run, tmp_path: Path) -> None:
    outcome = run("experiment", "table1", "--root", tmp_path, "-o", tmp_path / "out")
    assert outcome.code == 2
    assert f"3DMatch not found below {tmp_path}" in outcome.err
    outcome = run("experiment", "table9", "--root", tmp_path, "-o", tmp_path / "out")
    assert outcome.code == 2
    assert "table1" in outcome.err


def test_names_may_have_blanks_after_commas(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    def stand_in(name: str, root: Path, runs: object, **options: Any) -> Path:
        given.update(options)
        return tmp_path

    monkeypatch.setattr(recipes, "run", stand_in)
    table = "experiment", "table1", "--root", tmp_path, "-o", tmp_path / "out"
    done = run(*table, "--methods", "vbreg, sc2pcr", "--datasets", "3dmatch, 3dlomatch")
    assert done.code == 0, done.err
    assert given["methods"] == ["vbreg", "sc2pcr"]
    assert given["choice"].datasets == ["3dmatch", "3dlomatch"]
    assert given["choice"].descriptors is None


def test_folders_of_a_training_have_a_name(run: Run, tmp_path: Path) -> None:
    (tmp_path / "3dmatch" / "fragments").mkdir(parents=True)
    options = ("--root", tmp_path, "-o", tmp_path / "out", "--training", "runs")
    outcome = run("experiment", "figures", *options)
    assert outcome.code == 2
    assert "--training 'runs': expected NAME=DIR" in outcome.err
