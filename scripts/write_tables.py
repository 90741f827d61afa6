"""Write the tables in README.md, docs and the model card from the CSV files in docs/results.

    python scripts/write_tables.py            # or `make tables`
    python scripts/write_tables.py --check    # exit status 1 and a list where one is out of date

A document marks the place of a table by its name:

    <!-- table: results -->
    <!-- end table -->

Everything between the two lines is replaced. `TABLES` below says which function makes which table.
To add one, write a function that takes `Results` and gives Markdown, and add a row to `TABLES`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from results import (
    CPU,
    DATASETS,
    DESCRIPTORS,
    FILE,
    GPU,
    OPEN3D,
    REFERENCE,
    SAMPLED,
    SHIPPED,
    UNKNOWN,
    Key,
    NotMeasuredError,
    Recall,
    Results,
    ResultsError,
    Row,
    hardware_of,
    made_by,
    most_pairs,
    read_rows,
    read_runs,
    title_of,
    weights_of,
)

from vbreg.benchmark.markdown import markdown_table
from vbreg.benchmark.power_law import GROWTH_FROM, exponent

CALL = "register"  # the method that is `vbreg.register` as users call it
VERIFIED = "verified"  # one attempt of it, on given matches
ROOT = Path(__file__).parents[1]
INDOOR = DATASETS[:2]
COMPACT = (
    *((dataset, name) for dataset in INDOOR for name in ("FPFH", "learned")),
    (DATASETS[-1], "FPFH"),
)  # columns of the README's table
ENOUGH_PAIRS = 100  # to say that two methods are level


# Cells


def number(text: str) -> str:
    """Three digits or so: 5.8, 35.4, 897; text stays text."""
    try:
        value = float(text)
    except ValueError:
        return text or "-"
    return f"{value:.1f}" if abs(value) < 100 and "." in text else f"{value:.0f}"


def percent(text: str) -> str:
    return f"{100 * float(text):.1f}" if text else "-"


def recall(row: Row) -> str:
    value, low, high = (percent(row[f"recall{end}"]) for end in ("", "_low", "_high"))
    return f"{value} ({low} .. {high})"


def of_all_pairs(found: Recall | None, *, interval: bool = False) -> str:
    """Recall in %; `with_footnote` says what an estimate is, and where its interval stands."""
    if found is None:
        return "-"
    value, low, high = (f"{100 * share:.1f}" for share in found[:3])
    if found.estimated:
        return f"≈ {value} †"
    return f"{value} ({low} .. {high})" if interval else value


def with_footnote(text: str, page: str) -> str:
    """A table, and what its estimates are; `page` has the intervals."""
    if "†" not in text:
        return text
    return below(
        text,
        f"† Saw fewer pairs. Estimate: recall of `{REFERENCE}` on all pairs, plus the difference "
        f"on the pairs that both saw ([intervals]({page})).",
    )


def lead(row: Row, sign: int = 1) -> str:
    """The difference in points with its interval; `sign` -1 asks for the other way round."""
    if not row["lead"]:  # older runs kept counts alone
        return "-"
    ends = [round(sign * 100 * float(row[f"lead{end}"]), 1) for end in ("", "_low", "_high")]
    value, low, high = (f"{end + 0.0:+.1f}" for end in (ends[0], *sorted(ends[1:])))  # no -0.0
    return f"{value} ({low} .. {high})"


def below(text: str, *sentences: str) -> str:
    """A table and what is said below it."""
    return "\n\n".join(filter(None, [text, *sentences]))


def mean(rows: Sequence[Row], column: str) -> float:
    values = [float(row[column]) for row in rows if row[column]]
    return float(np.mean(values)) if values else float("nan")


# Every method


def results(found: Results) -> str:
    """Recall of every method in a few columns, and its time on a GPU and on a CPU."""
    columns = [column for column in COMPACT if column in found.columns()]
    header = ["method", *(f"{' '.join(c)} ({most_pairs(found.column(*c))})" for c in columns)]
    header += [f"ms, {found.hardware(hardware)}" for hardware in (GPU, CPU)]

    def rank(method: str) -> float:
        recall = found.recall(INDOOR[1], "FPFH", method)
        return -recall.value if recall else 1.0

    body = []
    shown = [row for column in columns for row in found.column(*column).values()]
    for method in sorted(found.methods("table1"), key=rank):
        times = (found.milliseconds(method, hardware) for hardware in (GPU, CPU))
        line = [title_of(method), *(of_all_pairs(found.recall(*c, method)) for c in columns)]
        if any(method in found.column(*column) for column in columns):
            body.append([*line, *(number(str(time)) if time else "-" for time in times)])
    of_others = "[Other runs](docs/results/README.md#where-the-numbers-come-from) made some cells."
    text = with_footnote(markdown_table(header, body), "docs/results/every_method.md")
    return below(text, f"{runs_of(shown)[0]} {of_others}")


def cells_of_files(found: Results, name: str) -> dict[Path, list[Key]]:
    """The CSV files behind table 1 or 2 with the cells shown of each, that of most cells first."""
    files: dict[str, list[Key]] = {}
    for key, row in found.rows(name).items():
        files.setdefault(row[FILE], []).append(key)
    return {Path(file): files[file] for file in sorted(files, key=lambda f: -len(files[f]))}


def sources(found: Results) -> str:
    """Which cells of tables 1 and 2 come from which machine and commit."""
    parts = []
    for name in ("table1", "table2"):
        for k, (file, keys) in enumerate(cells_of_files(found, name).items()):
            where = " and ".join(dict.fromkeys(run.place for run in read_runs(file)))
            if k == 0:
                parts.append(f"**Table {name[-1]}**: {where}.")
                continue
            if k == 1:
                parts[-1] += " These cells are of other runs:\n"
            parts[-1] += f"\n- {cells_in_words(keys, found.rows(name))}; {where}."
    return "\n\n".join(parts)


def commands(found: Results) -> str:
    """The commands behind tables 1 and 2, in the order of `sources`, and behind the times."""
    files = [file for name in ("table1", "table2") for file in cells_of_files(found, name)]
    files += [found.path("speed", hardware, "matches.csv") for hardware in (GPU, CPU)]
    lines, last = [], ""
    for run in (run for file in files for run in read_runs(file)):
        lines += [f"# {run.place}"] * (run.place != last)
        lines.append(run.command or f"# {UNKNOWN}")
        last = run.place
    return "```sh\n" + "\n".join(lines) + "\n```"


def cells_in_words(keys: Iterable[Key], every: Iterable[Key]) -> str:
    """`MAC, DGR: 3DMatch (FPFH), KITTI 10 m (FPFH); ...`, with points where these are not all."""
    counts: dict[tuple[str, str, str], list[str]] = {}
    for key in sorted(keys, key=lambda key: (DATASETS.index(key[0]), DESCRIPTORS.index(key[1]))):
        counts.setdefault(key[:3], []).append(key.points)
    most = len({key.points for key in every})
    methods: dict[tuple[str, str], list[str]] = {}
    for (dataset, descriptor, method), points in counts.items():
        some = f", {' and '.join(points)} points" if len(points) < most else ""
        methods.setdefault((dataset, descriptor + some), []).append(title_of(method))
    places: dict[str, dict[str, list[str]]] = {}
    for (dataset, descriptor), titles in methods.items():
        of_these = places.setdefault(", ".join(sorted(titles)), {})
        of_these.setdefault(dataset, []).append(descriptor)
    return "; ".join(
        f"**{titles}**: " + ", ".join(f"{dataset} ({', '.join(d)})" for dataset, d in where.items())
        for titles, where in places.items()
    )


def recalls(found: Results, dataset: str) -> str:
    """Recall in % with its interval, by method and descriptor, on one data set."""
    names = [name for d, name in found.columns() if d == dataset]
    pairs = {name: most_pairs(found.column(dataset, name)) for name in names}
    body = []
    for method in found.methods("table1"):
        cells = (found.recall(dataset, name, method) for name in names)
        line = [of_all_pairs(recall, interval=True) for recall in cells]
        if set(line) != {"-"}:
            body.append([title_of(method), *line])
    header = ["method", *(f"{name} ({pairs[name]} pairs)" for name in names)]
    return with_footnote(markdown_table(header, body), "every_method.md")


def everything(found: Results, dataset: str) -> str:
    """Every row of table 1 of one data set."""
    rmse = dataset in INDOOR
    header = ["matches", "right matches, %", "method", "pairs", "recall, %", "minus `vbreg:fast`"]
    header += ["RE, deg", "TE, cm"] + ["RMSE recall, %"] * rmse + ["on"]
    compared = found.rows("table1", over=REFERENCE)
    body = []
    for _, name in (column for column in found.columns() if column[0] == dataset):
        rows = found.column(dataset, name)
        for method in (m for m in found.methods("table1") if m in rows):
            row, other = rows[method], compared.get(Key(dataset, name, method))
            errors = number_of(row["rotation_error"], 1), number_of(row["translation_error"], 100)
            line = [name, percent(row["inlier_ratio"]), title_of(method), row["pairs"], recall(row)]
            difference = lead(other) if other and method != REFERENCE else "-"
            if difference != "-" and other["pairs"] != row["pairs"]:
                difference += f", {other['pairs']} pairs"
            line += [difference, *errors]
            body.append([*line, *[percent(row["rmse_recall"])] * rmse, row["device"]])
    return markdown_table(header, body)


def number_of(text: str, scale: float) -> str:
    return f"{scale * float(text):.2f}" if text else "-"


def level(found: Results) -> str:
    """Which methods cannot be told from VBReg: the interval of the difference holds zero.

    Few pairs tell hardly any method from another, so that these are left out.
    """
    compared = found.rows("table1", over=REFERENCE)
    body = []
    for dataset, descriptor in found.columns():
        level, better = [], []
        for method in found.methods("table1"):
            row = compared.get(Key(dataset, descriptor, method))
            of_vbreg = method.partition(":")[0] in ("vbreg", VERIFIED, CALL)
            if row is None or of_vbreg or int(row["pairs"]) < ENOUGH_PAIRS:
                continue
            if float(row["lead_low"]) > 0:
                better.append(title_of(method))
            elif float(row["lead_high"]) >= 0:
                level.append(title_of(method))
        if most_pairs(found.column(dataset, descriptor)) >= ENOUGH_PAIRS:
            line = [f"{dataset}, {descriptor}", ", ".join(level), ", ".join(better)]
            body.append([cell or "-" for cell in line])
    return markdown_table(["", "cannot be told from VBReg", "better"], body)


def published(found: Results) -> str:
    """Recall in % beside what the papers have, by the same protocol, RE and TE where they say.

    Their FPFH is Open3D's: ours on matches of it stands beside that on ours, where it was measured.
    """
    papers = {
        (row["method"], row["dataset"], row["descriptor"]): row
        for row in read_rows(found.path("published.csv"))
        if row["protocol"] == "pose"
    }
    columns = dict.fromkeys(key[1:] for key in papers)
    theirs = {(d, "FPFH"): (d, OPEN3D) for d in DATASETS if (d, OPEN3D) in found.columns()}
    header = ["method"]
    for column in columns:
        header += [f"{' '.join(column)}, paper", "ours"]
        header += [f"ours, {OPEN3D}"] * (column in theirs)
    body = []
    for method in dict.fromkeys(key[0] for key in papers):
        line = [title_of(method)]
        for column in columns:
            line += [with_errors(papers.get((method, *column)), 1, 1), ours(found, column, method)]
            if column in theirs:
                line.append(ours(found, theirs[column], method))
        body.append(line)
    return with_footnote(markdown_table(header, body), "every_method.md")


def ours(found: Results, column: tuple[str, str], method: str) -> str:
    """Recall on all pairs and the errors of these; on fewer pairs errors may be smaller."""
    recall = found.recall(*column, method)
    if recall is None or recall.estimated:
        return of_all_pairs(recall)
    return with_errors(found.column(*column)[method], 100, 100)


def with_errors(row: Row | None, of_recall: float, of_length: float) -> str:
    """`94.0; 2.03 deg, 5.99 cm`; a paper has percents and centimetres, we shares and metres."""
    if row is None:
        return "-"
    text = f"{of_recall * float(row['recall']):.1f}"
    if row["rotation_error"]:
        text += f"; {float(row['rotation_error']):.2f} deg, "
        text += f"{of_length * float(row['translation_error']):.2f} cm"
    return text


def predator(found: Results) -> str:
    """Recall in % by Predator's protocol, which leaves consecutive fragments out."""
    columns = [column for column in found.columns() if column[0] in INDOOR]
    pairs = {column: most_rmse_pairs(found, *column) for column in columns}
    body = []
    for method in found.methods("table1"):
        line = [rmse_recall(found, *column, method) for column in columns]
        if set(line) != {"-"}:
            body.append([title_of(method), *line])
    return markdown_table(
        ["method", *(f"{', '.join(c)} ({pairs[c]} pairs)" for c in columns)], body
    )


