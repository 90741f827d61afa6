"""scripts/plot_results.py: the picture of recall against time."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from tests.scripts import fake_results

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "plot_results.py"


def draw(root: Path, output: Path) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("matplotlib", reason="vbreg[plots]")
    command = [sys.executable, "-W", "error", SCRIPT, "--root", root, "--output", output]
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


def test_without_table_1_the_picture_stays_as_it_is(root: Path) -> None:
    run = draw(root, root / "results.png")
    assert run.returncode == 0, run.stderr
    assert "stays: no file" in run.stdout
    assert not (root / "results.png").exists()
