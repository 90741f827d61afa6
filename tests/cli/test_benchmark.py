from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.cli.helpers import Outcome, Run, assert_one_line
from tests.datasets import layouts


def test_a_benchmark_needs_a_data_set_that_exists(run: Run, tmp_path: Path) -> None:
    outcome = run("benchmark", "3dmatsch", "-o", tmp_path / "out")
    assert outcome.code == 2
    assert "choose from 3dmatch, 3dlomatch" in outcome.err
    outcome = run("benchmark", "3dmatch", "--root", tmp_path / "none", "-o", tmp_path / "out")
    assert outcome.code == 2
    assert str(tmp_path / "none") in outcome.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("descriptor", "words"),
    [
        ("shot", "'matches:NAME'"),
        ("npz", "'npz:NAME'"),
        ("matches:", "'matches:NAME'"),
        ("fpfhh", "expected learned, fpfh"),
        ("matches:learned", "goes with 3dmatch and 3dlomatch only"),
    ],
)
def test_a_descriptor_that_is_not_there_is_one_line(
    run: Run, tmp_path: Path, descriptor: str, words: str
) -> None:
    options = ("--descriptor", descriptor, "-o", tmp_path / "out")
    assert_one_line(run("benchmark", "synthetic", *options), repr(descriptor), words)
    assert not (tmp_path / "out").exists()


def test_stored_matches_are_looked_for_where_the_descriptor_says(run: Run, tmp_path: Path) -> None:
    """`matches:mine` reads the folder mine_matches beside the fragments."""
    layouts.ours(tmp_path)
    options = ("--descriptor", "matches:mine", "--methods", "sm", "-q", "-o", tmp_path / "out")
    outcome = run("benchmark", "3dmatch", "--root", tmp_path, *options)
    assert_one_line(outcome, "no stored matches", str(tmp_path / "mine_matches"))


def test_stored_matches_are_solved(run: Run, tmp_path: Path) -> None:
    layouts.ours(tmp_path)
    folder = tmp_path / "mine_matches"
    folder.mkdir()
    points = {f"cloud_bin_{k}": 1000 * cloud for k, cloud in enumerate(layouts.fragments())}
    keypoints = {name: np.round(cloud).astype(np.int16) for name, cloud in points.items()}
    np.savez(folder / f"{layouts.SCENE}_keypoints.npz", **keypoints)
    np.savez(
        folder / f"{layouts.SCENE}_3DMatch.npz",
        pairs=np.array(layouts.PAIRS, dtype=np.int16),
        count=np.array([200, 200]),
        target_index=np.tile(np.arange(200, dtype=np.uint16), 2),
    )
    options = ("--descriptor", "matches:mine", "--methods", "sm", "-q", "-o", tmp_path / "out")
    outcome = run("benchmark", "3dmatch", "--root", tmp_path, *options)
    assert outcome == Outcome(0, "", "")
    rows = [
        json.loads(line)
        for line in (tmp_path / "out" / "predictions" / "sm.jsonl").read_text().splitlines()
    ]
    poses = {row["pair"]: row["T_target_source"] for row in rows if "pair" in row}
    for name, (i, j) in zip(layouts.NAMES, layouts.PAIRS, strict=True):
        truth = np.linalg.inv(layouts.T_i_j(i, j))
        np.testing.assert_allclose(np.reshape(poses[name], (4, 4)), truth, atol=0.01)
