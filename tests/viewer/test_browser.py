"""The page in a real browser: Chromium, driven by playwright, on a computer and on a phone.

`VBREG_SCREENSHOTS=folder` keeps the pictures that these tests take.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.viewer.helpers import POSE, planted_clouds, planted_pair
from vbreg import io as clouds
from vbreg.render import SOURCE, TARGET
from vbreg.scenes import Reconstruction, SceneEdge
from vbreg.scenes.report import write_scene_report
from vbreg.summary import as_json, standard_deviation
from vbreg.types import Bool, PointCloud, in_percent
from vbreg.viewer import Session, ViewServer, write_report

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = ["--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--ignore-gpu-blocklist"]
DESKTOP = {"width": 1040, "height": 640}
PHONE = {"width": 390, "height": 844}
PATIENCE = 60_000  # milliseconds, for a machine that does other things as well


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip(
        "playwright.sync_api", reason="needs playwright: pip install 'vbreg[browser]'"
    )
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip("needs a browser: apt-get install chromium")
    # Chromium's sandbox does not work for root, as whom containers run.
    root = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=ARGUMENTS + root)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ViewServer]:
    """A server with the search as it ships; the example is registered once, by the first test."""
    session = Session(tmp_path_factory.mktemp("uploads"), {"device": "cpu"})
    with ViewServer(session) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
    session.close()


@pytest.fixture(scope="module")
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """A function that opens an address; at the end, nothing may have gone wrong in any page."""
    contexts, faults = [], []

    def opened(address: str, **options: Any) -> Any:
        context = browser.new_context(**{"viewport": DESKTOP, **options})
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda m: m.type == "error" and faults.append(m.text))
        page.goto(address)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not faults


def until(page: Any, expression: str) -> None:
    """Wait for something to be true in a page whose policy forbids playwright's own way."""
    for _ in range(PATIENCE // 25):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(25)
    pytest.fail(expression)


def shot(page: Any, name: str) -> np.ndarray:
    """Wait until all is drawn, and return what is seen (H, W, 3)."""
    until(page, "!vbreg.page.playing && vbreg.stage.settled")
    data = page.screenshot()
    if folder := os.environ.get("VBREG_SCREENSHOTS"):
        (Path(folder) / f"{name}.png").write_bytes(data)
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def like(pixels: np.ndarray, colour: tuple[int, int, int]) -> Bool:
    """Tell which pixels of the picture, without the panel, have the hue of a colour."""
    shade = pixels[80:540, :650].astype(float)
    cosine = shade @ np.array(colour) / np.linalg.norm(colour) / np.linalg.norm(shade, axis=-1)
    return np.asarray(cosine > 0.975)


def between(pixels: np.ndarray) -> np.ndarray:
    """The way from the middle of what is seen of the target to that of the source."""
    source, target = (np.argwhere(like(pixels, c)).mean(axis=0) for c in (SOURCE, TARGET))
    return np.asarray(source - target)


@pytest.fixture(scope="module")
def example(server: ViewServer, open_page: Callable[..., Any]) -> Any:
    """A page that shows the example, registered; the tests use it one after the other."""
    page = open_page(server.url)
    page.wait_for_selector("#empty:visible, #between:visible")
    if page.is_visible("#empty"):
        shot(page, "empty")
        page.click("#example")
        page.wait_for_selector("#working:visible")
    page.wait_for_selector("#between:visible")
    return page


def test_the_example_is_aligned_and_the_slider_moves_the_source(example: Any) -> None:
    assert example.inner_text(".verdict h2") == "Aligned"
    after = shot(example, "desktop")
    assert like(after, SOURCE).mean() > 0.03
    assert like(after, TARGET).mean() > 0.03
    example.fill("#blend", "0")
    before = shot(example, "before")
    assert np.linalg.norm(between(before) - between(after)) > 200  # pixels
    example.click("#play")
    until(example, "Number(document.querySelector('#blend').value) === 1")
    again = shot(example, "desktop")
    assert np.abs(again.astype(int) - after)[80:540, :650].mean() < 1


def test_matches_are_shown_and_counted(example: Any) -> None:
    example.fill("#blend", "0")
    none = shot(example, "none")
    said = []
    for name in ("Inliers", "Outliers", "All", "Seed"):
        example.click(f".choice button:text-is('{name}')")
        seen = shot(example, f"matches_{name.lower()}")
        assert np.abs(seen.astype(int) - none)[80:540, :650].max() > 40, name
        said.append(example.inner_text("section[aria-label=Matches] p.quiet"))
    shown = [int(text.split()[0].replace(",", "")) for text in said[:3]]
    assert shown[0] + shown[1] == shown[2]
    assert "votes for" in said[3]
    assert example.input_value("#seed") == "0"
    example.click("text=Next")
    assert example.input_value("#seed") == "1"
    assert example.inner_text(".slider:has(#seed) output").startswith("2 of ")
    example.click(".choice button:text-is('All')")
    example.fill("#threshold", "0.9")
    sure = example.inner_text("section[aria-label=Matches] p.quiet")
    assert int(sure.split()[0].replace(",", "")) < shown[2]
    example.click("text=By confidence")
    shot(example, "matches_confidence")


def test_results_can_be_saved(example: Any) -> None:
    for label, ending in (
        ("Result, JSON", ".json"),
        ("Aligned cloud", ".ply"),
        ("Picture", ".png"),
    ):
        with example.expect_download() as waiting:
            example.click(f"button:text-is('{label}')")
        path = Path(waiting.value.path())
        assert waiting.value.suggested_filename.endswith(ending)
        if ending == ".json":
            assert json.loads(path.read_text())["success_probability"] > 0.9
        if ending == ".ply":
            assert path.read_bytes().startswith(b"ply")
        if ending == ".png":
            pixels = np.asarray(Image.open(path).convert("RGB"))
            assert like(pixels, SOURCE).any()


def test_it_is_used_with_keys_alone(example: Any) -> None:
    example.focus("#canvas")
    camera = "JSON.stringify([vbreg.stage.orbit.azimuth, vbreg.stage.orbit.distance])"
    seen = {example.evaluate(camera)}
    for key in ("ArrowLeft", "ArrowUp", "+", "-", "-", "Shift+ArrowRight", "f"):
        example.keyboard.press(key)
        seen.add(example.evaluate(camera))
    assert len(seen) >= 4
    example.keyboard.press("b")
    assert example.input_value("#blend") == "0"
    example.keyboard.press("a")
    assert example.input_value("#blend") == "1"
    example.keyboard.press("1")
    assert example.get_attribute("#see-source", "aria-pressed") == "false"
    assert like(shot(example, "target_alone"), SOURCE).mean() < 0.002
    example.keyboard.press("1")
    example.keyboard.press("?")
    assert example.is_visible("#keyboard")
    example.keyboard.press("Escape")
    assert not example.is_visible("#keyboard")


DROP = """([name, text]) => {
  const transfer = new DataTransfer();
  transfer.items.add(new File([text], name));
  const options = { dataTransfer: transfer, bubbles: true, cancelable: true };
  const there = document.querySelector("#canvas");
  for (const kind of ["dragover", "drop"]) there.dispatchEvent(new DragEvent(kind, options));
}"""


def test_a_broken_file_is_a_message_and_the_page_goes_on(example: Any) -> None:
    example.evaluate(DROP, ["../../broken.ply", "ply\nformat ascii 1.0\nelement vertex 9\n"])
    example.wait_for_selector("#problem:visible")
    assert "the source file" in example.inner_text("#problem-text")
    shot(example, "problem")
    example.click("#dismiss")
    assert not example.is_visible("#problem")
    example.evaluate(DROP, ["notes.pdf", "nothing"])
    example.wait_for_selector("#problem:visible")
    assert "notes.pdf" in example.inner_text("#problem-text")
    assert example.inner_text(".verdict h2") == "Aligned"  # what was there is there


def test_a_phone_in_the_dark(server: ViewServer, open_page: Callable[..., Any]) -> None:
    options = {"viewport": PHONE, "has_touch": True, "is_mobile": True, "device_scale_factor": 2}
    page = open_page(server.url, color_scheme="dark", reduced_motion="reduce", **options)
    page.wait_for_selector("#between:visible")
    pixels = shot(page, "phone_dark")
    assert pixels[:40, :40].mean() < 60
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    small = page.evaluate(
        """[...document.querySelectorAll("#stage button")].filter((b) => b.offsetParent)
           .map((b) => b.getBoundingClientRect()).filter((r) => r.height < 36).length"""
    )
    assert small == 0  # every button of the picture is large enough for a finger
    page.tap("#see-source")
    assert page.get_attribute("#see-source", "aria-pressed") == "false"
    page.tap("#theme")
    assert shot(page, "phone")[:40, :40].mean() > 200


def test_two_files_are_sent_and_registered_with_a_voxel_size(example: Any, tmp_path: Path) -> None:
    scans = tmp_path / "first scan.xyz", tmp_path / "second scan.ply"
    for role, path, cloud in zip(("source", "target"), scans, planted_clouds(), strict=True):
        clouds.write(path, cloud.points)
        with example.expect_file_chooser() as chooser:
            example.click(f"[aria-label='Choose the {role}']")
        chooser.value.set_files(path)
    example.wait_for_selector("#see-target:has-text('second scan.ply')")
    example.wait_for_selector("#see-source:has-text('first scan.xyz')")
    assert not example.is_visible("#between")  # there is no pose yet
    example.select_option("#voxels", "own")
    assert example.is_disabled("#run")
    example.fill("#own", "0.15")
    example.click("#run")
    example.wait_for_selector("#between:visible")
    assert example.is_visible(".verdict")
    assert "0.15" in example.inner_text("section[aria-label=Numbers]")
    shot(example, "own_files")


def test_a_report_opens_from_disk_without_a_network(
    open_page: Callable[..., Any], tmp_path: Path
) -> None:
    evil = "<img src=x onerror=document.title='taken'>.ply"
    pair = planted_pair(command=f"vbreg register {evil}")
    write_report(tmp_path / "report.html", pair)
    page = open_page("about:blank", offline=True, reduced_motion="reduce")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto((tmp_path / "report.html").as_uri())
    page.wait_for_selector("#between:visible")
    assert page.inner_text(".verdict h2") == "Aligned"
    said = page.inner_text("section[aria-label=Pose]")
    assert pair.result is not None
    degrees, length = standard_deviation(pair.result) or (0.0, 0.0)
    assert f"Translation\n{np.linalg.norm(POSE[:3, 3]):.4g}\n" in said
    assert f"Uncertainty in the overlap\n{degrees:.2g}\u00b0, {length:.2g}\n" in said
    assert page.inner_text(".command") == f"vbreg register {evil}"
    assert page.title() == "a.ply to b.ply - vbreg"
    assert not [url for url in asked if not url.startswith(("file:", "data:", "blob:"))]
    page.click(".rows button:nth-child(2)")  # the alternative
    shot(page, "report")
    assert "0 of 60 matches agree" in page.inner_text("section[aria-label=Matches]")
    with page.expect_download() as waiting:
        page.click("button:text-is('Result, JSON')")
    assert json.loads(Path(waiting.value.path()).read_text()) == json.loads(json.dumps(pair.said))


DRAWN = """(() => {
  const canvas = document.querySelector("#scene");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return data.filter((value, k) => k % 4 === 3 && value > 0).length;
})()"""


def test_scans_of_a_scene_are_hidden_one_by_one(
    open_page: Callable[..., Any], tmp_path: Path
) -> None:
    """Two scans side by side, and one that does not connect to them."""
    source, target = planted_clouds()
    apart = PointCloud(source.points[::10])
    T = np.stack([POSE, np.eye(4), np.eye(4)])
    kept = SceneEdge(0, 1, POSE, np.eye(6), 0.99, True, 0.1, 0.0, None, 0, 0, True, False)
    dropped = replace(kept, target=2, kept=False, error=np.inf, distance=np.inf)
    edges = kept, dropped, replace(dropped, source=1, probability=0.3)
    names, component = ("a.ply", "b.ply", "<b>c.ply"), np.array([0, 0, 1])
    found = Reconstruction(
        names, T, component, edges, np.zeros((3, 3)), (), ((0, 1),), 1, 0.1, False
    )
    write_scene_report(tmp_path / "scene.html", found, [source, target, apart])
    page = open_page((tmp_path / "scene.html").as_uri(), offline=True)
    assert "1 kept, 1 dropped, 1 improbable" in page.inner_text("#about")
    assert page.locator("#dropped tr td:first-child").all_inner_texts() == ["a.ply"]
    assert page.locator("#component option").all_inner_texts() == ["1: 2 scans", "2: 1 scan"]
    assert page.inner_text("#scans") == "0 a.ply\n1 b.ply"
    both = page.evaluate(DRAWN)
    page.uncheck("#scans li:nth-child(1) input")
    until(page, f"{DRAWN} < {both}")
    second = page.evaluate(DRAWN)
    assert 0 < second < 0.8 * both
    page.uncheck("#scans li:nth-child(2) input")
    until(page, f"{DRAWN} === 0")
    page.check("#scans li:nth-child(1) input")
    until(page, f"{DRAWN} > 0")
    first = page.evaluate(DRAWN)
    assert max(first, second) < both <= first + second
    page.click("text=Show all")
    until(page, f"{DRAWN} === {both}")
    page.select_option("#component", "1")
    assert page.inner_text("#scans") == "2 <b>c.ply"
    until(page, f"{DRAWN} > 0 && {DRAWN} < {first}")


@pytest.mark.parametrize(
    ("probability", "words", "kind"),
    [
        (0.998, "Aligned", "good"),
        (0.6, "Probably aligned", "fair"),
        (0.063, "Do not trust this pose", "bad"),
        (0.004, "Do not trust this pose", "bad"),
        (None, "Not judged", "unknown"),
    ],
)
def test_the_page_has_the_words_of_the_verdict(
    open_page: Callable[..., Any],
    tmp_path: Path,
    probability: float | None,
    words: str,
    kind: str,
) -> None:
    pair = planted_pair()
    assert pair.result is not None
    result = replace(pair.result, success_probability=probability)
    repeated = [f"{result.verdict}; try again", *result.reasons]
    warnings = [*repeated, "free memory is low"]
    said = as_json(result, result.timings, Path("a.ply"), Path("b.ply"), warnings)
    write_report(tmp_path / "report.html", replace(pair, result=result, said=said))
    page = open_page((tmp_path / "report.html").as_uri(), viewport={"width": 500, "height": 300})
    assert page.inner_text(f".verdict.{kind} h2") == words
    shares = page.locator(".headline .share").all_inner_texts()
    assert shares == ([] if probability is None else [in_percent(probability)])
    listed = page.locator(".verdict li").all_inner_texts()
    assert listed == [*result.reasons, "free memory is low"]  # nothing twice


def test_fewer_points_are_drawn_while_something_moves(
    open_page: Callable[..., Any], tmp_path: Path
) -> None:
    write_report(tmp_path / "report.html", planted_pair())
    page = open_page((tmp_path / "report.html").as_uri(), reduced_motion="reduce")
    page.wait_for_selector("#between:visible")
    shot(page, "still")
    total = page.evaluate("vbreg.stage.drawn")
    pair = planted_pair()
    assert total == len(pair.source or []) + len(pair.target or [])
    budget = "vbreg.stage.budget = 500000; vbreg.stage.adapt({}); vbreg.stage.budget"
    slow, fine, quick = (page.evaluate(budget.format(ms)) for ms in (100, 30, 10))
    assert slow < fine == 500_000 < quick
    moving = page.evaluate(
        """new Promise((done) => {
          const counts = [];
          vbreg.stage.budget = 1000;
          vbreg.stage.adapt = () => {};
          vbreg.stage.onDrawn = (n) => counts.push(n);
          let turns = 0;
          const slowly = () => {
            vbreg.stage.orbit.turn(0.01, 0);
            const end = performance.now() + 250;  // as long as a slow machine needs for a frame
            while (performance.now() < end);
            if (++turns < 5) requestAnimationFrame(slowly);
            else setTimeout(() => done([counts.slice(), vbreg.stage.settled]), 0);
          };
          vbreg.stage.orbit.turn(0.01, 0);
          requestAnimationFrame(slowly);
        })"""
    )
    counts, settled = moving
    assert len(counts) >= 4
    assert max(counts) < total  # however slow it is
    assert not settled
    until(page, "vbreg.stage.settled")
    assert page.evaluate("vbreg.stage.drawn") == total
