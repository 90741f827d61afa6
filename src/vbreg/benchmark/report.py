"""Tables and pictures of a benchmark: CSV with named columns, Markdown, plots, one HTML page.

`poses.csv` holds what depends on the poses alone and comes out the same in every run on a machine;
seconds and megabytes are in `costs.csv`.
"""

from __future__ import annotations

import csv
import dataclasses
import html
import json
import math
import os
import platform
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from vbreg import __version__
from vbreg.benchmark import plots
from vbreg.benchmark.markdown import markdown_table
from vbreg.benchmark.problems import Settings
from vbreg.benchmark.score import Interval, Row, Summary, summarise, title_of
from vbreg.io import atomic_path
from vbreg.methods import METHODS

COSTS = ("device", "backend", "seconds", "megabytes")


def write_report(output: Path, rows: Sequence[Row], settings: Settings, command: str) -> Path:
    """Write all files of a benchmark to `output`, and return the path of its Markdown page.

    Pictures need matplotlib (vbreg[plots]) and are left out without it.
    """
    summaries = summarise(rows)
    poses = [f.name for f in dataclasses.fields(Row) if f.name not in COSTS]
    write_csv(output / "poses.csv", poses, rows)
    write_csv(output / "costs.csv", ("pair", "method", *COSTS), rows)
    write_csv(output / "summary.csv", [f.name for f in dataclasses.fields(Summary)], summaries)
    about = describe_run(settings, command, [row.device for row in rows])
    with atomic_path(output / "run.json") as path:
        path.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    pictures = plots.draw(output, rows, summaries) if plots.available() else []
    page = output / "report.md"
    with atomic_path(page) as path:
        path.write_text(markdown(summaries, settings, about, pictures), encoding="utf-8")
    with atomic_path(output / "report.html") as path:
        path.write_text(webpage(summaries, settings, about, pictures), encoding="utf-8")
    return page


def terminal_table(rows: Sequence[Row], settings: Settings) -> Table:
    """Return a table of the main columns, narrow enough for a terminal."""
    whole = [s for s in summarise(rows) if s.scene == "all"]
    table = Table(title=f"{settings.dataset}, {_matches(settings)}, {whole[0].pairs} pairs")
    for k, text in enumerate(("method", "recall %", "RE deg", "TE cm", "F1 %", "median ms")):
        table.add_column(text, justify="right" if k else "left")
    for s in whole:
        numbers = (s.rotation_error, 2), (100 * s.translation_error, 2), (100 * s.inlier_f1, 1)
        cells = [_text(value, digits) for value, digits in numbers]
        table.add_row(
            title_of(s.method), _percent(s.recall), *cells, _text(1e3 * s.seconds_median, 0)
        )
    return table


def describe_run(settings: Settings, command: str, devices: Iterable[str]) -> dict[str, Any]:
    """Return what a reader needs to know to repeat a run, as plain values."""
    cpu = f"{os.cpu_count()} CPU cores, {_processor()}"
    return {
        "command": command,
        "settings": settings.to_dict(),
        "device": " and ".join(d if d != "cpu" else cpu for d in dict.fromkeys(devices)),
        "vbreg": __version__,
        "commit": _commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Any]) -> None:
    """Write some fields of the rows as a table; an interval takes three columns."""
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        header = [name for c in columns for name in _column_names(c)]
        writer.writerow(header)
        for row in rows:
            writer.writerow([cell for c in columns for cell in _cells(getattr(row, c))])


def _column_names(name: str) -> list[str]:
    return [name, f"{name}_low", f"{name}_high"] if name in ("recall", "lead") else [name]


def _cells(value: Any) -> list[Any]:
    values = list(value) if isinstance(value, Interval) else [value]
    return [_plain(v) for v in values]


def _plain(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    if value is None:
        return ""
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.6g}"
    return value


def markdown(
    summaries: Sequence[Summary],
    settings: Settings,
    about: dict[str, Any],
    pictures: Sequence[Path],
) -> str:
    """Return the report as a page of Markdown."""
    header, rows = main_table(summaries)
    parts = [
        f"# {settings.dataset}, {_matches(settings)}",
        protocol(settings, summaries),
        markdown_table(header, rows),
        footnotes(summaries),
    ]
    if scenes := scene_table(summaries):
        parts += ["## Recall by scene (%)", markdown_table(*scenes)]
    parts += [f"![{picture.stem}]({picture.name})" for picture in pictures]
    parts.append(f"Made by `{about['command']}`, {machine(about)}.")
    return "\n\n".join(parts) + "\n"


def webpage(
    summaries: Sequence[Summary],
    settings: Settings,
    about: dict[str, Any],
    pictures: Sequence[Path],
) -> str:
    """Return the report as a page of HTML that can be mailed: pictures are inside."""
    title = html.escape(f"{settings.dataset}, {_matches(settings)}")
    parts = [f"<h1>{title}</h1>", f"<p>{html.escape(protocol(settings, summaries))}</p>"]
    parts += [_html_table(*main_table(summaries)), f"<p>{html.escape(footnotes(summaries))}</p>"]
    parts += [f'<img alt="{p.stem}" src="{plots.inlined(p)}">' for p in pictures]
    if scenes := scene_table(summaries):
        parts += ["<h2>Recall by scene (%)</h2>", _html_table(*scenes)]
    source = f"Made by <code>{html.escape(about['command'])}</code>, {html.escape(machine(about))}."
    parts.append(f"<p>{source}</p>")
    return _PAGE.format(title=title, body="\n".join(parts))


