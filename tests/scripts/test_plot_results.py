"""scripts/plot_results.py: the picture of recall against time."""

import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

SCRIPT = Path(__file__).parents[2] / "scripts" / "plot_results.py"


def test_the_picture_is_drawn_from_the_csv_files(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="vbreg[plots]")
    output = tmp_path / "images" / "results.png"
    command = [sys.executable, "-W", "error", SCRIPT, "--output", output]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    with Image.open(output) as picture:
        assert picture.width > 2 * picture.height  # two panels side by side
