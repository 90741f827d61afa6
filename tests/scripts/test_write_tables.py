"""scripts/write_tables.py: the numbers in the documents are those of the CSV files."""

import csv
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.scripts import fake_results
from tests.scripts.helpers import load
from vbreg.experiments import tables

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "write_tables.py"
CARD = Path("src/vbreg/weights/MODEL_CARD.md")


def run(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, SCRIPT, "--root", root, *options]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the documents and of the CSV files; those of tables 1 and 2 are made up."""
    root = tmp_path_factory.mktemp("written")
    for path in [ROOT / "README.md", ROOT / CARD, *(ROOT / "docs").rglob("*")]:
        name = path.relative_to(ROOT)
        if path.suffix in (".md", ".csv", ".json") and not {"table1", "table2"} & set(name.parts):
            copy = root / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
    for table in ("table1", "table2"):
        fake_results.write(root / "docs" / "results", table)
    assert run(root).returncode == 0  # the documents show what the copy has
    return root


@pytest.fixture
def tree(written: Path, tmp_path: Path) -> Path:
    return shutil.copytree(written, tmp_path / "tree")


def edit_csv(path: Path, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
    with path.open(newline="") as file:
        rows = [change(row) for row in csv.DictReader(file)]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def test_the_documents_are_up_to_date() -> None:
    found = run(ROOT, "--check")
    assert found.returncode == 0, found.stdout + found.stderr
    assert not found.stdout


def test_every_table_is_shown_somewhere(tree: Path) -> None:
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        from write_tables import TABLES, documents, places
    finally:
        sys.path.remove(str(SCRIPT.parent))
    shown = {name for path in documents(tree) for name, _, _ in places(path.read_text(), path.name)}
    assert shown == set(TABLES)


def test_a_changed_number_is_noticed_and_written(tree: Path) -> None:
    def change(row: dict[str, str]) -> dict[str, str]:
        first = row["method"] == "vbreg:fast" and row["column"] == "3DMatch, FPFH"
        return {**row, "recall": "0.123", "pairs": "777"} if first else row

    edit_csv(tree / "docs/results/table1/made_up/table1.csv", change)
    before = (tree / "README.md").read_text()
    checked = run(tree, "--check")
    assert checked.returncode == 1
    assert "README.md: table 'results' is out of date" in checked.stdout
    assert f"{CARD}: table 'model' is out of date" in checked.stdout
    assert "docs/speed.md" not in checked.stdout
    assert (tree / "README.md").read_text() == before

    assert run(tree).returncode == 0
    after = (tree / "README.md").read_text()
    assert "| VBReg, `fast` | 12.3 |" in after
    assert "3DMatch FPFH (777)" in after
    assert run(tree, "--check").returncode == 0


def test_a_method_that_saw_fewer_pairs_is_estimated_for_all(tree: Path) -> None:
    """MAC found 90 % of easy pairs, 10 points less than the reference, which has 50 % of all."""
    readme, page = ((tree / name).read_text() for name in ("README.md", "docs/results/README.md"))
    assert "| MAC | ≈ 40.0 † | ≈ 40.0 † |" in readme
    assert "plus the difference on the pairs that both saw" in readme
    assert "| MAC | ≈ 40.0 † |" in page
    assert "| MAC | 84.1 | ≈ 40.0 † | ≈ 40.0 † |" in page  # beside the papers
    assert "| SC2-PCR | 50.0 (40.0 .. 60.0) |" in page
    every = (tree / "docs/results/every_method.md").read_text()
    assert "| MAC | 25 | 90.0 (80.0 .. 100.0) | -10.0 (-20.0 .. +0.0) |" in every


def table_of(page: str, name: str) -> str:
    return page.partition(f"<!-- table: {name} -->")[2].partition("<!-- end table -->")[0]


def test_predators_protocol_is_shown_on_all_pairs_alone(tree: Path) -> None:
    """The difference on the same pairs is not known by it."""
    table = table_of((tree / "docs/results/README.md").read_text(), "predator")
    assert "| SC2-PCR | 45.0 | 45.0 |" in table
    assert "MAC" not in table


@pytest.mark.parametrize("ahead", [0.6, -0.9])
def test_an_estimate_is_a_share(tree: Path, ahead: float) -> None:
    def change(row: dict[str, str]) -> dict[str, str]:
        return {**row, "lead": str(ahead)} if row["method"] == "mac" else row

    edit_csv(tree / "docs/results/table1/made_up/table1.csv", change)
    found = load("scripts/results.py").Results(tree / "docs/results")
    recall = found.recall("3DMatch", "FPFH", "mac")
    assert recall.estimated
    assert recall.value == (1 if ahead > 0 else 0)
    assert 0 <= recall.low <= recall.value <= recall.high <= 1


def test_a_lead_over_something_else_is_no_lead_over_the_reference(tree: Path) -> None:
    """A wrong sum would be worse than a dash; another run that has the right one is used."""

    def change(row: dict[str, str]) -> dict[str, str]:
        other = {"over": "sc2pcr", "lead": "0.3"}
        return {**row, **other} if row["method"] in ("mac", "verified") else row

    edit_csv(tree / "docs/results/table1/made_up/table1.csv", change)
    assert run(tree).returncode == 0
    assert "| MAC | - | - |" in (tree / "README.md").read_text()
    page, every = (
        (tree / f"docs/results/{name}.md").read_text() for name in ("README", "every_method")
    )
    assert "| MAC | 84.1 | - | - |" in page
    assert "| MAC | 25 | 90.0 (80.0 .. 100.0) | - |" in every
    assert table_of((tree / "docs/trust.md").read_text(), "verified").count("\n") == 3  # no rows

    fake_results.write(tree / "docs/results", "table1", "more", ("mac",), "cpu")
    more = tree / "docs/results/table1/more/table1.csv"
    edit_csv(more, lambda row: {**row, "pairs": "10", "lead": "-0.2"})
    assert run(tree).returncode == 0
    assert "| MAC | ≈ 30.0 † | ≈ 30.0 † |" in (tree / "README.md").read_text()


def test_the_call_stands_beside_what_it_is_made_of(tree: Path) -> None:
    """On its own matches; a data set on which it was not run has no row."""
    results = tree / "docs/results"
    fake_results.write(results, "table1", "call", ("register",), "cpu", 0.75, ("as register",))
    edit_csv(
        results / "table1/call/table1.csv",
        lambda row: {**row, "dataset": "3DMatch"} if row["dataset"] == "3DLoMatch" else row,
    )
    assert run(tree).returncode == 0
    table = table_of((tree / "README.md").read_text(), "shipped")
    half = "50.0 (40.0 .. 60.0)"
    assert f"| 3DMatch (100 pairs) | {half} | {half} | {half} | **75.0 (" in table
    assert "3DLoMatch" not in table


def test_a_gpu_goes_before_a_cpu(tree: Path) -> None:
    """Where a cell was measured twice, the other fills the gaps alone."""
    fake_results.write(tree / "docs/results", "table1", "more", ("sc2pcr", "fgr"), "cpu", 0.25)
    assert run(tree).returncode == 0
    page = (tree / "docs/results/README.md").read_text()
    assert "| SC2-PCR | 50.0 (" in page
    assert "| FGR (Open3D) | 25.0 (" in page


def test_many_pairs_go_before_a_gpu(tree: Path) -> None:
    """MAC was seen on few."""
    fake_results.write(tree / "docs/results", "table1", "more", ("mac",), "cpu")
    more = tree / "docs/results/table1/more/table1.csv"
    edit_csv(more, lambda row: {**row, "pairs": "26", "lead": "0.2"})
    assert run(tree).returncode == 0
    assert "| MAC | ≈ 70.0 † |" in (tree / "docs/results/README.md").read_text()


def test_a_row_that_leads_over_the_reference_goes_before_a_gpu(tree: Path) -> None:
    """Of as many pairs, the one that can be compared is shown."""
    fake_results.write(tree / "docs/results", "table1", "more", ("sc2pcr",), "cpu", 0.25)
    edit_csv(
        tree / "docs/results/table1/made_up/table1.csv",
        lambda row: {**row, "over": "ransac"} if row["method"] == "sc2pcr" else row,
    )
    assert run(tree).returncode == 0
    assert "| SC2-PCR | 25.0 (" in (tree / "docs/results/README.md").read_text()


def test_what_an_old_run_did_not_keep_is_a_dash(tree: Path) -> None:
    """Counts of right poses alone have no paired difference and no errors."""
    lost = ("lead", "lead_low", "lead_high", "rotation_error", "translation_error", "over")
    lost += ("rmse_pairs", "rmse_recall")
    edit_csv(
        tree / "docs/results/table1/made_up/table1.csv",
        lambda row: {**row, **dict.fromkeys(lost, "")} if row["method"] == "ransac" else row,
    )
    found = run(tree)
    assert found.returncode == 0, found.stderr
    page, every = (
        (tree / f"docs/results/{name}.md").read_text() for name in ("README", "every_method")
    )
    assert "RANSAC-50k" not in table_of(page, "predator")
    assert "| RANSAC-50k | 100 | 50.0 (40.0 .. 60.0) | - | - | - | - |" in every


def test_numbers_of_papers_stand_beside_ours(tree: Path) -> None:
    with (tree / "docs/results/published.csv").open(newline="") as file:
        papers = {(r["method"], r["dataset"], r["descriptor"]): r for r in csv.DictReader(file)}
    row = papers["sc2pcr", "3DMatch", "FPFH"]
    errors = f"{row['rotation_error']} deg, {row['translation_error']} cm"
    line = f"| SC2-PCR | {float(row['recall']):.1f}; {errors} | 50.0; 2.00 deg, 6.00 cm |"
    assert line in (tree / "docs/results/README.md").read_text()
    assert all(row["source"] for row in papers.values())


def test_ours_on_the_papers_matches_stands_beside_them_where_it_was_measured(tree: Path) -> None:
    """In every table that has FPFH; without it the tables are as they were."""
    both = "| 3DMatch FPFH, paper | ours | ours, Open3D's FPFH |"
    page = (tree / "docs/results/README.md").read_text()
    assert both in page
    assert "| FPFH (100 pairs) | Open3D's FPFH (100 pairs) |" in page
    assert "| method, Open3D's FPFH (100 pairs) |" in page
    results = tree / "docs/results"
    for table in ("table1", "table2"):
        shutil.rmtree(results / table / "made_up")
        others = [name for name in tables.DESCRIBED if name != "Open3D's FPFH"]
        fake_results.write(results, table, descriptors=others)
    found = run(tree)
    assert found.returncode == 0, found.stderr
    assert "table 'points-open3d-fpfh' stays: table2 has no rows of Open3D's" in found.stderr
    page = (tree / "docs/results/README.md").read_text()
    assert both not in page
    assert "| 3DMatch FPFH, paper | ours | 3DMatch FCGF, paper |" in page
    assert "| FPFH (100 pairs) | FCGF (100 pairs) |" in page
    assert "Open3D's FPFH" not in table_of((tree / "README.md").read_text(), "results")


def test_every_descriptor_of_the_tables_has_a_column_in_the_documents() -> None:
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        from results import DESCRIPTORS
    finally:
        sys.path.remove(str(SCRIPT.parent))
    assert set(DESCRIPTORS) == set(tables.DESCRIBED)


def test_the_backend_is_shown_where_a_file_has_it(tree: Path) -> None:
    speed = tree / "docs/results/speed/h200"
    for name in ("matches", "clouds", "stages", "growth"):
        edit_csv(speed / f"{name}.csv", lambda row: {**row, "backend": "triton"})
    assert run(tree).returncode == 0
    page = (tree / "docs/measurements.md").read_text()
    assert "matches, backend triton |" in page
    assert page.count("| triton |") > 5


def test_the_run_beside_a_file_is_named(tree: Path) -> None:
    about = {"command": "vbreg benchmark mine", "device": "4 CPU cores, arm64", "commit": "abc1234"}
    (tree / "docs/results/table1/made_up/run.json").write_text(json.dumps({"table1": about}))
    speed = {"matches": {**about, "command": "python benchmarks/speed.py mine"}}
    (tree / "docs/results/speed/cpu/run.json").write_text(json.dumps(speed))
    assert run(tree).returncode == 0
    page = (tree / "docs/results/README.md").read_text()
    assert "**Table 1**: 4 CPU cores, commit abc1234.\n" in page
    assert "# 4 CPU cores, commit abc1234\nvbreg benchmark mine\n" in page
    assert "python benchmarks/speed.py mine\n" in page
    readme = (tree / "README.md").read_text()
    assert "Made by `vbreg benchmark mine`, on 4 CPU cores, arm64, commit abc1234." in readme
    assert "| ms, 4 CPU cores |" in readme


def test_every_command_behind_a_file_is_named_and_what_is_not_known_is_said(tree: Path) -> None:
    """A file may hold rows of several commands, and of one that nobody wrote down."""
    place = {"device": "4 CPU cores, arm64", "commit": "abc1234"}
    commands = [f"vbreg benchmark {name}" for name in ("3dmatch", "3dlomatch")]
    about = [{"command": command, **place} for command in commands]
    about.append({"command": None, "device": "NVIDIA H200", "commit": "e9754fe"})
    (tree / "docs/results/table1/made_up/run.json").write_text(json.dumps({"table1": about}))
    assert run(tree).returncode == 0
    page = (tree / "docs/results/README.md").read_text()
    assert f"# 4 CPU cores, commit abc1234\n{commands[0]}\n{commands[1]}\n# NVIDIA H200" in page
    assert "# NVIDIA H200, commit e9754fe\n# a command that is not written down\n" in page
    readme = (tree / "README.md").read_text()
    both = f"Made by `{commands[0]}` and `{commands[1]}`, on 4 CPU cores, arm64, commit abc1234."
    assert f"{both} Made by a command that is not written down, on NVIDIA H200" in readme


def test_it_is_said_which_cells_come_from_which_run(tree: Path) -> None:
    """A run whose cells were all measured better elsewhere is not named."""
    results = tree / "docs/results"
    fake_results.write(results, "table1", "more", ("fgr", "sm"), "cpu", descriptors=("FPFH",))
    fake_results.write(results, "table1", "beaten", ("sc2pcr",), "cpu")
    about = {"command": "vbreg made more", "device": "2 CPU cores", "commit": "abc1234"}
    (results / "table1/more/run.json").write_text(json.dumps({"table1": about}))
    (results / "table1/beaten/run.json").write_text(json.dumps({**about, "command": "beaten"}))
    assert run(tree).returncode == 0
    page = (results / "README.md").read_text()
    where = ", ".join(f"{name} (FPFH)" for name in ("3DMatch", "3DLoMatch", "KITTI 10 m"))
    assert f"- **FGR (Open3D), SM**: {where}, KITTI 20 m (FPFH); 2 CPU cores, commit abc" in page
    assert "# 2 CPU cores, commit abc1234\nvbreg made more\n" in page
    assert "beaten" not in page


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- table: none -->\n<!-- end table -->", "unknown table 'none': expected one of resul"),
        ("<!-- table: results -->\n", "table 'results' has no `<!-- end table -->`"),
        ("<!-- table: results -->\n<!-- table: level -->\n", "table 'results' has no `<!-- end"),
        ("<!-- end table -->", "ends no table"),
    ],
)
def test_a_wrong_marker_is_an_error(tree: Path, text: str, message: str) -> None:
    page = tree / "docs/a.md"
    page.write_text(text)
    for options in ((), ("--check",)):
        found = run(tree, *options)
        assert found.returncode == 2
        assert "docs/a.md" in found.stderr
        assert message in found.stderr
    assert page.read_text() == text


def test_a_missing_file_is_an_error(tree: Path) -> None:
    (tree / "docs/results/table3/table3_search.csv").unlink()
    found = run(tree, "--check")
    assert found.returncode == 2
    assert "table3_search.csv" in found.stderr


def test_a_table_that_is_still_to_be_measured_stays_as_it_is(tree: Path) -> None:
    before = (tree / "docs/results/README.md").read_text()
    shutil.rmtree(tree / "docs/results/table2/made_up")
    found = run(tree)
    assert found.returncode == 0
    assert "table 'points-fpfh' stays: no file" in found.stderr
    assert (tree / "docs/results/README.md").read_text() == before
