"""scripts/compare_scans.py: the numbers in its tables, and the sheet of pictures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.scripts.helpers import load
from tests.training.helpers import described_sets, match_sets
from vbreg.datasets.matches import MatchSet, write_shard
from vbreg.datasets.pairs import Pair
from vbreg.render import SOURCE, Camera

script = load("scripts/compare_scans.py")


@pytest.fixture(scope="module")
def one() -> MatchSet:
    return match_sets(1)[0]


def test_a_set_is_measured_by_hand(one: MatchSet) -> None:
    found = script.measure(one, np.random.default_rng(0))
    R, t = one.T_target_source[:3, :3], one.T_target_source[:3, 3]
    errors = [
        np.linalg.norm(R @ x + t - y) / 0.1 for x, y in zip(one.source, one.target, strict=True)
    ]
    right = [e for e, label in zip(errors, one.labels, strict=True) if label]
    wrong = [e for e, label in zip(errors, one.labels, strict=True) if not label]
    assert (found.points, found.matches, found.overlap) == (100, 100, 0.5)
    assert found.right == pytest.approx(0.3)
    assert found.error == pytest.approx(np.median(right))
    assert found.near == pytest.approx(np.mean([e < script.NEAR for e in wrong]))
    assert found.distance == pytest.approx(np.linalg.norm(t))
    assert found.distinct == 1.0
    half = replace(one, target_index=one.target_index // 2)
    assert script.measure(half, np.random.default_rng(0)).distinct == 0.5


def test_compatible_shares_are_counted_by_hand(one: MatchSet) -> None:
    groups: dict[int, list[bool]] = {0: [], 1: [], 2: []}
    for i in range(100):
        for j in range(100):
            if i != j:
                dx, dy = (np.linalg.norm(p[i] - p[j]) for p in (one.source, one.target))
                groups[int(one.labels[i]) + int(one.labels[j])].append(abs(dx - dy) < 0.1)
    found = script.compatible(one, np.random.default_rng(0))
    expected = [np.mean(groups[k]) for k in (2, 1, 0)]
    assert found == pytest.approx(expected, abs=1e-3)
    alone = script.compatible(replace(one, labels=np.ones(100, bool)), np.random.default_rng(0))
    assert np.isnan(alone[1:]).all()


def test_flat_is_what_lies_in_a_plane() -> None:
    generator = np.random.default_rng(0)
    plane = np.c_[generator.uniform(0, 2, (500, 2)), np.zeros(500)].astype(np.float32)
    ball = generator.normal(size=(500, 3)).astype(np.float32)
    assert script.flat(plane, 0.1) == 1.0
    assert script.flat(ball, 0.1) < 0.05
    both = np.concatenate([plane, ball + np.float32(10)])
    assert script.flat(both, 0.1) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(("count", "most"), [(10, 3), (3, 10), (1, 1), (7, 7)])
def test_items_are_taken_evenly_from_first_to_last(count: int, most: int) -> None:
    chosen = script.evenly(list(range(count)), most)
    assert len(chosen) == len(set(chosen)) == min(count, most)
    assert chosen == sorted(chosen)
    assert chosen[0] == 0
    assert chosen[-1] == (count - 1 if len(chosen) > 1 else 0)


def test_stored_sets_are_those_of_a_kind(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.npz", described_sets("a", 0, 2))
    write_shard(tmp_path / "b.npz", described_sets("b", 5, 1))
    files = sorted(tmp_path.iterdir())
    names = [s.name for s in script.stored(files, "fpfh", 10)]
    assert names == ["a/0-0 fpfh", "a/1-0 fpfh", "b/5-0 fpfh"]
    assert [s.name for s in script.stored(files, "code", 2)] == [
        "a/0-0 code 0.30",
        "b/5-0 code 0.30",
    ]


def test_real_pairs_are_matched_as_simulated_ones_are() -> None:
    generator = np.random.default_rng(0)
    flat = generator.uniform(0, 1.0, (3000, 2))
    cloud = np.c_[flat, np.sin(7 * flat[:, 0]) * np.cos(5 * flat[:, 1]) / 6]
    T = np.eye(4)
    T[:3, 3] = 0.2, 0.1, 0.0
    pair = Pair("room/0-1", cloud, cloud + T[:3, 3], T, scene="room")
    (found,) = script.real([[pair]], 0.05, 5)
    assert found.name == "room/0-1"
    assert found.overlap == 1.0
    assert found.inlier_threshold == pytest.approx(0.10)
    assert found.labels.mean() > 0.5


def test_tables_have_a_row_for_each_group(one: MatchSet) -> None:
    groups = script.measured({"some": match_sets(3), "none": []})
    table = script.share_right({"some": groups["some"]}, script.OVERLAPS).splitlines()
    assert table[0].startswith("| matches | sets | points | flat | matches a set | 10-30 %")
    assert table[1] == "|---" * 9 + "|"
    assert table[2].startswith("| some | 3 | 120 |")
    assert table[2].endswith("| - | - | 30.0 (3) | - |")
    lines = script.structure({"some": groups["some"]}).splitlines()
    assert lines[2].startswith("| some | 3 | 0.")
    assert script.markdown(["a", "b"], [["1", "2"]]) == "| a | b |\n|---|---|\n| 1 | 2 |"


def test_the_view_ahead_is_a_frame() -> None:
    axes = script.ahead().axes
    np.testing.assert_allclose(axes @ axes.T, np.eye(3), atol=1e-12)
    assert np.linalg.det(axes) == pytest.approx(1.0)  # right, up and towards the eye


def test_a_sheet_has_a_panel_for_each_cloud(tmp_path: Path) -> None:
    points = np.random.default_rng(0).uniform(-0.4, 0.4, (3000, 3))
    rows = [("left", SOURCE, [("a", points), ("b", points)]), ("right", SOURCE, [("c", points)])]
    script.contact_sheet(
        tmp_path / "sheet.png",
        rows,
        lambda p: Camera.facing(p).framing(p, 1, 1),
        (120, 100),
        metres=2.0,
        bar=1,
    )
    with Image.open(tmp_path / "sheet.png") as image:
        width = 2 * (120 + script.GAP) + script.GAP
        assert image.size == (width, 2 * (script.TITLE + 100) + script.FOOTER)
        pixels = np.asarray(image.convert("L")).astype(int)
    blank = pixels[0, 0]
    top = slice(script.TITLE, script.TITLE + 100)
    bottom = slice(2 * script.TITLE + 100, 2 * (script.TITLE + 100))
    left, right = slice(script.GAP, script.GAP + 120), slice(2 * script.GAP + 120, width)
    drawn = [[(pixels[r, c] != blank).mean() > 0.05 for c in (left, right)] for r in (top, bottom)]
    assert drawn == [[True, True], [True, False]]