def rmse_recall(found: Results, dataset: str, descriptor: str, method: str) -> str:
    """By Predator's protocol, in %; a dash where a method did not see all pairs.

    The others may be easier, and the difference on the same pairs is not kept by this protocol.
    """
    row = found.column(dataset, descriptor).get(method)
    if row is None or int(row["rmse_pairs"] or 0) < most_rmse_pairs(found, dataset, descriptor):
        return "-"
    return percent(row["rmse_recall"])


def most_rmse_pairs(found: Results, dataset: str, descriptor: str) -> int:
    return max(int(row["rmse_pairs"] or 0) for row in found.column(dataset, descriptor).values())


def newer_papers(found: Results) -> str:
    """Clouds in, pose out, by Predator's protocol: ours beside what papers have."""
    body = []
    for descriptor in DESCRIPTORS:
        columns = [(dataset, descriptor) for dataset in INDOOR]
        known = [column for column in columns if column in found.columns()]
        method = CALL if descriptor == SHIPPED else VERIFIED
        cells = [rmse_recall(found, *c, method) if c in known else "-" for c in columns]
        if set(cells) != {"-"}:
            name = f"`{method}`" if method == CALL else f"`{method}`, {descriptor}"
            body.append([f"**{name}**", *cells, "four scenes, ours"])
    papers = [r for r in read_rows(found.path("published.csv")) if r["protocol"] == "rmse"]
    for (method,), group in grouped(papers, "method"):
        cells = [next((r["recall"] for r in group if r["dataset"] == d), "-") for d in INDOOR]
        body.append([method, *cells, f"eight scenes, {group[0]['source']}"])
    return markdown_table(["", *INDOOR, "measured on, by"], body)


