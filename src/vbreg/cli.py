"""The command line: a thin skin over `register`, with the function's own names.

Only numpy, typer and rich are loaded for `--help`; torch is loaded inside the commands.
Human text and JSON go to stdout, progress, warnings and errors to stderr.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.text import Text

from vbreg import __version__
from vbreg.errors import FileFormatError, VBRegError
from vbreg.types import Float64, PointCloud, Registration

if TYPE_CHECKING:
    from vbreg.registration import VBReg

# Below either, a pose is easily an accident. A rule of thumb from indoor pairs, not a probability.
FEW_INLIERS = 30
FEW_SHARE = 0.02  # of the correspondences
DEMO_BOUNDS = (15.0, 0.30)  # degrees and metres within which the demo counts as aligned
SPACING_SAMPLE = 2000  # points whose nearest neighbour `info` looks for


class Preset(str, Enum):
    """The names in `pretrained.PRESETS`, which is not imported for `--help`."""

    indoor = "indoor"
    outdoor = "outdoor"


def _examples(*lines: str) -> str:
    return "\n".join(["\b", "EXAMPLES", *(f"  {line}" for line in lines)])  # \b: do not rewrap


app = typer.Typer(
    name="vbreg",
    help="Align two 3D point clouds when most of the matches between them are wrong.",
    epilog=_examples(
        "vbreg demo",
        "vbreg register source.ply target.ply -o aligned.ply",
        "vbreg info scan.ply",
        "vbreg register --help",
    ),
    add_completion=False,
    rich_markup_mode=None,  # plain help: quick, narrow, and its examples keep their lines
    pretty_exceptions_enable=False,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Source = Annotated[Path, typer.Argument(metavar="SOURCE", help="The cloud to move.")]
Target = Annotated[Path, typer.Argument(metavar="TARGET", help="The cloud that stays.")]
VoxelSize = Annotated[
    float | None,
    typer.Option(
        help="The one scale that sets every radius, in the unit of the points, say 0.05. "
        "Left out: the preset's, or estimated from the clouds.",
    ),
]
PresetName = Annotated[
    Preset | None,
    typer.Option(help="Voxel size and weights for rooms (0.05 m) or streets (0.30 m)."),
]
Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", help="Write the whole source in the target's frame."),
]
JsonPath = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE", help="Write the result as JSON; - is stdout."),
]
Picture = Annotated[
    Path | None, typer.Option(help="Write a picture of before and after, .png or .jpg.")
]
Device = Annotated[str, typer.Option(help="auto (the GPU if there is one), cpu, cuda or cuda:N.")]
Weights = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FILE", help="indoor, outdoor, fast (a smaller network, for a CPU) or a file."
    ),
]
Mutual = Annotated[
    bool, typer.Option("--mutual", help="Keep only matches that are nearest both ways.")
]
MaxCorrespondences = Annotated[
    int, typer.Option(help="Thin more matches than this evenly at random.")
]
Seed = Annotated[
    int | None, typer.Option(help="Sample the latent features instead of taking their mean.")
]
Workers = Annotated[
    int,
    typer.Option(
        help="Processes that share the pairs: sooner done, but without times, since they slow "
        "each other down.",
        min=1,
    ),
]
Quiet = Annotated[
    bool, typer.Option("-q", "--quiet", help="Print nothing but warnings and errors.")
]


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print(f"vbreg {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


@app.command(
    epilog=_examples(
        "vbreg register source.ply target.ply",
        "vbreg register source.ply target.ply -o aligned.ply --picture before_after.png",
        "vbreg register source.pcd target.pcd --preset outdoor",
        "vbreg register source.ply target.ply --voxel-size 0.03 --json - | jq .T_target_source",
    )
)
def register(
    source: Source,
    target: Target,
    voxel_size: VoxelSize = None,
    preset: PresetName = None,
    output: Output = None,
    json_path: JsonPath = None,
    picture: Picture = None,
    device: Device = "auto",
    weights: Weights = None,
    mutual: Mutual = False,
    max_correspondences: MaxCorrespondences = 8000,
    seed: Seed = None,
    quiet: Quiet = False,
) -> None:
    """Find the pose of SOURCE in the frame of TARGET."""
    _check_inputs(source, target)
    _check_outputs(output, json_path, picture, keep=(source, target))
    with _progress(quiet) as stage:
        stage("start torch")
        from vbreg import io, registration

        stage("read")
        start = time.perf_counter()
        clouds = io.read(source), io.read(target)
        seconds = time.perf_counter() - start
        result = registration.register(
            *clouds,
            voxel_size=voxel_size,
            preset=preset and preset.value,
            model=_model(weights, device),
            device=device,
            mutual=mutual,
            max_correspondences=max_correspondences,
            seed=seed,
            on_stage=stage,
        )
        result = _with_reading(result, seconds)
        stage("write")
        if output is not None:
            io.write(output, _moved(clouds[0], result))
        if picture is not None:
            _draw(picture, clouds, result, f"{source.name} to {target.name}")
    if json_path is not None:
        _write_json(json_path, _as_json(result, source, target))
    if not quiet and json_path != "-":
        _print_result(result, [path for path in (output, json_path, picture) if path is not None])
    _warn_if_doubtful(result)


@app.command(epilog=_examples("vbreg info scan.ply", "vbreg info *.pcd --json"))
def info(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Clouds to look at.")],
    json_: Annotated[bool, typer.Option("--json", help="Print a JSON list instead.")] = False,
) -> None:
    """Describe clouds: points, extents, spacing, attributes."""
    _check_inputs(*files)
    with _progress(quiet=False) as stage:
        stage("start torch")
        described = []
        for path in files:
            stage(f"read {path.name}")
            described.append(_describe(path))
    if json_:
        print(json.dumps(described, indent=2))
        return
    console = Console(highlight=False)
    for index, facts in enumerate(described):
        if index:
            console.print()
        _print_facts(console, facts)


@app.command(epilog=_examples("vbreg demo", "vbreg demo --picture /tmp/demo.png --device cpu"))
def demo(
    picture: Annotated[
        Path, typer.Option(help="Where the picture of before and after goes.")
    ] = Path("vbreg_demo.png"),
    device: Device = "auto",
) -> None:
    """Align the pair of scans that comes with vbreg."""
    _check_outputs(None, None, picture)
    with _progress(quiet=False) as stage:
        stage("start torch")
        from vbreg import demo as pair
        from vbreg import registration

        source, target, T_truth = pair.load()
        result = registration.register(
            source, target, preset="indoor", device=device, on_stage=stage
        )
        stage("draw")
        _draw(picture, (source, target), result, pair.TITLE)
    degrees, metres = _pose_error(result.T_target_source, T_truth)
    _print_result(result, [picture])
    console = Console(highlight=False)
    _row(console, "true pose", f"off by {degrees:.2f} deg and {100 * metres:.1f} cm")
    if degrees > DEMO_BOUNDS[0] or metres > DEMO_BOUNDS[1]:
        _complain("warning", "the demo pair was not aligned; please report this")
        raise typer.Exit(1)


@app.command(epilog=_examples("vbreg formats"))
def formats() -> None:
    """List the file formats, by ending."""
    from vbreg.io import FORMATS

    console = Console(highlight=False)
    for row in FORMATS:
        verbs = "read, write" if row.reads and row.writes else "read" if row.reads else "write"
        extra = f"; needs pip install 'vbreg[{row.extra}]'" if row.extra else ""
        _row(console, f"{row.ending:<6}{verbs}", row.note + extra, label_width=19)


@app.command(
    epilog=_examples(
        "vbreg train configs/universal.toml -o runs/universal",
        "vbreg train configs/universal.toml -o runs/universal --minutes 30   (again: goes on)",
        "torchrun --nproc-per-node 4 -m vbreg train configs/universal.toml -o runs/universal",
        "tensorboard --logdir runs",
    )
)
def train(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A TOML file; see configs/.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder for weights, checkpoint and log.")
    ],
    minutes: Annotated[
        float | None, typer.Option(help="Stop after so long; the same command goes on.", min=0.0)
    ] = None,
    until: Annotated[
        int | None, typer.Option(help="Stop at this step, before the last.", min=1)
    ] = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Train a network on match sets, or go on with a run that was stopped."""
    from vbreg.registration import choose_device
    from vbreg.training import config as configuration
    from vbreg.training import train as run

    settings = configuration.read_config(config)
    path = run(
        settings,
        output,
        device=choose_device(device),
        minutes=minutes,
        until=until,
        quiet=quiet,
    )
    if not quiet and os.environ.get("RANK", "0") == "0":
        _row(Console(highlight=False), "wrote", str(path))


