"""Which run made which cells of tables 1 and 2, and by which commands."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from results import (
    CPU,
    DATASETS,
    DESCRIPTORS,
    FILE,
    GPU,
    UNKNOWN,
    Key,
    Results,
    read_runs,
    title_of,
)


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


def cells_of_files(found: Results, name: str) -> dict[Path, list[Key]]:
    """The CSV files behind table 1 or 2 with the cells shown of each, that of most cells first."""
    files: dict[str, list[Key]] = {}
    for key, row in found.rows(name).items():
        files.setdefault(row[FILE], []).append(key)
    return {Path(file): files[file] for file in sorted(files, key=lambda f: -len(files[f]))}


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
