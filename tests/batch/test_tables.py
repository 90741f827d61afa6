"""Tables in three formats: what is written is read, and what is wrong is told."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from vbreg.batch.tables import ENDINGS, column_types, read_table, write_table
from vbreg.errors import FileFormatError, MissingExtraError

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


def test_a_column_has_the_widest_type_of_its_cells() -> None:
    rows = [{"a": None, "b": 1}, {"a": 1, "b": 2.5, "c": True}, {"b": 1, "c": "x"}, {"d": None}]
    assert column_types(rows) == {"a": int, "b": float, "c": str, "d": str}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.txt", "", "expected one of .csv"),
        ("none.csv", None, "no such file"),
        ("t.csv", "source,target\na,b,c\n", "more cells than the 2 columns"),
        ("t.csv", "source,source\na,b\n", "same name"),
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
