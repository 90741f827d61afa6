"""The paper's tables on the data there is: each a list of benchmarks, one method a row."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console

from vbreg import pretrained
from vbreg.benchmark.markdown import markdown_table
from vbreg.benchmark.predict import Job, Opener, openers_of, predict_all
from vbreg.benchmark.problems import MATCHES, Settings, open_sequence
from vbreg.benchmark.report import describe_run, machine, write_csv
from vbreg.benchmark.score import Interval, Summary, score, summarise, title_of
from vbreg.datasets.matches import stored_folder
from vbreg.descriptors import is_shipped
from vbreg.errors import VBRegError
from vbreg.io import atomic_path
from vbreg.methods import METHODS, Method, available, open_method
from vbreg.methods.vbreg import VBRegMethod
from vbreg.model import VBReg
from vbreg.voting import VotingConfig

POINTS = (5000, 2500, 1000, 500, 250)


class Source(NamedTuple):
    """Where the matches of a column come from."""

    descriptor: str
    as_register: bool = False  # matched as `register` does, else as the papers do


AS_REGISTER = "as register"
DESCRIBED = {
    "FPFH": Source("fpfh"),
    "Open3D's FPFH": Source("matches:open3d_fpfh"),  # what the papers match by
    "learned": Source("learned"),
    "FCGF": Source("fcgf"),
    "stored matches": Source("matches:learned"),
    AS_REGISTER: Source("learned", as_register=True),  # what users get if they say nothing
}
MADE_BY = {  # how stored matches are made, where a script of ours does it
    "matches:open3d_fpfh": "`python scripts/make_open3d_matches.py --root DATA/3dmatch`",
}
INDOOR = {"3DMatch": "3dmatch", "3DLoMatch": "3dlomatch"}
OUTDOOR = ("KITTI 10 m", "KITTI 20 m")
FAR_DRIVE = "_20m"  # how folders of pairs 20 m apart end; the pairs of all others are 10 m apart
REFERENCE = "vbreg:fast"  # what methods are compared with, where it runs
SLOW = ("mac", "teaser", "teaser-official", "trde")  # a few tenths of a second a pair, or more
FEW_PAIRS = 200  # of a column; up to so many, slow methods see all
LOOK_AT_CLOUDS = ("verified", "sc2pcr++")  # without clouds these are `vbreg:fast` and `sc2pcr`
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


def slug_of(title: str) -> str:
    """Return a title as the name of a folder, or of a choice on the command line."""
    return re.sub(r"[^\w]+", "_", title.replace("'s", "")).strip("_").lower()


def stored_name(descriptor: str) -> str | None:
    """Return the NAME of `matches:NAME`; None for a descriptor that is computed from clouds."""
    kind, _, name = descriptor.partition(":")
    return name if kind == MATCHES else None


@dataclass(frozen=True)
class Column:
    """One benchmark of a table."""

    dataset: str  # as printed
    descriptor: str  # as printed
    settings: Settings
    root: Path
    scenes: tuple[str, ...] | None = None

    @property
    def title(self) -> str:
        """Return the data set, the descriptor and, where they are sampled, how many points."""
        points = self.settings.points
        return ", ".join([self.dataset, self.descriptor, *([str(points)] if points else [])])

    @property
    def slug(self) -> str:
        """Return the title as the name of a folder."""
        return slug_of(self.title)

    def runs(self, method: str) -> bool:
        """Tell whether a method has something of its own to show here."""
        name = method.partition(":")[0]
        if name in METHODS and METHODS[name].needs == "clouds":  # it makes its own matches
            shown = self.descriptor == (AS_REGISTER if name == "register" else "FPFH")
            return shown and self.settings.points is None
        if stored_name(self.settings.descriptor):
            return name not in LOOK_AT_CLOUDS
        return name != "verified" or self.settings.points is None


@dataclass(frozen=True)
class Runs:
    """How all benchmarks of a table are run."""

    output: Path
    command: str
    device: str = "auto"
    every: int = 1
    every_slow: int = 1  # of these pairs, for the methods in `SLOW`
    seed: int = 0
    workers: int = 1
    quiet: bool = False


@dataclass(frozen=True)
class Choice:
    """The part of a table that is asked for; None is all."""

    datasets: Sequence[str] | None = None  # by slug: 3dmatch, kitti_10_m, ...
    descriptors: Sequence[str] | None = None  # fpfh, open3d_fpfh, stored_matches, ...

    def __post_init__(self) -> None:
        for name, known in (
            ("datasets", [*INDOOR, *OUTDOOR]),
            ("descriptors", list(DESCRIBED)),
        ):
            slugs = [slug_of(title) for title in known]
            if unknown := sorted(set(getattr(self, name) or ()) - set(slugs)):
                raise VBRegError(
                    f"{name} {', '.join(unknown)}: expected some of {', '.join(slugs)}"
                )

    def has(self, *, dataset: str, descriptor: str) -> bool:
        """Tell whether a column is asked for, by the titles of both."""
        return (self.datasets is None or slug_of(dataset) in self.datasets) and (
            self.descriptors is None or slug_of(descriptor) in self.descriptors
        )


@dataclass(frozen=True)
class TablePlan:
    """The columns of a table, and why others are left out."""

    columns: Sequence[Column]
    left_out: Mapping[str, str]  # why, by title

    def sentences(self) -> list[str]:
        """Return what is left out and why, in words."""
        return [f"Left out: {name}, since {why}." for name, why in self.left_out.items()]


@dataclass(frozen=True)
class Cell:
    """A row of a table's CSV: one method on one benchmark."""

    column: str
    dataset: str
    descriptor: str
    points: int | None
    method: str
    pairs: int
    recall: Interval
    over: str  # the method that the lead is over, on the same pairs
    lead: Interval
    rotation_error: float
    translation_error: float
    rmse_pairs: int
    rmse_recall: float
    inlier_ratio: float
    inlier_precision: float
    inlier_recall: float
    inlier_f1: float
    device: str
    backend: str
    seconds_median: float  # from matches to pose; nan where several processes shared the machine
    seconds_p95: float
    megabytes: float  # the highest peak


