"""Write the tables in README.md, docs and the model card from the CSV files in docs/results.

    python scripts/write_tables.py            # or `make tables`
    python scripts/write_tables.py --check    # exit status 1 and a list where one is out of date

A document marks the place of a table by its name:

    <!-- table: results -->
    <!-- end table -->

Everything between the two lines is replaced. `TABLES` below says which function makes which table.
To add one, write a function in a module `tables_of_*` beside this that takes `Results` and gives
Markdown, and add a row to `TABLES`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from results import CPU, DATASETS, GPU, SAMPLED, NotMeasuredError, Results, ResultsError
from tables_of_features import (
    ablation,
    ablation_learning,
    ambiguity,
    latent_features,
    model,
    similarity,
    theorem,
)
from tables_of_recall import (
    descriptors,
    everything,
    fewest_points,
    level,
    newer_papers,
    points,
    predator,
    published,
    recalls,
    results,
    shipped,
    verified,
)
from tables_of_runs import commands, sources
from tables_of_speed import aims, clouds, growth, matches, speed, stages

ROOT = Path(__file__).parents[1]


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
    "ablation-learning": ablation_learning,  # training/ablation/*/log.jsonl
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
