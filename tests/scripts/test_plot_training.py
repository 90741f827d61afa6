"""scripts/plot_training.py: curves of the runs that are named."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest
from PIL import Image

from tests.scripts.helpers import load


def write_log(folder: Path, pairs: list[int]) -> None:
    folder.mkdir()
    records = [
        {"kind": kind, "step": p, "pairs": p, "label_prior": 0.5, "recall": 0.4, "inlier_f1": 0.3}
        for p in pairs
        for kind in ("train", "validation")
    ]
    (folder / "log.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))


def test_parts_are_joined_and_runs_are_kept_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="vbreg[plots]")
    for name, pairs in (("a", [10, 20]), ("b", [10]), ("c", [40])):
        write_log(tmp_path / name, pairs)
    picture, numbers = tmp_path / "curves.png", tmp_path / "curves.csv"
    runs = [f"VB={tmp_path / 'a'},{tmp_path / 'b'}", f"SC={tmp_path / 'c'}"]
    script = load("scripts/plot_training.py")
    call = ["plot_training.py", "--output", str(picture)]
    monkeypatch.setattr(sys, "argv", [*call, *runs])
    script.main()
    assert not numbers.exists()
    monkeypatch.setattr(sys, "argv", [*call, "--numbers", str(numbers), *runs])
    script.main()
    assert capsys.readouterr().out.split() == [str(picture)] * 2
    with Image.open(picture) as image:
        assert image.width > 2 * image.height  # three panels side by side
    with numbers.open(newline="") as file:
        rows = list(csv.DictReader(file))
    seen = {(r["run"], float(r["pairs"])) for r in rows if r["curve"] == "recall"}
    assert seen == {("VB", 10.0), ("VB", 20.0), ("VB", 30.0), ("SC", 40.0)}
