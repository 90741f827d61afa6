"""What was computed, one line a pair: a run that was killed goes on where it stopped.

A table is a file of JSON lines. The first line says what the rows belong to; a row is one write of
one line, and a line that a kill left unfinished is cut off when the table is opened again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vbreg.errors import FileFormatError, VBRegError

DEVICE = "device"  # the key of a header for the kind of machine


class Table:
    """Rows by the name of their pair, in memory and on disk.

    A table that has the `whole` of what is asked for is only read, and may be of another machine.
    """

    def __init__(
        self, path: Path, header: Mapping[str, Any], whole: Sequence[str] | None = None
    ) -> None:
        self.path = path
        self.rows: dict[str, dict[str, Any]] = {}
        if path.exists():
            self._read(dict(header), whole)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            _write_line(path, dict(header))

    def __contains__(self, name: str) -> bool:
        return name in self.rows

    def __getitem__(self, name: str) -> dict[str, Any]:
        return self.rows[name]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows.values())

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, row: dict[str, Any]) -> None:
        """Write a row to the file, and hold it."""
        _write_line(self.path, row)
        self.rows[row["pair"]] = row

    def _read(self, header: dict[str, Any], whole_of: Sequence[str] | None) -> None:
        whole, _, torn = self.path.read_bytes().rpartition(b"\n")
        if torn:
            os.truncate(self.path, len(whole) + 1 if whole else 0)
        lines = whole.decode().splitlines()
        if not lines:
            _write_line(self.path, header)
            return
        found = _parse(lines[0], self.path, 1)
        for number, line in enumerate(lines[1:], start=2):
            row = _parse(line, self.path, number)
            self.rows[row["pair"]] = row
        complete = whole_of is not None and all(name in self.rows for name in whole_of)
        expected = json.loads(json.dumps(header))
        for key in sorted(set(found) | set(expected)):
            if found.get(key) == expected.get(key) or (complete and key == DEVICE):
                continue
            raise VBRegError(
                f"{self.path} holds results for {key} {found.get(key)!r}, and this run has "
                f"{expected.get(key)!r}: choose another --output, or delete the file"
            )


def read_table(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Read header and rows of a finished table, whatever it belongs to."""
    lines = path.read_text(encoding="utf-8").splitlines()
    header, *rows = (_parse(line, path, n) for n, line in enumerate(lines, start=1))
    return header, rows


def _write_line(path: Path, value: dict[str, Any]) -> None:
    line = (json.dumps(value) + "\n").encode()
    as_it_is = getattr(os, "O_BINARY", 0)  # Windows would end the line in another way
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | as_it_is, 0o644)
    try:
        os.write(handle, line)
    finally:
        os.close(handle)


def _parse(line: str, path: Path, number: int) -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(line)
    except json.JSONDecodeError as error:
        raise FileFormatError(f"{path}, line {number} is not JSON: {error}") from error
    return value
