"""benchmarks/compare_runs.py: two runs, pair by pair."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "compare_runs.py"


def write_run(folder: Path, found: dict[str, tuple[float, bool]]) -> None:
    """Poses that differ by a shift along x in metres, and which of them are right."""
    (folder / "predictions").mkdir(parents=True)
    rows = [{"method": "sm", "settings": {}}]
    lines = ["pair,method,success"]
    for pair, (shift, right) in found.items():
        T = np.eye(4)
        T[0, 3] = shift
        rows.append({"pair": pair, "T_target_source": T.ravel().tolist()})
        lines.append(f"{pair},sm,{int(right)}")
    rows.append({"pair": "refused", "error": "too few matches"})
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "predictions" / "sm.jsonl").write_text(text)
    (folder / "poses.csv").write_text("\n".join(lines) + "\n")


@pytest.mark.slow
def test_pairs_are_counted_by_what_became_of_them(tmp_path: Path) -> None:
    first = {"a": (0.0, True), "b": (0.0, True), "c": (0.0, True), "d": (0.0, False)}
    second = {"a": (5e-4, True), "b": (0.01, True), "c": (1.0, False), "d": (1.0, False)}
    write_run(tmp_path / "first", first)
    write_run(tmp_path / "second", second)
    runs = [str(tmp_path / name) for name in ("first", "second")]
    run = subprocess.run([sys.executable, SCRIPT, *runs], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == (
        "sm: 4 pairs, 1 poses the same; right 3 and 2; of those that differ both are right on 1, "
        "one on 1, none on 1"
    )
