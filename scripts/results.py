"""Read the checked-in results in docs/results: rows of a CSV file, and the run that made it.

`scripts/write_tables.py` and `scripts/plot_results.py` share this. What a CSV file or the
`run.json` beside it holds is never written down here.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from vbreg.methods import METHODS

Row = dict[str, str]

BENCHMARKS = {  # folder in table1: title
    "3dmatch_fpfh": "3DMatch",
    "3dlomatch_fpfh": "3DLoMatch",
    "kitti_fpfh": "KITTI",
    "3dmatch_learned": "3DMatch, learned",
    "3dlomatch_learned": "3DLoMatch, learned",
    "kitti_learned": "KITTI, learned",
    "3dmatch_stored_matches": "3DMatch, stored matches",
    "3dlomatch_stored_matches": "3DLoMatch, stored matches",
}
GPU, CPU = "h200", "cpu"  # folders in speed
UNIVERSAL = ("", "universal", "indoor", "outdoor")  # names that these weights have in older files


class ResultsError(Exception):
    """A result that is not there, or a document that asks for a table nobody can make."""


@dataclass(frozen=True)
class Run:
    """The command behind a CSV file, and where it ran; None where nobody wrote it down."""

    command: str | None = None
    device: str | None = None
    commit: str | None = None

    @property
    def hardware(self) -> str:
        """`2 CPU cores` of `2 CPU cores, x86_64`."""
        return (self.device or "unknown hardware").partition(",")[0]

    def sentence(self) -> str:
        """Where the numbers come from, to stand below a table."""
        if self.command is None:
            return ""
        where = f", on {self.device}" if self.device else ""
        when = f", commit {self.commit}" if self.commit else ""
        return f"Made by `{self.command}`{where}{when}."


def read_rows(path: Path) -> list[Row]:
    if not path.exists():
        raise ResultsError(f"no file {path}: run the benchmark that writes it")
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def read_run(path: Path) -> Run:
    """The run behind a CSV file: from `run.json` beside it, or else from the page beside it.

    `run.json` describes one run, or holds one description for each CSV file by its stem.
    """
    about = path.parent / "run.json"
    if about.exists():
        found = json.loads(about.read_text(encoding="utf-8"))
        found = found.get(path.stem, found)
        if "command" in found:
            return Run(found["command"], found.get("device"), found.get("commit") or None)
    for name in (f"{path.stem}.md", "report.md", "speed.md"):
        if (page := path.parent / name).exists():
            return _run_on_page(page.read_text(encoding="utf-8"), read_rows(path))
    return Run()


def _run_on_page(text: str, rows: Sequence[Row]) -> Run:
    """By the first `Made by` below the table with the columns of the CSV file."""
    table = text.find("| " + " | ".join(rows[0]) + " |")
    made = re.search(r"Made by `([^`]+)`", text[max(table, 0) :])
    device = re.search(r", on (.+?), torch ", text)
    commit = re.search(r", commit (\w+)\.", text)
    return Run(*(found.group(1) if found else None for found in (made, device, commit)))


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


@dataclass(frozen=True)
class Milliseconds:
    value: float
    from_speed_table: bool  # or else from the benchmark, where another commit may have run


class Recall(NamedTuple):
    """A share of pairs, with its 95 % interval where it has one."""

    value: float
    low: float | None = None
    high: float | None = None


class Results:
    """Everything in docs/results, read when it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, *parts: str) -> Path:
        return self.folder.joinpath(*parts)

    def summary(self, benchmark: str, scene: str = "all") -> dict[str, Row]:
        """Rows of a benchmark by method."""
        rows = read_rows(self.path("table1", benchmark, "summary.csv"))
        return {row["method"]: row for row in rows if row["scene"] == scene}

    def speed(self, hardware: str, table: str) -> list[Row]:
        return read_rows(self.path("speed", hardware, f"{table}.csv"))

    def hardware(self, folder: str) -> str:
        """Its name in words."""
        return read_run(self.path("speed", folder, "matches.csv")).hardware

    def milliseconds(self, method: str, hardware: str) -> Milliseconds | None:
        """Median time from matches to pose: of the speed table, or else of the 3DMatch run."""
        name, _, weights = method.partition(":")
        for row in self.speed(hardware, "matches"):
            other, _, others = row["method"].partition(":")
            if name == other and weights_of(weights) == weights_of(others):
                return Milliseconds(float(row["median_ms"]), True)
        if METHODS[name].needs == "clouds":
            for row in self.speed(hardware, "clouds"):
                if row["method"] == METHODS[name].title:
                    return Milliseconds(float(row["median_ms"]), True)
        row = self.summary("3dmatch_fpfh").get(method)
        if (
            row is None
            or not row["seconds_median"]
            or (row["device"] == "cpu") != (hardware == CPU)
        ):
            return None
        return Milliseconds(1e3 * float(row["seconds_median"]), False)

    @property
    def gpu_recall_file(self) -> Path:
        return self.path("table1", GPU, "recall.csv")

    def gpu_recalls(self) -> dict[tuple[str, str], float]:
        """Recall on a GPU by method and benchmark."""
        return {
            (row["method"], row["benchmark"]): int(row["found"]) / int(row["pairs"])
            for row in read_rows(self.gpu_recall_file)
        }

    def recall(self, method: str, benchmark: str) -> Recall | None:
        """Recall with its interval, or else that of the GPU, which has none."""
        row = self.summary(benchmark).get(method)
        if row is not None:
            return Recall(*(float(row[f"recall{end}"]) for end in ("", "_low", "_high")))
        value = self.gpu_recalls().get((method, benchmark))
        return None if value is None else Recall(value)

    def methods(self) -> list[str]:
        """Methods of the 3DMatch run, then those that ran on a GPU alone."""
        first = self.summary("3dmatch_fpfh")
        return list(dict.fromkeys([*first, *(method for method, _ in self.gpu_recalls())]))