EVERYTHING = Choice()
Methods = Sequence[str] | Mapping[str, Opener]
Read = Callable[[Cell], str]
NO_WEIGHTS = "this copy of vbreg has no weights for it"


def table1(root: Path, runs: Runs, methods: Methods, choice: Choice = EVERYTHING) -> Path:
    """Compare every method on 3DMatch and KITTI (the paper's Table 1)."""
    title = "Table 1: every method on 3DMatch, 3DLoMatch and KITTI"
    return _table("table1", title, columns_of_table1(root, choice), methods, runs, _recall)


def columns_of_table1(root: Path, choice: Choice = EVERYTHING) -> TablePlan:
    """Return the columns of Table 1, those of one descriptor side by side."""
    columns: list[Column] = []
    left_out: dict[str, str] = {}
    for name, (descriptor, as_register) in DESCRIBED.items():
        wanted = [
            title
            for title in (*INDOOR, *OUTDOOR)
            if choice.has(dataset=title, descriptor=name)
            and (title in INDOOR or not stored_name(descriptor))
        ]
        if wanted and (why := _why_not(descriptor, root)):
            left_out[name] = why
            continue
        for title in wanted:
            if title in INDOOR:
                settings = Settings.of(
                    INDOOR[title], descriptor=descriptor, as_register=as_register
                )
                columns.append(Column(title, name, settings, threedmatch_root(root)))
                continue
            settings = Settings.of("kitti", descriptor=descriptor, as_register=as_register)
            outdoor = kitti_root(root)
            scenes = _drives(settings, outdoor, far=title == OUTDOOR[1])
            if scenes:
                columns.append(Column(title, name, settings, outdoor, scenes))
            else:
                left_out[title] = f"there are no such pairs in {outdoor.name}"
    return TablePlan(columns, left_out)


def table2(root: Path, runs: Runs, methods: Methods, choice: Choice = EVERYTHING) -> Path:
    """Compare methods on 3DLoMatch with ever fewer keypoints (the paper's Table 2).

    Descriptors are computed on all points and matched between the sampled ones, so fewer points
    mean fewer inliers, too. Stored matches are thinned, which leaves their inlier ratio as it is.
    """
    title = "Table 2: recall (%) on 3DLoMatch against the number of points"
    return _table("table2", title, columns_of_table2(root, choice), methods, runs, _recall)


def columns_of_table2(root: Path, choice: Choice = EVERYTHING) -> TablePlan:
    """Return the columns of Table 2, those of one descriptor side by side."""
    indoor, dataset = threedmatch_root(root), "3DLoMatch"
    by_papers = {
        name: source.descriptor
        for name, source in DESCRIBED.items()
        if not source.as_register  # whose number of points is its own
    }
    names = [name for name in by_papers if choice.has(dataset=dataset, descriptor=name)]
    left_out = {name: why for name in names if (why := _why_not(by_papers[name], root))}
    columns = [
        Column(
            dataset,
            name,
            Settings.of(INDOOR[dataset], descriptor=by_papers[name], points=points),
            indoor,
        )
        for name in names
        if name not in left_out
        for points in POINTS
    ]
    return TablePlan(columns, left_out)


