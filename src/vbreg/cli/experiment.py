"""`vbreg experiment` repeats an experiment of the paper."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from vbreg.cli.app import (
    DeviceOption,
    EveryOption,
    QuietOption,
    SamplingSeedOption,
    WorkersOption,
    command_line,
    examples,
)
from vbreg.cli.benchmark import names_of
from vbreg.cli.console import print_row, stdout_console
from vbreg.errors import VBRegError

EXAMPLES = examples(
    "vbreg experiment table1 --root DATA -o out/table1 --every-slow 8 --workers 15",
    "vbreg experiment table1 --root DATA -o out/table1 --datasets 3dlomatch --descriptors fpfh",
    "vbreg experiment table2 --root DATA -o out/table2 --methods vbreg,sc2pcr --every 4",
    "vbreg experiment table3 --root DATA -o out/table3 --weights runs/ablation",
    "vbreg experiment theorem1 --root DATA -o out/theorem1 --every 10",
)

# The names in `recipes.NAMES`, which would load torch for `--help`; a test compares the two.
ExperimentName = Literal["table1", "table2", "table3", "figures", "theorem1"]

NameArgument = Annotated[
    ExperimentName,
    typer.Argument(metavar="NAME", help="table1, table2, table3 (ablations), figures or theorem1."),
]
OutputOption = Annotated[
    Path, typer.Option("-o", "--output", help="Folder for tables, pictures and poses.")
]
RootOption = Annotated[
    Path, typer.Option(help="Folder with 3dmatch and kitti in any of their layouts.")
]
MethodsOption = Annotated[
    str | None, typer.Option(help="For table1 and table2; left out: all that are installed.")
]
DatasetsOption = Annotated[
    str | None,
    typer.Option(
        help="For table1: some of 3dmatch, 3dlomatch, kitti_10_m and kitti_20_m, with commas "
        "between."
    ),
]
DescriptorsOption = Annotated[
    str | None,
    typer.Option(
        help="For table1 and table2: some of fpfh, open3d_fpfh, learned, fcgf, stored_matches and, "
        "for table1, as_register (the learned one, matched as `vbreg.register` does), with commas "
        "between."
    ),
]
EverySlowOption = Annotated[
    int,
    typer.Option(
        help="For table1 and table2: of these pairs every n-th, for MAC, TEASER++ and TR_DE, "
        "where there are more than 200.",
        min=1,
    ),
]
WeightsOption = Annotated[
    Path | None, typer.Option(help="For table3: folder of the networks of configs/ablation.")
]
TrainingOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=DIR[,DIR]",
        help="For figures: folders of `vbreg train`, those of one run with commas between.",
    ),
]


def experiment(
    context: typer.Context,
    name: NameArgument,
    output: OutputOption,
    root: RootOption,
    methods: MethodsOption = None,
    datasets: DatasetsOption = None,
    descriptors: DescriptorsOption = None,
    weights: WeightsOption = None,
    training: TrainingOption = None,
    every: EveryOption = 1,
    every_slow: EverySlowOption = 1,
    seed: SamplingSeedOption = 0,
    workers: WorkersOption = 1,
    device: DeviceOption = "auto",
    quiet: QuietOption = False,
) -> None:
    """Repeat an experiment of the paper. Tables go on where they were stopped."""
    from vbreg.experiments.recipes import run
    from vbreg.experiments.tables import Choice, Runs

    page = run(
        name,
        root,
        Runs(output, command_line(context), device, every, every_slow, seed, workers, quiet),
        methods=names_of(methods) if methods else None,
        choice=Choice(*(names_of(text) if text else None for text in (datasets, descriptors))),
        weights=weights,
        training=_named_folders(training or []),
    )
    if not quiet:
        print_row(stdout_console(), "wrote", str(page))


def _named_folders(values: Sequence[str]) -> dict[str, list[Path]]:
    """Parse each NAME=DIR[,DIR] into a name and its folders."""
    named = {}
    for value in values:
        name, equals, folders = value.partition("=")
        if not (name and equals and folders):
            raise VBRegError(f"--training {value!r}: expected NAME=DIR or NAME=DIR,DIR")
        named[name] = [Path(folder) for folder in folders.split(",")]
    return named
