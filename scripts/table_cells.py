"""What the tables of the documents are made of: numbers, intervals, and sentences below a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from results import DATASETS, FILE, REFERENCE, Recall, Row, made_by

CALL = "register"  # the method that is `vbreg.register` as users call it
VERIFIED = "verified"  # one attempt of it, on given matches
INDOOR = DATASETS[:2]


def number(text: str) -> str:
    """Three digits or so: 5.8, 35.4, 897; text stays text."""
    try:
        value = float(text)
    except ValueError:
        return text or "-"
    return f"{value:.1f}" if abs(value) < 100 and "." in text else f"{value:.0f}"


def number_of(text: str, scale: float) -> str:
    return f"{scale * float(text):.2f}" if text else "-"


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


def grouped(rows: Sequence[Row], *columns: str) -> Iterator[tuple[tuple[str, ...], list[Row]]]:
    keys = [tuple(row[c] for c in columns) for row in rows]
    for key in dict.fromkeys(keys):
        yield key, [row for row, own in zip(rows, keys, strict=True) if own == key]


def runs_of(rows: Iterable[Row]) -> list[str]:
    """The runs behind rows of tables 1 and 2, one sentence each, that of most rows first."""
    files = Counter(row[FILE] for row in rows)
    return [made_by(Path(file)) for file, _ in files.most_common()]