def descriptors(found: Results) -> str:
    """The same estimator on matches of every descriptor: right matches and poses, in %."""
    known = found.columns()
    header, body = ["descriptor"], []
    shown = [dataset for dataset in INDOOR if any(c[0] == dataset for c in known)]
    for dataset in shown:
        pairs = max(most_pairs(found.column(*c)) for c in known if c[0] == dataset)
        header += [f"{dataset}: right matches", f"poses ({pairs} pairs)"]
    for name in (n for n in DESCRIPTORS if any(c[1] == n for c in known)):
        line = [f"**{name}**" if name == "learned" else name]
        for dataset in shown:
            row = found.column(dataset, name).get(REFERENCE)
            poses = of_all_pairs(found.recall(dataset, name, REFERENCE), interval=True)
            line += [percent(row["inlier_ratio"]) if row else "-", poses]
        body.append(line)
    return markdown_table(header, body)


def verified(found: Results) -> str:
    """What the choice by the clouds and the refinement add: recall in %, and mean errors."""
    body, used = [], []
    compared = found.rows("table1", over=REFERENCE)
    for dataset, descriptor in found.columns():
        before, after = (
            compared.get(Key(dataset, descriptor, method)) for method in (REFERENCE, VERIFIED)
        )
        if before is None or after is None or before["pairs"] != after["pairs"]:
            continue
        used.append(after)
        errors = [
            f"{number_of(before[column], scale)} -> {number_of(after[column], scale)}"
            for column, scale in (("rotation_error", 1), ("translation_error", 100))
        ]
        rmse = " -> ".join(percent(row["rmse_recall"]) for row in (before, after))
        body.append(
            [
                f"{dataset} ({after['pairs']} pairs), {descriptor}",
                recall(before),
                f"**{recall(after)}**",
                lead(after),
                *errors,
                rmse if after["rmse_recall"] else "-",
            ]
        )
    header = ["", "`vbreg:fast`", "`verified`", "points more", "mean RE, deg", "mean TE, cm"]
    return below(markdown_table([*header, "RMSE protocol"], body), *runs_of(used))


