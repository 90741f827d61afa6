"""The paper's tables on the data there is: each a list of benchmarks, one method a row."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from vbreg import pretrained
from vbreg.benchmark.predict import Opener, predict
from vbreg.benchmark.problems import Settings
from vbreg.benchmark.report import describe_run, machine, write_csv, write_report
from vbreg.benchmark.score import Interval, Summary, score, summarise, title_of
from vbreg.errors import VBRegError
from vbreg.io import atomic_path
from vbreg.methods import METHODS, Method, available, open_method
from vbreg.methods.vbreg import VBRegMethod
from vbreg.model import VBReg
from vbreg.voting import VotingConfig

POINTS = (5000, 2500, 1000, 500, 250)
STORED_MATCHES = "matches:learned"
DESCRIBED = {"FPFH": "fpfh", "learned": "learned", "stored matches": STORED_MATCHES}
ABLATION = "configs/ablation"
NETWORKS = {
    "sc_xyz": "SCNonlocal, xyz",
    "vb_xyz": "VBNonlocal, xyz",
    "sc_feat": "SCNonlocal, feat",
    "vb_feat": "VBNonlocal, feat",
    "sc_cls": "SCNonlocal, xyz, loss at every layer",
    "vb_L6": "VBNonlocal, xyz, L = 6",
    "vb_L9": "VBNonlocal, xyz, L = 9",
    "vb_z32": "VBNonlocal, xyz, z = 32",
    "vb_z64": "VBNonlocal, xyz, z = 64",
}


@dataclass(frozen=True)
class Column:
    """One benchmark of a table."""

    title: str
    settings: Settings
    root: Path

    @property
    def slug(self) -> str:
        """Return the title as the name of a folder."""
        return re.sub(r"[^\w]+", "_", self.title).strip("_").lower()


@dataclass(frozen=True)
class Runs:
    """How all benchmarks of a table are run."""

    output: Path
    command: str
    device: str = "auto"
    every: int = 1
    seed: int = 0
    workers: int = 1
    quiet: bool = False


@dataclass(frozen=True)
class Cell:
    """A row of a table's CSV: one method on one benchmark."""

    column: str
    method: str
    pairs: int
    recall: Interval
    lead: Interval
    rotation_error: float
    translation_error: float
    inlier_f1: float
    backend: str
    seconds_median: float


Methods = Sequence[str] | Mapping[str, Opener]
Read = Callable[[Summary], str]


def table1(root: Path, runs: Runs, methods: Methods) -> Path:
    """Compare every method on 3DMatch and KITTI (the paper's Table 1)."""
    indoor, outdoor = threedmatch_root(root), kitti_root(root)
    columns = [
        Column(f"{title}, {name}", Settings.of(dataset, descriptor=descriptor), root)
        for title, dataset, root in (
            ("3DMatch", "3dmatch", indoor),
            ("3DLoMatch", "3dlomatch", indoor),
            ("KITTI", "kitti", outdoor),
        )
        for name, descriptor in DESCRIBED.items()
        if dataset != "kitti" or descriptor != STORED_MATCHES
    ]
    title = "Table 1: every method on 3DMatch, 3DLoMatch and KITTI"
    return _table("table1", title, columns, methods, runs, _recall_and_errors)


def table2(root: Path, runs: Runs, methods: Methods) -> Path:
    """Compare methods on 3DLoMatch with ever fewer keypoints (the paper's Table 2).

    Descriptors are computed on all points and matched between the sampled ones, so fewer points
    mean fewer inliers, too. Stored matches are thinned, which leaves their inlier ratio as it is.
    """
    indoor = threedmatch_root(root)
    columns = [
        Column(
            f"{title}, {points}",
            Settings.of("3dlomatch", descriptor=descriptor, points=points),
            indoor,
        )
        for title, descriptor in DESCRIBED.items()
        for points in POINTS
    ]
    title = "Table 2: recall (%) on 3DLoMatch against the number of points"
    return _table("table2", title, columns, methods, runs, _recall)


def table3(root: Path, runs: Runs, weights: Path | None) -> Path:
    """Compare ablations of the search, on the shipped weights (the paper's Table 3).

    Where a folder of networks is given that were trained for equal GPU minutes, these are compared
    as well.
    """
    indoor = threedmatch_root(root)
    columns = [
        Column("3DMatch, FPFH", Settings.of("3dmatch", descriptor="fpfh"), indoor),
        Column("3DLoMatch, FPFH", Settings.of("3dlomatch", descriptor="fpfh"), indoor),
    ]
    networks = ablations(weights) if weights else {}
    title = "Table 3: ablations of the search, on the shipped weights"
    page = _table("table3_search", title, columns, searches(), runs, _recall_and_lead, SEARCHES)
    if networks:
        title = "Table 3: ablations of the network, each trained for the same time"
        over = {row: f"{NETWORKS['sc_xyz']}; {row.partition('; ')[2]}" for row in networks}
        page = _table("table3", title, columns, networks, runs, _recall_and_lead, over)
    return page


def ablations(weights: Path) -> dict[str, Opener]:
    """Return networks that differ in one thing, each with PointDSC's search and with ours."""
    rows: dict[str, Opener] = {}
    for name, title in NETWORKS.items():
        file = weights / name / "weights.safetensors"
        if not file.exists():
            raise VBRegError(
                f"no weights for {title!r}: looked for {file.absolute()}; train them with "
                f"`vbreg train {ABLATION}/{name}.toml -o {weights / name}`"
            )
        rows[f"{title}; PointDSC's search"] = partial(open_method, f"pointdsc:{file}")
        rows[f"{title}; Vote and CS"] = partial(open_method, f"vbreg:{file}")
    return rows


