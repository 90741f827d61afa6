"""What a run says about itself."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from vbreg.training import TrainConfig, journal, train


def test_records_come_back_by_kind_and_in_order(tmp_path: Path) -> None:
    with journal.opened(tmp_path, 10, quiet=True) as notes:
        for step in (1, 2):
            notes.record("train", step, {"total": 0.5 * step})
            notes.record("validation", step, {"recall": 1.0})
    assert journal.read_log(tmp_path, "train") == [
        {"kind": "train", "step": 1, "total": 0.5},
        {"kind": "train", "step": 2, "total": 1.0},
    ]
    assert [r["step"] for r in journal.read_log(tmp_path, "validation")] == [1, 2]


def test_a_journal_goes_on_where_it_ended(tmp_path: Path) -> None:
    for step in (1, 2):
        with journal.opened(tmp_path, 10, quiet=True) as notes:
            notes.record("train", step, {})
    assert [r["step"] for r in journal.read_log(tmp_path, "train")] == [1, 2]


def test_records_beyond_the_checkpoint_are_written_again(tmp_path: Path) -> None:
    lines = [json.dumps({"kind": "train", "step": step}) for step in (2, 4, 6)]
    (tmp_path / journal.LOG).write_text("\n".join(lines) + "\n")
    journal.forget_after(tmp_path, 4)
    assert [r["step"] for r in journal.read_log(tmp_path, "train")] == [2, 4]


def test_a_run_that_begins_has_nothing_to_forget(tmp_path: Path) -> None:
    journal.forget_after(tmp_path, 0)
    assert not list(tmp_path.iterdir())


def test_a_quiet_journal_says_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for quiet, writes in ((True, True), (False, False)):
        with journal.opened(tmp_path, 10, quiet=quiet, writes=writes) as notes:
            notes.say("hello")
            notes.record("train", 1, {"total": 1.0})
    assert capfd.readouterr() == ("", "")


def test_progress_goes_to_stderr(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Line by line where it is no terminal, with the last value of everything that is shown."""
    with journal.opened(tmp_path, 10) as notes:
        notes.record("train", 2, {"total": 1.25, "pairs": 7.0})
        notes.record("validation", 2, {"recall": 0.5})
    out, err = capfd.readouterr()
    assert not out
    assert "step 2 train: loss 1.25" in err
    assert "step 2 validation: loss 1.25  recall 0.5" in err


def test_tracked_items_come_one_by_one(tmp_path: Path) -> None:
    with journal.opened(tmp_path, None, quiet=True) as notes:
        assert list(notes.track("abc", "letters")) == ["a", "b", "c"]


def test_tensorboard_gets_the_same_records(config: TrainConfig, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs vbreg[train]")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(replace(config, steps=4), tmp_path / "run", quiet=True)
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    logged = journal.read_log(tmp_path / "run", "train")
    kl = events.Scalars("train/kl")
    assert [event.step for event in kl] == [2, 4]
    assert [event.value for event in kl] == pytest.approx([record["kl"] for record in logged])
    assert len(events.Scalars("validation/recall")) == 2


def test_a_run_is_recorded_without_tensorboard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(journal, "find_spec", lambda _: None)
    with journal.opened(tmp_path, 10) as notes:
        notes.record("train", 1, {"total": 1.0})
    assert "no TensorBoard" in capfd.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == [journal.LOG]