def shipped(found: Results) -> str:
    """Recall in % of the call as users make it, and of what it is made of, on its own matches."""
    methods = (REFERENCE, "sc2pcr", VERIFIED, CALL)
    body, used = [], []
    for dataset in DATASETS:
        rows = found.column(dataset, SHIPPED)
        if CALL not in rows:
            continue
        call = rows[CALL]
        used.append(call)
        cells = (recall(rows[method]) if method in rows else "-" for method in methods[:-1])
        body.append(
            [
                f"{dataset} ({call['pairs']} pairs)",
                *cells,
                f"**{recall(call)}**",
                lead(call),
                number_of(call["rotation_error"], 1),
                number_of(call["translation_error"], 100),
                percent(call["rmse_recall"]) if call["rmse_recall"] else "-",
            ]
        )
    if not body:
        raise NotMeasuredError(f"no rows of {CALL} in the column {SHIPPED!r}")
    header = ["", "matches alone", "SC2-PCR", "verified, one attempt", "`vbreg.register`"]
    header += ["points more than matches alone", "RE, deg", "TE, cm", "RMSE protocol"]
    return below(markdown_table(header, body), *runs_of(used))


def points(found: Results, descriptor: str) -> str:
    """Recall in % with fewer and fewer points (table 2), of one descriptor."""
    rows = points_rows(found, descriptor)
    counts = sorted({key.points for key in rows}, key=int, reverse=True)
    pairs = most_pairs({str(k): row for k, row in enumerate(rows.values())})
    body = []
    for method in found.methods("table2"):
        line = [title_of(method)]
        for count in counts:
            row = rows.get(Key("3DLoMatch", descriptor, method, count))
            few = row is not None and int(row["pairs"]) < pairs
            line.append(recall(row) + f", {row['pairs']} pairs" * few if row else "-")
        if set(line[1:]) != {"-"}:
            body.append(line)
    header = [f"method, {descriptor} ({pairs} pairs)", *(f"{count} points" for count in counts)]
    return below(markdown_table(header, body), *runs_of(rows.values()))


