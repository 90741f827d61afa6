"""The pictures of the documentation are drawn from the scans that come with the package."""

from pathlib import Path

import pytest

from tests.scripts.helpers import load

pytest.importorskip("matplotlib", reason="vbreg[plots] is not installed")
from PIL import Image

MAX_BYTES = 300_000


def test_a_picture_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load("scripts/draw_steps.py").main(["voxels", "--folder", str(tmp_path)])
    (file,) = tmp_path.iterdir()
    assert str(file) in capsys.readouterr().out
    assert file.stat().st_size < MAX_BYTES
    with Image.open(file) as image:
        assert image.width > 1000
        assert len(image.convert("RGB").getcolors(1 << 20) or ()) > 20, "something is drawn"


def test_pictures_in_the_documents_are_small() -> None:
    folder = Path(__file__).parents[2] / "docs" / "images"
    drawn = [*folder.glob("step_*.png"), *folder.glob("guide_*.png"), folder / "voxel_sizes.png"]
    assert len(drawn) == 6
    assert all(path.stat().st_size < MAX_BYTES for path in drawn)
