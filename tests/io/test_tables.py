"""Tables of JSON lines, and what a kill leaves of them."""

from pathlib import Path

import pytest

from vbreg.errors import FileFormatError, VBRegError
from vbreg.io.tables import Table, read_table

HEADER = {"settings": {"dataset": "x", "points": None}, "method": "m"}


def test_rows_come_back(tmp_path: Path) -> None:
    table = Table(tmp_path / "deep" / "t.jsonl", HEADER)
    table.add({"pair": "a", "value": 0.1})
    again = Table(tmp_path / "deep" / "t.jsonl", HEADER)
    assert again["a"] == {"pair": "a", "value": 0.1}
    assert "b" not in again
    assert read_table(again.path) == (HEADER, [{"pair": "a", "value": 0.1}])


@pytest.mark.parametrize("kept", range(0, 60, 7))
def test_a_line_cut_off_anywhere_is_forgotten(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "t.jsonl"
    Table(path, HEADER).add({"pair": "a", "value": 1})
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - kept])
    table = Table(path, HEADER)
    table.add({"pair": "a", "value": 1})
    table.add({"pair": "b", "value": 2})
    assert [row["pair"] for row in Table(path, HEADER)] == ["a", "b"]


def test_rows_of_other_settings_are_not_mixed_in(tmp_path: Path) -> None:
    Table(tmp_path / "t.jsonl", HEADER)
    with pytest.raises(VBRegError, match=r"method 'm'.* 'other': choose another --output"):
        Table(tmp_path / "t.jsonl", {**HEADER, "method": "other"})


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    Table(path, HEADER)
    path.write_text(path.read_text() + "{oops\n")
    with pytest.raises(FileFormatError, match="line 2 is not JSON"):
        Table(path, HEADER)
