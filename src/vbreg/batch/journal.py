"""What a run has found so far, beside its output: a run that was killed goes on from there.

A line is the checksum of the rest, then JSON. The first line says what the run is about; the last
line of a row that holds is its result, since a row may be done again. A line
that a kill or a power cut left torn has a wrong checksum or no end: it is as if never written. The
results stay on the disk, so that a run of millions of rows needs little memory.
"""

from __future__ import annotations

import json
import os
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from vbreg.batch.tables import Row
from vbreg.errors import VBRegError

ENDING = ".journal"


def journal_path(output: Path) -> Path:
    """Return where the journal of an output lies."""
    return output.with_name(output.name + ENDING)


class ResultJournal:
    """Results by the number of their row, on the disk."""

    def __init__(
        self,
        path: Path,
        header: Mapping[str, Any],
        holds: Callable[[Row], bool] = lambda result: True,
    ) -> None:
        """Open the journal, and begin one where there is none.

        One that belongs to another table or other settings is refused. A result that does not hold
        any more is as if never written.
        """
        self.path, self.holds = path, holds
        self.places: dict[int, int] = {}  # the byte at which a row's line begins
        self.counts: dict[str, int] = {}  # rows by their status
        as_it_is = getattr(os, "O_BINARY", 0)  # Windows would end lines in another way
        self._handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | as_it_is, 0o644)
        self.size = self._read(header)
        os.ftruncate(self._handle, self.size)
        if self.size == 0:
            self._append(line_of(header))

    def __contains__(self, number: int) -> bool:
        return number in self.places

    def __len__(self) -> int:
        return len(self.places)

    def add(self, results: Iterable[Row]) -> None:
        """Write results; those of a row that has one already are left out."""
        new = {row["row"]: row for row in results if row["row"] not in self.places}
        lines, at = [], self.size
        for number, row in new.items():
            self.places[number] = at
            self.counts[row["status"]] = self.counts.get(row["status"], 0) + 1
            lines.append(line_of(row))
            at += len(lines[-1])
        self._append(b"".join(lines))

    def __getitem__(self, number: int) -> Row:
        os.lseek(self._handle, self.places[number], os.SEEK_SET)
        data = b""
        while not data.endswith(b"\n"):
            piece = os.read(self._handle, 1 << 12)
            data, end, _ = (data + piece).partition(b"\n")
            data += end
            if not piece:
                break
        row = content_of(data)
        if row is None or row.get("row") != number:
            raise VBRegError(f"{self.path} was changed by another program: run the command again")
        return row

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)

    def _append(self, text: bytes) -> None:
        while text:
            written = os.write(self._handle, text)
            self.size, text = self.size + written, text[written:]
        os.fsync(self._handle)

    def _read(self, header: Mapping[str, Any]) -> int:
        """Note where every whole line begins; return where the last of them ends."""
        at = good = 0
        status: dict[int, str] = {}
        with self.path.open("rb") as file:
            for line in file:
                row = content_of(line)
                if at == 0 and row is not None:
                    check_same_run(self.path, row, header)
                elif row is not None and self.holds(row):
                    self.places[row["row"]] = at
                    status[row["row"]] = sys.intern(row["status"])
                at += len(line)
                if row is not None:
                    good = at
                elif good == 0:
                    break  # without a first line nothing is known of the others
        self.counts = dict(Counter(status.values()))
        return good


def check_same_run(path: Path, found: Mapping[str, Any], header: Mapping[str, Any]) -> None:
    """Raise an error unless what a file says of its run is what this run is about."""
    expected = json.loads(json.dumps(header))  # as a file holds it
    for key in sorted(set(found) | set(expected)):
        if found.get(key) != expected.get(key):
            raise VBRegError(
                f"{path} is of a run with {key} {_shown(found.get(key))}, and this run "
                f"has {_shown(expected.get(key))}: choose another output, or begin anew with "
                "--overwrite"
            )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def line_of(content: Mapping[str, Any]) -> bytes:
    """Return content as a line that can be told from a torn one."""
    text = json.dumps(content).encode()
    return f"{zlib.crc32(text):08x} ".encode() + text + b"\n"


def content_of(line: bytes) -> dict[str, Any] | None:
    """Return what a line holds; None of one that is torn."""
    checksum, _, text = line.rstrip(b"\n").partition(b" ")
    if not line.endswith(b"\n") or checksum != f"{zlib.crc32(text):08x}".encode():
        return None
    held: dict[str, Any] = json.loads(text)
    return held
