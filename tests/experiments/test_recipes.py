"""Experiments by their names, each done once on a small data folder."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tests.experiments.miniature import NAMES
from vbreg.errors import VBRegError
from vbreg.experiments import recipes, tables
from vbreg.experiments.tables import Runs
from vbreg.methods import ransac


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ransac, "SAMPLES", 5_000)


def quick(output: Path, every: int = 6) -> Runs:
    """One pair of a benchmark, if nothing else is said."""
    return Runs(output, "vbreg experiment x", device="cpu", every=every, quiet=True)


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_an_unknown_experiment_is_answered_with_the_choices(data: Path, tmp_path: Path) -> None:
    with pytest.raises(VBRegError, match="no experiment 'table9'; choose from table1, table2"):
        recipes.run("table9", data, quick(tmp_path))


@pytest.mark.parametrize("name", recipes.NAMES)
def test_every_experiment_says_where_it_looked_for_data(name: str, tmp_path: Path) -> None:
    with pytest.raises(VBRegError, match="3DMatch not found below"):
        recipes.run(name, tmp_path / "nowhere", quick(tmp_path / "out"))


@pytest.mark.parametrize("name", ["table1", "table2"])
def test_tables_take_the_methods_that_are_named(
    name: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "POINTS", (100,))
    page = recipes.run(name, data, quick(tmp_path / "deep" / "out"), methods=["sm"])
    assert page == tmp_path / "deep" / "out" / f"{name}.md"
    assert {cell["method"] for cell in read_csv(page.with_suffix(".csv"))} == {"sm"}


def test_tables_take_all_installed_methods_else(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "POINTS", (100,))
    monkeypatch.setattr(tables, "installed_methods", lambda: ["ransac", "sm"])
    page = recipes.run("table2", data, quick(tmp_path))
    assert [cell["method"] for cell in read_csv(page.with_suffix(".csv"))] == ["ransac", "sm"] * 4


def test_table3_is_of_the_search_where_no_weights_are_given(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tables.searches()
    monkeypatch.setattr(tables, "searches", lambda: {"Vote and CS": whole["Vote and CS"]})
    monkeypatch.setattr(tables, "SEARCHES", {})
    page = recipes.run("table3", data, quick(tmp_path))
    assert page == tmp_path / "table3_search.md"
    with pytest.raises(VBRegError, match="no weights for 'SCNonlocal, xyz'"):
        recipes.run("table3", data, quick(tmp_path / "other"), weights=tmp_path / "none")


def test_theorem1_is_measured_on_both_benchmarks(data: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="vbreg[plots]")
    assert recipes.run("theorem1", data, quick(tmp_path)) == tmp_path
    for name in ("3dmatch", "3dlomatch"):
        (row,) = read_csv(tmp_path / name / "theorem1.csv")
        assert row["pair"] == NAMES[0]
        assert int(row["inlier_seeds"]) > 0
        assert (tmp_path / name / "theorem1.md").read_text().startswith(f"# Theorem 1 on {name}")
        assert (tmp_path / name / "theorem1.png").exists()


@pytest.mark.slow
def test_figures_are_drawn_from_the_benchmark_that_is_run_first(data: Path, tmp_path: Path) -> None:
    """Every one of them has its numbers beside it, of the benchmarks and methods asked for."""
    pytest.importorskip("matplotlib", reason="vbreg[plots]")
    (tmp_path / "log").mkdir()
    fields = "label_prior", "recall", "inlier_f1"
    records = [
        {"kind": kind, "step": k, "pairs": 10 * k, **dict.fromkeys(fields, 0.5)}
        for k in range(1, 6)
        for kind in ("train", "validation")
    ]
    (tmp_path / "log" / "log.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    output = recipes.run(
        "figures",
        data,
        quick(tmp_path / "out", every=1),
        methods=["sm", "ransac"],
        training={"VBNonlocal": [tmp_path / "log"]},
    )
    assert output == tmp_path / "out"
    names = {"ambiguity", "similarity", "recall", "alignments", "training"}
    assert {p.stem for p in output.glob("*.png")} == names
    assert {p.stem for p in output.glob("*.csv")} == names
    both = {"3DMatch, FPFH", "3DLoMatch, FPFH"}
    for name, shown in (
        ("ambiguity", both | {"3DMatch, stored matches", "3DLoMatch, stored matches"}),
        ("similarity", both),
    ):
        assert {row["benchmark"] for row in read_csv(output / f"{name}.csv")} == shown
    assert {row["method"] for row in read_csv(output / "recall.csv")} == {"sm", "ransac"}
    tables_of = {p.stem for p in (output / "benchmark" / "predictions").iterdir()}
    assert tables_of == {"sm", "ransac"}
