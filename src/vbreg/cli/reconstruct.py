"""`vbreg reconstruct` puts all scans of a folder into one frame."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from vbreg.cli.app import (
    LESS_THAN_ASKED,
    CoordinatesOption,
    DeviceOption,
    QuietOption,
    VoxelSizeOption,
    command_line,
    examples,
)
from vbreg.cli.checks import check_outputs
from vbreg.cli.console import collected_warnings, complain, print_row, stdout_console
from vbreg.cli.register import DescriptorOption, PresetOption, WeightsOption
from vbreg.errors import VBRegError
from vbreg.progress import progress
from vbreg.types import in_percent

if TYPE_CHECKING:
    from vbreg.scenes import Reconstruction

MAX_LISTED = 10  # doubtful edges, or scans that do not connect, that are printed

EXAMPLES = examples(
    "vbreg reconstruct scans/ -o scene.ply",
    "vbreg reconstruct scans/ -o scene.ply --report scene.html --poses poses.json",
    "vbreg reconstruct scans/ --poses poses.tum --poses graph.g2o",
    "vbreg reconstruct drive/ -o map.ply --preset outdoor --thin 0.1",
    "vbreg reconstruct scans/ -o scene.ply --all-components    # scene-2.ply, scene-3.ply, ...",
    "vbreg reconstruct scans/ -o scene.ply --require-all || echo some scans do not connect",
)


FolderArgument = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="The scans: every cloud in it, in any order.")
]
OutputOption = Annotated[
    Path | None,
    typer.Option("-o", "--output", help="Write the largest component as one cloud."),
]
PosesOption = Annotated[
    list[Path] | None,
    typer.Option(
        help="Write the poses: .json (with edges and doubts), .tum or .txt (TUM), .g2o. "
        "May be given several times."
    ),
]
ReportOption = Annotated[
    Path | None,
    typer.Option(help="Write a page with the scene, pair matrix, graph and doubtful edges, .html."),
]
AllComponentsOption = Annotated[
    bool,
    typer.Option(
        "--all-components", help="Write the other components, too, each to a file of its own."
    ),
]
ThinOption = Annotated[
    float | None,
    typer.Option(help="Keep one point a voxel of this size of each scan in what is written."),
]
PairShareOption = Annotated[
    float | None,
    typer.Option(
        help="As many registrations as this share of all pairs, at most; pairs that are tried "
        "again count again. Above 0 and at most 1. Left out: 0.25, or 56 registrations where that "
        "is more.",
    ),
]
RefineScansOption = Annotated[
    bool,
    typer.Option(
        "--refine/--no-refine", help="Lay overlapping scans onto each other at the end, or not."
    ),
]
WorkOption = Annotated[
    Path | None,
    typer.Option(
        help="A folder for results of pairs: the same command goes on where it was ended. Left "
        "out: OUTPUT_pairs beside the output; without -o nothing is kept.",
    ),
]
RequireAllOption = Annotated[
    bool,
    typer.Option("--require-all", help=f"Exit with {LESS_THAN_ASKED} where not all scans connect."),
]


def reconstruct(
    context: typer.Context,
    folder: FolderArgument,
    output: OutputOption = None,
    poses: PosesOption = None,
    report: ReportOption = None,
    all_components: AllComponentsOption = False,
    thin: ThinOption = None,
    voxel_size: VoxelSizeOption = None,
    preset: PresetOption = None,
    pair_share: PairShareOption = None,
    refine: RefineScansOption = True,
    work: WorkOption = None,
    require_all: RequireAllOption = False,
    device: DeviceOption = "auto",
    weights: WeightsOption = None,
    descriptor: DescriptorOption = "learned",
    coordinates: CoordinatesOption = None,
    quiet: QuietOption = False,
) -> None:
    """Put all scans of FOLDER into one frame.

    Their poses are found from the scans alone, in any order. Scans that do not connect to the
    others are listed, and stay in frames of their own.
    """
    files = _check(folder, [output] if output else [], poses or [], report, work, thin)
    from vbreg import scenes

    if work is None and output is not None:
        work = output.with_name(f"{output.stem}_pairs")
    with progress(quiet) as tell:
        found = scenes.reconstruct(
            files,
            voxel_size=voxel_size,
            preset=preset,
            weights=weights,
            descriptor=descriptor,
            device=device,
            pair_share=pair_share,
            refine=refine,
            work=work,
            on_progress=tell,
        )
        written = _write_poses(found, poses or [])
        if output is not None:
            count = len(found.components) if all_components else 1
            written += _write_clouds(output, files, found, count, thin, coordinates, tell)
        if report is not None:
            written += _write_report(report, found, files, command_line(context))
    if not quiet:
        _print(stdout_console(), found, written, work)
    warn_of_scene(found)
    if require_all and len(found.components) > 1:
        raise typer.Exit(LESS_THAN_ASKED)


def _check(
    folder: Path,
    clouds: Sequence[Path],
    poses: Sequence[Path],
    report: Path | None,
    work: Path | None,
    thin: float | None,
) -> list[Path]:
    """Return the files of the folder; raise where an option is wrong, before any work begins."""
    from vbreg import io
    from vbreg.inputs import positive_number
    from vbreg.scenes.reconstruction import scan_files

    if not clouds and not poses and report is None:
        raise VBRegError("nothing to write: give -o scene.ply, --poses poses.json or --report")
    if thin is not None:
        positive_number(thin, "--thin")
    if work is not None and work.exists() and not work.is_dir():
        raise VBRegError(f"--work {work} is a file: expected a folder, or a name that is free")
    files = scan_files(folder)
    check_outputs(clouds=clouds, poses=poses, report=report, inputs=files)
    endings = {row.ending for row in io.FORMATS if row.reads}
    for path in (*clouds, *poses):
        if path.suffix.lower() in endings and path.parent.samefile(folder):
            raise VBRegError(
                f"{path} would lie among the scans, and the next run would take it for one of "
                "them: choose another folder for it"
            )
    return files


def _write_poses(found: Reconstruction, paths: Sequence[Path]) -> list[Path]:
    from vbreg.scenes.outputs import write_scene_poses

    for path in paths:
        write_scene_poses(path, found)
    return list(paths)


def _write_clouds(
    output: Path,
    files: Sequence[Path],
    found: Reconstruction,
    count: int,
    thin: float | None,
    coordinates: Any,
    tell: Callable[[str, int, int], None],
) -> list[Path]:
    """Write the first so many components: the largest as asked for, others with their number."""
    from vbreg import io
    from vbreg.scenes.outputs import merged_component

    rest = [output.with_name(f"{output.stem}-{c + 1}{output.suffix}") for c in range(1, count)]
    for c, path in enumerate([output, *rest]):
        with collected_warnings() as said:
            told = partial(_told, tell, found, c)
            cloud = merged_component(files, found, c, thin=thin, on_done=told)
        for warning in said:
            complain("warning", f"{path}: {warning}")
        io.write(path, cloud, coordinates=coordinates)
    return [output, *rest]


def _told(
    tell: Callable[[str, int, int], None], found: Reconstruction, component: int, done: int
) -> None:
    tell("merge", done, len(found.components[component]))


def _write_report(
    path: Path, found: Reconstruction, files: Sequence[Path], command: str
) -> list[Path]:
    from vbreg.scenes.report import write_scene_report

    write_scene_report(path, found, files, command)
    return [path]


def _print(
    console: Console, found: Reconstruction, written: Sequence[Path], work: Path | None
) -> None:
    """Print what was found, for people."""
    print_row(console, "scans", str(len(found)))
    print_row(console, "components", found.components_in_words)
    print_row(console, "pairs", found.pairs_in_words)
    print_row(console, "edges", found.edges_in_words)
    print_row(console, "voxel size", f"{found.voxel_size:g}{_origin_in_words(found, work)}")
    for edge in found.doubtful[:MAX_LISTED]:
        ends = f"{found.names[edge.source]} - {found.names[edge.target]}"
        print_row(console, "doubtful", f"{ends}: {edge.doubt} ({in_percent(edge.probability)})")
    for path in written:
        print_row(console, "wrote", str(path))
    if work is not None:
        print_row(console, "pairs in", f"{work} (delete it when you are done)")


def _origin_in_words(found: Reconstruction, work: Path | None) -> str:
    """Return where a voxel size that nobody gave comes from."""
    if found.size_origin == "kept":
        return f" (estimated by an earlier run, and kept in {work})"
    if found.size_origin == "estimated" and work is not None:
        return f" (estimated, and kept in {work} for the next run)"
    return " (estimated)" if found.size_origin == "estimated" else ""


def warn_of_scene(found: Reconstruction) -> None:
    """Say which scans do not connect, and which components almost did."""
    from vbreg.scenes.results import counted

    if len(found.components) < 2:
        return
    apart = [found.names[k] for members in found.components[1:] for k in members]
    listed = ", ".join(apart[:MAX_LISTED]) + (", ..." if len(apart) > MAX_LISTED else "")
    complain(
        "warning",
        f"not connected to the largest component: {listed} ({len(apart)} of "
        f"{counted(len(found), 'scan')}); each component is in a frame of its own",
    )
    for join in found.refused[:MAX_LISTED]:
        complain(
            "warning",
            f"components {join.groups[0] + 1} and {join.groups[1] + 1} were not joined: "
            f"{counted(len(join.edges), 'pair')} for the best pose between them, but others "
            "contradict it; more scans in between would help",
        )
