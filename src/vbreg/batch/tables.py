"""Tables of pairs and poses: CSV, JSON lines and Parquet, by the ending of their names."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from vbreg.errors import FileFormatError, MissingExtraError, VBRegError
from vbreg.io import atomic_path

ENDINGS = (".csv", ".jsonl", ".parquet")
GROUP = 10_000  # rows of a Parquet file that are written at a time

Row: TypeAlias = dict[str, Any]  # by the name of the column; None where a cell is empty


def check_ending(path: Path) -> str:
    """Return the ending of a table, in lower case, if it is one of those known."""
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise FileFormatError(
            f"{path}: unknown ending '{path.suffix}', expected one of {', '.join(ENDINGS)}"
        )
    return ending


def read_table(path: Path) -> list[Row]:
    """Read the rows of a table."""
    ending = check_ending(path)
    if not path.is_file():
        raise FileFormatError(f"{path}: no such file; expected a table; check the spelling")
    try:
        return _READERS[ending](path)
    except VBRegError:
        raise
    except (OSError, ValueError, csv.Error) as error:  # pyarrow's errors are among these
        reason = str(error).split("\n")[0][:200]
        raise FileFormatError(
            f"{path}: not readable ({reason}); expected a table in UTF-8 or Parquet"
        ) from error


def write_table(path: Path, columns: Mapping[str, type], rows: Iterable[Row]) -> None:
    """Write rows as they come, all or nothing; columns have a name and a type of Python."""
    writer = _WRITERS[check_ending(path)]
    with atomic_path(path) as temporary:
        writer(temporary, columns, rows)


def check_cells(path: Path, columns: Mapping[str, type], rows: Iterable[Row]) -> None:
    """Raise where a table with these rows cannot be written, before anything is computed."""
    check = _CHECKS[check_ending(path)]
    where = "the names of the columns"
    try:
        check(dict.fromkeys(columns), columns)
        for number, row in enumerate(rows, start=1):
            where = f"row {number} of the table"
            check(row, columns)
    except (ValueError, TypeError, RecursionError) as error:  # pyarrow's errors are among these
        reason = " ".join(str(error).split())[:200]
        raise VBRegError(
            f"{path}: {where} cannot be written ({reason}); change that, or drop the column"
        ) from error


def pyarrow(doing: str) -> ModuleType:
    """Import what Parquet needs."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise MissingExtraError("pyarrow", "scale", f"{doing} Parquet files") from None
    module: ModuleType = pyarrow
    return module


def _read_csv(path: Path) -> list[Row]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, skipinitialspace=True, strict=True)
        names = [name.strip() for name in reader.fieldnames or []]
        if len(set(names)) != len(names):
            raise FileFormatError(f"{path}: two columns have the same name; rename one")
        reader.fieldnames = names
        rows = []
        for row in reader:
            if None in row:
                raise FileFormatError(
                    f"{path}, line {reader.line_num}: more cells than the {len(names)} columns; "
                    'put "quotes" round a cell with a comma in it'
                )
            rows.append({name: (cell or "").strip() or None for name, cell in row.items()})
    return rows


def _read_lines(path: Path) -> list[Row]:
    rows = []
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise FileFormatError(f"{path}, line {number} is not JSON: {error}") from error
            if not isinstance(row, dict):
                raise FileFormatError(f"{path}, line {number}: expected an object such as {{...}}")
            rows.append(row)
    return rows


def _read_parquet(path: Path) -> list[Row]:
    rows: list[Row] = pyarrow("reading").parquet.read_table(path).to_pylist()
    return rows


def _write_csv(path: Path, columns: Mapping[str, type], rows: Iterable[Row]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(columns), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({name: _text(row.get(name)) for name in columns})


def _text(cell: Any) -> str:
    """Return a cell as CSV has it; lists and objects, which JSON lines allow, as JSON."""
    if cell is None:
        return ""
    text = _json(cell) if isinstance(cell, list | dict | bool) else str(cell)
    return text.encode(errors="backslashreplace").decode()  # half of a pair of UTF-16, say


def _json(cell: Any) -> str:
    """Return a cell as JSON; what Parquet has and JSON has not, such as dates, as text."""
    return json.dumps(cell, default=str)


def _write_lines(path: Path, columns: Mapping[str, type], rows: Iterable[Row]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for row in rows:
            file.write(_json({name: row.get(name) for name in columns}) + "\n")


def _write_parquet(path: Path, columns: Mapping[str, type], rows: Iterable[Row]) -> None:
    arrow, schema = pyarrow("writing"), _schema(columns)
    rest = iter(rows)
    with arrow.parquet.ParquetWriter(os.fspath(path), schema) as writer:
        while group := [_typed(row, columns) for row in islice(rest, GROUP)]:
            writer.write_table(arrow.Table.from_pylist(group, schema=schema))


def _schema(columns: Mapping[str, type]) -> Any:
    """Return the columns as Parquet has them."""
    arrow = pyarrow("writing")
    kinds = {float: arrow.float64(), int: arrow.int64(), bool: arrow.bool_()}
    return arrow.schema([(n, kinds.get(kind, arrow.string())) for n, kind in columns.items()])


def _typed(row: Row, columns: Mapping[str, type]) -> Row:
    """Return the cells of a row in the types of their columns."""
    return {name: _as(kind, row.get(name)) for name, kind in columns.items()}


def _as(kind: type, cell: Any) -> Any:
    if cell is None or kind not in (str, float):
        return cell
    return _text(cell) if kind is str else float(cell)


def column_types(rows: Sequence[Row]) -> dict[str, type]:
    """Return all columns of a table, in the order of their first cell, and what they hold."""
    found: dict[str, type] = {}
    for row in rows:
        for name, cell in row.items():
            kind = _kind(cell)
            if cell is None:
                found.setdefault(name, type(None))
            elif found.get(name, type(None)) in (type(None), kind):
                found[name] = kind
            elif {found[name], kind} == {int, float}:
                found[name] = float
            else:
                found[name] = str
    return {name: str if kind is type(None) else kind for name, kind in found.items()}


def _kind(cell: Any) -> type:
    """Return the type of a column that holds a cell; a number of more than 64 bits is text."""
    if isinstance(cell, int) and not -(2**63) <= cell < 2**63:
        return str
    return type(cell) if isinstance(cell, bool | int | float) else str


_READERS: Mapping[str, Callable[[Path], list[Row]]] = {
    ".csv": _read_csv,
    ".jsonl": _read_lines,
    ".parquet": _read_parquet,
}
_WRITERS: Mapping[str, Callable[[Path, Mapping[str, type], Iterable[Row]], None]] = {
    ".csv": _write_csv,
    ".jsonl": _write_lines,
    ".parquet": _write_parquet,
}
_CHECKS: Mapping[str, Callable[[Row, Mapping[str, type]], object]] = {
    ".csv": lambda row, columns: [f"{name}{_text(row.get(name))}".encode() for name in columns],
    ".jsonl": lambda row, columns: _json(row),
    ".parquet": lambda row, columns: pyarrow("writing").Table.from_pylist(
        [_typed(row, columns)], schema=_schema(columns)
    ),
}
