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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from results import (
    BENCHMARKS,
    CPU,
    GPU,
    Recall,
    Results,
    ResultsError,
    Row,
    read_rows,
    read_run,
    title_of,
    weights_of,
)

ROOT = Path(__file__).parents[1]
INDOOR_AND_KITTI = ("3dmatch_fpfh", "3dlomatch_fpfh", "kitti_fpfh")
LEARNED = ("3dmatch_learned", "3dlomatch_learned", "kitti_learned")
VERIFIED = ("3dmatch_learned", "3dlomatch_learned", "3dmatch_fpfh", "3dlomatch_fpfh")
GROWTH_FROM = 5000  # matches; below, fixed costs hide how time grows


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


def lead(row: Row, sign: int = 1) -> str:
    """The difference in points with its interval; `sign` -1 asks for the other way round."""
    ends = [round(sign * 100 * float(row[f"lead{end}"]), 1) for end in ("", "_low", "_high")]
    value, low, high = (f"{end + 0.0:+.1f}" for end in (ends[0], *sorted(ends[1:])))  # no -0.0
    return f"{value} ({low} .. {high})"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def mean(rows: Sequence[Row], column: str) -> float:
    values = [float(row[column]) for row in rows if row[column]]
    return float(np.mean(values)) if values else float("nan")


# Every method


def results(found: Results) -> str:
    """Recall on three benchmarks, and the time of today's code on a GPU and on a CPU."""
    pairs = [next(iter(found.summary(b).values()))["pairs"] for b in INDOOR_AND_KITTI]
    header = ["method"]
    header += [f"{BENCHMARKS[b]} ({n} pairs)" for b, n in zip(INDOOR_AND_KITTI, pairs, strict=True)]
    header += [f"ms, {found.hardware(hardware)}" for hardware in (GPU, CPU)]
    rows: list[tuple[list[float], list[str]]] = []
    for method in found.methods():
        recalls = [found.recall(method, benchmark) for benchmark in INDOOR_AND_KITTI]
        times = [found.milliseconds(method, hardware) for hardware in (GPU, CPU)]
        cells = [title_of(method), *map(recall_cell, recalls)]
        for time in times:
            mark = "*" if time and not time.from_speed_table else ""
            cells.append(number(str(time.value)) + mark if time else "-")
        rows.append(([-r.value if r else 0.0 for r in recalls], cells))
    body = [cells for _, cells in sorted(rows)]
    text = table(header, body)
    for mark, note in (
        (" †", f"† Run on {read_run(found.gpu_recall_file).hardware} only, without interval."),
        ("* ", "\\* Timed in the benchmark itself; not part of the speed table."),
    ):
        text += f"\n\n{note}" if mark in text else ""
    return text


def recall_cell(found: Recall | None) -> str:
    """Recall in % with its interval; † where it has none."""
    if found is None:
        return "-"
    if found.low is None or found.high is None:
        return f"{100 * found.value:.1f} †"
    return f"{100 * found.value:.1f} ({100 * found.low:.1f} .. {100 * found.high:.1f})"


def commands(found: Results) -> str:
    """The commands behind `results` and `descriptors`."""
    runs = [
        read_run(found.path("table1", benchmark, "summary.csv"))
        for benchmark in (*INDOOR_AND_KITTI, *LEARNED)
    ]
    runs.append(read_run(found.gpu_recall_file))
    runs += [read_run(found.path("speed", hardware, "matches.csv")) for hardware in (GPU, CPU)]
    lines: list[str] = []
    last = ""
    for run in runs:
        where = ", ".join(filter(None, (run.hardware, run.commit and f"commit {run.commit}")))
        lines += [f"# {where}"] * (where != last)
        lines.append(run.command or "# (no command on record)")
        last = where
    return "```sh\n" + "\n".join(lines) + "\n```"


def level(found: Results) -> str:
    """Which methods cannot be told from VBReg: the interval of the difference holds zero."""
    lines = []
    for benchmark, title in BENCHMARKS.items():
        level, better = [], []
        for method, row in found.summary(benchmark).items():
            if method.partition(":")[0] == "vbreg":
                continue
            low, high = float(row["lead_low"]), float(row["lead_high"])
            if low <= 0 <= high:
                level.append(title_of(method))
            elif low > 0:
                better.append(title_of(method))
        if len(found.summary(benchmark)) == 1:  # VBReg alone ran there
            continue
        text = f"**{title}**: {', '.join(level) or 'none'}"
        lines.append(text + (f" (better: {', '.join(better)})" if better else ""))
    return "; ".join(lines) + "."


def descriptors(found: Results) -> str:
    """The same estimator on matches of every descriptor: right matches and poses, in %."""
    titles = {"fpfh": "FPFH", "learned": "**learned**", "stored_matches": "stored matches"}
    sets = ("3dmatch", "3dlomatch", "kitti")
    body, pairs = [], {}
    for end, title in titles.items():
        line = [title]
        for data in sets:
            if f"{data}_{end}" not in BENCHMARKS:
                line += ["-", "-"]
                continue
            rows = found.summary(f"{data}_{end}")
            row = rows.get("vbreg:fast") or rows["vbreg"]
            pairs[data] = row["pairs"]
            line += [percent(row["inlier_ratio"]), recall(row)]
        body.append(line)
    header = ["descriptor"]
    for data in sets:
        name = BENCHMARKS[f"{data}_fpfh"]
        header += [f"{name}: right matches", f"poses ({pairs[data]} pairs)"]
    return table(header, body)


