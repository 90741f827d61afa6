"""What a finished table is about, beside it: the same command then knows what is left to do.

`poses.csv.run.json` holds the settings, checksums of the weights, of the pairs and of the table,
the counts, and what the files of each row were. Rows whose files have changed since are done again;
the results of the others are read from the table.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vbreg.batch.journal import check_same_run
from vbreg.batch.rows import RESULTS
from vbreg.batch.tables import Row, read_table
from vbreg.errors import VBRegError
from vbreg.io import atomic_path

ENDING = ".run.json"
BLOCK = 1 << 20  # bytes that are read at a time


def record_path(output: Path) -> Path:
    """Return where the record of an output lies."""
    return output.with_name(output.name + ENDING)


class Record(NamedTuple):
    """What a finished run was about."""

    counts: dict[str, int]  # rows by their status
    files: list[str | None]  # as `files_of` tells of each row; None: nothing is known of them
    table: str | None  # checksum of the output


def write_record(
    output: Path,
    header: Mapping[str, Any],
    counts: Mapping[str, int],
    files: Sequence[str | None],
) -> None:
    """Write what a finished run was about, its rows by their status, and what their files were."""
    held = {"run": header, "counts": counts, "table": checksum(output), "files": files}
    with atomic_path(record_path(output)) as temporary:
        temporary.write_text(json.dumps(held, indent=2) + "\n", encoding="utf-8")


def read_record(output: Path, header: Mapping[str, Any]) -> Record | None:
    """Return the record of a finished output; None where there is none.

    An output of another run is refused.
    """
    path = record_path(output)
    if not path.is_file() or not output.exists():
        return None
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        found = dict(held["run"])
        counts = {str(status): int(count) for status, count in held["counts"].items()}
        files = list(held.get("files") or [None] * int(found["rows"]))
        if len(files) != int(found["rows"]):
            raise ValueError(f"files of {len(files)} rows instead of {found['rows']}")
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise VBRegError(
            f"{path}: no record of a run ({type(error).__name__}: {error}); choose another output, "
            "or begin anew with --overwrite"
        ) from error
    check_same_run(path, found, header)
    return Record(counts, files, held.get("table"))


def check_table(output: Path, record: Record) -> None:
    """Raise where a finished output was changed since: its rows may be others."""
    if record.table != checksum(output):
        raise VBRegError(
            f"{output} is not what the run wrote, and some of its rows are to be done again: the "
            "others cannot be told in it; choose another output, or begin anew with --overwrite"
        )


def finished_results(output: Path, record: Record, wanted: Sequence[int]) -> Iterator[Row]:
    """Yield the results of some rows of a finished output, as a journal has them."""
    check_table(output, record)
    table = read_table(output)
    for number in wanted:
        cells = ((name, table[number].get(name), kind) for name, kind in RESULTS.items())
        result = {name: cell if cell is None else kind(cell) for name, cell, kind in cells}
        yield {"row": number, **result, "files": record.files[number]}


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file."""
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            sha.update(block)
    return sha.hexdigest()
