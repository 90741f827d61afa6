"""Tables of the network, of its parts and its features, and of Theorem 1."""

from __future__ import annotations

import json

import numpy as np
from results import NotMeasuredError, Results, ResultsError, made_by, read_rows, weights_of
from table_cells import below, grouped, lead, mean, number_of, percent, recall

from vbreg.benchmark.markdown import markdown_table
from vbreg.experiments.tables import NETWORKS


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


def ablation_learning(found: Results) -> str:
    """Poses and labels of held-out match sets while the networks of table 3 learned."""
    body, steps = [], []
    for name, title in NETWORKS.items():
        log = found.path("training", "ablation", name, "log.jsonl")
        if not log.exists():
            raise NotMeasuredError(f"no file {log}")
        records = map(json.loads, log.read_text(encoding="utf-8").splitlines())
        looks = [record for record in records if record["kind"] == "validation"]
        steps = [str(look["step"]) for look in looks]
        shares = ([look[column] for look in looks] for column in ("recall", "inlier_f1"))
        body.append([title, *(f"{100 * share:.1f}" for part in shares for share in part)])
    header = [f"{what}, step {step}" for what in ("poses, %", "F1, %") for step in steps]
    return markdown_table(["network", *header], body)


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