def verified(found: Results) -> str:
    """What the choice by the clouds and the refinement add: recall in %, and mean errors."""
    body = []
    for benchmark in VERIFIED:
        path = found.path("verified", benchmark, "summary.csv")
        rows = {row["method"]: row for row in read_rows(path) if row["scene"] == "all"}
        before, after = rows["vbreg:fast"], rows["register"]
        dataset, _, descriptor = benchmark.partition("_")
        title = {"3dmatch": "3DMatch", "3dlomatch": "3DLoMatch", "kitti": "KITTI"}[dataset]
        errors = [
            f"{scale * float(before[column]):.2f} -> {scale * float(after[column]):.2f}"
            for column, scale in (("rotation_error", 1), ("translation_error", 100))
        ]
        rmse = " -> ".join(percent(row["rmse_recall"]) for row in (before, after))
        body.append(
            [
                f"{title} ({after['pairs']} pairs), {descriptor.replace('fpfh', 'FPFH')}",
                recall(before),
                f"**{recall(after)}**",
                lead(before, -1),
                *errors,
                rmse if "-" not in rmse.split(" -> ") else "-",
            ]
        )
    header = ["", "`vbreg:fast`", "`register`", "points more", "mean RE, deg", "mean TE, cm"]
    return table([*header, "RMSE protocol"], body) + made_by(
        found.path("verified", VERIFIED[0], "summary.csv")
    )


def gpu_recall(found: Results) -> str:
    """Recall on a GPU in %, of the methods that can use one."""
    path = found.gpu_recall_file
    rows = read_rows(path)
    cells = {key: percent(str(value)) for key, value in found.gpu_recalls().items()}
    pairs = {row["benchmark"]: row["pairs"] for row in rows}
    header = ["method", *(f"{BENCHMARKS[b]} ({n} pairs)" for b, n in pairs.items())]
    methods = dict.fromkeys(row["method"] for row in rows)
    body = [[title_of(m), *(cells.get((m, b), "-") for b in pairs)] for m in methods]
    return table(header, body) + made_by(path)


def leads(found: Results) -> str:
    """Recall minus VBReg's, in points."""
    summaries = {benchmark: found.summary(benchmark) for benchmark in BENCHMARKS}
    header = ["method", *BENCHMARKS.values()]
    methods = [m for m in summaries["3dmatch_fpfh"] if m.partition(":")[0] != "vbreg"]
    rows = [
        [title_of(m), *(lead(rows[m]) if m in rows else "-" for rows in summaries.values())]
        for m in methods
    ]
    return table(header, rows)


def scenes(found: Results, benchmark: str) -> str:
    """Recall in % by scene."""
    every = read_rows(found.path("table1", benchmark, "summary.csv"))
    rows = {(row["method"], row["scene"]): row for row in every}
    names = list(dict.fromkeys(row["scene"] for row in every if row["scene"] != "all"))
    methods = list(dict.fromkeys(row["method"] for row in every))
    header = ["method", *(f"{name} ({rows[methods[0], name]['pairs']})" for name in names)]
    body = [[title_of(m), *(percent(rows[m, name]["recall"]) for name in names)] for m in methods]
    return table(header, body)


def points(found: Results) -> str:
    """Recall in % with fewer and fewer points (table 2)."""
    rows = read_rows(found.path("table2", "table2.csv"))
    columns = list(dict.fromkeys(row["column"] for row in rows))
    cells = {(row["method"], row["column"]): percent(row["recall"]) for row in rows}
    methods = list(dict.fromkeys(row["method"] for row in rows))
    body = [[title_of(m), *(cells.get((m, c), "-") for c in columns)] for m in methods]
    return table(["method", *columns], body) + made_by(found.path("table2", "table2.csv"))


def fewest_points(found: Results) -> str:
    """Recall minus VBReg's with the fewest points of table 2, in points."""
    rows = read_rows(found.path("table2", "table2.csv"))
    columns = {name: int(name.rpartition(", ")[2]) for name in (row["column"] for row in rows)}
    fewest = [name for name, count in columns.items() if count == min(columns.values())]
    cells = {(row["method"], row["column"]): lead(row) for row in rows}
    methods = list(dict.fromkeys(row["method"] for row in rows if row["method"] != "vbreg"))
    body = [[title_of(m), *(cells.get((m, c), "-") for c in fewest)] for m in methods]
    return table(["method", *fewest], body)


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
    return table(header, body) + made_by(path)


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
        about = "shipped weights" if name == "table3_search" else "trained for the same time"
        body.append(
            [about, *(f"{lead(cells[c], sign)}, {cells[c]['pairs']} pairs" for c in columns)]
        )
    return table(["with latent features minus without", *columns], body)


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
    """A speed table as it is, with words for headings."""
    rows = found.speed(hardware, name)
    header = [heading(column) for column in rows[0]]
    body = [[cell(column, text) for column, text in row.items()] for row in rows]
    return table(header, body) + made_by(found.path("speed", hardware, f"{name}.csv"))