def _why_not(descriptor: str, root: Path) -> str | None:
    """Return why a descriptor cannot be used on the data below `root`; None where it can be."""
    if not is_shipped(descriptor):
        return NO_WEIGHTS
    name = stored_name(descriptor)
    if name is None or (folder := stored_folder(threedmatch_root(root), name)).is_dir():
        return None
    made = f"; {MADE_BY[descriptor]} makes it" if descriptor in MADE_BY else ""
    return f"there is no folder {folder.name} beside the fragments of 3DMatch{made}"


def table3(root: Path, runs: Runs, weights: Path | None) -> Path:
    """Compare ablations of the search, on the shipped weights (the paper's Table 3).

    Where a folder of networks is given that were trained by the same steps, these are compared
    as well.
    """
    indoor = threedmatch_root(root)
    columns = [
        Column(title, "FPFH", Settings.of(dataset, descriptor="fpfh"), indoor)
        for title, dataset in INDOOR.items()
    ]
    plan = TablePlan(columns, {})
    networks = ablations(weights) if weights else {}
    title = "Table 3: ablations of the search, on the shipped weights"
    page = _table("table3_search", title, plan, searches(), runs, _recall_and_lead, SEARCHES)
    if networks:
        title = "Table 3: ablations of the network, each trained by the same steps"
        over = {row: f"{NETWORKS['sc_xyz']}; {row.partition('; ')[2]}" for row in networks}
        page = _table("table3_networks", title, plan, networks, runs, _recall_and_lead, over)
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
    """List every method whose package is here, VBReg first: its default and its large network.

    Those whose weights are missing are among them; a table says that it leaves them out.
    """
    names = (name for name, entry in METHODS.items() if available(name) or entry.weights)
    return [REFERENCE, *names]


def _with_weights(methods: Methods) -> tuple[Methods, dict[str, str]]:
    """Return the methods whose weights are here, and why others are left out."""
    if isinstance(methods, Mapping):
        return methods, {}
    without = [m for m in methods if m in METHODS and METHODS[m].weights and not available(m)]
    chosen = [method for method in methods if method not in without]
    return chosen, {METHODS[method].title: NO_WEIGHTS for method in without}


def _with_methods(plan: TablePlan, methods: Sequence[str]) -> TablePlan:
    """Return the plan without the columns in which none of the methods runs."""
    run = [column for column in plan.columns if any(map(column.runs, methods))]
    why = f"none of the methods asked for ({', '.join(methods) or 'none is left'}) runs there"
    idle = {column.title: why for column in plan.columns if column not in run}
    return TablePlan(run, {**plan.left_out, **idle})


def _drives(settings: Settings, root: Path, *, far: bool) -> tuple[str, ...]:
    """Return the drives whose pairs are 20 m apart, or those whose pairs are 10 m apart."""
    scenes = dict.fromkeys(open_sequence(settings, root).scenes)
    return tuple(scene for scene in scenes if scene.endswith(FAR_DRIVE) == far)


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
    plan: TablePlan,
    methods: Methods,
    runs: Runs,
    read: Read,
    over: Mapping[str, str] | None = None,
) -> Path:
    """Run every column, the poses of each in a folder of its own, and put them side by side.

    `over` says what a row is compared with. Table and page are written anew after every column, so
    that a run that is stopped leaves those that are done.
    """
    chosen, left_out = _with_weights(methods)
    openers = openers_of(chosen)
    plan = _with_methods(replace(plan, left_out={**plan.left_out, **left_out}), list(openers))
    _say_what_is_left_out(plan, quiet=runs.quiet)
    jobs = [_job(column, openers, runs) for column in plan.columns]
    cells: list[Cell] = []
    start = time.perf_counter()
    for column, job in zip(
        plan.columns,
        predict_all(jobs, openers, device=runs.device, workers=runs.workers, quiet=runs.quiet),
        strict=True,
    ):
        cells += _cells(column, job, over or {})
        write_csv(runs.output / f"{name}.csv", list(Cell.__dataclass_fields__), cells)
        _write_run(name, plan, runs, cells)
        page = _page(title, list(openers), cells, plan, runs, read, over)
        with atomic_path(runs.output / f"{name}.md") as temporary:
            temporary.write_text(page, encoding="utf-8")
        if not runs.quiet:
            seconds = time.perf_counter() - start
            Console(stderr=True).print(f"{column.title}: done after {seconds:.0f} s")
    return runs.output / f"{name}.md"


