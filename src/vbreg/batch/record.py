"""What a finished table is about, beside it: the same command then knows that nothing is left.

`poses.csv.run.json` holds the settings, checksums of the weights and of the pairs, and the counts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vbreg.batch.journal import check_same_run
from vbreg.errors import VBRegError
from vbreg.io import atomic_path

ENDING = ".run.json"


def record_path(output: Path) -> Path:
    """Return where the record of an output lies."""
    return output.with_name(output.name + ENDING)


def write_record(output: Path, header: Mapping[str, Any], counts: Mapping[str, int]) -> None:
    """Write what a finished run was about, and its rows by their status."""
    with atomic_path(record_path(output)) as temporary:
        text = json.dumps({"run": header, "counts": counts}, indent=2)
        temporary.write_text(text + "\n", encoding="utf-8")


def finished_counts(output: Path, header: Mapping[str, Any]) -> dict[str, int] | None:
    """Return the rows of a finished output by their status; None where there is no record.

    An output of another run is refused.
    """
    path = record_path(output)
    if not path.is_file():
        return None
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        found = dict(held["run"])
        counts = {str(status): int(count) for status, count in held["counts"].items()}
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise VBRegError(
            f"{path}: no record of a run ({type(error).__name__}: {error}); choose another output, "
            "or begin anew with --overwrite"
        ) from error
    check_same_run(path, found, header)
    return counts
