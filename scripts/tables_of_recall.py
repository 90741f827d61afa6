"""Tables of recall: every method, other papers, the call itself, fewer points."""

from __future__ import annotations

from results import (
    CPU,
    DATASETS,
    DESCRIPTORS,
    GPU,
    OPEN3D,
    REFERENCE,
    SHIPPED,
    Key,
    NotMeasuredError,
    Results,
    Row,
    most_pairs,
    read_rows,
    title_of,
)
from table_cells import (
    CALL,
    INDOOR,
    VERIFIED,
    below,
    grouped,
    lead,
    number,
    number_of,
    of_all_pairs,
    percent,
    recall,
    runs_of,
    with_footnote,
)

from vbreg.benchmark.markdown import markdown_table

COMPACT = (
    *((dataset, name) for dataset in INDOOR for name in ("FPFH", "learned")),
    (DATASETS[-1], "FPFH"),
)  # columns of the README's table
ENOUGH_PAIRS = 100  # to say that two methods are level


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