def backends_of(rows: Iterable[Row]) -> str:
    """What computed them, where the file says so."""
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
    return table(header, body) + made_by(found.path("speed", hardware, "stages.csv"))


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
    laws = [
        f"`{weights_of(w)}` {exponent([r for r in rows if r['weights'] == w]):.2f}" for w in weights
    ]
    text = f"Exponent of the time from {GROWTH_FROM} matches on: {', '.join(laws)}."
    return (
        table(header, body)
        + f"\n\n{text}"
        + made_by(found.path("speed", hardware, "growth.csv"), " ")
    )


def exponent(rows: Sequence[Row]) -> float:
    far = [row for row in rows if int(row["matches"]) >= GROWTH_FROM]
    if len(far) < 2:
        return float("nan")
    x, y = (np.log([float(row[c]) for row in far]) for c in ("matches", "median_ms"))
    return float(np.polyfit(x, y, 1)[0])


def clouds(found: Results) -> str:
    """From clouds to pose, on a GPU and on a CPU, side by side."""
    rows = {hardware: found.speed(hardware, "clouds") for hardware in (GPU, CPU)}
    by_title = {h: {title_of(row["method"]): row for row in rows[h]} for h in rows}
    titles = dict.fromkeys(title for titles in by_title.values() for title in titles)
    header = ["from clouds to pose"]
    for hardware in rows:
        name = read_run(found.path("speed", hardware, "clouds.csv")).hardware
        header += [f"ms, {name}", "right"] + ["backend"] * bool(backends_of(rows[hardware]))
    body = []
    for title in titles:
        line = [title]
        for hardware in rows:
            row = by_title[hardware].get(title)
            columns = ["median_ms", "right"] + ["backend"] * bool(backends_of(rows[hardware]))
            line += [cell(c, row[c]) if row else "-" for c in columns]
        body.append(line)
    return table(header, body)


# The model and its features


def model(found: Results) -> str:
    """VBReg's rows of every benchmark."""
    body = []
    for benchmark, title in BENCHMARKS.items():
        for method, row in found.summary(benchmark).items():
            if method.partition(":")[0] != "vbreg":
                continue
            shares = (percent(row[f"inlier_{c}"]) for c in ("precision", "recall", "f1"))
            errors = f"{float(row['rotation_error']):.2f}", percent(row["translation_error"])
            weights = f"`{weights_of(method.partition(':')[2])}`"
            body.append([f"{title} ({row['pairs']} pairs)", weights, recall(row), *errors, *shares])
    columns = ("poses found, %", "RE, deg", "TE, cm", "inlier precision, %", "recall, %", "F1, %")
    return table(["", "weights", *columns], body)


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
    return table(["benchmark", "network", "pairs", *columns], body)


def ambiguity(found: Results) -> str:
    """How often two matches are compatible, in %."""
    rows = read_rows(found.path("figures", "ambiguity.csv"))
    columns = ("inlier_inlier", "inlier_outlier", "outlier_outlier")
    body = [
        [benchmark, str(len(group)), *(f"{100 * mean(group, c):.1f}" for c in columns)]
        for (benchmark,), group in grouped(rows, "benchmark")
    ]
    return table(["benchmark", "pairs", "both right, %", "one right, %", "both wrong, %"], body)


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
    return table(header, body)


def made_by(path: Path, before: str = "\n\n") -> str:
    sentence = read_run(path).sentence()
    return before + sentence if sentence else ""


Table = Callable[[Results], str]
TABLES: Mapping[str, Table] = {
    # name: what makes it, of which files in docs/results
    "results": results,  # table1/*/summary.csv, speed/*/matches.csv
    "commands": commands,  # run.json (or the page) beside these
    "level": level,  # table1/*/summary.csv
    "leads": leads,
    "descriptors": descriptors,
    "gpu-recall": gpu_recall,  # table1/h200/recall.csv
    "verified": verified,  # verified/*/summary.csv
    "kitti-scenes": partial(scenes, benchmark="kitti_fpfh"),
    "points": points,  # table2/table2.csv
    "fewest-points": fewest_points,
    "ablation-search": partial(ablation, name="table3_search"),  # table3/table3_search.csv
    "ablation-networks": partial(ablation, name="table3_networks"),
    "latent-features": latent_features,  # both of table3
    "clouds": clouds,  # speed/*/clouds.csv
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
    "model": model,  # table1/*/summary.csv
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
    """The document with its tables made anew, and the names of those that differ."""
    parts, differ, last = [], [], 0
    for name, start, end in places(text, document):
        if name not in TABLES:
            raise ResultsError(
                f"{document}: unknown table {name!r}: expected one of {', '.join(TABLES)}"
            )
        new = f"\n{TABLES[name](found)}\n"
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
