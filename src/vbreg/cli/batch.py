"""`vbreg batch` registers every pair of a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from vbreg.cli.app import (
    LESS_THAN_ASKED,
    DeviceOption,
    QuietOption,
    VoxelSizeOption,
    examples,
)
from vbreg.cli.console import print_row, stdout_console
from vbreg.cli.register import (
    DescriptorOption,
    KeypointsOption,
    MatchingOption,
    MaxCorrespondencesOption,
    PresetOption,
    RefineOption,
    RetryOption,
    VerifyOption,
    WeightsOption,
    count_of,
)
from vbreg.errors import VBRegError
from vbreg.types import SURE

if TYPE_CHECKING:
    from vbreg.batch import BatchSummary

EXAMPLES = examples(
    "vbreg batch pairs.csv -o poses.csv",
    "vbreg batch pairs.csv -o poses.parquet --preset outdoor --workers 8",
    "vbreg batch pairs.jsonl -o poses.jsonl --min-probability 0.95 --device cuda",
    "vbreg batch pairs.csv -o poses.csv --require-all || echo some pairs are not sure",
    "vbreg batch pairs.parquet -o poses.parquet --engine ray --address auto",
)
MEGABYTE = 2**20

# Names that lie where torch would be loaded for `--help`; a test compares these with them.
EngineName = Literal["local", "ray"]


PairsArgument = Annotated[
    Path,
    typer.Argument(
        metavar="PAIRS",
        help="A table (.csv, .jsonl, .parquet) with the columns source and target, and, if you "
        "like, voxel_size, preset, viewpoint, gravity, guess, max_translation, max_rotation. "
        "Paths are relative to the table.",
    ),
]
OutputOption = Annotated[
    Path, typer.Option("-o", "--output", help="The table to write, with the same endings.")
]
EngineOption = Annotated[
    EngineName, typer.Option(help="This machine, or a cluster (with vbreg[scale]).")
]
WorkersOption = Annotated[
    int | None,
    typer.Option(min=1, help="Processes. Left out: one for every GPU, or for every core."),
]
AddressOption = Annotated[
    str | None,
    typer.Option(help="The Ray cluster; auto is the one that this machine belongs to."),
]
MinProbabilityOption = Annotated[
    float | None,
    typer.Option(min=0.0, max=1.0, help=f"A less probable pose is doubtful. Left out: {SURE:g}."),
]
MemoryOption = Annotated[
    int, typer.Option(metavar="MB", min=1, help="What a worker keeps of clouds it has read.")
]
OverwriteOption = Annotated[
    bool, typer.Option("--overwrite", help="Begin anew, whatever is there.")
]
RetryFailedOption = Annotated[
    bool,
    typer.Option(
        "--retry-failed",
        help="Do rows again that failed before. Left out, only those whose files have changed.",
    ),
]
RequireAllOption = Annotated[
    bool,
    typer.Option(
        "--require-all",
        help=f"Exit with {LESS_THAN_ASKED} where a row is doubtful or failed. Left out, such rows "
        "are told in the table alone, and the exit code is 0.",
    ),
]


def batch(
    pairs: PairsArgument,
    output: OutputOption,
    engine: EngineOption = "local",
    workers: WorkersOption = None,
    address: AddressOption = None,
    voxel_size: VoxelSizeOption = None,
    preset: PresetOption = None,
    device: DeviceOption = "auto",
    weights: WeightsOption = None,
    descriptor: DescriptorOption = "learned",
    keypoints: KeypointsOption = None,
    matching: MatchingOption = None,
    max_correspondences: MaxCorrespondencesOption = 8000,
    verify: VerifyOption = True,
    refine: RefineOption = None,
    retry: RetryOption = True,
    min_probability: MinProbabilityOption = None,
    memory: MemoryOption = 1024,
    overwrite: OverwriteOption = False,
    retry_failed: RetryFailedOption = False,
    require_all: RequireAllOption = False,
    quiet: QuietOption = False,
) -> None:
    """Register every pair of a table: a row in, a row out.

    Rows keep their order. The same command goes on after a stop, does rows again whose files have
    changed, and does nothing where all is done. A row that fails says why, and the others go on;
    the exit code is 0 all the same.
    """
    from vbreg.batch import BatchSettings, register_table

    if min_probability is not None and not verify:
        raise VBRegError(
            f"--min-probability {min_probability:g} with --no-verify: nothing tells how probable "
            "the poses are; leave one of them out"
        )
    settings = BatchSettings(
        weights=weights,
        descriptor=descriptor,
        keypoints=count_of(keypoints),
        matching=matching,
        max_correspondences=max_correspondences,
        verify=verify,
        refine=refine,
        retry=retry,
        voxel_size=voxel_size,
        preset=preset,
        min_probability=SURE if min_probability is None else min_probability,
        cache_bytes=memory * MEGABYTE,
    )
    done = register_table(
        pairs,
        output,
        settings=settings,
        engine=engine,
        workers=workers,
        device=device,
        address=address,
        overwrite=overwrite,
        retry_failed=retry_failed,
        quiet=quiet,
    )
    if not quiet:
        _print(stdout_console(), done)
    if require_all and done.counts.get("ok", 0) < done.rows:
        raise typer.Exit(LESS_THAN_ASKED)


def _print(console: Console, done: BatchSummary) -> None:
    """Print what was done, for people."""
    said = ", ".join(f"{count} {status}" for status, count in sorted(done.counts.items()))
    print_row(console, "pairs", f"{done.rows}: {said or 'none'}")
    if done.rows and not done.computed:
        failed = "--retry-failed does failed rows again, " if done.counts.get("failed") else ""
        said = f"{done.output}, nothing was left; {failed}--overwrite begins anew"
        print_row(console, "complete", said)
        return
    if done.computed < done.rows:
        print_row(console, "known before", str(done.rows - done.computed))
    if done.computed:
        rate = done.computed / done.seconds
        workers_said = f"{done.workers} worker{'s' * (done.workers != 1)}"
        print_row(console, "seconds", f"{done.seconds:.1f} ({rate:.2f} pairs/s, {workers_said})")
    print_row(console, "wrote", str(done.output))
