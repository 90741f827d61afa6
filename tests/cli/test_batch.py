"""`vbreg batch`: the options reach the run, and its end is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from tests.cli.helpers import Run, assert_one_line
from vbreg import batch
from vbreg.batch.run import EngineName
from vbreg.cli import batch as verb


def test_names_are_those_of_the_library() -> None:
    assert get_args(verb.EngineName) == get_args(EngineName)


def test_a_table_comes_out(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def stand_in(pairs: Path, output: Path, **options: Any) -> batch.BatchSummary:
        given.update(options, pairs=pairs, output=output)
        return batch.BatchSummary(3, {"ok": 2, "failed": 1}, 2, 4.0, 2, output)

    monkeypatch.setattr(batch, "register_table", stand_in)
    out = tmp_path / "poses.csv"
    done = run(
        "batch", "pairs.csv", "-o", out, "--preset", "outdoor", "--memory", "5", "--workers", "2",
        "--keypoints", "all", "--overwrite", "--no-retry", "--retry-failed",
    )  # fmt: skip
    assert done.code == 0
    assert "3: 1 failed, 2 ok" in done.out
    assert "0.50 pairs/s, 2 workers" in done.out
    settings = given["settings"]
    assert settings == batch.BatchSettings(
        preset="outdoor", keypoints="all", retry=False, cache_bytes=5 << 20
    )
    assert (given["workers"], given["overwrite"], given["engine"]) == (2, True, "local")
    assert given["retry_failed"]
    assert given["pairs"] == Path("pairs.csv")
    assert run("batch", "pairs.csv", "-o", out, "--require-all").code == 3


def test_a_complete_table_is_told(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {"ok": 3}
    complete = batch.BatchSummary(3, counts, 0, 0.1, 0, tmp_path / "poses.csv")
    monkeypatch.setattr(batch, "register_table", lambda *tables, **options: complete)
    done = run("batch", "pairs.csv", "-o", tmp_path / "poses.csv", "--require-all")
    assert done.code == 0
    assert "complete" in done.out
    assert "--retry-failed" not in done.out
    assert "wrote" not in done.out
    counts["failed"] = 1
    done = run("batch", "pairs.csv", "-o", tmp_path / "poses.csv")
    assert "nothing was left; --retry-failed does failed" in " ".join(done.out.split())


def test_a_missing_table_is_told(run: Run, tmp_path: Path) -> None:
    done = run("batch", tmp_path / "none.csv", "-o", tmp_path / "poses.csv")
    assert done.code == 2
    assert "no such file" in done.err


def test_what_nobody_judges_has_no_least_probability(run: Run, tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("source,target\n", encoding="utf-8")
    batch_of = "batch", tmp_path / "pairs.csv", "-o", tmp_path / "poses.csv", "--no-verify"
    assert_one_line(run(*batch_of, "--min-probability", "0.9"), "--min-probability 0.9", "leave")
    assert run(*batch_of).code == 0