def points_rows(found: Results, descriptor: str) -> dict[Key, Row]:
    rows = {k: row for k, row in found.rows("table2").items() if k.descriptor == descriptor}
    if not rows:
        raise NotMeasuredError(f"table2 has no rows of {descriptor}")
    return rows


def fewest_points(found: Results) -> str:
    """Recall minus the reference's on the same pairs, with the fewest points of table 2."""
    rows = found.rows("table2", over=REFERENCE)
    fewest = min((key.points for key in rows), key=int)
    names = [n for n in DESCRIPTORS if any(key.descriptor == n for key in rows)]
    body = []
    for method in (m for m in found.methods("table2") if m != REFERENCE):
        cells = [rows.get(Key("3DLoMatch", name, method, fewest)) for name in names]
        body.append([title_of(method), *(lead(row) if row else "-" for row in cells)])
    return markdown_table(["method", *(f"{name}, {fewest}" for name in names)], body)


def ablation(found: Results, name: str) -> str:
    """Recall and difference to the row that each is compared with (table 3)."""
    path = found.path("table3", f"{name}.csv")
    rows = read_rows(path)
    columns = {row["column"]: row["pairs"] for row in rows}
    cells = {
        (row["method"], row["column"]): f"{percent(row['recall'])}; {lead(row)}" for row in rows
    }
    methods = list(dict.fromkeys(row["method"] for row in rows))
    header = ["variant", *(f"{column} ({n} pairs)" for column, n in columns.items())]
    body = [[m, *(cells.get((m, c), "-") for c in columns)] for m in methods]
    return below(markdown_table(header, body), made_by(path))


def latent_features(found: Results) -> str:
    """With latent features minus without, same search: both comparisons, not the better one."""
    shipped = ("table3_search", "SCNonlocal, Vote and CS", -1)  # there it is without minus with
    equal = ("table3_networks", "VBNonlocal, xyz; Vote and CS", 1)
    body, columns = [], []
    for name, method, sign in (shipped, equal):
        rows = read_rows(found.path("table3", f"{name}.csv"))
        cells = {row["column"]: row for row in rows if row["method"] == method}
        if not cells:
            raise ResultsError(f"table3/{name}.csv has no row {method!r}")
        columns = columns or list(cells)
        about = "shipped weights" if name == "table3_search" else "networks of Table 3"
        body.append(
            [about, *(f"{lead(cells[c], sign)}, {cells[c]['pairs']} pairs" for c in columns)]
        )
    return markdown_table(["with latent features minus without", *columns], body)


# Speed

HEADINGS = {
    "median_ms": "median ms",
    "p95_ms": "95th percentile ms",
    "peak_mb": "peak MB",
    "matches each": "matches in each",
    "plain_ms": "readable form, ms",
    "quick_ms": "quick form, ms",
    "ratio": "times as quick",
}


AIMS = (  # what it is, speed/h200/NAME.csv, row, milliseconds
    ("about 4500 FPFH matches to pose, VBReg, `fast`", "matches", REFERENCE, 4),
    ("two clouds to pose, `register`", "clouds", "register, fast", 20),
)


def heading(column: str) -> str:
    if column.startswith("times "):
        return f"times {title_of(column.removeprefix('times '))}"
    return HEADINGS.get(column, column)


def cell(column: str, text: str) -> str:
    if column == "method":
        return title_of(text)
    if column == "weights":
        return f"`{weights_of(text)}`"
    if column == "right":
        return text.replace("/", " of ")
    return text if column.startswith("times ") else number(text)


def speed(found: Results, hardware: str, name: str) -> str:
    """Return a table of `docs/results/speed` with all its rows and columns, headings in words."""
    rows = found.speed(hardware, name)
    header = [heading(column) for column in rows[0]]
    body = [[cell(column, text) for column, text in row.items()] for row in rows]
    return below(
        markdown_table(header, body), made_by(found.path("speed", hardware, f"{name}.csv"))
    )


