"""Tables of time and memory."""

from __future__ import annotations

from collections.abc import Iterable

from results import CPU, GPU, REFERENCE, Results, Row, hardware_of, made_by, title_of, weights_of
from table_cells import below, number

from vbreg.benchmark.markdown import markdown_table
from vbreg.benchmark.power_law import GROWTH_FROM, exponent

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


def speed(found: Results, hardware: str, name: str) -> str:
    """Return a table of `docs/results/speed` with all its rows and columns, headings in words."""
    rows = found.speed(hardware, name)
    header = [heading(column) for column in rows[0]]
    body = [[cell(column, text) for column, text in row.items()] for row in rows]
    return below(
        markdown_table(header, body), made_by(found.path("speed", hardware, f"{name}.csv"))
    )


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


def backends_of(rows: Iterable[Row]) -> str:
    """Return the backends that computed some rows, or nothing where their file does not say."""
    return " and ".join(dict.fromkeys(row["backend"] for row in rows if row.get("backend")))
