"""Read the checked-in results in docs/results: rows of a CSV file, and the run that made it.

`scripts/write_tables.py`, the modules `tables_of_*` beside it and `scripts/plot_results.py` share
this. What a CSV file or the `run.json` beside it holds is never written down here.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from math import hypot
from pathlib import Path
from typing import NamedTuple

from vbreg.methods import METHODS

Row = dict[str, str]
FILE = "file"  # what a row of tables 1 and 2 has beside the columns of its CSV file

DATASETS = ("3DMatch", "3DLoMatch", "KITTI 10 m", "KITTI 20 m")
OPEN3D = "Open3D's FPFH"  # what the papers' FPFH is
SHIPPED = "as register"  # what users get if they say nothing
SAMPLED = ("FPFH", OPEN3D, "FCGF", "learned", "stored matches")  # with fewer points, too
DESCRIPTORS = (*SAMPLED, SHIPPED)
REFERENCE = "vbreg:fast"  # what methods are compared with
GPU, CPU = "h200", "cpu"  # folders in speed
UNKNOWN = "a command that is not written down"
UNIVERSAL = ("", "universal")  # names of these weights


class ResultsError(Exception):
    """A result that is not there, or a document that asks for a table nobody can make."""


class NotMeasuredError(ResultsError):
    """A table whose CSV file is still to be made: what stands in the documents stays."""


@dataclass(frozen=True)
class Run:
    """A command behind a CSV file, and where it ran; None where nobody wrote it down."""

    command: str | None = None
    device: str | None = None
    commit: str | None = None

    @property
    def hardware(self) -> str:
        """`2 CPU cores` of `2 CPU cores, x86_64`."""
        return (self.device or "unknown hardware").partition(",")[0]

    @property
    def place(self) -> str:
        """`2 CPU cores, commit 0123456`, as far as it is known."""
        return ", ".join(filter(None, (self.hardware, self.commit and f"commit {self.commit}")))


def read_rows(path: Path) -> list[Row]:
    if not path.exists():
        raise ResultsError(f"no file {path}: run the benchmark that writes it")
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def read_runs(path: Path) -> list[Run]:
    """The runs behind a CSV file, from `run.json` beside it; none where it has none.

    `run.json` describes a run or lists some, or holds this for each CSV file by its stem.
    """
    about = path.parent / "run.json"
    if not about.exists():
        return []
    found = json.loads(about.read_text(encoding="utf-8"))
    found = found.get(path.stem, found)
    runs = [run for run in (found if isinstance(found, list) else [found]) if "command" in run]
    return [Run(run["command"], run.get("device"), run.get("commit")) for run in runs]


def made_by(path: Path) -> str:
    """Sentences on the runs behind a CSV file, to stand below a table; none where none is known."""
    sentences = []
    for (device, commit), runs in groupby(read_runs(path), lambda run: (run.device, run.commit)):
        commands = [f"`{run.command}`" if run.command else UNKNOWN for run in runs]
        where = f", on {device}" if device else ""
        when = f", commit {commit}" if commit else ""
        sentences.append(f"Made by {' and '.join(commands)}{where}{when}.")
    return " ".join(sentences)


def hardware_of(path: Path) -> str:
    """Where the rows of a CSV file were measured, in words."""
    return " and ".join(dict.fromkeys(run.hardware for run in read_runs(path)))


def title_of(method: str) -> str:
    """`vbreg:fast` and `vbreg fast` are VBReg, `fast`; a name without an entry stays as it is.

    What stands behind a comma, as in `vbreg fast, FPFH`, is kept.
    """
    if ", " in method:
        first, rest = method.split(", ", 1)
        return f"{title_of(first)}, {rest}"
    name, _, weights = method.replace(" ", ":", 1).partition(":")
    if name not in METHODS:
        return method
    title = METHODS[name].title
    if name == "vbreg" and weights in UNIVERSAL:
        return title if not weights else f"{title}, `universal`"
    return f"{title}, `{Path(weights).stem}`" if weights else title


def weights_of(name: str) -> str:
    return "universal" if name in UNIVERSAL else name


class Key(NamedTuple):
    """Which cell of tables 1 and 2 a row belongs to."""

    dataset: str
    descriptor: str
    method: str
    points: str = ""


class Recall(NamedTuple):
    """The share of pairs whose pose is right, and its 95 % interval."""

    value: float
    low: float
    high: float
    estimated: bool  # for all pairs of a column, by a method that saw some of them


def interval(row: Row, column: str) -> tuple[float, float, float]:
    """A value and the ends of its interval."""
    value, low, high = (float(row[f"{column}{end}"]) for end in ("", "_low", "_high"))
    return value, low, high


def most_pairs(rows: Mapping[str, Row]) -> int:
    return max(int(row["pairs"]) for row in rows.values())


class Results:
    """Everything in docs/results, read when it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._rows: dict[tuple[str, str | None], dict[Key, Row]] = {}

    def path(self, *parts: str) -> Path:
        return self.folder.joinpath(*parts)

    def files(self, table: str) -> list[Path]:
        """The CSV files of `table1` or `table2`: each run has a folder of its own, a part of the
        table or all of it. The longest comes first."""
        files = self.path(table).glob(f"*/{table}.csv")
        files = sorted(files, key=lambda path: (-len(read_rows(path)), path))
        if not files:
            raise NotMeasuredError(f"no file {self.path(table, 'RUN', table + '.csv')}")
        return files

    def rows(self, table: str, over: str | None = None) -> dict[Key, Row]:
        """Rows of all runs, each with its `file`; of those alone that lead over a method, if given.

        Where a cell was measured twice, that of more pairs counts; of as many pairs, that which
        leads over the reference, and then that of a GPU.
        """
        if (table, over) in self._rows:
            return self._rows[table, over]
        every = [{**row, FILE: str(path)} for path in self.files(table) for row in read_rows(path)]

        def rank(row: Row) -> tuple[int, bool, bool]:
            return -int(row["pairs"]), row["over"] != REFERENCE, row["device"] == "cpu"

        found: dict[Key, Row] = {}
        for row in sorted(every, key=rank):
            key = Key(row["dataset"], row["descriptor"], row["method"], row["points"])
            if over in (None, row["over"]):
                found.setdefault(key, row)
        self._rows[table, over] = found
        return found

    def column(self, dataset: str, descriptor: str) -> dict[str, Row]:
        """Rows of a column of table 1 by method; empty where it was not run."""
        rows = self.rows("table1")
        return {k.method: row for k, row in rows.items() if k[:2] == (dataset, descriptor)}

    def recall(self, dataset: str, descriptor: str, method: str) -> Recall | None:
        """Recall of a method on all pairs of a column of table 1; None where it is not known.

        Where the method saw fewer, it is estimated: the recall of the reference on all pairs plus
        the lead over it on the same pairs. Both intervals add as those of independent numbers do.
        """
        rows = self.column(dataset, descriptor)
        row, reference = rows.get(method), rows.get(REFERENCE)
        if row is None:
            return None
        if int(row["pairs"]) == most_pairs(rows):
            return Recall(*interval(row, "recall"), estimated=False)
        compared = self.rows("table1", over=REFERENCE).get(Key(dataset, descriptor, method))
        if compared is None or reference is None or int(reference["pairs"]) < most_pairs(rows):
            return None
        both = interval(reference, "recall"), interval(compared, "lead")
        value = sum(part[0] for part in both)
        below, above = (hypot(*(part[end] - part[0] for part in both)) for end in (1, 2))
        ends = (value, value - below, value + above)
        return Recall(*(min(max(share, 0.0), 1.0) for share in ends), estimated=True)

    def columns(self) -> list[tuple[str, str]]:
        """Data set and descriptor of every column of table 1 that was run."""
        known = {key[:2] for key in self.rows("table1")}
        return [(d, name) for d in DATASETS for name in DESCRIPTORS if (d, name) in known]

    def methods(self, table: str) -> list[str]:
        """Methods of a table, in the order of the registry."""
        names = list(METHODS)
        found = {key.method for key in self.rows(table)}
        return sorted(found, key=lambda m: (names.index(m.partition(":")[0]), m))

    def speed(self, hardware: str, table: str) -> list[Row]:
        return read_rows(self.path("speed", hardware, f"{table}.csv"))

    def hardware(self, folder: str) -> str:
        """Return the hardware of a folder of `speed` in words, such as `2 CPU cores`."""
        return hardware_of(self.path("speed", folder, "matches.csv"))

    def milliseconds(self, method: str, hardware: str) -> float | None:
        """Median time from matches to pose; from clouds where a method makes its own matches."""
        name, _, weights = method.partition(":")
        for row in self.speed(hardware, "matches"):
            other, _, others = row["method"].partition(":")
            if name == other and weights_of(weights) == weights_of(others):
                return float(row["median_ms"])
        if METHODS[name].needs == "clouds":
            for row in self.speed(hardware, "clouds"):
                if row["method"] == METHODS[name].title:
                    return float(row["median_ms"])
        return None