def backends_of(rows: Iterable[Row]) -> str:
    """Return the backends that computed some rows, or nothing where their file does not say."""
    return " and ".join(dict.fromkeys(row["backend"] for row in rows if row.get("backend")))


def stages(found: Results, hardware: str) -> str:
    """Milliseconds of each stage; a column for each set of weights."""
    rows = found.speed(hardware, "stages")
    weights = list(dict.fromkeys(row["weights"] for row in rows))
    cells = {(row["stage"], row["weights"]): row for row in rows}
    about = dict.fromkeys(row["matches"] for row in rows)
    label = f"stage, {' and '.join(about)} matches"
    if backends := backends_of(rows):
        label += f", backend {backends}"
    body = [
        [stage, *(number(cells[stage, w]["median_ms"]) for w in weights)]
        for stage in dict.fromkeys(row["stage"] for row in rows)
    ]
    products = [
        next((row for row in rows if row["weights"] == w and row["times_product"]), {})
        for w in weights
    ]
    if all(products):
        body.append(["network, times its products", *(r["times_product"] for r in products)])
    header = [label, *(f"`{weights_of(w)}`, ms" for w in weights)]
    return below(markdown_table(header, body), made_by(found.path("speed", hardware, "stages.csv")))


def growth(found: Results, hardware: str) -> str:
    """Time and memory against the number of matches, and the exponents."""
    rows = found.speed(hardware, "growth")
    weights = list(dict.fromkeys(row["weights"] for row in rows))
    cells = {(row["matches"], row["weights"]): row for row in rows}
    header = ["matches", *(f"`{weights_of(w)}`, {unit}" for w in weights for unit in ("ms", "MB"))]
    body = [
        [n, *(number(cells[n, w][c]) for w in weights for c in ("median_ms", "peak_mb"))]
        for n in dict.fromkeys(row["matches"] for row in rows)
    ]
    if backends_of(rows):
        header.append("backend")
        for line in body:
            line.append(backends_of(cells[line[0], w] for w in weights))

    def columns_of(name: str) -> list[list[float]]:
        own = [row for row in rows if row["weights"] == name]
        return [[float(row[column]) for row in own] for column in ("matches", "median_ms")]

    laws = [f"`{weights_of(w)}` {exponent(*columns_of(w)):.2f}" for w in weights]
    text = f"Exponent of the time from {GROWTH_FROM} matches on: {', '.join(laws)}."
    made = made_by(found.path("speed", hardware, "growth.csv"))
    return below(markdown_table(header, body), f"{text} {made}".strip())


def clouds(found: Results) -> str:
    """From clouds to pose, on a GPU and on a CPU, side by side."""
    rows = {hardware: found.speed(hardware, "clouds") for hardware in (GPU, CPU)}
    by_title = {h: {title_of(row["method"]): row for row in rows[h]} for h in rows}
    titles = dict.fromkeys(title for titles in by_title.values() for title in titles)
    header = ["from clouds to pose"]
    for hardware in rows:
        name = hardware_of(found.path("speed", hardware, "clouds.csv"))
        header += [f"ms, {name}", "right"] + ["backend"] * bool(backends_of(rows[hardware]))
    body = []
    for title in titles:
        line = [title]
        for hardware in rows:
            row = by_title[hardware].get(title)
            columns = ["median_ms", "right"] + ["backend"] * bool(backends_of(rows[hardware]))
            line += [cell(c, row[c]) if row else "-" for c in columns]
        body.append(line)
    return markdown_table(header, body)


def matches(found: Results) -> str:
    """From matches to pose, on a GPU and on a CPU, side by side, with ratios to SC2-PCR."""
    columns = ("median_ms", "times sc2pcr", "peak_mb", "right")
    rows = {
        hardware: {title_of(row["method"]): row for row in found.speed(hardware, "matches")}
        for hardware in (GPU, CPU)
    }
    header = ["from matches to pose"]
    for hardware in rows:
        header += [f"ms, {found.hardware(hardware)}", "times SC2-PCR", "peak MB", "right"]
    body = []
    for title in dict.fromkeys(title for titles in rows.values() for title in titles):
        line = [title]
        for own in rows.values():
            row = own.get(title)
            line += [cell(c, row.get(c, "-")) if row else "-" for c in columns]
        body.append(line)
    made = (made_by(found.path("speed", hardware, "matches.csv")) for hardware in rows)
    return below(markdown_table(header, body), *made)