def main_table(summaries: Sequence[Summary]) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of the table of all methods over all pairs."""
    whole = [s for s in summaries if s.scene == "all"]
    header = ["method", "recall %", "minus first", "RE deg", "TE cm"]
    has_rmse = any(not math.isnan(s.rmse_recall) for s in whole)
    header += ["RMSE recall %"] * has_rmse
    header += ["inlier precision %", "recall %", "F1 %", "median ms", "95th ms", "peak MB"]
    mixed = len({s.device for s in whole}) > 1
    header += ["on"] * mixed
    rows = []
    for k, s in enumerate(whole):
        row = [title_of(s.method), _percent(s.recall), _percent(s.lead, "+") if k else "-"]
        row += [_text(s.rotation_error, 2), _text(100 * s.translation_error, 2)]
        row += [_text(100 * s.rmse_recall)] * has_rmse
        row += [_text(100 * v) for v in (s.inlier_precision, s.inlier_recall, s.inlier_f1)]
        row += [_text(1e3 * s.seconds_median), _text(1e3 * s.seconds_p95), _text(s.megabytes, 0)]
        row += [s.device] * mixed
        rows.append(row)
    return header, rows


def scene_table(summaries: Sequence[Summary]) -> tuple[list[str], list[list[str]]] | None:
    """Return header and rows of the recall by scene, None where there are no scenes."""
    scenes = list(dict.fromkeys(s.scene for s in summaries if s.scene != "all"))
    if not scenes:
        return None
    methods = list(dict.fromkeys(s.method for s in summaries))
    found = {(s.method, s.scene): s for s in summaries}
    sizes = [found[methods[0], scene].pairs for scene in scenes]
    header = ["method", *(f"{name} ({n})" for name, n in zip(scenes, sizes, strict=True))]
    rows = [
        [title_of(m), *(_text(100 * found[m, scene].recall.value) for scene in scenes)]
        for m in methods
    ]
    return header, rows


def protocol(settings: Settings, summaries: Sequence[Summary]) -> str:
    """Say which pairs were run and when a pose counts as right."""
    pairs = next(s.pairs for s in summaries if s.scene == "all")
    return (
        f"{pairs} pairs, the same matches for every method; right is RE < {settings.rotation:g} "
        f"deg and TE < {100 * settings.translation:g} cm. Recall with its 95 % interval "
        "(Wilson's); RE and TE are means over the successes."
    )


def footnotes(summaries: Sequence[Summary]) -> str:
    """Say what the columns of the main table mean, and what sets some methods apart."""
    notes = [
        "Inliers are the matches that agree with the method's pose. "
        "Times are from matches to pose, the device synchronised, after one call to warm up."
    ]
    whole = [s for s in summaries if s.scene == "all"]
    if any(0 < s.timed < s.pairs for s in whole):
        timed = ", ".join(f"{title_of(s.method)} {s.timed}" for s in whole)
        notes.append(f"Pairs that were timed, one process having the machine for itself: {timed}.")
    names = {s.method.partition(":")[0] for s in summaries}
    own = [METHODS[n].title for n in sorted(names) if n in METHODS and METHODS[n].needs == "clouds"]
    if own:
        notes.append(f"{', '.join(own)}: clouds in, pose out, with its own matches.")
    return " ".join(notes)


def machine(about: dict[str, Any]) -> str:
    """Say on which machine, and with which versions, a run was made."""
    commit = f", commit {about['commit']}" if about["commit"] else ""
    return f"on {about['device']}, torch {about['torch']}, vbreg {about['vbreg']}{commit}"


def _matches(settings: Settings) -> str:
    points = f", {settings.points} points a cloud" if settings.points else ""
    return f"{settings.descriptor} matches{points}"


def _percent(value: Interval, sign: str = "") -> str:
    first, low, high = (f"{100 * v:{sign}.1f}" for v in value)
    return f"{first} ({low} .. {high})"


def _text(value: float, digits: int = 1) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def _html_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in cells) + "</tr>"

    body = "\n".join(line(row, "td") for row in rows)
    return f"<table>\n<thead>{line(header, 'th')}</thead>\n<tbody>\n{body}\n</tbody></table>"


def _commit() -> str:
    """Return the commit of the source tree that runs; empty for an installed package."""
    here = Path(__file__).parent
    try:
        found = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True
        )
    except OSError:
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""


def _processor() -> str:
    return platform.processor() or platform.machine()


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2rem auto; padding: 0 1rem;
  color: #1c2530; }}
table {{ border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums;
  display: block; overflow-x: auto; }}
th, td {{ padding: .35rem .7rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid #dde3ea; }}
th:first-child, td:first-child {{ text-align: left; }}
thead th {{ border-bottom: 2px solid #1c2530; }}
img {{ max-width: 100%; margin: 1rem 0; }}
code {{ background: #f2f5f8; padding: .1rem .3rem; overflow-wrap: anywhere; }}
</style></head><body>
{body}
</body></html>
"""
