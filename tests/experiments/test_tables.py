"""The tables of the paper on a small data folder: every cell against the poses it is made of."""

from __future__ import annotations

import csv
import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import SMALL, fresh
from tests.experiments.miniature import NAMES
from vbreg.benchmark.predict import table_path
from vbreg.errors import VBRegError
from vbreg.experiments import tables
from vbreg.experiments.tables import Runs
from vbreg.methods import METHODS, Problem, available, ransac
from vbreg.methods.common import LocalMethod
from vbreg.methods.vbreg import VBRegMethod
from vbreg.network import NetworkConfig
from vbreg.pretrained import save_network
from vbreg.types import Registration

QUICK = ["sm", "ransac"]
COLUMNS = {
    "3DMatch, FPFH": "3dmatch_fpfh",
    "3DLoMatch, FPFH": "3dlomatch_fpfh",
    "KITTI 10 m, FPFH": "kitti_10_m_fpfh",
    "KITTI 20 m, FPFH": "kitti_20_m_fpfh",
    "3DMatch, stored matches": "3dmatch_stored_matches",
    "3DLoMatch, stored matches": "3dlomatch_stored_matches",
}
CHOICE = tables.Choice(descriptors=["fpfh", "stored_matches"])  # the others take their time
PAIRS = [1 if title.startswith("KITTI") else 2 for title in COLUMNS]  # every third


def runs(output: Path) -> Runs:
    """Every third pair, without a sound."""
    return Runs(output, "vbreg experiment x", device="cpu", every=3, quiet=True)


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def read_rows(path: Path) -> dict[str, dict[str, Any]]:
    """The rows of a table of JSON lines, by pair."""
    lines = map(json.loads, path.read_text().splitlines()[1:])
    return {line["pair"]: line for line in lines}


def naive_success(row: dict[str, Any], truth: dict[str, Any], outdoor: bool) -> bool:
    """By the trace of the rotation between the two poses."""
    T, T0 = (np.reshape(r["T_target_source"], (4, 4)) for r in (row, truth))
    cosine = (np.trace(T[:3, :3].T @ T0[:3, :3]) - 1) / 2
    degrees = math.degrees(math.acos(min(1.0, max(-1.0, cosine))))
    metres = np.linalg.norm(T[:3, 3] - T0[:3, 3])
    return bool(degrees < (5 if outdoor else 15) and metres < (0.6 if outdoor else 0.3))


def naive_recall(folder: Path, method: str, outdoor: bool = False) -> float:
    """The share of right poses among those in the folder of a benchmark."""
    truth = read_rows(folder / "problems.jsonl")
    found = read_rows(table_path(folder, method))
    assert set(found) == set(truth)
    return float(np.mean([naive_success(found[p], truth[p], outdoor) for p in truth]))