def aims(found: Results) -> str:
    """What `fast` is to take on the GPU, and what it takes."""
    body = []
    for about, name, method, aim in AIMS:
        row = next(row for row in found.speed(GPU, name) if row["method"] == method)
        measured = float(row["median_ms"])
        body.append([about, str(aim), number(row["median_ms"]), f"{measured / aim:.1f}"])
    return markdown_table(["", "aim, ms", "measured, ms", "times the aim"], body)


# The model and its features


def model(found: Results) -> str:
    """VBReg's rows of every benchmark."""
    body = []
    for dataset, descriptor in found.columns():
        for method, row in found.column(dataset, descriptor).items():
            if method.partition(":")[0] != "vbreg":
                continue
            shares = (percent(row[f"inlier_{c}"]) for c in ("precision", "recall", "f1"))
            errors = number_of(row["rotation_error"], 1), number_of(row["translation_error"], 100)
            weights = f"`{weights_of(method.partition(':')[2])}`"
            title = f"{dataset}, {descriptor} ({row['pairs']} pairs)"
            body.append([title, weights, recall(row), *errors, *shares])
    columns = ("poses found, %", "RE, deg", "TE, cm", "inlier precision, %", "recall, %", "F1, %")
    return markdown_table(["", "weights", *columns], body)


def grouped(rows: Sequence[Row], *columns: str) -> Iterator[tuple[tuple[str, ...], list[Row]]]:
    keys = [tuple(row[c] for c in columns) for row in rows]
    for key in dict.fromkeys(keys):
        yield key, [row for row, own in zip(rows, keys, strict=True) if own == key]


def similarity(found: Results) -> str:
    """Mean cosine between features, over pairs."""
    rows = read_rows(found.path("figures", "similarity.csv"))
    body = []
    for (benchmark, network), group in grouped(rows, "benchmark", "network"):
        alike, apart = mean(group, "similarity"), mean(group, "to_outliers")
        numbers = (f"{value:.3f}" for value in (alike, apart, alike - apart))
        body.append([benchmark, network, str(len(group)), *numbers])
    columns = ("two inliers", "an inlier and an outlier", "difference")
    return markdown_table(["benchmark", "network", "pairs", *columns], body)


def ambiguity(found: Results) -> str:
    """How often two matches are compatible, in %."""
    rows = read_rows(found.path("figures", "ambiguity.csv"))
    columns = ("inlier_inlier", "inlier_outlier", "outlier_outlier")
    body = [
        [benchmark, str(len(group)), *(f"{100 * mean(group, c):.1f}" for c in columns)]
        for (benchmark,), group in grouped(rows, "benchmark")
    ]
    return markdown_table(
        ["benchmark", "pairs", "both right, %", "one right, %", "both wrong, %"], body
    )


def theorem(found: Results) -> str:
    """Theorem 1 on real pairs."""
    below = "below_kappa_50000", "below_3_50000"
    body = []
    for benchmark in ("3dmatch", "3dlomatch"):
        rows = read_rows(found.path("theorem1", benchmark, "theorem1.csv"))
        seen = [row for row in rows if row["alpha"]]
        tested = [row for row in seen if row["poisson_p_value"]]
        rejected = sum(float(row["poisson_p_value"]) < 0.05 for row in tested)
        spread = float(np.median([float(row["dispersion"]) for row in seen if row["dispersion"]]))
        cells = [f"{sum(int(r[c]) for r in seen if r[c])} of {len(seen)}" for c in below]
        shares = (f"{100 * mean(seen, c):.0f}" for c in ("clean_share", "clean_share_poisson"))
        body.append([benchmark, *cells, f"{rejected} of {len(tested)}", f"{spread:.1f}", *shares])
    header = [
        "",
        "alpha < U, 50,000 samples of kappa",
        "alpha < U, 50,000 samples of 3",
        "Poisson rejected",
        "variance over mean",
        "clean sets, %",
        "by Poisson, %",
    ]
    return markdown_table(header, body)


def runs_of(rows: Iterable[Row]) -> list[str]:
    """The runs behind rows of tables 1 and 2, one sentence each, that of most rows first."""
    files = Counter(row[FILE] for row in rows)
    return [made_by(Path(file)) for file, _ in files.most_common()]


def slug(title: str) -> str:
    return title.replace("'s", "").replace(" ", "-").lower()