def searches() -> dict[str, Opener]:
    """Return the search step by step, on the shipped weights.

    The network without latent features, trained on the same matches, comes with PointDSC's search
    and with ours.
    """
    shipped, plain = "universal", "plain"
    return {
        "PointDSC's search": partial(open_method, f"pointdsc:{shipped}"),
        "Vote": partial(_open_voting, VotingConfig(min_seeds=1)),
        "Vote and CS": partial(open_method, "vbreg"),
        "Vote and CS, attention rows vote, too": partial(
            _open_voting, VotingConfig(attention_voters=True)
        ),
        "SCNonlocal, PointDSC's search": partial(open_method, f"pointdsc:{plain}"),
        "SCNonlocal, Vote and CS": partial(open_method, f"vbreg:{plain}"),
    }


SEARCHES = {  # what a row is compared with, where it is not the first
    "SCNonlocal, Vote and CS": "Vote and CS",
}


def _open_voting(voting: VotingConfig, device: torch.device) -> Method:
    """Open the shipped model with another search."""
    network = pretrained.load_network(pretrained.weights_path("universal")).to(device)
    return VBRegMethod(VBReg(network, voting=voting), pretrained.fingerprint("universal"))


def installed_methods() -> list[str]:
    """List every method of matches that can be run here, VBReg first; `register` sees clouds."""
    return [name for name in METHODS if available(name) and name != "register"]


def threedmatch_root(root: Path) -> Path:
    """Return the folder of 3DMatch below `root`."""
    return _first(root, ("3dmatch", "3DMatch", "."), "3DMatch", "fragments")


def kitti_root(root: Path) -> Path:
    """Return the folder of KITTI below `root`."""
    return _first(root, ("kitti/dev", "kitti", "KITTI", "."), "KITTI", None)


def _first(root: Path, names: Sequence[str], what: str, inside: str | None) -> Path:
    for name in names:
        if (root / name / (inside or ".")).is_dir():
            return root / name
    looked = ", ".join(str((root / name / (inside or "")).absolute()) for name in names)
    raise VBRegError(f"{what} not found below {root}: looked for {looked}")


def _table(
    name: str,
    title: str,
    columns: Sequence[Column],
    methods: Methods,
    runs: Runs,
    read: Read,
    over: Mapping[str, str] | None = None,
) -> Path:
    """Run every column, each into a folder of its own, and put them side by side.

    `over` says what a row is compared with.
    """
    cells = {column.title: _column(column, methods, runs, over) for column in columns}
    names = list(methods)
    output = runs.output
    flat = [
        Cell(
            column,
            s.method,
            s.pairs,
            s.recall,
            s.lead,
            s.rotation_error,
            s.translation_error,
            s.inlier_f1,
            s.backend,
            s.seconds_median,
        )
        for column, found in cells.items()
        for s in found.values()
    ]
    write_csv(output / f"{name}.csv", list(Cell.__dataclass_fields__), flat)
    pairs = [next(iter(found.values())).pairs for found in cells.values()]
    header = ["method", *(f"{c} ({n} pairs)" for c, n in zip(cells, pairs, strict=True))]
    rows = [[title_of(m), *(read(found[m]) for found in cells.values())] for m in names]
    if over is not None:
        header.append("compared with")
        rows = [[*row, over.get(m, names[0])] for m, row in zip(names, rows, strict=True)]
    lines = [header, ["---"] * len(header), *rows]
    devices = [s.device for found in cells.values() for s in found.values()]
    about = describe_run(replace(columns[0].settings, seed=runs.seed), runs.command, devices)
    path = output / f"{name}.md"
    with atomic_path(path) as temporary:
        table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        made = f"Made by `{about['command']}`, {machine(about)}."
        temporary.write_text(
            f"# {title}\n\n{_LEGEND[read]}\n\n{table}\n\n{made}\n", encoding="utf-8"
        )
    return path


def _column(
    column: Column, methods: Methods, runs: Runs, over: Mapping[str, str] | None
) -> dict[str, Summary]:
    settings = replace(column.settings, seed=runs.seed)
    folder = runs.output / column.slug
    pairs = predict(
        settings,
        methods,
        folder,
        root=column.root,
        device=runs.device,
        every=runs.every,
        workers=runs.workers,
        quiet=runs.quiet,
    )
    rows = score(folder, list(methods), pairs)
    write_report(folder, rows, settings, runs.command)
    return {s.method: s for s in summarise(rows, runs.seed, over) if s.scene == "all"}


def _recall(s: Summary) -> str:
    return f"{100 * s.recall.value:.1f} ({100 * s.recall.low:.1f} .. {100 * s.recall.high:.1f})"


def _recall_and_errors(s: Summary) -> str:
    errors = f"{s.rotation_error:.2f} deg, {100 * s.translation_error:.2f} cm"
    time = "" if math.isnan(s.seconds_median) else f"; {1e3 * s.seconds_median:.0f} ms"
    return f"{_recall(s)}; {errors}{time}"


def _recall_and_lead(s: Summary) -> str:
    lead = f"{100 * s.lead.value:+.1f} ({100 * s.lead.low:+.1f} .. {100 * s.lead.high:+.1f})"
    return f"{100 * s.recall.value:.1f}; {lead}"


_LEGEND: Mapping[Read, str] = {
    _recall: "Recall in % with its 95 % bootstrap interval over pairs.",
    _recall_and_errors: "Recall in % with its 95 % bootstrap interval over pairs; mean rotation "
    "and translation error of the successes; median time from matches to pose, where one process "
    "had the machine for itself.",
    _recall_and_lead: "Recall in %; its difference to the row that it is compared with, and a 95 % "
    "bootstrap interval over pairs.",
}
