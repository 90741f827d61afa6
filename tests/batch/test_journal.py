"""The journal: nothing is lost or doubled, wherever a kill cuts it."""

from __future__ import annotations

from pathlib import Path

import pytest

from vbreg.batch.journal import ResultJournal, content_of, line_of
from vbreg.errors import VBRegError

HEADER = {"table": "abc", "rows": 3}
ROWS = [{"row": k, "status": "ok", "message": f"é {k}"} for k in range(3)]


def written(path: Path) -> bytes:
    journal = ResultJournal(path, HEADER)
    journal.add(ROWS)
    journal.close()
    return path.read_bytes()


def test_a_cut_anywhere_loses_at_most_the_line_it_cuts(tmp_path: Path) -> None:
    whole = written(tmp_path / "whole")
    ends = [k + 1 for k, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(len(whole) + 1):
        path = tmp_path / f"cut{cut}"
        path.write_bytes(whole[:cut])
        journal = ResultJournal(path, HEADER)
        complete = max(0, sum(end <= cut for end in ends) - 1)  # less the first line
        assert len(journal) == complete
        journal.add(ROWS)
        assert [journal[k] for k in range(3)] == ROWS
        assert journal.counts == {"ok": 3}
        journal.close()
        assert path.read_bytes() == whole


def test_a_line_of_garbage_is_as_if_never_written(tmp_path: Path) -> None:
    lines = written(tmp_path / "j").splitlines(keepends=True)
    lines[2] = lines[2].replace(b"ok", b"ko")
    (tmp_path / "j").write_bytes(b"".join(lines))
    journal = ResultJournal(tmp_path / "j", HEADER)
    assert 0 in journal
    assert 1 not in journal
    assert journal[2] == ROWS[2]
    journal.add(ROWS)
    assert journal[1] == ROWS[1]
    journal.close()


def test_a_row_is_written_once(tmp_path: Path) -> None:
    written(tmp_path / "j")
    journal = ResultJournal(tmp_path / "j", HEADER)
    journal.add([{**ROWS[0], "status": "failed"}])
    assert journal[0] == ROWS[0]
    assert journal.counts == {"ok": 3}
    journal.close()


def test_the_last_line_that_holds_counts(tmp_path: Path) -> None:
    """A row may be done again, and what it was before may hold again."""
    for held, status in (("ab", "ok"), ("a", "failed"), ("b", "ok"), ("", None)):
        path = tmp_path / f"holds {held}"
        content = [HEADER, {"row": 0, "status": "failed", "files": "a"}]
        content += [{"row": 0, "status": "ok", "files": "b"}]
        path.write_bytes(b"".join(map(line_of, content)))
        journal = ResultJournal(path, HEADER, lambda row, held=held: row["files"] in held)
        assert journal.counts == ({status: 1} if status else {})
        assert (0 in journal) == (status is not None)
        if status:
            assert journal[0]["status"] == status
        journal.close()


def test_a_row_is_never_given_for_another(tmp_path: Path) -> None:
    """Where another program wrote lines between those that this one has the places of."""
    written(tmp_path / "j")
    journal = ResultJournal(tmp_path / "j", HEADER)
    journal.places[0], journal.places[1] = journal.places[1], journal.places[0]
    with pytest.raises(VBRegError, match="was changed by another program"):
        journal[0]
    journal.close()


def test_another_run_is_told(tmp_path: Path) -> None:
    written(tmp_path / "j")
    with pytest.raises(VBRegError, match="table 'abc', and this run has 'xyz'"):
        ResultJournal(tmp_path / "j", {**HEADER, "table": "xyz"})


def test_a_line_is_its_content() -> None:
    line = line_of({"row": 1, "message": "a\nb"})
    assert content_of(line) == {"row": 1, "message": "a\nb"}
    assert content_of(line[:-1]) is None
    assert content_of(b"\n") is None