def _say_what_is_left_out(plan: TablePlan, *, quiet: bool) -> None:
    """Print a sentence for each; where nothing else remains, that is an error."""
    sentences = plan.sentences()
    if not plan.columns:
        raise VBRegError(" ".join(["no column is left to run.", *sentences]))
    if not quiet:
        for sentence in sentences:
            Console(stderr=True).print(sentence)


def _job(column: Column, openers: Mapping[str, Opener], runs: Runs) -> Job:
    """Return the pairs of a column; slow methods see some of many."""
    job = Job.of(
        replace(column.settings, seed=runs.seed),
        [method for method in openers if column.runs(method)],
        runs.output / column.slug,
        root=column.root,
        every=runs.every,
        scenes=column.scenes,
    )
    if len(job.pairs) <= FEW_PAIRS:
        return job
    slow = [method for method in job.methods if method.partition(":")[0] in SLOW]
    return replace(job, strides=dict.fromkeys(slow, runs.every_slow))


def _cells(column: Column, job: Job, over: Mapping[str, str]) -> list[Cell]:
    """Score the methods of a column, each on its own pairs beside what it is compared with there.

    This is `vbreg:fast`, or else the first method.
    """
    first = REFERENCE if REFERENCE in job.methods else job.methods[0]
    other = {method: over.get(method, first) for method in job.methods}
    found: dict[str, Summary] = {}
    for stride in sorted({job.strides.get(method, 1) for method in job.methods}):
        group = [m for m in job.methods if job.strides.get(m, 1) == stride]
        scored = list(dict.fromkeys([*group, *(other[m] for m in group)]))
        rows = score(job.output, scored, job.pairs[::stride])
        summaries = summarise(rows, other, scenes=False)
        found |= {s.method: s for s in summaries if s.method in group}
    shared = [name for name in Cell.__dataclass_fields__ if name in Summary.__dataclass_fields__]
    return [
        Cell(
            column=column.title,
            dataset=column.dataset,
            descriptor=column.descriptor,
            points=column.settings.points,
            over=other[method],
            **{name: getattr(found[method], name) for name in shared},
        )
        for method in job.methods
    ]


def _write_run(name: str, plan: TablePlan, runs: Runs, cells: Sequence[Cell]) -> None:
    """Write the command, the machine and what is left out beside the table."""
    about = describe_run(plan.columns[0].settings, runs.command, [cell.device for cell in cells])
    del about["settings"]  # those of one column
    about |= {"every": runs.every, "every_slow": runs.every_slow, "slow": list(SLOW)}
    about |= {"left_out": dict(plan.left_out)}
    record = runs.output / "run.json"
    by_table = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
    with atomic_path(record) as path:
        path.write_text(json.dumps({**by_table, name: about}, indent=2) + "\n", encoding="utf-8")


def _page(
    title: str,
    methods: Sequence[str],
    cells: Sequence[Cell],
    plan: TablePlan,
    runs: Runs,
    read: Read,
    over: Mapping[str, str] | None,
) -> str:
    found = {(cell.method, cell.column): cell for cell in cells}
    columns = list(dict.fromkeys(cell.column for cell in cells))
    pairs = {c: max(cell.pairs for cell in cells if cell.column == c) for c in columns}
    header = ["method", *(f"{c} ({n} pairs)" for c, n in pairs.items())]
    rows = []
    for method in methods:
        row = [title_of(method)]
        for column in columns:
            cell = found.get((method, column))
            fewer = f", {cell.pairs} pairs" if cell and cell.pairs < pairs[column] else ""
            row.append(read(cell) + fewer if cell else "-")
        rows.append(row)
    if over is not None:
        header.append("compared with")
        rows = [[*r, over.get(m, methods[0])] for m, r in zip(methods, rows, strict=True)]
    table = markdown_table(header, rows)
    about = describe_run(plan.columns[0].settings, runs.command, [cell.device for cell in cells])
    made = f"Made by `{about['command']}`, {machine(about)}."
    return "\n\n".join([f"# {title}", _LEGEND[read], table, *plan.sentences(), made]) + "\n"


def _recall(cell: Cell) -> str:
    value, low, high = (f"{100 * end:.1f}" for end in cell.recall)
    return f"{value} ({low} .. {high})"


def _recall_and_lead(cell: Cell) -> str:
    lead, low, high = (f"{100 * end:+.1f}" for end in cell.lead)
    return f"{100 * cell.recall.value:.1f}; {lead} ({low} .. {high})"


_LEGEND: Mapping[Read, str] = {
    _recall: "Recall in % with its 95 % interval (Wilson's), and the number of pairs where a "
    "slow method saw fewer than the others.",
    _recall_and_lead: "Recall in %; its difference to the row that it is compared with, and the "
    "95 % interval of the difference (Agresti and Min's, on the same pairs).",
}
