"""Tables in three formats: what is written is read, and what is wrong is told."""

from __future__ import annotations

import sys
from datetime import date
from pathlib import Path

import pytest

from vbreg.batch.tables import ENDINGS, check_cells, column_types, read_table, write_table
from vbreg.errors import FileFormatError, MissingExtraError, VBRegError

ROWS = [
    {"source": "a, b.ply", "count": 3, "p": 0.1 + 0.2, "note": None},
    {"source": 'ä "q".ply', "count": 4, "p": None, "note": "x"},
]


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_is_written_is_read(tmp_path: Path, ending: str) -> None:
    if ending == ".parquet":
        pytest.importorskip("pyarrow", reason="vbreg[scale] is not installed")
    path = tmp_path / f"table{ending}"
    write_table(path, column_types(ROWS), ROWS)
    expected = [
        {k: v if v is None or ending != ".csv" else str(v) for k, v in row.items()} for row in ROWS
    ]
    assert read_table(path) == expected


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_another_format_allows_is_written(tmp_path: Path, ending: str) -> None:
    """Dates in lists, numbers of more than 64 bits or of more digits than a float, half letters."""
    if ending == ".parquet":
        pytest.importorskip("pyarrow", reason="vbreg[scale] is not installed")
    rows = [
        {"days": [date(2026, 1, 2)], "large": 2**64, "some": 2**53 + 1, "half": "a\ud800"},
        {"days": None, "large": 1, "some": 0.5, "half": None},
    ]
    path = tmp_path / f"table{ending}"
    check_cells(path, column_types(rows), rows)
    write_table(path, column_types(rows), rows)
    first, second = read_table(path)
    lines = ending == ".jsonl"
    assert first["days"] == (["2026-01-02"] if lines else '["2026-01-02"]')
    assert str(first["large"]) == str(2**64)
    assert float(first["some"]) == 2.0**53 or int(first["some"]) == 2**53 + 1
    assert first["half"] == ("a\ud800" if lines else "a\\ud800")
    assert str(second["large"]) == "1"


def test_what_cannot_be_written_is_told_with_its_row(tmp_path: Path) -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    rows = [{"tags": [1]}, {"tags": deep}]
    with pytest.raises(VBRegError, match=r"row 2 of the table cannot be written \(.*drop the col"):
        check_cells(tmp_path / "t.csv", column_types(rows), rows)


def test_a_column_has_the_widest_type_of_its_cells() -> None:
    rows = [{"a": None, "b": 1}, {"a": 1, "b": 2.5, "c": True}, {"b": 1, "c": "x"}, {"d": None}]
    rows += [{"e": -(2**63), "f": 2**63 - 1}, {"e": 2**63 - 1, "f": 2**63}]
    kinds = {"a": int, "b": float, "c": str, "d": str, "e": int, "f": str}
    assert column_types(rows) == kinds


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.txt", "", "expected one of .csv"),
        ("none.csv", None, "no such file"),
        ("t.csv", "source,target\na,b,c\n", "more cells than the 2 columns"),
        ("t.csv", "source,source\na,b\n", "same name"),
        ("t.csv", "source,target,source \na,b,c\n", "same name"),
        ("t.csv", b"\xff\xfe\x00", "not readable"),
        ("t.jsonl", '{"source": 1}\n{"so', "line 2 is not JSON"),
        ("t.jsonl", "[1]\n", "expected an object"),
        ("t.parquet", "no parquet", "not readable"),
    ],
)
def test_bad_tables_are_told(
    tmp_path: Path, name: str, text: str | bytes | None, message: str
) -> None:
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow", reason="vbreg[scale] is not installed")
    if text is not None:
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(FileFormatError, match=message):
        read_table(tmp_path / name)


def test_parquet_names_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    (tmp_path / "t.parquet").write_bytes(b"x")
    with pytest.raises(MissingExtraError, match=r"vbreg\[scale\]"):
        read_table(tmp_path / "t.parquet")