@pytest.fixture(scope="module")
def first_table(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Table 1 of two quick methods."""
    output = tmp_path_factory.mktemp("table1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ransac, "SAMPLES", 5_000)
        assert tables.table1(data, runs(output), QUICK, CHOICE) == output / "table1.md"
    return output


def test_table1_has_every_method_on_every_benchmark(first_table: Path) -> None:
    cells = read_csv(first_table / "table1.csv")
    assert [(c["column"], c["method"]) for c in cells] == [
        (column, method) for column in COLUMNS for method in QUICK
    ]
    assert [int(c["pairs"]) for c in cells] == [pairs for pairs in PAIRS for _ in QUICK]
    assert list(read_rows(first_table / "3dmatch_fpfh" / "problems.jsonl")) == list(NAMES[::3])


@pytest.mark.parametrize(("column", "slug"), COLUMNS.items())
def test_a_cell_is_what_the_poses_say(first_table: Path, column: str, slug: str) -> None:
    recalls = [naive_recall(first_table / slug, m, slug.startswith("kitti")) for m in QUICK]
    cells = [c for c in read_csv(first_table / "table1.csv") if c["column"] == column]
    assert [float(c["recall"]) for c in cells] == pytest.approx(recalls)
    leads = [recall - recalls[0] for recall in recalls]
    assert [float(c["lead"]) for c in cells] == pytest.approx(leads)
    for cell in cells:
        for name in ("recall", "lead"):
            low, value, high = (float(cell[n]) for n in (f"{name}_low", name, f"{name}_high"))
            assert low <= value <= high
        assert float(cell["seconds_median"]) > 0
        assert float(cell["megabytes"]) >= 0
    assert recalls[1] == 1.0, "RANSAC solves these pairs"


def test_a_cell_says_which_backend_computed_it(first_table: Path) -> None:
    """In the predictions and in the table."""
    for slug in COLUMNS.values():
        for method in QUICK:
            rows = read_rows(table_path(first_table / slug, method)).values()
            assert {row["backend"] for row in rows} == {"cpu"}
    assert {cell["backend"] for cell in read_csv(first_table / "table1.csv")} == {"cpu"}


def test_the_page_shows_the_numbers_of_the_cells(first_table: Path) -> None:
    page = (first_table / "table1.md").read_text()
    assert page.startswith("# Table 1: every method on 3DMatch, 3DLoMatch and KITTI\n")
    assert "Made by `vbreg experiment x`" in page
    header, _, *lines = (line for line in page.splitlines() if line.startswith("|"))
    titles = ["method", *(f"{c} ({n} pairs)" for c, n in zip(COLUMNS, PAIRS, strict=True))]
    assert [cell.strip() for cell in header.strip("|").split("|")] == titles
    shown = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [row[0] for row in shown] == ["SM", "RANSAC-50k"]
    cells = read_csv(first_table / "table1.csv")
    for k, row in enumerate(shown):
        for column, text in zip(COLUMNS, row[1:], strict=True):
            (cell,) = (c for c in cells if (c["column"], c["method"]) == (column, QUICK[k]))
            assert text.startswith(f"{100 * float(cell['recall']):.1f} (")


def test_a_second_run_computes_nothing(
    data: Path, first_table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {p: p.read_bytes() for p in first_table.rglob("*") if p.suffix in (".jsonl", ".csv")}

    def never(self: object, problem: Problem) -> Registration:
        raise AssertionError("computed again")

    monkeypatch.setattr(LocalMethod, "__call__", never)
    monkeypatch.setattr("vbreg.benchmark.problems.describe", never)
    tables.table1(data, runs(first_table), QUICK, CHOICE)
    assert {p: p.read_bytes() for p in before} == before


def test_table2_has_ever_fewer_matches(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "POINTS", (200, 50))
    page = tables.table2(data, runs(tmp_path), ["sm"])
    assert page == tmp_path / "table2.md"
    cells = read_csv(tmp_path / "table2.csv")
    assert [c["column"] for c in cells] == [
        f"3DLoMatch, {name}, {count}"
        for name in ("FPFH", "learned", "FCGF", "stored matches")
        for count in (200, 50)
    ]
    for cell in cells:
        slug = re.sub(r"\W+", "_", cell["column"]).lower()
        problems = read_rows(tmp_path / slug / "problems.jsonl").values()
        assert {p["matches"] for p in problems} == {int(cell["points"])}
        assert float(cell["recall"]) == pytest.approx(naive_recall(tmp_path / slug, "sm"))
        assert float(cell["lead"]) == 0.0


@pytest.mark.slow
def test_table3_ablates_the_search_on_the_shipped_weights(data: Path, tmp_path: Path) -> None:
    page = tables.table3(data, replace(runs(tmp_path), every=6), None)
    assert page == tmp_path / "table3_search.md"
    assert not (tmp_path / "table3_networks.csv").exists()
    rows = list(tables.searches())
    cells = read_csv(tmp_path / "table3_search.csv")
    assert [c["method"] for c in cells] == rows * 2
    recall = {(c["column"], c["method"]): float(c["recall"]) for c in cells}
    for cell in cells:
        other = "Vote and CS" if cell["method"] == "SCNonlocal, Vote and CS" else rows[0]
        key = cell["column"], cell["method"]
        assert float(cell["lead"]) == pytest.approx(recall[key] - recall[cell["column"], other])
        assert recall[key] == pytest.approx(
            naive_recall(tmp_path / f"{cell['column'].split(',')[0].lower()}_fpfh", cell["method"])
        )
    text = page.read_text()
    assert "| compared with |" in text
    assert re.search(r"\| SCNonlocal, Vote and CS \|.*\| Vote and CS \|\n", text)


def test_searches_that_differ_share_their_weights() -> None:
    """Rows of one network carry its fingerprint, so that cached poses are not mixed."""
    opened = {name: open_("cpu") for name, open_ in tables.searches().items()}
    marks = {name: method.fingerprint for name, method in opened.items()}  # type: ignore[attr-defined]
    assert len(set(marks.values())) == 2
    plain = {name for name in marks if name.startswith("SCNonlocal")}
    assert len({marks[name] for name in plain}) == 1
    configs = {n: m.model.voting for n, m in opened.items() if isinstance(m, VBRegMethod)}
    assert configs["Vote"].min_seeds == 1
    assert configs["Vote and CS"].min_seeds > 1
    assert configs["Vote and CS, attention rows vote, too"].attention_voters


def write_ablations(folder: Path, names: list[str]) -> None:
    for name in names:
        config = NetworkConfig(iterations=2, width=16, variational=name.startswith("vb"))
        (folder / name).mkdir(parents=True)
        save_network(folder / name / "weights.safetensors", fresh(config))


def test_table3_compares_networks_by_the_same_search(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is compared with the plain one behind its own search."""
    chosen = {name: tables.NETWORKS[name] for name in ("sc_xyz", "vb_xyz")}
    monkeypatch.setattr(tables, "NETWORKS", chosen)
    monkeypatch.setattr(tables, "searches", lambda: dict.fromkeys(["PointDSC's search"], _small))
    monkeypatch.setattr(tables, "SEARCHES", {})
    write_ablations(tmp_path / "weights", list(chosen))
    page = tables.table3(data, runs(tmp_path / "out"), tmp_path / "weights")
    assert page == tmp_path / "out" / "table3_networks.md"
    cells = read_csv(tmp_path / "out" / "table3_networks.csv")
    assert len(cells) == 2 * 4
    recall = {(c["column"], c["method"]): float(c["recall"]) for c in cells}
    for cell in cells:
        search = cell["method"].partition("; ")[2]
        other = recall[cell["column"], f"SCNonlocal, xyz; {search}"]
        expected = recall[cell["column"], cell["method"]] - other
        assert float(cell["lead"]) == pytest.approx(expected)


def _small(device: object) -> VBRegMethod:
    from vbreg import VBReg

    return VBRegMethod(VBReg(fresh(SMALL)), "small")


def test_missing_weights_are_said_before_anything_is_computed(data: Path, tmp_path: Path) -> None:
    write_ablations(tmp_path / "weights", ["sc_xyz"])
    with pytest.raises(VBRegError) as raised:
        tables.table3(data, runs(tmp_path / "out"), tmp_path / "weights")
    text = str(raised.value)
    assert "no weights for 'VBNonlocal, xyz'" in text
    assert str(tmp_path / "weights" / "vb_xyz" / "weights.safetensors") in text
    assert "vbreg train configs/ablation/vb_xyz.toml -o" in text
    assert not (tmp_path / "out").exists()


def test_every_network_of_the_table_has_its_configuration() -> None:
    configs = {path.stem for path in Path(__file__).parents[2].joinpath(tables.ABLATION).iterdir()}
    assert configs == set(tables.NETWORKS)


def test_installed_methods_are_those_that_can_be_opened() -> None:
    names = tables.installed_methods()
    assert names[:2] == ["vbreg:fast", "vbreg"]
    waiting = {name for name, entry in METHODS.items() if entry.weights}  # a table tells of these
    assert set(names[1:]) == {name for name in METHODS if available(name)} | waiting


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A copy of vbreg without weights for FCGF and DGR."""
    monkeypatch.setattr("vbreg.descriptors.choice.SHIPPED_FCGF", tmp_path / "fcgf.safetensors")
    monkeypatch.setattr("vbreg.methods._WEIGHTS", tmp_path)


@pytest.mark.usefixtures("no_weights")
def test_what_has_no_weights_is_left_out_with_a_sentence(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the table, on the page, in the record of the run, and on the terminal."""
    choice = tables.Choice(["3dmatch"], ["fcgf", "stored_matches"])
    loud = replace(runs(tmp_path), quiet=False)
    page = tables.table1(data, loud, ["sm", "dgr"], choice)
    cells = read_csv(tmp_path / "table1.csv")
    assert [(c["descriptor"], c["method"]) for c in cells] == [("stored matches", "sm")]
    said = "".join(capsys.readouterr().err.split())
    for name in ("FCGF", "DGR"):
        sentence = f"Left out: {name}, since this copy of vbreg has no weights for it."
        assert sentence in page.read_text()
        assert "".join(sentence.split()) in said
    record = json.loads((tmp_path / "run.json").read_text())["table1"]
    assert set(record["left_out"]) == {"FCGF", "DGR"}


def test_columns_in_which_no_method_runs_are_left_out_with_a_sentence(
    data: Path, tmp_path: Path
) -> None:
    """A method that makes its own matches is in the column of FPFH alone."""
    plan = tables.columns_of_table1(data, tables.Choice(["3dmatch"], ["fpfh", "learned"]))
    kept = tables._with_methods(plan, ["kiss-matcher"])
    assert [column.title for column in kept.columns] == ["3DMatch, FPFH"]
    why = "none of the methods asked for (kiss-matcher) runs there"
    assert kept.left_out == {"3DMatch, learned": why}
    assert tables._with_methods(plan, ["sm"]) == plan
    with pytest.raises(VBRegError, match=r"no column is left.*asked for \(verified\) runs"):
        tables.table2(data, runs(tmp_path), ["verified"], tables.Choice(descriptors=["fpfh"]))
    choice = tables.Choice(["3dmatch"], ["fpfh", "stored_matches"])
    tables.table1(data, runs(tmp_path), ["verified"], choice)
    assert {row["column"] for row in read_csv(tmp_path / "table1.csv")} == {"3DMatch, FPFH"}


@pytest.mark.usefixtures("no_weights")
def test_a_table_without_columns_is_an_error_that_says_why(data: Path, tmp_path: Path) -> None:
    choice = tables.Choice(descriptors=["fcgf"])
    with pytest.raises(VBRegError, match=r"no column is left to run\. Left out: FCGF, since"):
        tables.table2(data, runs(tmp_path), ["sm"], choice)


def test_fcgf_is_a_column_where_its_weights_are(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fcgf.safetensors").touch()
    monkeypatch.setattr("vbreg.descriptors.choice.SHIPPED_FCGF", tmp_path / "fcgf.safetensors")
    plan = tables.columns_of_table1(data)
    assert [c.dataset for c in plan.columns if c.descriptor == "FCGF"] == [
        *tables.INDOOR,
        *tables.OUTDOOR,
    ]
    assert "FCGF" not in plan.left_out


def copy_with(data: Path, root: Path, *matches: str) -> Path:
    """Copy the data; the stored matches lie there under these names alone."""
    shutil.copytree(data, root)
    (root / "3dmatch" / "learned_matches").rename(root / "given")
    for name in matches:
        shutil.copytree(root / "given", root / "3dmatch" / f"{name}_matches")
    return root


STORED = {
    title: source.descriptor
    for title, source in tables.DESCRIBED.items()
    if source.descriptor.startswith("matches:")
}


@pytest.mark.parametrize("title", STORED)
def test_stored_matches_are_columns_where_they_lie_beside_the_fragments(
    data: Path, tmp_path: Path, title: str
) -> None:
    """Those alone, for 3DMatch and 3DLoMatch alone, and without methods that look at clouds."""
    root = copy_with(data, tmp_path / "data", STORED[title].partition(":")[2])
    for plan, count in (
        (tables.columns_of_table1(root), 1),
        (tables.columns_of_table2(root), len(tables.POINTS)),
    ):
        columns = [c for c in plan.columns if c.descriptor in STORED]
        assert {c.descriptor for c in columns} == {title}
        assert set(STORED) - {title} == set(STORED) & set(plan.left_out)
        datasets = list(tables.INDOOR) if count == 1 else ["3DLoMatch"] * count
        assert [c.dataset for c in columns] == datasets
        for column in columns:
            of_clouds = (*tables.LOOK_AT_CLOUDS, "register", "kiss-matcher")
            assert not any(column.runs(name) for name in of_clouds)
            assert column.runs("vbreg:fast")
            assert column.runs("sc2pcr")


def test_matches_of_open3d_are_solved_as_others_are(data: Path, tmp_path: Path) -> None:
    root = copy_with(data, tmp_path / "data", "open3d_fpfh")
    choice = tables.Choice(["3dmatch"], ["open3d_fpfh"])
    tables.table1(root, runs(tmp_path / "out"), ["sm"], choice)
    (cell,) = read_csv(tmp_path / "out" / "table1.csv")
    assert (cell["column"], cell["pairs"]) == ("3DMatch, Open3D's FPFH", "2")
    recall = naive_recall(tmp_path / "out" / "3dmatch_open3d_fpfh", "sm")
    assert float(cell["recall"]) == pytest.approx(recall)


def test_missing_stored_matches_are_left_out_with_a_sentence(data: Path, tmp_path: Path) -> None:
    """It names the folder, without where it was looked for, and the script that makes it."""
    root = copy_with(data, tmp_path / "data")
    plan = tables.columns_of_table1(root)
    for title, descriptor in STORED.items():
        (sentence,) = (s for s in plan.sentences() if s.startswith(f"Left out: {title}, since"))
        assert f"{descriptor.partition(':')[2]}_matches beside the fragments" in sentence
        assert ("scripts/make_open3d_matches.py" in sentence) == (title == "Open3D's FPFH")
        assert str(tmp_path) not in sentence
    assert Path(__file__).parents[2].joinpath("scripts/make_open3d_matches.py").exists()
    choice = tables.Choice(descriptors=["open3d_fpfh"])
    with pytest.raises(VBRegError, match=r"no column is left to run\. .*make_open3d_matches"):
        tables.table2(root, runs(tmp_path / "out"), ["sm"], choice)


@pytest.mark.parametrize("dataset", ["kitti_10_m", "kitti_20_m"])
def test_nothing_is_said_of_stored_matches_where_streets_are_asked_for(
    data: Path, tmp_path: Path, dataset: str
) -> None:
    """A root without 3DMatch will do."""
    shutil.copytree(data / "kitti", tmp_path / "kitti")
    plan = tables.columns_of_table1(tmp_path, tables.Choice([dataset]))
    assert plan.columns
    assert not set(STORED) & set(plan.left_out)


@pytest.mark.slow
def test_slow_methods_see_some_of_many_pairs_and_the_table_says_so(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lead of a slow method is over what the other did on the same pairs."""
    monkeypatch.setattr(tables, "FEW_PAIRS", 2)
    monkeypatch.setattr(tables, "SLOW", ("ransac",))
    slow = replace(runs(tmp_path), every=1, every_slow=4)
    choice = tables.Choice(["3dmatch", "kitti_10_m"], ["fpfh"])
    page = tables.table1(data, slow, QUICK, choice)
    cells = {(c["dataset"], c["method"]): c for c in read_csv(tmp_path / "table1.csv")}
    pairs = {key: int(cell["pairs"]) for key, cell in cells.items()}
    assert (pairs["3DMatch", "sm"], pairs["3DMatch", "ransac"]) == (6, 2)
    assert pairs["KITTI 10 m", "sm"] == pairs["KITTI 10 m", "ransac"] == 2
    folder = tmp_path / "3dmatch_fpfh"
    truth, seen = read_rows(folder / "problems.jsonl"), NAMES[::4]
    found = {method: read_rows(table_path(folder, method)) for method in QUICK}
    assert list(found["ransac"]) == list(seen)
    right = {
        method: np.mean([naive_success(found[method][p], truth[p], False) for p in seen])
        for method in QUICK
    }
    lead = float(cells["3DMatch", "ransac"]["lead"])
    assert lead == pytest.approx(right["ransac"] - right["sm"])
    assert re.search(r"\| RANSAC-50k \| [^|]+, 2 pairs \| [^|]+\) \|", page.read_text())


def test_a_table_that_was_stopped_goes_on(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns that are done stay in the table; poses that are there are not computed again."""
    choice = tables.Choice(["3dmatch", "3dlomatch"], ["stored_matches"])
    calls: list[int] = []
    call = LocalMethod.__call__

    def stopped(self: LocalMethod, problem: Problem) -> Registration:
        calls.append(1)
        if len(calls) == 5:  # a warm-up and two pairs of the first column, one of the second
            raise KeyboardInterrupt
        return call(self, problem)

    monkeypatch.setattr(LocalMethod, "__call__", stopped)
    with pytest.raises(KeyboardInterrupt):
        tables.table1(data, runs(tmp_path), ["sm"], choice)
    assert [c["dataset"] for c in read_csv(tmp_path / "table1.csv")] == ["3DMatch"]
    calls[:] = [1] * 5
    tables.table1(data, runs(tmp_path), ["sm"], choice)
    assert [c["dataset"] for c in read_csv(tmp_path / "table1.csv")] == ["3DMatch", "3DLoMatch"]
    assert len(calls) == 5 + 2, "a warm-up and the pair that was missing"


def test_an_unknown_part_of_a_table_is_an_error() -> None:
    with pytest.raises(VBRegError, match="datasets eth: expected some of 3dmatch, 3dlomatch, kit"):
        tables.Choice(datasets=["eth"])
    with pytest.raises(VBRegError, match="descriptors sift: expected some of fpfh, open3d_fpfh, "):
        tables.Choice(descriptors=["sift"])


@pytest.mark.parametrize("name", ["3dmatch", "3DMatch", "."])
def test_3dmatch_is_found_below_the_root(tmp_path: Path, name: str) -> None:
    (tmp_path / name / "fragments").mkdir(parents=True)
    assert tables.threedmatch_root(tmp_path) == tmp_path / name


def test_a_root_without_3dmatch_says_where_it_looked(tmp_path: Path) -> None:
    (tmp_path / "3dmatch").mkdir()  # and no fragments in it
    with pytest.raises(VBRegError, match="3DMatch not found below") as raised:
        tables.threedmatch_root(tmp_path)
    for place in ("3dmatch/fragments", "3DMatch/fragments"):
        assert str(tmp_path / place) in str(raised.value)


@pytest.mark.parametrize("name", ["kitti/dev", "kitti", "KITTI", "."])
def test_kitti_is_found_below_the_root(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir(parents=True, exist_ok=True)
    assert tables.kitti_root(tmp_path) == tmp_path / name


def test_a_root_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(VBRegError, match=r"KITTI not found below .*nowhere: looked for"):
        tables.kitti_root(tmp_path / "nowhere")
