"""The figure for papers shows both clouds and the matches, as pixels and as drawing."""

from __future__ import annotations

import base64
import io
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.viewer.helpers import planted_clouds, planted_result
from vbreg import figure
from vbreg.figure import INLIER, LABEL, MAX_LINES, OUTLIER, draw_figure
from vbreg.render import SOURCE, TARGET
from vbreg.types import Bool

PANEL = (240, 180)
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    """Figures of few pixels are drawn quickly."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figure, "PANEL", PANEL)
        yield


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("figures")
    source, target = planted_clouds(coloured=False)
    for ending in ("png", "svg"):
        draw_figure(source.points, target.points, planted_result(source), folder / f"f.{ending}")
    return {ending: folder / f"f.{ending}" for ending in ("png", "svg")}


def near(pixels: np.ndarray, colour: tuple[int, int, int], tolerance: float = 0.95) -> Bool:
    """Tell which pixels have the hue of a colour, however light or dark."""
    shade = pixels.astype(float)
    length = np.linalg.norm(shade, axis=-1) * np.linalg.norm(colour)
    return np.asarray((shade @ np.array(colour) / np.maximum(length, 1)) > tolerance)


def test_the_png_has_three_panels_with_both_clouds(drawn: dict[str, Path]) -> None:
    pixels = np.asarray(Image.open(drawn["png"]))
    assert pixels.shape == (PANEL[1] + LABEL, 3 * PANEL[0], 3)
    assert (pixels[0, 0] == 255).all()
    for k in (0, 2):
        panel = pixels[: PANEL[1], k * PANEL[0] : (k + 1) * PANEL[0]]
        assert near(panel, SOURCE).mean() > 0.02
        assert near(panel, TARGET).mean() > 0.02
    assert (pixels[PANEL[1] :] < 128).any()  # letters


def test_matches_are_lines_between_the_clouds(drawn: dict[str, Path]) -> None:
    root = ET.parse(drawn["svg"]).getroot()
    lines = root.findall(f"{SVG}line")
    source, _ = planted_clouds(coloured=False)
    result = planted_result(source)
    assert len(lines) == len(result.correspondences)
    colours = [line.get("stroke") for line in lines]
    assert colours.count(f"rgb{INLIER}".replace(" ", "")) == result.inlier_count
    for line in lines:  # source ends lie at the right of target ends, within the second panel
        assert float(line.get("x1", 0)) > float(line.get("x2", 0)) > PANEL[0]


def test_the_svg_holds_all_that_it_shows(drawn: dict[str, Path]) -> None:
    root = ET.parse(drawn["svg"]).getroot()
    images = root.findall(f"{SVG}image")
    assert len(images) == 3
    for image in images:
        head, _, data = (image.get("href") or "").partition(",")
        assert head == "data:image/png;base64"
        assert Image.open(io.BytesIO(base64.b64decode(data))).size == PANEL
    words = [text.text or "" for text in root.findall(f"{SVG}text")]
    assert words[1] == "(b) matches: 40 of 60 agree"


def test_the_legend_has_the_colours_that_are_drawn(
    drawn: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figure, "PANEL", (400, 90))  # wide enough for the words
    source, target = planted_clouds(300)
    draw_figure(source.points, target.points, planted_result(source), tmp_path / "wide.png")
    foot = np.asarray(Image.open(tmp_path / "wide.png"))[90:]
    legend = ET.parse(drawn["svg"]).getroot().findall(f"{SVG}text")[-1]
    words = " ".join("".join(legend.itertext()).replace("\u25a0", "").split())
    assert words == "orange: source blue: target green: match agrees pink: does not"
    squares = [square.get("fill") for square in legend]
    for colour, square in zip((SOURCE, TARGET, INLIER, OUTLIER), squares, strict=True):
        assert square == f"rgb{colour}".replace(" ", "")
        assert (foot == colour).all(axis=-1).sum() > 100


def test_the_same_result_gives_the_same_figure(drawn: dict[str, Path], tmp_path: Path) -> None:
    source, target = planted_clouds(coloured=False)
    draw_figure(source.points, target.points, planted_result(source), tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_bytes() == drawn["svg"].read_bytes()


def test_many_matches_are_thinned(tmp_path: Path) -> None:
    source, target = planted_clouds(coloured=False)
    result = planted_result(source, n=2000)
    draw_figure(source.points, target.points, result, tmp_path / "many.svg")
    lines = ET.parse(tmp_path / "many.svg").getroot().findall(f"{SVG}line")
    assert len(lines) == 2 * MAX_LINES


def test_a_result_without_inliers_is_drawn(tmp_path: Path) -> None:
    source, target = planted_clouds(coloured=False)
    result = replace(planted_result(source), inliers=np.zeros(60, dtype=bool))
    draw_figure(source.points, target.points, result, tmp_path / "none.png")
    assert (tmp_path / "none.png").is_file()
