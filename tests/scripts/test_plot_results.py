"""scripts/plot_results.py: the picture of recall against time."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from tests.scripts import fake_results
from tests.scripts.helpers import load

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "plot_results.py"


def draw(root: Path, output: Path, *options: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("matplotlib", reason="vbreg[plots]")
    command = [sys.executable, "-W", "error", SCRIPT, "--root", root, "--output", output, *options]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Times that were measured, and nothing else."""
    shutil.copytree(ROOT / "docs/results/speed", tmp_path / "docs/results/speed")
    return tmp_path


def test_the_picture_is_drawn_from_the_csv_files(root: Path) -> None:
    fake_results.write(root / "docs/results", "table1")
    output = root / "images" / "results.png"
    run = draw(root, output)
    assert run.returncode == 0, run.stderr
    with Image.open(output) as picture:
        assert picture.width > picture.height > 800  # two rows of two panels


def test_a_method_that_saw_fewer_pairs_is_drawn_hollow_where_all_pairs_would_put_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MAC found 90 % of easy pairs, 10 points less than the reference, which has 50 % of all."""
    plt = pytest.importorskip("matplotlib.pyplot", reason="vbreg[plots]")
    fake_results.write(root / "docs/results", "table1")
    monkeypatch.syspath_prepend(SCRIPT.parent)
    script = load("scripts/plot_results.py")
    found = script.Results(root / "docs/results")
    shown = script.markers(found, "3DMatch", "FPFH", "h200")
    figure, axis = plt.subplots()
    script.draw_panel(axis, shown)
    drawn = {}
    for marker, container in zip(shown, axis.containers, strict=True):
        dot = container.lines[0]
        drawn[marker.name] = (round(dot.get_ydata()[0], 6), dot.get_markerfacecolor() == "white")
    plt.close(figure)
    assert drawn["mac"] == (40.0, True)
    assert drawn["sc2pcr"] == (50.0, False)


def test_another_descriptor_is_drawn_where_it_was_measured(root: Path) -> None:
    results, output = root / "docs/results", root / "results.png"
    fake_results.write(results, "table1", descriptors=("FPFH",))
    asked = ("--descriptor", "Open3D's FPFH")
    run = draw(root, output, *asked)
    assert run.returncode == 0, run.stderr
    assert "stays: table1 has no rows of 3DMatch, Open3D's FPFH" in run.stdout
    assert not output.exists()
    fake_results.write(results, "table1", "more", descriptors=("Open3D's FPFH",))
    run = draw(root, output, *asked)
    assert run.returncode == 0, run.stderr
    assert output.exists()


def test_without_table_1_the_picture_stays_as_it_is(root: Path) -> None:
    run = draw(root, root / "results.png")
    assert run.returncode == 0, run.stderr
    assert "stays: no file" in run.stdout
    assert not (root / "results.png").exists()