Table = Callable[[Results], str]
TABLES: Mapping[str, Table] = {
    # name: what makes it, of which files in docs/results
    "results": results,  # table1/*/table1.csv, speed/*/matches.csv
    "sources": sources,  # table1/*/, table2/*/ and run.json in each
    "commands": commands,  # the same, and speed/*/run.json
    "level": level,  # table1/*/table1.csv
    **{f"recall-{slug(dataset)}": partial(recalls, dataset=dataset) for dataset in DATASETS},
    **{f"every-{slug(dataset)}": partial(everything, dataset=dataset) for dataset in DATASETS},
    "published": published,  # table1/*/table1.csv, published.csv
    "predator": predator,  # table1/*/table1.csv
    "newer-papers": newer_papers,  # table1/*/table1.csv, published.csv
    "descriptors": descriptors,  # table1/*/table1.csv
    "shipped": shipped,  # table1/*/table1.csv
    "verified": verified,  # table1/*/table1.csv
    **{f"points-{slug(name)}": partial(points, descriptor=name) for name in SAMPLED},
    "fewest-points": fewest_points,  # table2/*/table2.csv
    "ablation-search": partial(ablation, name="table3_search"),  # table3/table3_search.csv
    "ablation-networks": partial(ablation, name="table3_networks"),
    "latent-features": latent_features,  # both of table3
    "clouds": clouds,  # speed/*/clouds.csv
    "matches": matches,  # speed/*/matches.csv
    "aims": aims,  # speed/h200/matches.csv, speed/h200/clouds.csv
    "h200-matches": partial(speed, hardware=GPU, name="matches"),  # speed/h200/matches.csv, ...
    "h200-clouds": partial(speed, hardware=GPU, name="clouds"),
    "h200-batches": partial(speed, hardware=GPU, name="batches"),
    "h200-stages": partial(stages, hardware=GPU),
    "h200-growth": partial(growth, hardware=GPU),
    "h200-backends": partial(speed, hardware=GPU, name="backends"),
    "cpu-backends": partial(speed, hardware=CPU, name="backends"),
    "cpu-matches": partial(speed, hardware=CPU, name="matches"),
    "cpu-clouds": partial(speed, hardware=CPU, name="clouds"),
    "cpu-stages": partial(stages, hardware=CPU),
    "cpu-growth": partial(growth, hardware=CPU),
    "model": model,  # table1/*/table1.csv
    "similarity": similarity,  # figures/similarity.csv
    "ambiguity": ambiguity,  # figures/ambiguity.csv
    "theorem": theorem,  # theorem1/*/theorem1.csv
}


# Documents

MARKER = re.compile(r"^<!-- (?:table: (?P<name>\S+)|(?P<end>end table)) -->$", re.MULTILINE)


def documents(root: Path) -> list[Path]:
    card = root / "src" / "vbreg" / "weights" / "MODEL_CARD.md"
    return [root / "README.md", *sorted((root / "docs").rglob("*.md")), card]


def places(text: str, document: str) -> Iterator[tuple[str, int, int]]:
    """Name, start and end of what stands between each pair of markers."""
    name, start = None, 0
    for found in MARKER.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        if found["end"] is None:
            if name is not None:
                raise ResultsError(
                    f"{document}:{line}: table {name!r} has no `<!-- end table -->` before the next"
                )
            name, start = found["name"], found.end()
        elif name is None:
            raise ResultsError(f"{document}:{line}: `<!-- end table -->` ends no table")
        else:
            yield name, start, found.start()
            name = None
    if name is not None:
        raise ResultsError(f"{document}: table {name!r} has no `<!-- end table -->`")


def rewritten(text: str, document: str, found: Results) -> tuple[str, list[str]]:
    """The document with its tables made anew, and the names of those that differ.

    A table that was not measured yet stays as it is.
    """
    parts, differ, last = [], [], 0
    for name, start, end in places(text, document):
        if name not in TABLES:
            raise ResultsError(
                f"{document}: unknown table {name!r}: expected one of {', '.join(TABLES)}"
            )
        try:
            new = f"\n{TABLES[name](found)}\n"
        except NotMeasuredError as error:
            print(f"{document}: table {name!r} stays: {error}", file=sys.stderr)
            continue
        if new != text[start:end]:
            differ.append(name)
        parts += [text[last:start], new]
        last = end
    return "".join([*parts, text[last:]]), differ


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="change nothing; say what differs")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository")
    options = parser.parse_args()
    found = Results(options.root / "docs" / "results")
    status = 0
    try:
        for path in documents(options.root):
            name = path.relative_to(options.root).as_posix()
            text, differ = rewritten(path.read_text(encoding="utf-8"), name, found)
            for table_name in differ:
                if options.check:
                    print(f"{name}: table {table_name!r} is out of date: run `make tables`")
                    status = 1
                else:
                    print(f"{name}: table {table_name!r} written")
            if differ and not options.check:
                path.write_text(text, encoding="utf-8")
    except ResultsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return status


if __name__ == "__main__":
    sys.exit(main())