@app.command(
    epilog=_examples(
        "vbreg methods",
        "vbreg benchmark synthetic --methods vbreg,sc2pcr,mac --limit 10 -o out/synthetic",
    )
)
def methods() -> None:
    """List the compared methods and what each needs."""
    from vbreg.methods import METHODS, available

    console = Console(highlight=False)
    for entry in METHODS.values():
        note = entry.about + f" ({entry.paper}). Needs {entry.needs}; runs on {entry.device}"
        if not available(entry.name):
            how = f"pip install 'vbreg[{entry.extra}]'" if entry.extra else f"see {entry.build}"
            note += f"; not installed: {how}"
        _row(console, entry.name, note, label_width=17)


@app.command(
    epilog=_examples(
        "vbreg benchmark 3dmatch --root DATA/3dmatch --methods vbreg,sc2pcr,ransac -o out/3dmatch",
        "vbreg benchmark 3dlomatch --root DATA --descriptor npz:fcgf --points 1000 -o out/lo",
        "vbreg benchmark kitti --root DATA/kitti/dev --methods vbreg -o out/kitti",
        "vbreg benchmark my_scans --voxel-size 0.02 --limit 20 -o out/mine",
        "vbreg benchmark synthetic --limit 20 -o out/synthetic",
    )
)
def benchmark(
    context: typer.Context,
    dataset: Annotated[
        str,
        typer.Argument(
            metavar="DATASET",
            help="3dmatch, 3dlomatch, kitti, synthetic, or a folder of clouds with poses.txt.",
        ),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder for poses, tables and pictures.")
    ],
    root: Annotated[
        Path | None, typer.Option(help="Where the data set lies, in any of its usual layouts.")
    ] = None,
    methods: Annotated[
        str, typer.Option(help="Names with commas between; `vbreg methods` lists them.")
    ] = "vbreg,sc2pcr,ransac",
    descriptor: Annotated[
        str,
        typer.Option(
            help="fpfh (computed here), npz:NAME (stored beside the clouds, say npz:fcgf), or "
            "learned (matches stored in learned_matches)."
        ),
    ] = "fpfh",
    points: Annotated[
        int | None, typer.Option(help="Sample so many keypoints a cloud before matching.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="The first so many pairs.", min=1)] = None,
    every: Annotated[int, typer.Option(help="Every n-th pair.", min=1)] = 1,
    scenes: Annotated[str | None, typer.Option(help="Only these, with commas between.")] = None,
    voxel_size: VoxelSize = None,
    seed: Annotated[int, typer.Option(help="For sampling points and for random methods.")] = 0,
    workers: Workers = 1,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Run methods on the same matches of many pairs, and report how often each is right.

    Poses are kept in the output folder as they are found: the same command goes on after a stop.
    """
    from vbreg.benchmark.predict import predict
    from vbreg.benchmark.problems import Settings
    from vbreg.benchmark.report import terminal_table, write_report
    from vbreg.benchmark.score import score

    settings = Settings.of(
        dataset, descriptor=descriptor, points=points, voxel_size=voxel_size, seed=seed
    )
    names = [name.strip() for name in methods.split(",") if name.strip()]
    pairs = predict(
        settings,
        names,
        output,
        root=root,
        device=device,
        limit=limit,
        every=every,
        scenes=scenes.split(",") if scenes else None,
        workers=workers,
        quiet=quiet,
    )
    rows = score(output, names, pairs)
    command = "vbreg " + shlex.join(context.obj)
    page = write_report(output, rows, settings, command)
    if not quiet:
        console = Console(highlight=False)
        console.print(terminal_table(rows, settings))
        _row(console, "wrote", str(page.with_suffix(".html")))


class Experiment(str, Enum):
    """What of the paper to repeat."""

    table1 = "table1"
    table2 = "table2"
    table3 = "table3"
    figures = "figures"
    theorem1 = "theorem1"


@app.command(
    epilog=_examples(
        "vbreg experiment table1 --root DATA -o out/table1",
        "vbreg experiment table2 --root DATA -o out/table2 --methods vbreg,sc2pcr --every 4",
        "vbreg experiment table3 --root DATA -o out/table3 --weights runs/ablation",
        "vbreg experiment theorem1 --root DATA -o out/theorem1 --every 10",
    )
)
def experiment(
    context: typer.Context,
    name: Annotated[
        Experiment,
        typer.Argument(
            metavar="NAME", help="table1, table2, table3 (ablations), figures or theorem1."
        ),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder for tables, pictures and poses.")
    ],
    root: Annotated[
        Path, typer.Option(help="Folder with 3dmatch and kitti in any of their layouts.")
    ],
    methods: Annotated[
        str | None,
        typer.Option(help="For table1 and table2; left out: all that are installed."),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(help="For table3: folder of the networks of configs/ablation."),
    ] = None,
    training: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=DIR[,DIR]",
            help="For figures: folders of `vbreg train`, those of one run with commas between.",
        ),
    ] = None,
    every: Annotated[int, typer.Option(help="Every n-th pair.", min=1)] = 1,
    seed: Annotated[int, typer.Option(help="For sampling points and for random methods.")] = 0,
    workers: Workers = 1,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Repeat an experiment of the paper. Tables go on where they were stopped."""
    from vbreg.experiments.recipes import run
    from vbreg.experiments.tables import Runs

    command = "vbreg " + shlex.join(context.obj)
    page = run(
        name.value,
        root,
        Runs(output, command, device, every, seed, workers, quiet),
        methods=methods.split(",") if methods else None,
        weights=weights,
        training=_named_folders(training or []),
    )
    if not quiet:
        _row(Console(highlight=False), "wrote", str(page))


def _named_folders(values: Sequence[str]) -> dict[str, list[Path]]:
    """NAME=DIR[,DIR] ... as a mapping."""
    named = {}
    for value in values:
        name, equals, folders = value.partition("=")
        if not (name and equals and folders):
            raise VBRegError(f"--training {value!r}: expected NAME=DIR or NAME=DIR,DIR")
        named[name] = [Path(folder) for folder in folders.split(",")]
    return named


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: a user's error is one line and exit code 2, Ctrl-C is exit code 130."""
    # Read when torch is loaded: threads that wait for each other sleep instead of spinning, which
    # beside other work on the same cores is the difference between seconds and minutes. GNU's
    # (Linux) spin for a moment first, so that short operations need not wake them every time.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    try:
        given = list(sys.argv[1:] if arguments is None else arguments)
        app(given, prog_name="vbreg", obj=given)
    except (VBRegError, FileNotFoundError, PermissionError, IsADirectoryError) as error:
        _complain("error", str(error))
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


# Before the work: what can fail at once does.


def _check_inputs(*paths: Path) -> None:
    from vbreg.io import FORMATS

    endings = [row.ending for row in FORMATS if row.reads]
    for path in paths:
        if not path.exists():
            raise FileFormatError(f"{path}: no such file; check the spelling")
        _check_ending(path, endings)


def _check_outputs(
    output: Path | None,
    json_path: str | None,
    picture: Path | None,
    keep: Sequence[Path] = (),
) -> None:
    """Endings, folders, missing packages, and that no input is about to be written over."""
    from vbreg import io, render

    if output is not None:
        rows = [row for row in io.FORMATS if row.writes]
        _check_ending(output, [row.ending for row in rows])
        if any(row.extra for row in rows if row.ending == output.suffix.lower()):
            with tempfile.TemporaryDirectory() as folder:  # fails here if a package is missing
                io.write(Path(folder) / f"probe{output.suffix}", PointCloud(np.zeros((1, 3))))
    if picture is not None:
        _check_ending(picture, render.ENDINGS)
    written = [output, picture]
    if json_path not in (None, "-"):
        written.append(Path(str(json_path)))
        _check_ending(Path(str(json_path)), [".json"])
    for path in written:
        if path is None:
            continue
        if any(path.exists() and path.samefile(kept) for kept in keep):
            raise FileFormatError(f"{path} is an input: choose another name for the result")
        if not path.parent.is_dir():
            raise FileFormatError(f"{path}: the folder {path.parent} does not exist; create it")
        if path.is_dir() or not os.access(path.parent, os.W_OK):
            raise FileFormatError(f"cannot write {path}: choose a file in a folder of yours")


def _check_ending(path: Path, endings: Sequence[str]) -> None:
    if path.suffix.lower() not in endings:
        raise FileFormatError(
            f"{path}: unknown ending '{path.suffix}', expected one of {', '.join(endings)}"
        )


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[str], None]]:
    """A line on the terminal that names the stage and counts seconds, gone when it is over."""
    console = Console(stderr=True)
    if quiet or not console.is_interactive:
        yield lambda stage: None
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn("line"), TimeElapsedColumn(), TextColumn("{task.description}")
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda stage: bar.update(task, description=stage)


# The work around `register`.


def _model(weights: str | None, device: str) -> VBReg | None:
    if weights is None:
        return None
    from vbreg.registration import VBReg

    return VBReg.from_pretrained(weights, device=device)


def _with_reading(result: Registration, seconds: float) -> Registration:
    """The files were read here, not inside `register`: count that to the stage 'read'."""
    timings = {**result.timings, "read": result.timings.get("read", 0.0) + seconds}
    return replace(result, timings=timings)


def _moved(cloud: PointCloud, result: Registration) -> PointCloud:
    """The cloud under the pose; normals turn with it, other attributes stay."""
    attributes = dict(cloud.attributes)
    names = [next((n for n in attributes if n.lower() == axis), "") for axis in ("nx", "ny", "nz")]
    if all(names):
        normals = np.stack([attributes[name] for name in names], axis=1)
        turned = normals @ result.T_target_source[:3, :3].T
        for name, column in zip(names, turned.T, strict=True):
            attributes[name] = column.astype(attributes[name].dtype)
    finite = np.isfinite(cloud.points).all(axis=1)
    points = cloud.points.copy()
    points[finite] = result.transform(points[finite])
    return PointCloud(points, attributes)


def _draw(
    path: Path, clouds: tuple[PointCloud, PointCloud], result: Registration, title: str
) -> None:
    from vbreg.render import before_after

    before_after(clouds[0].points, clouds[1].points, result.T_target_source, path, title)


def _pose_error(T_estimate: Float64, T_truth: Float64) -> tuple[float, float]:
    """Degrees, and length in the unit of the poses."""
    import torch

    from vbreg.metrics import pose_error

    error = pose_error(torch.from_numpy(T_estimate), torch.from_numpy(T_truth))
    return float(error.rotation), float(error.translation)


def _describe(path: Path) -> dict[str, Any]:
    """What `info` says about a file."""
    import torch
    from scipy.spatial import cKDTree

    from vbreg import io
    from vbreg.clouds import estimate_voxel_size

    cloud = io.read(path)
    points = cloud.points[np.isfinite(cloud.points).all(axis=1)]
    facts: dict[str, Any] = {"file": str(path), "points": len(cloud), "finite": len(points)}
    if len(points) >= 3:
        low, high = points.min(axis=0), points.max(axis=0)
        local = torch.from_numpy((points - points.mean(axis=0)).astype(np.float32))
        sample = points[:: max(1, len(points) // SPACING_SAMPLE)]
        distance = np.asarray(cKDTree(points, balanced_tree=False).query(sample, k=2)[0])
        facts |= {
            "low": low.tolist(),
            "high": high.tolist(),
            "extents": (high - low).tolist(),
            "median_spacing": float(np.median(distance[:, 1])),
        }
        with suppress(VBRegError):  # points in one place have no scale
            facts["suggested_voxel_size"] = float(estimate_voxel_size(local, local))
    facts["attributes"] = {
        name: f"{values.dtype}{list(values.shape[1:]) or ''}"
        for name, values in cloud.attributes.items()
    }
    return facts


def _as_json(result: Registration, source: Path, target: Path) -> dict[str, Any]:
    T = result.T_target_source
    return {
        "version": __version__,
        "source": str(source),
        "target": str(target),
        "T_target_source": T.tolist(),
        "rotation_deg": _pose_error(T, np.eye(4))[0],
        "translation": T[:3, 3].tolist(),
        "inlier_count": int(result.inlier_count),
        "correspondences": len(result.correspondences),
        "matches_found": result.matches_found,
        "score": float(result.score),
        "determined": bool(result.determined),
        "voxel_size": result.voxel_size,
        "voxel_size_estimated": result.voxel_size_estimated,
        "inlier_threshold": result.inlier_threshold,
        "points_read": result.points_read,
        "points_dropped": result.points_dropped,
        "timings": dict(result.timings),
    }


def _write_json(path: str, content: Mapping[str, Any]) -> None:
    text = json.dumps(content, indent=2)
    if path == "-":
        print(text)
        return
    from vbreg.io import atomic_path

    with atomic_path(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


# What a person reads. ASCII only: it survives every terminal and every pipe.


def _print_result(result: Registration, written: Sequence[Path | str]) -> None:
    console = Console(highlight=False)
    T = result.T_target_source
    angle, length = _pose_error(T, np.eye(4))
    matches, inliers = len(result.correspondences), int(result.inlier_count)
    thinned = result.matches_found - matches
    origin = ", estimated from the clouds" if result.voxel_size_estimated else ""
    console.print(Text("T_target_source", style="bold"), end=" ")
    console.print("maps SOURCE points into TARGET's frame")
    console.print(Text(_matrix(T), style="cyan"), soft_wrap=True)
    _row(console, "rotation", f"{angle:.2f} deg")
    _row(console, "translation", f"{length:.4g}")
    share = f"{inliers} of {matches} correspondences ({100 * inliers / max(matches, 1):.1f} %)"
    _row(console, "inliers", share + (f", thinned from {result.matches_found}" * (thinned > 0)))
    _row(console, "score", f"{float(result.score):.3f}")
    _row(console, "voxel size", f"{result.voxel_size:g}{origin}")
    for role, dropped in zip(("source", "target"), result.points_dropped, strict=True):
        if dropped:
            _row(console, "dropped", f"{dropped} non-finite points of {role}")
    _row(console, "seconds", f"{sum(result.timings.values()):.2f}")
    _print_timings(console, result.timings)
    for path in written:
        _row(console, "wrote", str(path))


def _matrix(T: Float64) -> str:
    cells = [[f"{value:.6f}" for value in row] for row in T]
    width = max(len(cell) for row in cells for cell in row)
    return "\n".join("  " + "  ".join(cell.rjust(width) for cell in row) for row in cells)


def _print_timings(console: Console, timings: Mapping[str, float]) -> None:
    """Stages in as many columns as the terminal has room for."""
    width = max((len(stage) for stage in timings), default=0)
    cells = [f"{stage:<{width}} {seconds:6.2f}" for stage, seconds in timings.items()]
    columns = max(1, (min(console.width, 80) - 2) // (width + 10))
    for start in range(0, len(cells), columns):
        line = "   ".join(cells[start : start + columns])
        console.print(Text(f"  {line}", style="dim"), soft_wrap=True)


def _print_facts(console: Console, facts: Mapping[str, Any]) -> None:
    console.print(Text(facts["file"], style="bold"), soft_wrap=True)
    missing = facts["points"] - facts["finite"]
    _row(console, "points", f"{facts['points']}" + (f", {missing} not finite" if missing else ""))
    if "extents" in facts:
        for label in ("low", "high", "extents"):
            _row(console, label, "  ".join(f"{value:.3f}" for value in facts[label]))
        _row(console, "spacing", f"{facts['median_spacing']:.4g} (median to the nearest point)")
    if "suggested_voxel_size" in facts:
        _row(console, "voxel size", f"{facts['suggested_voxel_size']:.4g} suggested")
    attributes = ", ".join(f"{name} {kind}" for name, kind in facts["attributes"].items())
    _row(console, "attributes", attributes or "none")


def _row(console: Console, label: str, value: str, label_width: int = 13) -> None:
    """A label and its value, wrapped beside the label on a terminal and whole in a pipe."""
    width = max(24, console.width - label_width) if console.is_terminal else 10_000
    lines = textwrap.wrap(value, width, break_long_words=False, break_on_hyphens=False)
    text = Text(f"{label:<{label_width}}", style="bold")
    text.append(f"\n{'':<{label_width}}".join(lines), style="not bold")
    console.print(text, soft_wrap=True)


def _warn_if_doubtful(result: Registration) -> None:
    inliers, matches = int(result.inlier_count), len(result.correspondences)
    if not bool(result.determined):
        _complain(
            "warning",
            "the matches do not fix all six degrees of freedom; do not rely on this pose",
        )
    elif inliers < max(FEW_INLIERS, FEW_SHARE * matches):
        _complain(
            "warning",
            f"only {inliers} of {matches} matches agree with this pose, and clouds that do not "
            "overlap can reach that by chance; look at --picture, or try another --voxel-size",
        )


def _complain(kind: str, message: str) -> None:
    """One line on stderr."""
    line = Text(f"vbreg: {kind}: ", style="bold red" if kind == "error" else "bold yellow")
    line.append(" ".join(message.split()), style="not bold default")
    Console(stderr=True, highlight=False).print(line, soft_wrap=True)


if __name__ == "__main__":
    main()
